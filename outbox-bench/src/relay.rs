//! The real relay over an outbox, until a backlog is at its end.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use outbox_core::{Delivery, OrderMode, Publisher, Relay, async_trait};
use outbox_postgres::Outbox;
use serde::Serialize;
use tokio::sync::Notify;

use crate::Result;
use crate::measure::{Clock, Measured, none_left};
use crate::setup::{Database, Shape, Workload};

/// A phase that takes longer than this has lost something.
const PATIENCE: Duration = Duration::from_secs(1800);

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    PerKey,
    PerKeyPipelined,
}

/// What waits, and with how much it is delivered.
#[derive(clap::Args, Serialize)]
pub(crate) struct Backlog {
    /// How many messages wait.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    messages: u32,
    #[command(flatten)]
    #[serde(flatten)]
    shape: Shape,
    /// Workers of the relay and of what it is compared with.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    /// The most messages of one claim.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,
}

impl Backlog {
    pub(crate) fn workload(&self) -> Workload {
        self.shape.workload(self.messages.into())
    }

    pub(crate) fn drain(&self, order: Order) -> Drain {
        Drain {
            workers: self.workers.into(),
            batch: self.batch as usize,
            order,
            keep: None,
        }
    }
}

impl fmt::Display for Backlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}, {} workers, batch {}",
            self.messages, self.shape, self.workers, self.batch
        )
    }
}

/// How the relay goes about it.
#[derive(Clone, Copy)]
pub(crate) struct Drain {
    pub(crate) workers: usize,
    pub(crate) batch: usize,
    pub(crate) order: Order,
    /// For how long what was delivered is kept, if it is.
    pub(crate) keep: Option<Duration>,
}

impl Drain {
    /// Delivers all of an outbox that holds so many messages.
    pub(crate) async fn run(
        self,
        database: &Database,
        outbox: &Outbox,
        messages: u64,
        publisher: Arc<dyn Publisher>,
    ) -> Result<Measured> {
        let (measured, left) = self
            .run_for(PATIENCE, database, outbox, messages, publisher)
            .await?;
        none_left(left)?;
        Ok(measured)
    }

    /// Delivers for so long, or all of an outbox that holds so many messages; what was measured, and
    /// how many messages are left.
    pub(crate) async fn run_for(
        self,
        limit: Duration,
        database: &Database,
        outbox: &Outbox,
        messages: u64,
        publisher: Arc<dyn Publisher>,
    ) -> Result<(Measured, u64)> {
        let countdown = Countdown::from(messages);
        let publisher = Counted {
            publisher,
            countdown: Arc::clone(&countdown),
        };
        let relay = self.relay(database, outbox, publisher)?;
        let before = database.wal().await?;
        let clock = Clock::start();
        relay.run_until(countdown.wait(limit)).await;
        let time = clock.elapsed();
        let mut left = 0;
        for table in ["message", "parked", "dead", "delayed"] {
            left += database
                .count(&format!("{}.{table}", outbox.schema()))
                .await?;
        }
        let delivered = messages.saturating_sub(left);
        let mut measured = time.of(delivered);
        if delivered > 0 {
            let wal = database.wal().await? - before;
            measured.wal_bytes_per_message = Some(wal / delivered as f64);
        }
        Ok((measured, left))
    }

    /// A relay that goes about it so.
    pub(crate) fn relay(
        self,
        database: &Database,
        outbox: &Outbox,
        publisher: impl Publisher,
    ) -> Result<Relay> {
        let mut store = outbox.store(&database.pool);
        if let Some(time) = self.keep {
            store = store.keep_delivered_for(time)?;
        }
        Ok(Relay::builder(store, publisher)
            .workers(self.workers)
            .batch_messages(self.batch)
            .order(match self.order {
                Order::PerKey => OrderMode::PerKey,
                Order::PerKeyPipelined => OrderMode::PerKeyPipelined,
            })
            .build()?)
    }
}

/// Creates an outbox in a schema.
pub(crate) async fn new_outbox(database: &Database, schema: &str) -> Result<Outbox> {
    let outbox = Outbox::in_schema(schema)?;
    outbox.migrate(&database.pool).await?;
    Ok(outbox)
}

/// Has a relay run for as long as the work takes.
pub(crate) async fn beside<T>(relay: Relay, work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut done = Err("the relay ended before the work".into());
    relay.run_until(async { done = work.await }).await;
    done
}

/// Confirms at once.
pub(crate) struct NullPublisher;

#[async_trait]
impl Publisher for NullPublisher {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        for delivery in batch {
            delivery.report(Ok(()));
        }
    }
}

/// Counts what was published, to know when the backlog is at its end. A failed message counts too: it
/// is still in a table then, and the phase fails for that.
struct Counted {
    publisher: Arc<dyn Publisher>,
    countdown: Arc<Countdown>,
}

/// How many messages are still to be published.
pub(crate) struct Countdown {
    left: AtomicU64,
    done: Notify,
}

impl Countdown {
    pub(crate) fn from(messages: u64) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicU64::new(messages),
            done: Notify::new(),
        })
    }

    pub(crate) fn published(&self, some: u64) {
        let before = self.left.fetch_sub(some, Ordering::Relaxed);
        if before <= some {
            self.done.notify_one();
        }
    }

    /// Until all are, at most so long.
    pub(crate) async fn wait(&self, limit: Duration) {
        // What was not published by then is found in the table.
        let _ = tokio::time::timeout(limit, self.done.notified()).await;
    }
}

#[async_trait]
impl Publisher for Counted {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        self.publisher.publish(batch).await;
        self.countdown.published(batch.len() as u64);
    }

    fn chains_keys(&self) -> bool {
        self.publisher.chains_keys()
    }
}
