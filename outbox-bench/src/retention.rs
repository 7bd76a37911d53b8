//! What it costs to deliver later, and to keep what was delivered.
//!
//! The same messages are enqueued and delivered, with a publisher that confirms at once:
//!
//! | | way | what it is |
//! | --- | --- | --- |
//! | N | now | no delay, nothing kept |
//! | L | later | with a delay that is over when the relay starts, so that it moves all of them first |
//! | K | kept | as N, with `keep_delivered_for` |
//!
//! Enqueuing is measured by `enqueue_all`, without a relay beside it. Delivering begins with connecting and ends with
//! the last commit; of K it includes making the first days. Not measured: to drop a day, which is one
//! `DROP TABLE`, and the waiting of delayed messages, which a relay that sleeps does not notice.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::Result;
use crate::measure::{Measured, all, median};
use crate::producer::enqueue_all;
use crate::relay::{Backlog, Drain, NullPublisher, Order, new_outbox};
use crate::report::Outcome;
use crate::setup::Database;

/// Over before the relay has connected.
const DELAY: Duration = Duration::from_micros(1);
/// No day of a run is as old.
const KEEP: Duration = Duration::from_secs(7 * 24 * 3600);

/// Measures messages with a delay, and keeping what was delivered, beside neither.
#[derive(clap::Args, Serialize)]
pub(crate) struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    backlog: Backlog,
    /// How often everything is measured; every second time backwards. Medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Now,
    Later,
    Kept,
}

impl Way {
    const ALL: [Self; 3] = [Self::Now, Self::Later, Self::Kept];

    fn name(self) -> &'static str {
        match self {
            Self::Now => "N now",
            Self::Later => "L later",
            Self::Kept => "K kept",
        }
    }
}

/// One way in one round.
#[derive(Clone, Copy, Serialize)]
struct Passed {
    /// Messages a second.
    enqueue_all: f64,
    drain: Measured,
}

impl Passed {
    fn rate(&self) -> f64 {
        self.drain.messages_per_second
    }

    fn wal_to(&self, other: &Self) -> Option<f64> {
        Some(self.drain.wal_bytes_per_message? / other.drain.wal_bytes_per_message?)
    }
}

#[derive(Clone, Copy, Serialize)]
struct Round {
    now: Passed,
    later: Passed,
    kept: Passed,
}

#[derive(Serialize)]
struct Report {
    args: Args,
    rounds: Vec<Round>,
    enqueue_later_to_now: Option<f64>,
    drain_later_to_now: Option<f64>,
    drain_kept_to_now: Option<f64>,
    wal_later_to_now: Option<f64>,
    wal_kept_to_now: Option<f64>,
}

pub(crate) async fn run(args: Args, database: &Database) -> Result<Outcome> {
    println!("{}", args.backlog);
    let mut order = Way::ALL;
    let mut rounds = Vec::new();
    for number in 1..=args.rounds {
        println!();
        let mut passed = [None; Way::ALL.len()];
        for way in order {
            let one = database
                .with_schema(async |schema| pass(way, &args.backlog, database, schema).await)
                .await
                .map_err(|error| format!("{}: {error}", way.name()))?;
            println!(
                "{number:>3}  {:<8} enqueue_all {:>9.0}/s  drain {:>9.0}/s  {:>7.2} s  {:>6.0} B of log a message",
                way.name(),
                one.enqueue_all,
                one.drain.messages_per_second,
                one.drain.seconds,
                one.drain.wal_bytes_per_message.unwrap_or(f64::NAN),
            );
            passed[way as usize] = Some(one);
        }
        if let [Some(now), Some(later), Some(kept)] = passed {
            rounds.push(Round { now, later, kept });
        }
        order.reverse();
    }
    let of = |ratio: fn(&Round) -> Option<f64>| median(rounds.iter().filter_map(ratio));
    let report = Report {
        enqueue_later_to_now: of(|it| Some(it.later.enqueue_all / it.now.enqueue_all)),
        drain_later_to_now: of(|it| Some(it.later.rate() / it.now.rate())),
        drain_kept_to_now: of(|it| Some(it.kept.rate() / it.now.rate())),
        wal_later_to_now: of(|it| it.later.wal_to(&it.now)),
        wal_kept_to_now: of(|it| it.kept.wal_to(&it.now)),
        args,
        rounds,
    };
    println!();
    for (name, ratio) in [
        ("enqueue_all, L / N", report.enqueue_later_to_now),
        ("drain, L / N", report.drain_later_to_now),
        ("drain, K / N", report.drain_kept_to_now),
        ("log of the drain, L / N", report.wal_later_to_now),
        ("log of the drain, K / N", report.wal_kept_to_now),
    ] {
        println!("{name:<24} {:>9.2}", ratio.unwrap_or(f64::NAN));
    }
    Outcome::of(&report)
}

async fn pass(way: Way, backlog: &Backlog, database: &Database, schema: &str) -> Result<Passed> {
    let outbox = new_outbox(database, schema).await?;
    let workload = backlog.workload();
    let delay = match way {
        Way::Later => DELAY,
        Way::Now | Way::Kept => Duration::ZERO,
    };
    let enqueue_all = enqueue_all(database, &outbox, &workload, delay).await?;
    let drain = Drain {
        keep: (way == Way::Kept).then_some(KEEP),
        ..backlog.drain(Order::PerKey)
    };
    let drain = drain
        .run(
            database,
            &outbox,
            workload.messages,
            Arc::new(NullPublisher),
        )
        .await?;
    let kept = match way {
        Way::Kept => workload.messages,
        Way::Now | Way::Later => 0,
    };
    all(
        database.count(&format!("{schema}.delivered")).await?,
        kept,
        "are kept",
    )?;
    Ok(Passed { enqueue_all, drain })
}
