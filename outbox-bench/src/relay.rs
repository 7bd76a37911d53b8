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
use crate::setup::{Database, Workload};

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
    /// The size of a payload, in bytes.
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    bytes: u32,
    /// How many keys the messages are spread over.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
    /// Workers of the relay and of what it is compared with.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    /// The most messages of one claim.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,
}

impl Backlog {
    pub(crate) fn workload(&self) -> Workload {
        Workload::new(self.messages.into(), self.keys, self.bytes as usize)
    }

    pub(crate) fn drain(&self, order: Order) -> Drain {
        Drain {
            workers: self.workers.into(),
            batch: self.batch as usize,
            order,
        }
    }
}

impl fmt::Display for Backlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} messages of {} bytes, {} keys, {} workers, batch {}",
            self.messages, self.bytes, self.keys, self.workers, self.batch
        )
    }
}

/// How the relay goes about it.
#[derive(Clone, Copy)]
pub(crate) struct Drain {
    pub(crate) workers: usize,
    pub(crate) batch: usize,
    pub(crate) order: Order,
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
        let left = Arc::new(Countdown {
            left: AtomicU64::new(messages),
            done: Notify::new(),
        });
        let publisher = Counted {
            publisher,
            countdown: Arc::clone(&left),
        };
        let relay = Relay::builder(outbox.store(&database.pool), publisher)
            .workers(self.workers)
            .batch_messages(self.batch)
            .order(match self.order {
                Order::PerKey => OrderMode::PerKey,
                Order::PerKeyPipelined => OrderMode::PerKeyPipelined,
            })
            .build()?;
        let clock = Clock::start();
        relay
            .run_until(async {
                // What was not published by then is found in the table.
                let _ = tokio::time::timeout(PATIENCE, left.done.notified()).await;
            })
            .await;
        let measured = clock.stop(messages);
        for table in ["message", "parked", "dead"] {
            let table = format!("{}.{table}", outbox.schema());
            none_left(database.count(&table).await?)?;
        }
        Ok(measured)
    }
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

struct Countdown {
    left: AtomicU64,
    done: Notify,
}

#[async_trait]
impl Publisher for Counted {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        self.publisher.publish(batch).await;
        let some = batch.len() as u64;
        let before = self.countdown.left.fetch_sub(some, Ordering::Relaxed);
        if before <= some {
            self.countdown.done.notify_one();
        }
    }

    fn chains_keys(&self) -> bool {
        self.publisher.chains_keys()
    }
}
