//! What few keys cost, and what a failing key costs the others.
//!
//! * A backlog of one key only, of 200, of 10,000 and of a million, to each broker, in both ordered modes. In
//!   `PerKey` a message waits for the one before it of its key, unless the broker can stop the rest of a key
//!   at a failure by itself. A drain that is not at its end when the time is over is ended; its rate is
//!   that of the time it had. Before it, a few messages have made the connections.
//! * A backlog of 200 keys of which one fails at every try, beside the same without a failure, with a
//!   publisher that confirms the others at once: how fast the others are delivered.
//!
//! With fewer messages than keys there are as many keys as there are messages drawn.
//!
//! Goal: one key in `PerKey` at least half as fast as pipelined, to Redis, NATS and Kafka; the others
//! beside a failing key at least 0.95 as fast.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::{Delivery, PublishError, PublishErrorKind, Publisher, async_trait};
use serde::Serialize;

use crate::Result;
use crate::broker::{self, Broker, with_topic};
use crate::measure::{Measured, all, median};
use crate::plot::{Axis, Line, Plot};
use crate::relay::{Countdown, Drain, Order};
use crate::report::Outcome;
use crate::setup::{Database, Workload, key_name};

const WORKERS: usize = 4;
const BATCH: usize = 1000;
/// What the failing key fails among, and its number.
const KEYS_BESIDE: u32 = 200;
const FAILING: u32 = 0;
/// A drain beside a failing key that takes longer has lost something.
const PATIENCE: Duration = Duration::from_secs(300);

/// Measures both ordered modes by the number of keys, and a failing key.
#[derive(clap::Args, Serialize)]
pub(crate) struct Args {
    /// How many messages wait.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1000..))]
    messages: u32,
    /// The size of a payload, in bytes.
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    bytes: u32,
    /// How many keys they are spread over: some numbers.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 200, 10_000, 1_000_000],
          value_parser = clap::value_parser!(u32).range(1..))]
    keys: Vec<u32>,
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["kafka", "amqp", "nats", "redis"])]
    brokers: Vec<broker::Kind>,
    /// How long a drain to a broker may take.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// How often the failing key is measured; every second time the drain without one comes first.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
}

/// One number of keys, at one broker.
#[derive(Serialize)]
struct Row {
    broker: broker::Kind,
    keys: u32,
    per_key: Measured,
    pipelined: Measured,
}

/// Messages a second of the other keys.
#[derive(Clone, Copy, Serialize)]
struct Beside {
    failing: f64,
    none: f64,
}

#[derive(Serialize)]
struct Report {
    args: Args,
    rows: Vec<Row>,
    beside: Vec<Beside>,
}

pub(crate) async fn run(args: Args, database: &Database) -> Result<Outcome> {
    println!(
        "{} messages of {} bytes, {WORKERS} workers, batch {BATCH}, up to {} s each\n",
        args.messages, args.bytes, args.seconds
    );
    let mut rows = Vec::new();
    for (kind, broker) in broker::connect(args.brokers.iter().copied()).await? {
        for &keys in &args.keys {
            let drain = async |order| {
                let measured = drain(&args, database, broker.as_ref(), keys, order).await;
                measured.map_err(|error| format!("{}, {keys} keys: {error}", kind.name()))
            };
            let row = Row {
                broker: kind,
                keys,
                per_key: drain(Order::PerKey).await?,
                pipelined: drain(Order::PerKeyPipelined).await?,
            };
            row.print();
            rows.push(row);
        }
    }
    println!();
    let mut beside = Vec::new();
    for number in 0..args.rounds {
        let of = async |fails| others(&args, database, fails).await;
        let (failing, none) = match number % 2 {
            0 => (of(true).await?, of(false).await?),
            _ => {
                let none = of(false).await?;
                (of(true).await?, none)
            }
        };
        println!(
            "the others of {KEYS_BESIDE} keys: {failing:>7.0}/s beside a failing key, {none:>7.0}/s without"
        );
        beside.push(Beside { failing, none });
    }
    Report { args, rows, beside }.outcome()
}

impl Report {
    fn outcome(self) -> Result<Outcome> {
        let mut outcome = Outcome::of(&self)?;
        let one_key = |row: &&Row| row.keys == 1 && row.broker != broker::Kind::Amqp;
        for row in self.rows.iter().filter(one_key) {
            let name = format!("{}: one key, PerKey / pipelined", row.broker.name());
            outcome = outcome.at_least(name, Some(row.ratio()), 0.5);
        }
        let ratio = median(self.beside.iter().map(|it| it.failing / it.none));
        let name = "others beside a failing key / without one";
        let lines = self.lines();
        Ok(outcome.at_least(name, ratio, 0.95).plot(Plot {
            name: "hot-key".to_owned(),
            title: format!(
                "{} messages, by how many keys they have",
                self.args.messages
            ),
            x: Axis::log("keys"),
            y: Axis::log("messages/s"),
            lines,
        }))
    }

    /// Two for each broker.
    fn lines(&self) -> Vec<Line> {
        let mut lines = Vec::new();
        for &kind in &self.args.brokers {
            for (mode, of) in [
                ("PerKey", (|row| row.per_key) as fn(&Row) -> Measured),
                ("pipelined", |row| row.pipelined),
            ] {
                let rows = self.rows.iter().filter(|row| row.broker == kind);
                lines.push(Line {
                    name: format!("{}, {mode}", kind.name()),
                    points: rows
                        .map(|row| (f64::from(row.keys), of(row).messages_per_second))
                        .collect(),
                });
            }
        }
        lines
    }
}

impl Row {
    fn ratio(&self) -> f64 {
        self.per_key.messages_per_second / self.pipelined.messages_per_second
    }

    fn print(&self) {
        println!(
            "{:<9} {:>8} keys  PerKey {:>7.0}/s  pipelined {:>7.0}/s  ratio {:.2}",
            self.broker.name(),
            self.keys,
            self.per_key.messages_per_second,
            self.pipelined.messages_per_second,
            self.ratio(),
        );
    }
}

async fn drain(
    args: &Args,
    database: &Database,
    broker: &dyn Broker,
    keys: u32,
    order: Order,
) -> Result<Measured> {
    let drain = how(order);
    with_topic(broker, async |topic| {
        let publisher = broker.publisher().await?;
        let few = Workload::new(u64::from(args.messages / 100), keys, args.bytes as usize);
        database
            .with_schema(async |schema| {
                let outbox = few.enqueue(database, schema, Some(topic)).await?;
                let publisher = Arc::clone(&publisher);
                drain.run(database, &outbox, few.messages, publisher).await
            })
            .await?;
        let workload = Workload::new(args.messages.into(), keys, args.bytes as usize);
        database
            .with_schema(async |schema| {
                let outbox = workload.enqueue(database, schema, Some(topic)).await?;
                let limit = Duration::from_secs(args.seconds.into());
                let messages = workload.messages;
                let (measured, left) = drain
                    .run_for(limit, database, &outbox, messages, publisher)
                    .await?;
                // What was confirmed when the time was over and not settled is in both.
                let arrived = broker.count(topic).await? - few.messages;
                match arrived + left >= messages {
                    true => Ok(measured),
                    false => Err(format!("{arrived} of {messages} arrived, {left} left").into()),
                }
            })
            .await
    })
    .await
}

fn how(order: Order) -> Drain {
    Drain {
        workers: WORKERS,
        batch: BATCH,
        order,
        keep: None,
    }
}

/// How many messages a second the keys have beside the first, which may fail.
async fn others(args: &Args, database: &Database, fails: bool) -> Result<f64> {
    let workload = Workload::new(args.messages.into(), KEYS_BESIDE, args.bytes as usize);
    let of_failing = workload.keys().filter(|&key| key == FAILING).count() as u64;
    let others = workload.messages - of_failing;
    database
        .with_schema(async |schema| {
            let outbox = workload.enqueue(database, schema, None).await?;
            let countdown = Countdown::from(others);
            let publisher = OneKeyFails {
                key: key_name(FAILING),
                fails,
                countdown: Arc::clone(&countdown),
            };
            let relay = how(Order::PerKey).relay(database, &outbox, publisher)?;
            let start = Instant::now();
            relay.run_until(countdown.wait(PATIENCE)).await;
            let seconds = start.elapsed().as_secs_f64();
            let left = format!(
                "(SELECT key FROM {schema}.message UNION ALL SELECT key FROM {schema}.parked
                  UNION ALL SELECT key FROM {schema}.dead) AS left_behind WHERE key <> '{}'",
                key_name(FAILING)
            );
            all(others - database.count(&left).await?, others, "delivered")?;
            Ok(others as f64 / seconds)
        })
        .await
}

/// Confirms at once, but for one key.
struct OneKeyFails {
    key: String,
    fails: bool,
    countdown: Arc<Countdown>,
}

#[async_trait]
impl Publisher for OneKeyFails {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        let mut others = 0;
        for delivery in batch {
            let is_it = delivery.message().key() == Some(&self.key);
            others += u64::from(!is_it);
            delivery.report(match is_it && self.fails {
                true => Err(PublishError::new(PublishErrorKind::Retryable, "it fails")),
                false => Ok(()),
            });
        }
        self.countdown.published(others);
    }
}
