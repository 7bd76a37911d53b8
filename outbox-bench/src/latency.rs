//! How long a message takes from its commit to the broker's acknowledgement, at a steady rate.
//!
//! Each message is enqueued by a transaction of its own; `times.rs` says when its time begins and ends. A
//! relay that polls only is the same relay through a pooler.
//!
//! Goal: with wake-up, to NATS and Redis, half of the messages within 5 ms and 99 of 100 within 25 ms. The
//! others are only told.

use std::sync::Arc;

use clap::ValueEnum;
use outbox_core::Relay;
use outbox_postgres::Outbox;
use serde::Serialize;

use crate::Result;
use crate::broker::{self, Broker, with_topic};
use crate::relay::{beside, new_outbox};
use crate::report::Outcome;
use crate::setup::{Database, Shape};
use crate::steady::{Steady, Target};
use crate::times::{Acknowledged, Percentiles, Times};

/// Measures the time from commit to acknowledgement at a steady rate.
#[derive(clap::Args, Serialize)]
pub(crate) struct Args {
    /// How many messages are committed in a second.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(8..=100_000))]
    rate: u32,
    /// For how long, for each broker and way to find messages.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    #[command(flatten)]
    #[serde(flatten)]
    shape: Shape,
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
    times: Percentiles,
}

#[derive(Serialize)]
struct Report {
    args: Args,
    rows: Vec<Row>,
}

pub(crate) async fn run(args: Args, database: &Database) -> Result<Outcome> {
    println!(
        "{} transactions/s of one message for {} s each; {}\n",
        args.rate, args.seconds, args.shape
    );
    let mut rows = Vec::new();
    for (kind, broker) in broker::connect(broker::Kind::ALL).await? {
        for finds in [Finds::WakeUp, Finds::Polling] {
            let times = with_topic(broker.as_ref(), async |topic| {
                database
                    .with_schema(async |schema| {
                        let outbox = new_outbox(database, schema).await?;
                        measure(&args, database, &outbox, broker.as_ref(), topic, finds).await
                    })
                    .await
            })
            .await
            .map_err(|error| format!("{}: {error}", kind.name()))?;
            let row = Row {
                broker: kind,
                finds,
                times,
            };
            row.print();
            rows.push(row);
        }
    }
    let report = Report { args, rows };
    let mut outcome = Outcome::of(&report)?;
    for row in report.rows.iter().filter(|row| row.has_goal()) {
        let name = row.broker.name();
        outcome = outcome
            .at_most(
                format!("{name}, woken: p50, ms"),
                Some(row.times.p50_ms),
                5.0,
            )
            .at_most(
                format!("{name}, woken: p99, ms"),
                Some(row.times.p99_ms),
                25.0,
            );
    }
    Ok(outcome)
}

impl Row {
    fn print(&self) {
        let finds = match self.finds {
            Finds::WakeUp => "wake-up",
            Finds::Polling => "polling",
        };
        println!(
            "{:<9} {finds}  p50 {:>7.1} ms  p99 {:>7.1} ms  longest {:>7.1} ms  of {}",
            self.broker.name(),
            self.times.p50_ms,
            self.times.p99_ms,
            self.times.longest_ms,
            self.times.of,
        );
    }

    /// The other brokers wait for a disk, or for a fuller batch.
    fn has_goal(&self) -> bool {
        self.finds == Finds::WakeUp
            && matches!(self.broker, broker::Kind::Nats | broker::Kind::Redis)
    }
}

async fn measure(
    args: &Args,
    database: &Database,
    outbox: &Outbox,
    broker: &dyn Broker,
    topic: &str,
    finds: Finds,
) -> Result<Percentiles> {
    let store = match finds {
        Finds::WakeUp => outbox.store(&database.pool),
        Finds::Polling => outbox.store(&database.pool).through_pooler(),
    };
    let times = Times::start();
    let publisher = Acknowledged {
        publisher: broker.publisher().await?,
        times: Arc::clone(&times),
    };
    let steady = Steady {
        rate: args.rate,
        seconds: args.seconds,
        together: 1,
        shape: args.shape,
    };
    let target = Target::Outbox(outbox.clone());
    let relay = Relay::builder(store, publisher).build()?;
    beside(relay, async {
        let produced = steady.produce(database, &target, topic, &times).await?;
        times.wait_for(produced.messages).await
    })
    .await?;
    let took = times.taken().into_iter().map(|it| it.took);
    Percentiles::new(took).ok_or("no message was acknowledged".into())
}
