//! How long a message takes from its commit to the broker's acknowledgement, at a steady rate.
//!
//! Each message is enqueued by a transaction of its own. Its time begins when the commit has returned to
//! the producer, and ends when the adapter's call for its batch has: never too early. One that was
//! acknowledged before its producer heard of the commit took no time. A relay that polls only is the
//! same relay through a pooler.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use outbox_core::{Delivery, Publisher, Relay, async_trait};
use outbox_postgres::Outbox;
use serde::Serialize;
use sqlx::Connection;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use uuid::Uuid;

use crate::Result;
use crate::broker::{self, Broker, with_topic};
use crate::relay::beside;
use crate::report::{Run, write_json};
use crate::setup::{Database, PATIENCE, Workload};

/// Connections that enqueue. Each has its share of the rate.
const PRODUCERS: u32 = 8;

/// Measures the time from commit to acknowledgement at a steady rate.
#[derive(clap::Args, Serialize)]
pub(crate) struct Args {
    /// How many messages are committed in a second.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(8..=100_000))]
    rate: u32,
    /// For how long, for each broker and way to find messages.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// The size of a payload, in bytes.
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    bytes: u32,
    /// How many keys the messages are spread over.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
    /// Also write the results to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// How the relay finds messages.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Finds {
    WakeUp,
    Polling,
}

#[derive(Serialize)]
struct Row {
    broker: broker::Kind,
    finds: Finds,
    messages: usize,
    p50_ms: f64,
    p99_ms: f64,
    longest_ms: f64,
}

#[derive(Serialize)]
struct Report {
    run: Run,
    args: Args,
    rows: Vec<Row>,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    let database = Database::new()?;
    let run = Run::describe(&database).await?;
    run.print();
    println!(
        "{} transactions/s of one message of {} bytes, {} keys, for {} s each\n",
        args.rate, args.bytes, args.keys, args.seconds
    );
    let mut rows = Vec::new();
    for kind in broker::Kind::ALL {
        let broker = kind
            .connect()
            .await
            .map_err(|error| format!("{}: {error}", kind.name()))?;
        for finds in [Finds::WakeUp, Finds::Polling] {
            let times = with_topic(broker.as_ref(), async |topic| {
                database
                    .with_schema(async |schema| {
                        let outbox = Outbox::in_schema(schema)?;
                        outbox.migrate(&database.pool).await?;
                        measure(&args, &database, &outbox, broker.as_ref(), topic, finds).await
                    })
                    .await
            })
            .await
            .map_err(|error| format!("{}: {error}", kind.name()))?;
            let row = Row::new(kind, finds, times);
            row.print();
            rows.push(row);
        }
    }
    let report = Report { run, args, rows };
    write_json(report.args.json.as_deref(), &report)
}

impl Row {
    fn new(broker: broker::Kind, finds: Finds, mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| {
            let index = (times.len() * percent / 100).min(times.len().saturating_sub(1));
            times
                .get(index)
                .map_or(f64::NAN, |it| it.as_secs_f64() * 1000.0)
        };
        Self {
            broker,
            finds,
            messages: times.len(),
            p50_ms: at(50),
            p99_ms: at(99),
            longest_ms: at(100),
        }
    }

    fn print(&self) {
        let (finds, goal) = match self.finds {
            Finds::WakeUp if self.has_goal() => ("wake-up", "    goal 5 and 25 ms"),
            Finds::WakeUp => ("wake-up", ""),
            Finds::Polling => ("polling", ""),
        };
        println!(
            "{:<9} {finds}  p50 {:>7.1} ms  p99 {:>7.1} ms  longest {:>7.1} ms  of {}{goal}",
            self.broker.name(),
            self.p50_ms,
            self.p99_ms,
            self.longest_ms,
            self.messages,
        );
    }

    /// The others wait for a disk, or for a fuller batch.
    fn has_goal(&self) -> bool {
        matches!(self.broker, broker::Kind::Nats | broker::Kind::Redis)
    }
}

async fn measure(
    args: &Args,
    database: &Database,
    outbox: &Outbox,
    broker: &dyn Broker,
    topic: &str,
    finds: Finds,
) -> Result<Vec<Duration>> {
    let store = match finds {
        Finds::WakeUp => outbox.store(&database.pool),
        Finds::Polling => outbox.store(&database.pool).through_pooler(),
    };
    let times = Arc::new(Times::default());
    let publisher = Acknowledged {
        publisher: broker.publisher().await?,
        times: Arc::clone(&times),
    };
    let relay = Relay::builder(store, publisher).build()?;
    let messages = beside(relay, produce(args, database, outbox, topic, &times)).await?;
    let times = std::mem::take(&mut *lock(&times.taken));
    match times.len() {
        found if found == messages => Ok(times),
        found => Err(format!("{found} of {messages} messages acknowledged").into()),
    }
}

/// Commits at the rate, and waits until all is acknowledged; how many there were.
async fn produce(
    args: &Args,
    database: &Database,
    outbox: &Outbox,
    topic: &str,
    times: &Arc<Times>,
) -> Result<usize> {
    let each = (args.rate * args.seconds / PRODUCERS) as usize;
    let pause = Duration::from_secs(1) * PRODUCERS / args.rate;
    let mut producers = JoinSet::new();
    for number in 0..PRODUCERS {
        let mut connection = database.connect().await?;
        let workload = Workload::new(each as u64, args.keys, args.bytes as usize);
        let (outbox, topic, times) = (outbox.clone(), topic.to_owned(), Arc::clone(times));
        producers.spawn(async move {
            let mut ticks = tokio::time::interval_at(
                tokio::time::Instant::now() + pause * number / PRODUCERS,
                pause,
            );
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            for key in workload.keys() {
                ticks.tick().await;
                let message = workload.message(&topic, key)?;
                let mut tx = connection.begin().await?;
                outbox.enqueue(&mut tx, &message).await?;
                tx.commit().await?;
                times.committed(message.id());
            }
            Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
        });
    }
    while let Some(done) = producers.join_next().await {
        done??;
    }
    let messages = each * PRODUCERS as usize;
    let end = Instant::now() + PATIENCE;
    while lock(&times.taken).len() < messages && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(5)).await; // wait: the poll of a bounded loop
    }
    Ok(messages)
}

/// What is known of the messages: whichever of its two ends a message has had, and the times of those that had both.
#[derive(Default)]
struct Times {
    ends: Mutex<HashMap<Uuid, End>>,
    taken: Mutex<Vec<Duration>>,
}

enum End {
    Committed(Instant),
    Acknowledged,
}

impl Times {
    fn committed(&self, id: Uuid) {
        let now = Instant::now();
        let mut ends = lock(&self.ends);
        match ends.remove(&id) {
            Some(_) => lock(&self.taken).push(Duration::ZERO),
            None => {
                ends.insert(id, End::Committed(now));
            }
        }
    }

    fn acknowledged(&self, id: Uuid, now: Instant) {
        let mut ends = lock(&self.ends);
        match ends.remove(&id) {
            Some(End::Committed(at)) => lock(&self.taken).push(now - at),
            Some(End::Acknowledged) | None => {
                ends.insert(id, End::Acknowledged);
            }
        }
    }
}

/// Notes when the adapter's call for a batch has returned.
struct Acknowledged {
    publisher: Arc<dyn Publisher>,
    times: Arc<Times>,
}

#[async_trait]
impl Publisher for Acknowledged {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        self.publisher.publish(batch).await;
        let now = Instant::now();
        for delivery in batch {
            self.times.acknowledged(delivery.message().id(), now);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_time_whichever_end_comes_first() {
        let times = Times::default();
        let (first, second) = (Uuid::now_v7(), Uuid::now_v7());
        times.committed(first);
        times.acknowledged(first, Instant::now() + Duration::from_secs(1));
        times.acknowledged(second, Instant::now());
        times.committed(second);
        let taken = lock(&times.taken);
        assert!(taken[0] >= Duration::from_secs(1), "{taken:?}");
        assert_eq!(taken[1], Duration::ZERO);
        assert!(lock(&times.ends).is_empty());
    }

    #[test]
    fn percentiles_are_times_that_were_taken() {
        let times = (1..=100).map(Duration::from_millis).collect();
        let row = Row::new(broker::Kind::Nats, Finds::WakeUp, times);
        assert_eq!(row.messages, 100);
        assert_eq!(row.p50_ms.round(), 51.0);
        assert_eq!(row.p99_ms.round(), 100.0);
        assert_eq!(row.longest_ms.round(), 100.0);
    }
}
