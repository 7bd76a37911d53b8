//! The outbox beside the loops that outboxes are commonly built on, with a publisher that confirms at once.
//!
//! Goal: the outbox at least as fast as the fastest loop, and three times as fast as a lease column.
//!
//! Each has a table of its own with the same messages. A loop that takes longer than `--seconds` is
//! ended, and its rate is that of the time it had. Filling the tables is not measured.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Result;
use crate::measure::{Clock, Measured, all, median};
use crate::reference::Loop;
use crate::relay::{Backlog, NullPublisher, Order};
use crate::report::Outcome;
use crate::setup::Database;

/// Delivers the same backlog by the outbox and by the loops that outboxes are commonly built on.
#[derive(clap::Args, Serialize)]
pub(crate) struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    backlog: Backlog,
    /// How long a loop may take.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// How often everything is measured; every second time backwards. Medians are reported.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
}

/// Who delivers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Outbox,
    Loop(Loop),
}

impl Who {
    const ALL: [Self; 5] = [
        Self::Outbox,
        Self::Loop(Loop::ALL[0]),
        Self::Loop(Loop::ALL[1]),
        Self::Loop(Loop::ALL[2]),
        Self::Loop(Loop::ALL[3]),
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Outbox => "outbox",
            Self::Loop(it) => it.name(),
        }
    }

    fn promise(self) -> &'static str {
        match self {
            Self::Outbox => "loses nothing, order per key",
            Self::Loop(it) if it.is_safe() => "loses nothing, no order",
            Self::Loop(_) => "loses messages in a crash, no order",
        }
    }
}

#[derive(Serialize)]
struct Report {
    args: Args,
    rounds: Vec<BTreeMap<&'static str, Measured>>,
    outbox_to_fastest: Option<f64>,
    outbox_to_lease: Option<f64>,
}

pub(crate) async fn run(args: Args, database: &Database) -> Result<Outcome> {
    println!("{}, loops end after {} s", args.backlog, args.seconds);

    let mut order = Who::ALL;
    let mut rounds = Vec::new();
    for number in 1..=args.rounds {
        println!();
        let mut round = BTreeMap::new();
        for who in order {
            let measured = database
                .with_schema(async |schema| measure(who, &args, database, schema).await)
                .await
                .map_err(|error| format!("{}: {error}", who.name()))?;
            println!(
                "{number:>3}  {:<44} {:>9.0}/s   {}",
                who.name(),
                measured.messages_per_second,
                who.promise(),
            );
            round.insert(who, measured);
        }
        order.reverse();
        rounds.push(round);
    }

    let rate = |round: &BTreeMap<Who, Measured>, who| round[&who].messages_per_second;
    let fastest = |round: &BTreeMap<Who, Measured>| {
        let loops = Loop::ALL.map(|it| rate(round, Who::Loop(it)));
        loops.into_iter().fold(0.0, f64::max)
    };
    let report = Report {
        outbox_to_fastest: median(rounds.iter().map(|it| rate(it, Who::Outbox) / fastest(it))),
        outbox_to_lease: median(
            rounds
                .iter()
                .map(|it| rate(it, Who::Outbox) / rate(it, Who::Loop(Loop::Lease))),
        ),
        rounds: rounds
            .into_iter()
            .map(|round| {
                round
                    .into_iter()
                    .map(|(who, it)| (who.name(), it))
                    .collect()
            })
            .collect(),
        args,
    };
    Ok(Outcome::of(&report)?
        .at_least("outbox / fastest loop", report.outbox_to_fastest, 1.0)
        .at_least("outbox / lease column", report.outbox_to_lease, 3.0))
}

async fn measure(who: Who, args: &Args, database: &Database, schema: &str) -> Result<Measured> {
    let workload = args.backlog.workload();
    let drain = args.backlog.drain(Order::PerKey);
    match who {
        Who::Outbox => {
            let outbox = workload.enqueue(database, schema, None).await?;
            drain
                .run(
                    database,
                    &outbox,
                    workload.messages,
                    Arc::new(NullPublisher),
                )
                .await
        }
        Who::Loop(it) => {
            it.fill(database, schema, &workload).await?;
            let clock = Clock::start();
            let end = Instant::now() + Duration::from_secs(args.seconds.into());
            let delivered = it
                .drain(database, schema, drain.workers, drain.batch, Some(end))
                .await?;
            let measured = clock.stop(delivered);
            let left = database.count(&format!("{schema}.queue")).await?;
            all(delivered + left, workload.messages, "accounted for")?;
            Ok(measured)
        }
    }
}
