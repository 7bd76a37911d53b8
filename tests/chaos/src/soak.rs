//! Hours at a steady rate: what a relay and its tables cost must not depend on how long they have run.
//!
//! Nothing is broken here. Memory, sizes, dead rows and latency are sampled; each series is level or
//! growing, by its median late in the run against its median early in it.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outbox_postgres::Outbox;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::time::{sleep, sleep_until};

use crate::Result;
use crate::broker::{self, Broker, Kind};
use crate::consumer::{Consumer, Recorder};
use crate::folder::Folder;
use crate::plot::{Line, Plot};
use crate::postgres::Postgres;
use crate::producer::{Ledger, Producers, Work};
use crate::relays::Relays;
use crate::timeline::Timeline;

/// How long all may take to be settled in the end.
const QUIET: Duration = Duration::from_secs(60);
/// A growth by less than a fifth is none, nor is one by less than a series' own slack.
const GROWTH: f64 = 1.2;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The broker, on the server that all tests share
    #[arg(long)]
    broker: Kind,
    #[arg(long, default_value_t = 20.0)]
    minutes: f64,
    /// Messages that commit in a second
    #[arg(long, default_value_t = 800, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Seconds between two samples
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    sample: u32,
    /// Where the samples and plots are written
    #[arg(long, default_value = "target/chaos")]
    report: PathBuf,
}

/// What is sampled: its name and unit, and how much it may differ without growing.
const SERIES: [(&str, f64); 7] = [
    ("delivered a second", f64::INFINITY),
    ("latency, median, ms", 5.0),
    ("latency, 99 percent, ms", 50.0),
    ("memory of three relays, MiB", 6.0),
    ("table, MiB", 2.0),
    ("index, MiB", 2.0),
    ("dead rows", 20_000.0),
];

/// The moment in seconds, and a value for each series.
type Sample = (f64, [f64; SERIES.len()]);

/// Whether everything is level, and everything arrived.
pub(crate) async fn run(arguments: Arguments) -> Result<bool> {
    let kind = arguments.broker;
    let lasts = Duration::try_from_secs_f64(arguments.minutes * 60.0)?;
    let mut folder = Folder::make()?;
    let postgres = Postgres::start(&mut folder, None).await?;
    let (address, _) = kind.server(false);
    let topic = format!("soak-{}", std::process::id());
    let broker: Arc<dyn Broker> = Arc::from(kind.open(&address, &topic)?);
    broker.create_topic().await?;
    // Each does fifty messages a second without haste, also on a busy machine.
    let producers = (arguments.rate as usize / 50).clamp(4, 32);
    let pool = PgPoolOptions::new()
        .max_connections(producers as u32 + 4)
        .connect_lazy(&postgres.url())?;
    Outbox::new().migrate(&pool).await?;

    let ports = (broker::port(&address)?, postgres.port());
    let timeline = Arc::new(Timeline::begin());
    let consumer = Consumer::start(Arc::clone(&broker), Arc::clone(&timeline));
    let relays = Relays::start(folder.path(), kind, ports.0, ports.1, false).await?;
    let work = Work {
        pool: &pool,
        topic: &topic,
        rate: arguments.rate,
        seed: 1,
        producers,
        long: false,
        log: false,
    };
    let producers = Producers::start(&work, &timeline);
    let ledger = Arc::clone(&producers.ledger);

    let mut samples: Vec<Sample> = Vec::new();
    let each = Duration::from_secs(arguments.sample.into());
    let mut at = each;
    while at <= lasts {
        sleep_until(timeline.moment(at)).await; // wait: the time between two samples
        let latencies = latencies(&consumer.recorder, &ledger);
        let values = sample(&pool, &relays, latencies, each).await?;
        if samples.len().is_multiple_of(12) {
            let said = SERIES
                .iter()
                .zip(values)
                .map(|((name, _), value)| format!("{name} {value:.1}"));
            timeline.say(&said.collect::<Vec<_>>().join(", "));
        }
        samples.push((at.as_secs_f64(), values));
        at += each;
    }
    producers.stop().await?;
    settle(&pool).await?;
    // What has arrived was taken out of the ledger, and so were the rolled back by nobody: only confirmed
    // commits count.
    let quiet = tokio::time::Instant::now() + QUIET;
    while ledger.confirmed() > 0 && tokio::time::Instant::now() < quiet {
        latencies(&consumer.recorder, &ledger);
        sleep(Duration::from_millis(100)).await; // wait: the poll of a bounded loop
    }
    let missing = ledger.confirmed();
    let delivered = consumer.recorder.messages();
    consumer.stop().await?;
    relays.stop_all().await?;
    broker.delete_topic().await?;

    let mut text = format!(
        "{kind}, {} messages/s, {} minutes: {delivered} messages delivered, {missing} missing\n",
        arguments.rate, arguments.minutes
    );
    let level = verdicts(&samples, &mut text);
    print!("{text}");
    let folder = arguments.report.join(format!("soak-{kind}"));
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("soak.csv"), csv(&samples))?;
    for (number, (name, _)) in SERIES.iter().enumerate() {
        let line = Line {
            name: (*name).to_owned(),
            points: samples
                .iter()
                .map(|(at, values)| (*at, values[number]))
                .collect(),
        };
        let plot = Plot {
            title: format!("Soak, {kind}"),
            lines: vec![line],
            bars: Vec::new(),
        };
        let file: String = name.chars().take_while(|it| *it != ',').collect();
        let file = match name.contains("99") {
            true => "latency-99.svg".to_owned(),
            false => format!("{}.svg", file.replace(' ', "-")),
        };
        std::fs::write(folder.join(file), plot.svg())?;
    }
    println!("report: {}", folder.display());
    Ok(level && missing == 0)
}

/// How long each message took that has arrived since the last call, from the answer to its commit, in
/// milliseconds.
fn latencies(recorder: &Recorder, ledger: &Ledger) -> Vec<f64> {
    let arrivals = recorder.take();
    let latencies = arrivals.iter().filter_map(|arrival| {
        let committed = ledger.settle(&arrival.id)?;
        Some(arrival.at.saturating_sub(committed).as_secs_f64() * 1000.0)
    });
    let mut latencies: Vec<f64> = latencies.collect();
    latencies.sort_by(f64::total_cmp);
    latencies
}

async fn sample(
    pool: &PgPool,
    relays: &Relays,
    latencies: Vec<f64>,
    each: Duration,
) -> Result<[f64; SERIES.len()]> {
    let (table, index, dead): (i64, i64, i64) = sqlx::query_as(
        "SELECT pg_relation_size(relid), pg_indexes_size(relid), n_dead_tup FROM pg_stat_user_tables \
         WHERE schemaname = 'outbox' AND relname = 'message'",
    )
    .fetch_one(pool)
    .await?;
    let mebibytes = |bytes: f64| bytes / (1024.0 * 1024.0);
    Ok([
        latencies.len() as f64 / each.as_secs_f64(),
        quantile(&latencies, 0.5),
        quantile(&latencies, 0.99),
        mebibytes(relays.memory() as f64),
        mebibytes(table as f64),
        mebibytes(index as f64),
        dead as f64,
    ])
}

/// Of values in their order; 0 where there are none.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let index = (sorted.len() as f64 * part) as usize;
    sorted
        .get(index.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}

async fn settle(pool: &PgPool) -> Result<()> {
    let quiet = tokio::time::Instant::now() + QUIET;
    loop {
        let counts = Outbox::new().counts(pool).await?;
        if counts.waiting + counts.parked == 0 {
            return Ok(());
        }
        if tokio::time::Instant::now() > quiet {
            return Err(format!("{} wait, {} are parked", counts.waiting, counts.parked).into());
        }
        sleep(Duration::from_millis(100)).await; // wait: the poll of a bounded loop
    }
}

/// Writes a line for each series; whether none grows.
fn verdicts(samples: &[Sample], text: &mut String) -> bool {
    let mut level = true;
    for (number, (name, slack)) in SERIES.iter().enumerate() {
        let values: Vec<f64> = samples.iter().map(|(_, values)| values[number]).collect();
        let (early, late) = early_and_late(&values);
        let grows = late > early * GROWTH && late - early > *slack;
        level &= !grows;
        let verdict = if grows { "GROWING" } else { "level" };
        let _ = writeln!(
            text,
            "{name:<28} {early:>10.1} early {late:>10.1} late  {verdict}"
        );
    }
    level
}

/// The medians of the second and of the last fifth: the first fifth is the start.
fn early_and_late(values: &[f64]) -> (f64, f64) {
    let fifth = values.len() / 5;
    let median = |part: &[f64]| {
        let mut part = part.to_vec();
        part.sort_by(f64::total_cmp);
        quantile(&part, 0.5)
    };
    (
        median(&values[fifth..2 * fifth]),
        median(&values[values.len() - fifth..]),
    )
}

fn csv(samples: &[Sample]) -> String {
    let names: Vec<String> = SERIES
        .iter()
        .map(|(name, _)| name.replace(',', ""))
        .collect();
    let mut text = format!("seconds,{}\n", names.join(","));
    for (at, values) in samples {
        let values: Vec<String> = values.iter().map(|value| format!("{value:.2}")).collect();
        let _ = writeln!(text, "{at:.0},{}", values.join(","));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grows(value: impl Fn(usize) -> f64) -> bool {
        // The memory of the relays.
        let samples: Vec<Sample> = (0..100)
            .map(|at| {
                let mut values = [0.0; SERIES.len()];
                values[3] = value(at);
                (at as f64, values)
            })
            .collect();
        let mut text = String::new();
        let level = verdicts(&samples, &mut text);
        assert_eq!(text.contains("GROWING"), !level);
        !level
    }

    #[test]
    fn what_rises_all_the_time_grows() {
        assert!(grows(|at| 30.0 + at as f64));
    }

    #[test]
    fn what_rises_at_the_start_or_up_and_down_is_level() {
        assert!(!grows(|at| (at as f64 * 5.0).min(80.0)));
        assert!(!grows(|at| 40.0 + (at % 10) as f64));
        assert!(!grows(|at| if at == 95 { 500.0 } else { 40.0 }));
    }
}
