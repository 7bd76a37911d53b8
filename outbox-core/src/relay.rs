//! Claims, publishes and settles until it is told to stop.
//!
//! A relay has a few workers, each a task that claims a batch, hands it to the publisher and settles
//! what became of it. What a failure means for a message and its key is decided in `order.rs`; this
//! module gives that its time, its tasks and its log.
//!
//! - Under load the workers claim side by side. With nothing to do one of them has the *turn* and
//!   waits for messages; it passes the turn on as soon as it has some, so that a burst wakes all.
//! - In an outage, and while the store fails, one worker at a time tries, with back-off, and holds the
//!   turn until its batch is settled. The first batch after an outage began holds one message, and the
//!   size doubles with each success. A rejection ends no outage, since adapters reject by themselves
//!   what their broker cannot carry, nor does another answer [without the broker]: it makes the next
//!   batch larger, without a pause, until one has a message that the broker answers.
//! - A worker never dies: a panic of the publisher is a failure of the messages that it had not
//!   answered, a panic of the store is a store error.
//!
//! [without the broker]: crate::PublishError::without_broker
//!
//! # What bounds it
//!
//! | what | bound |
//! | --- | --- |
//! | memory | `workers` × `batch_bytes` (or one larger message each), and `workers` × `batch_messages` |
//! | waiting for messages | `claim_wait`, and `store_timeout` beyond it until the store answers |
//! | publishing one claim | `publish_timeout`; no wave starts in its second half |
//! | settling one claim | `settle_timeout` |
//! | holding one claim | `publish_timeout` + `settle_timeout`, which the store is told |
//! | time between two tries in an outage | `backoff_longest` |
//! | stopping | `stop_grace` + `settle_timeout` |
//!
//! # What it tells
//!
//! Metrics, through the `metrics` crate; payloads, keys and headers are never told:
//!
//! | name | kind | what |
//! | --- | --- | --- |
//! | `outbox_messages_claimed_total` | counter | messages claimed |
//! | `outbox_messages_published_total` | counter | messages that the broker confirmed, repeats included |
//! | `outbox_publish_failures_total` | counter | answers other than a confirmation, by `kind`; `unanswered` where there was none |
//! | `outbox_publisher_panics_total` | counter | panics of the publisher |
//! | `outbox_messages_delivered_total` | counter | messages settled as delivered |
//! | `outbox_messages_parked_total` | counter | messages parked, or put behind a parked one |
//! | `outbox_messages_dead_total` | counter | messages given up |
//! | `outbox_messages_released_total` | counter | messages released |
//! | `outbox_store_errors_total` | counter | errors of the store, by what it was `doing` |
//! | `outbox_batch_messages` | histogram | messages of one claim |
//! | `outbox_batch_waves` | histogram | waves of one claim |
//! | `outbox_claim_seconds` | histogram | one claim that found something, its waiting included |
//! | `outbox_publish_seconds` | histogram | publishing of one claim |
//! | `outbox_settle_seconds` | histogram | settling of one claim |
//! | `outbox_outage` | gauge | 1 in an outage, 0 otherwise |
//! | `outbox_broker_outage` | gauge | the same of one of several brokers behind a [`Router`](crate::Router), by the name of the `broker` |
//!
//! Through `tracing`: a warning when an outage or trouble of the store begins and one line when it
//! ends; a warning for each dead message with its id, topic and reason; the rest at debug level, in a
//! span `batch` for each claim.
//!
//! Through OpenTelemetry, with the feature `otel`: a span `publish` for each wave that has a message of a
//! sampled trace, with links to at most 128 of the spans that enqueued its messages. It goes to the process's
//! tracer provider, `opentelemetry::global`.
//!
//! Not here: how a message is stored, found or waited for ([`Store`]), and what a broker's answer
//! means ([`Publisher`]).
//!
//! Where to read next: `relay/worker.rs` for the loop, `relay/batch.rs` for one claim's publishing,
//! `relay/span.rs` for its span, `relay/health.rs` for outages, `relay/monitor.rs` for what a watcher may ask.

mod batch;
mod config;
mod health;
mod monitor;
#[cfg(feature = "otel")]
mod span;
mod stop;
pub(crate) mod telemetry;
mod worker;

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::{Publisher, Store};
use config::Settings;
pub(crate) use config::check;
pub use config::{InvalidConfig, RelayBuilder};
pub use monitor::RelayMonitor;
use stop::Stop;
use worker::{Shared, Worker};

/// Delivers what a [`Store`] holds through a [`Publisher`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use outbox_core::memory::{MemoryPublisher, MemoryStore};
/// use outbox_core::{Message, Relay};
///
/// let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
/// store.enqueue(&[Message::to("orders.placed").key(7).json("seven")?]);
///
/// let relay = Relay::builder(store, publisher.clone()).workers(2).build()?;
/// relay
///     .run_until(async { drop(publisher.wait_for(1, Duration::from_secs(5)).await) })
///     .await;
/// assert_eq!(publisher.published().len(), 1);
/// # Ok(()) }
/// ```
pub struct Relay {
    store: Arc<dyn Store>,
    publisher: Arc<dyn Publisher>,
    settings: Settings,
    monitor: RelayMonitor,
}

impl Relay {
    /// Starts a relay from `store` to `publisher`, with the defaults of [`RelayBuilder`].
    pub fn builder(store: impl Store, publisher: impl Publisher) -> RelayBuilder {
        RelayBuilder::new(Arc::new(store), Arc::new(publisher))
    }

    /// What this relay is at, to be asked while it runs.
    pub fn monitor(&self) -> RelayMonitor {
        self.monitor.clone()
    }

    /// Runs until `signal` ends. No store error, broker error or panic ends it earlier.
    ///
    /// After the signal nothing is claimed and no wave starts; a wave that is in flight has
    /// `stop_grace` left. What was confirmed is settled, the rest released. It returns at the latest
    /// `stop_grace` + `settle_timeout` after the signal.
    ///
    /// Needs a tokio runtime with time. The workers are tasks of their own, so that on a
    /// multi-threaded runtime they run in parallel.
    ///
    /// # Cancellation
    ///
    /// Dropping the future ends the workers at their next await, as if the process had been killed:
    /// what they hold is released, and what the broker took meanwhile is delivered again.
    pub async fn run_until(self, signal: impl Future<Output = ()>) {
        telemetry::describe();
        let workers = self.settings.workers;
        let shared = Arc::new(Shared::new(
            self.settings,
            self.store,
            self.publisher,
            self.monitor,
        ));
        let stop = Stop::default();
        let mut tasks = JoinSet::new();
        for _ in 0..workers {
            tasks.spawn(Worker::new(Arc::clone(&shared), stop.clone()).run());
        }
        tracing::debug!(workers, "the relay runs");
        signal.await;
        tracing::debug!("the relay stops");
        stop.request();
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a worker died");
            }
        }
        tracing::debug!("the relay has stopped");
    }
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").finish_non_exhaustive()
    }
}
