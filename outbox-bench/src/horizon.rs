//! A forgotten snapshot: it keeps every deleted row, and what scans from the start slows down with each.
//!
//! While a transaction holds a snapshot, messages are committed at a steady rate and delivered, by the outbox
//! and, each in a schema of its own, by the usual loops. The first and the last sixth of the time are compared:
//! what was acknowledged in a second, and how long after its commit. Nothing is published, so that the database
//! is all that can slow down. A loop looks again 5 ms after it found nothing, and the outbox is woken.
//!
//! The time begins after a while that is not counted, in which the snapshot is held already. Linux writes to disk
//! what has been in its memory for 30 seconds, and a commit waits for it meanwhile: every half minute has that
//! but the first.
//!
//! Not here: how fast a backlog is drained, `compare.rs`.
//!
//! Goal: for the outbox, the last sixth has at least 0.9 of the first one's throughput, and at most twice its
//! 99th percentile, over three minutes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::Relay;
use serde::Serialize;
use sqlx::{PgConnection, Row};

use crate::Result;
use crate::plot::{Axis, Line, Plot};
use crate::reference::Loop;
use crate::relay::{NullPublisher, beside, new_outbox};
use crate::report::Outcome;
use crate::setup::{Database, Shape};
use crate::steady::{Produced, Steady, Target};
use crate::times::{Acknowledged, Percentiles, Taken, Times};

const TOPIC: &str = "bench";
/// As many as a relay has by default.
const WORKERS: usize = 4;
const BATCH: usize = 1000;

/// Measures throughput and latency while an old snapshot is held.
#[derive(clap::Args, Serialize)]
pub(crate) struct Args {
    /// How many messages are committed in a second.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    rate: u32,
    /// For how long; the first and the last sixth are compared.
    #[arg(long, default_value_t = 180, value_parser = clap::value_parser!(u32).range(6..=3600))]
    seconds: u32,
    /// For how many seconds before that, which are not counted.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(..=600))]
    warm_up: u32,
    /// For how long each loop, if not for as long as the outbox.
    #[arg(long, value_parser = clap::value_parser!(u32).range(6..=3600))]
    loop_seconds: Option<u32>,
    /// How many messages one transaction enqueues.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    together: u32,
    #[command(flatten)]
    #[serde(flatten)]
    shape: Shape,
    /// The loops that are measured beside the outbox.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["delete", "row-locks", "lease"])]
    loops: Vec<Loop>,
}

/// How one of them did.
#[derive(Serialize)]
struct Subject {
    name: &'static str,
    produced: Produced,
    /// What was not acknowledged when the time was over.
    left: u64,
    first: Window,
    last: Window,
    #[serde(skip)]
    seconds: Vec<Window>,
}

/// What was acknowledged in some time.
#[derive(Clone, Copy, Serialize)]
struct Window {
    per_second: f64,
    latency: Option<Percentiles>,
}

#[derive(Serialize)]
struct Report {
    args: Args,
    subjects: Vec<Subject>,
}

pub(crate) async fn run(args: Args, database: &Database) -> Result<Outcome> {
    println!(
        "{}/s, {} in a transaction, {}; {WORKERS} workers, batch {BATCH}, for {} s and {} s under a held snapshot\n",
        args.rate, args.together, args.shape, args.warm_up, args.seconds
    );
    let mut subjects = Vec::new();
    for who in [None]
        .into_iter()
        .chain(args.loops.iter().copied().map(Some))
    {
        let name = who.map_or("outbox", Loop::name);
        let subject = database
            .with_schema(async |schema| {
                let snapshot = Snapshot::hold(database).await?;
                let subject = measure(&args, database, schema, who).await?;
                snapshot.end().await?;
                Ok(subject)
            })
            .await
            .map_err(|error| format!("{name}: {error}"))?;
        subject.print();
        subjects.push(subject);
    }
    let report = Report { args, subjects };
    let outbox = &report.subjects[0];
    let p99 = |window: &Window| Some(window.latency?.p99_ms);
    let slower = p99(&outbox.last).zip(p99(&outbox.first));
    Ok(Outcome::of(&report)?
        .at_least(
            "producers: of the rate that was asked for",
            Some(outbox.produced.of_rate),
            0.95,
        )
        .at_least(
            "outbox: throughput, last / first sixth",
            Some(outbox.last.per_second / outbox.first.per_second),
            0.9,
        )
        .at_most(
            "outbox: p99 latency, last / first sixth",
            slower.map(|(last, first)| last / first),
            2.0,
        )
        .plot(report.plot(
            "horizon-throughput",
            "Acknowledged under a held snapshot",
            Axis::linear("messages/s"),
            |window| Some(window.per_second),
        ))
        .plot(report.plot(
            "horizon-latency",
            "From commit to acknowledgement under a held snapshot",
            Axis::log("p99, ms"),
            p99,
        )))
}

impl Report {
    fn plot(&self, name: &str, title: &str, y: Axis, of: impl Fn(&Window) -> Option<f64>) -> Plot {
        let line = |subject: &Subject| Line {
            name: subject.name.to_owned(),
            points: (0..)
                .zip(&subject.seconds)
                .filter_map(|(second, window)| Some((f64::from(second), of(window)?)))
                .collect(),
        };
        Plot {
            name: name.to_owned(),
            title: format!("{title}, {} committed a second", self.args.rate),
            x: Axis::linear("seconds"),
            y,
            lines: self.subjects.iter().map(line).collect(),
        }
    }
}

impl Subject {
    fn print(&self) {
        let p99 = |window: &Window| window.latency.map_or(f64::NAN, |it| it.p99_ms);
        println!(
            "{:<18} first sixth {:>7.0}/s p99 {:>8.1} ms   last {:>7.0}/s p99 {:>8.1} ms   left {:>8}  \
             producers {:.2}",
            self.name,
            self.first.per_second,
            p99(&self.first),
            self.last.per_second,
            p99(&self.last),
            self.left,
            self.produced.of_rate,
        );
    }
}

async fn measure(
    args: &Args,
    database: &Database,
    schema: &str,
    who: Option<Loop>,
) -> Result<Subject> {
    let counted = match who {
        None => args.seconds,
        Some(_) => args.loop_seconds.unwrap_or(args.seconds),
    };
    let seconds = args.warm_up + counted;
    let steady = Steady {
        rate: args.rate,
        seconds,
        together: args.together,
        shape: args.shape,
    };
    let all = Duration::from_secs(seconds.into());
    let (times, produced);
    match who {
        None => {
            let outbox = new_outbox(database, schema).await?;
            let target = Target::Outbox(outbox.clone());
            times = Times::start();
            let publisher = Acknowledged {
                publisher: Arc::new(NullPublisher),
                times: Arc::clone(&times),
            };
            let relay = Relay::builder(outbox.store(&database.pool), publisher)
                .workers(WORKERS)
                .batch_messages(BATCH)
                .build()?;
            produced = beside(relay, async {
                let produced = steady.produce(database, &target, TOPIC, &times).await?;
                times.wait_for(produced.messages).await?;
                Ok(produced)
            })
            .await?;
        }
        Some(it) => {
            it.fill(database, schema, &args.shape.workload(0)).await?;
            let target = Target::Table(format!("{schema}.queue"));
            times = Times::start();
            let end = Instant::now() + all;
            let (followed, done) = tokio::join!(
                it.follow(database, schema, WORKERS, BATCH, end, &times),
                steady.produce(database, &target, TOPIC, &times),
            );
            followed?;
            produced = done?;
        }
    }
    let taken = times.taken();
    let in_time = taken.iter().filter(|it| it.at < all).count() as u64;
    let warm_up = Duration::from_secs(args.warm_up.into());
    let sixth = (all - warm_up) / 6;
    Ok(Subject {
        name: who.map_or("outbox", Loop::name),
        produced,
        left: produced.messages.saturating_sub(in_time),
        first: Window::of(&taken, warm_up, warm_up + sixth),
        last: Window::of(&taken, all - sixth, all),
        seconds: (0..u64::from(seconds))
            .map(Duration::from_secs)
            .map(|from| Window::of(&taken, from, from + Duration::from_secs(1)))
            .collect(),
    })
}

impl Window {
    fn of(taken: &[Taken], from: Duration, to: Duration) -> Self {
        let within = taken.iter().filter(|it| from <= it.at && it.at < to);
        let latency = Percentiles::new(within.map(|it| it.took));
        let count = latency.map_or(0, |it| it.of);
        Self {
            per_second: count as f64 / (to - from).as_secs_f64(),
            latency,
        }
    }
}

/// A transaction that holds a snapshot, and does nothing else.
struct Snapshot {
    connection: PgConnection,
    oldest: i64,
}

impl Snapshot {
    async fn hold(database: &Database) -> Result<Self> {
        let mut connection = database.connect().await?;
        sqlx::raw_sql(
            "SET idle_in_transaction_session_timeout = 0; BEGIN ISOLATION LEVEL REPEATABLE READ",
        )
        .execute(&mut connection)
        .await?;
        let oldest = Self::oldest(&mut connection).await?;
        Ok(Self { connection, oldest })
    }

    async fn oldest(connection: &mut PgConnection) -> Result<i64> {
        let statement = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint";
        let row = sqlx::query(statement).fetch_one(connection).await?;
        Ok(row.try_get(0)?)
    }

    /// Fails if it was not held all the time.
    async fn end(mut self) -> Result<()> {
        match Self::oldest(&mut self.connection).await? {
            oldest if oldest == self.oldest => Ok(()),
            _ => Err("the snapshot was not held".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_counts_what_was_acknowledged_within_it() {
        let taken = [(0, 5), (999, 7), (1000, 9), (1500, 1), (2000, 3)].map(|(at, took)| Taken {
            at: Duration::from_millis(at),
            took: Duration::from_millis(took),
        });
        let second = |from| {
            let from = Duration::from_secs(from);
            Window::of(&taken, from, from + Duration::from_secs(1))
        };
        assert_eq!(second(0).per_second, 2.0);
        assert_eq!(second(1).latency.unwrap().longest_ms, 9.0);
        assert_eq!(second(2).latency.unwrap().of, 1);
        assert_eq!(second(3).per_second, 0.0);
        assert_eq!(second(3).latency, None);
        let all = Window::of(&taken, Duration::ZERO, Duration::from_secs(4));
        assert_eq!(all.per_second, 1.25);
    }
}
