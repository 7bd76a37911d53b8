//! Small messages and large ones: megabytes a second, beside the broker's own.
//!
//! For each broker and size, three phases of `drain.rs`: D, the outbox with a publisher that confirms at once;
//! P, the adapter alone from memory; and E, end to end. What all sizes have in common is the number of bytes,
//! within limits on the number of messages. Where the processors are the bottleneck E cannot reach P: each
//! message also passes through the database. So E is compared with 1/(1/D + 1/P).
//!
//! Goal: E at least 0.9 of that limit at every size.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::Result;
use crate::broker;
use crate::drain::{Bench, Phase};
use crate::measure::Measured;
use crate::plot::{Axis, Line, Plot};
use crate::relay::{Drain, Order};
use crate::report::Outcome;
use crate::setup::{Database, Workload};

const WORKERS: usize = 4;
const BATCH: usize = 1000;
/// No fewer messages say something, and no more are needed.
const MESSAGES: std::ops::RangeInclusive<u64> = 50..=200_000;

/// Measures megabytes a second by the size of messages.
#[derive(clap::Args, Serialize)]
pub(crate) struct Args {
    /// The sizes of a payload, in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1000, 10_000, 100_000, 1_000_000],
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    bytes: Vec<u32>,
    /// How many megabytes are delivered of each size, within 50 to 200,000 messages.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    megabytes: u32,
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["kafka", "amqp", "nats", "redis"])]
    brokers: Vec<broker::Kind>,
    /// How many keys the messages are spread over.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
}

/// One size at one broker.
#[derive(Serialize)]
struct Row {
    broker: broker::Kind,
    bytes: u32,
    messages: u64,
    drain: Measured,
    publish: Measured,
    end_to_end: Measured,
}

#[derive(Serialize)]
struct Report {
    args: Args,
    rows: Vec<Row>,
}

pub(crate) async fn run(args: Args, database: &Database) -> Result<Outcome> {
    println!(
        "{} MB of each size, {} keys, {WORKERS} workers, batch {BATCH}\n",
        args.megabytes, args.keys
    );
    let mut bench = Bench {
        database,
        brokers: broker::connect(args.brokers.iter().copied()).await?,
        workload: Workload::new(0, 1, 0),
        drain: Drain {
            workers: WORKERS,
            batch: BATCH,
            order: Order::PerKey,
            keep: None,
        },
    };
    let mut rows = Vec::new();
    for &bytes in &args.bytes {
        let messages = u64::from(args.megabytes) * 1_000_000 / u64::from(bytes);
        let messages = messages.clamp(*MESSAGES.start(), *MESSAGES.end());
        bench.workload = Workload::new(messages, args.keys, bytes as usize);
        let measure = async |phase: Phase| {
            let measured = bench.measure(phase).await;
            measured.map_err(|error| format!("{}, {bytes} bytes: {error}", phase.name()))
        };
        for &kind in &args.brokers {
            let row = Row {
                broker: kind,
                bytes,
                messages,
                drain: measure(Phase::Drain).await?,
                end_to_end: measure(Phase::EndToEnd(kind)).await?,
                publish: measure(Phase::Publish(kind)).await?,
            };
            row.print();
            rows.push(row);
        }
    }
    Report { args, rows }.outcome()
}

impl Report {
    fn outcome(&self) -> Result<Outcome> {
        let mut worst: BTreeMap<broker::Kind, f64> = BTreeMap::new();
        for row in &self.rows {
            let ratio = worst.entry(row.broker).or_insert(f64::INFINITY);
            *ratio = ratio.min(row.to_limit());
        }
        let mut outcome = Outcome::of(self)?;
        for (kind, ratio) in worst {
            let name = format!("{}: E / limit, at the worst size", kind.name());
            outcome = outcome.at_least(name, Some(ratio), 0.9);
        }
        Ok(outcome.plot(Plot {
            name: "sizes".to_owned(),
            title: "End to end, by the size of a payload".to_owned(),
            x: Axis::log("bytes"),
            y: Axis::log("MB/s"),
            lines: self.args.brokers.iter().map(|&it| self.line(it)).collect(),
        }))
    }

    fn line(&self, kind: broker::Kind) -> Line {
        let rows = self.rows.iter().filter(|row| row.broker == kind);
        Line {
            name: kind.name().to_owned(),
            points: rows
                .map(|row| (f64::from(row.bytes), row.megabytes(row.end_to_end)))
                .collect(),
        }
    }
}

impl Row {
    /// Megabytes of payload a second.
    fn megabytes(&self, measured: Measured) -> f64 {
        measured.messages_per_second * f64::from(self.bytes) / 1e6
    }

    fn to_limit(&self) -> f64 {
        let seconds = |it: Measured| 1.0 / it.messages_per_second;
        (seconds(self.drain) + seconds(self.publish)) / seconds(self.end_to_end)
    }

    fn print(&self) {
        println!(
            "{:<9} {:>8} bytes  D {:>7.1} MB/s  P {:>7.1} MB/s  E {:>7.1} MB/s  E/P {:.2}  E/limit {:.2}  {:>6.1} MiB",
            self.broker.name(),
            self.bytes,
            self.megabytes(self.drain),
            self.megabytes(self.publish),
            self.megabytes(self.end_to_end),
            self.end_to_end.messages_per_second / self.publish.messages_per_second,
            self.to_limit(),
            self.end_to_end.peak_mib(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_what_both_halves_take_one_after_the_other() {
        let at = |messages_per_second| Measured {
            messages_per_second,
            seconds: 1.0,
            peak_memory_bytes: None,
            wal_bytes_per_message: None,
        };
        let row = Row {
            broker: broker::Kind::Redis,
            bytes: 2_000_000,
            messages: 1,
            drain: at(300.0),
            publish: at(150.0),
            end_to_end: at(90.0),
        };
        // 1/300 + 1/150 = 1/100.
        assert!((row.to_limit() - 0.9).abs() < 1e-9);
        assert_eq!(row.megabytes(row.publish), 300.0);
    }
}
