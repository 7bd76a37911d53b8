//! Whether a claim costs more the more messages wait.
//!
//! For each size an outbox is filled. One worker then claims and settles, batch after batch, and each claim and
//! each settle is timed; after every five claims as many messages are enqueued again, so that all sizes have
//! as many claims and none runs dry. Then the real relay delivers for a while, with a publisher that confirms at once:
//! its rate, the peak of this process's resident memory, and the write-ahead log of each message.
//!
//! The log is the server's: what others write meanwhile is in it. Filling is not timed, but its log is told.
//!
//! Goal: at the largest size, the 99th percentile of a claim's time at most twice, and the memory at most
//! 1.5 times, those at the smallest, which is delivered before every worker has had its largest batch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::{ClaimLimits, Outcome as Became, Store};
use serde::Serialize;

use crate::Result;
use crate::measure::Measured;
use crate::plot::{Axis, Line, Plot};
use crate::relay::{Drain, NullPublisher, Order};
use crate::report::Outcome;
use crate::setup::{Database, Shape};
use crate::times::Percentiles;

/// The claims between two refills; five batches are half of the smallest backlog.
const CLAIMS: u32 = 5;
const BATCH: u32 = 1000;
const WORKERS: usize = 4;

/// Measures claims, and memory, by how much waits.
#[derive(clap::Args, Serialize)]
pub(crate) struct Args {
    /// How many messages wait: some sizes, the smallest first.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 1_000_000, 5_000_000],
          value_parser = clap::value_parser!(u32).range(10_000..))]
    waiting: Vec<u32>,
    /// How many claims are timed for each size, of 1000 messages each.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(5..=100_000))]
    claims: u32,
    /// For how long the relay delivers, at most.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    #[command(flatten)]
    #[serde(flatten)]
    shape: Shape,
}

/// One size.
#[derive(Serialize)]
struct Row {
    waiting: u32,
    claim: Percentiles,
    settle: Percentiles,
    enqueue_wal_bytes_per_message: f64,
    relay: Measured,
}

#[derive(Serialize)]
struct Report {
    args: Args,
    rows: Vec<Row>,
}

pub(crate) async fn run(args: Args, database: &Database) -> Result<Outcome> {
    println!(
        "{} claims of {BATCH}, then a relay of {WORKERS} workers for up to {} s; {}\n",
        args.claims, args.seconds, args.shape
    );
    let mut rows = Vec::new();
    for &waiting in &args.waiting {
        let row = database
            .with_schema(async |schema| measure(&args, waiting, database, schema).await)
            .await
            .map_err(|error| format!("{waiting} waiting: {error}"))?;
        row.print();
        rows.push(row);
    }
    let report = Report { args, rows };
    let (first, last) = (report.rows.first(), report.rows.last());
    let ratio = |of: fn(&Row) -> f64| Some(of(last?) / of(first?));
    Ok(Outcome::of(&report)?
        .at_most(
            "p99 of a claim, largest / smallest backlog",
            ratio(|row| row.claim.p99_ms),
            2.0,
        )
        .at_most(
            "peak memory, largest / smallest backlog",
            ratio(|row| row.relay.peak_mib()),
            1.5,
        )
        .plot(report.plot()))
}

impl Report {
    fn plot(&self) -> Plot {
        let line = |name: &str, of: fn(&Row) -> f64| Line {
            name: name.to_owned(),
            points: self
                .rows
                .iter()
                .map(|row| (f64::from(row.waiting), of(row)))
                .collect(),
        };
        Plot {
            name: "backlog".to_owned(),
            title: format!("A claim and a settle of {BATCH} messages, by how many wait"),
            x: Axis::log("messages waiting"),
            y: Axis::linear("ms"),
            lines: vec![
                line("claim, p50", |row| row.claim.p50_ms),
                line("claim, p99", |row| row.claim.p99_ms),
                line("settle, p50", |row| row.settle.p50_ms),
                line("settle, p99", |row| row.settle.p99_ms),
            ],
        }
    }
}

impl Row {
    fn print(&self) {
        println!(
            "{:>9} waiting  claim p50 {:>6.2} p99 {:>6.2} ms  settle p50 {:>6.2} p99 {:>6.2} ms  \
             relay {:>7.0}/s {:>6.1} MiB  log of a message {:.0} B enqueued, {:.0} B delivered",
            self.waiting,
            self.claim.p50_ms,
            self.claim.p99_ms,
            self.settle.p50_ms,
            self.settle.p99_ms,
            self.relay.messages_per_second,
            self.relay.peak_mib(),
            self.enqueue_wal_bytes_per_message,
            self.relay.wal_bytes_per_message.unwrap_or_default(),
        );
    }
}

async fn measure(args: &Args, waiting: u32, database: &Database, schema: &str) -> Result<Row> {
    let of = |messages: u32| args.shape.workload(messages.into());
    let before = database.wal().await?;
    let outbox = of(waiting).enqueue(database, schema, None).await?;
    let enqueued = database.wal().await? - before;

    let store = outbox.store(&database.pool);
    let limits = ClaimLimits {
        messages: BATCH as usize,
        bytes: 1 << 30,
        wait: Duration::from_secs(1),
        hold: Duration::from_secs(60),
    };
    let (mut claims, mut settles) = (Vec::new(), Vec::new());
    // The first claims open the session and learn of the lanes.
    for refill in 0..=args.claims.div_ceil(CLAIMS) {
        let mut taken = 0;
        for _ in 0..CLAIMS {
            let start = Instant::now();
            let claim = store.claim(&limits).await?.ok_or("nothing to claim")?;
            let claimed = start.elapsed();
            let outcomes = vec![Became::Delivered; claim.messages().len()];
            taken += outcomes.len() as u32;
            let start = Instant::now();
            claim.settle(outcomes).await?;
            if refill > 0 {
                claims.push(claimed);
                settles.push(start.elapsed());
            }
        }
        of(taken).fill(database, schema, "message", "bench").await?;
    }

    let drain = Drain {
        workers: WORKERS,
        batch: BATCH as usize,
        order: Order::PerKey,
        keep: None,
    };
    let seconds = Duration::from_secs(args.seconds.into());
    let (relay, _) = drain
        .run_for(
            seconds,
            database,
            &outbox,
            waiting.into(),
            Arc::new(NullPublisher),
        )
        .await?;
    Ok(Row {
        waiting,
        claim: Percentiles::new(claims).ok_or("no claim")?,
        settle: Percentiles::new(settles).ok_or("no settle")?,
        enqueue_wal_bytes_per_message: enqueued / f64::from(waiting),
        relay,
    })
}
