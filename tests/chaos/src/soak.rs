//! Hours at a steady rate: what a relay and its tables cost must not depend on how long they have run.
//!
//! Nothing is broken here. Throughput, latency, memory, sizes and dead rows are sampled; `trend.rs` says
//! which of them are level.

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
use crate::kept::{keep_logs, keep_tables};
use crate::plot::{Line, Plot};
use crate::postgres::{self, Postgres};
use crate::producer::{Ledger, Producers, Settled, Work};
use crate::record::Arrival;
use crate::relays::Relays;
use crate::service;
use crate::timeline::Timeline;
use crate::trend::{Series, Wrong, quantile};

/// How long all may take to be settled in the end.
const QUIET: Duration = Duration::from_secs(60);
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

/// What is sampled.
const SERIES: [Series; 7] = [
    Series::typical("delivered a second", Wrong::Falls, 10.0),
    Series::typical("latency, median, ms", Wrong::Grows, 5.0),
    Series::typical("latency, 99 percent, ms", Wrong::Grows, 50.0),
    Series::typical("memory of three relays, MiB", Wrong::Grows, 6.0),
    Series::highest("table, MiB", Wrong::Grows, 2.0),
    Series::highest("index, MiB", Wrong::Grows, 2.0),
    // Their count swings, so that it matters how high.
    Series::highest("dead rows", Wrong::Grows, 5_000.0),
];

/// The moment in seconds, and a value for each series.
type Sample = (f64, [f64; SERIES.len()]);

/// Whether everything is level, and everything arrived.
pub(crate) async fn run(arguments: Arguments) -> Result<bool> {
    let kind = arguments.broker;
    let lasts = Duration::try_from_secs_f64(arguments.minutes * 60.0)?;
    let mut folder = Folder::make()?;
    let postgres = Postgres::start(&mut folder, None).await?;
    let (address, name) = kind.server(false);
    let topic = format!("soak-{}", std::process::id());
    let broker: Arc<dyn Broker> = Arc::from(kind.open(&address, &topic)?);
    broker.create_topic().await?;
    // Each does fifty messages a second without haste, also on a busy machine.
    let producers = (arguments.rate as usize / 50).clamp(4, 32);
    let pool = PgPoolOptions::new()
        .max_connections(producers as u32 + 4)
        .connect_lazy(&postgres.url())?;
    Outbox::new().migrate(&pool).await?;
    let servers = format!(
        "{kind} {}, Postgres {}",
        service::version(name)?,
        postgres::version(&pool).await?
    );

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
    let mut troubles: Vec<String> = Vec::new();
    let mut latencies = Latencies::default();
    let each = Duration::from_secs(arguments.sample.into());
    let mut at = each;
    while at <= lasts {
        sleep_until(timeline.moment(at)).await; // wait: the time between two samples
        let latencies = latencies.since(&consumer.recorder, &ledger);
        match sample(&pool, &relays, latencies, each).await {
            Ok(values) => {
                if samples.len().is_multiple_of(12) {
                    let said = SERIES
                        .iter()
                        .zip(values)
                        .map(|(series, value)| format!("{} {value:.1}", series.name));
                    timeline.say(&said.collect::<Vec<_>>().join(", "));
                }
                samples.push((at.as_secs_f64(), values));
            }
            Err(error) => troubles.push(format!("the sample at {at:?}: {error}")),
        }
        at += each;
    }
    let ended = producers.stop().await;
    troubles.extend(ended.err().map(|error| format!("the producers: {error}")));
    let settled = settle(&pool).await;
    troubles.extend(settled.err().map(|error| format!("the end: {error}")));
    // What has arrived was taken out of the ledger, and so were the rolled back by nobody: only confirmed
    // commits count.
    let quiet = tokio::time::Instant::now() + QUIET;
    while ledger.confirmed() > 0 && tokio::time::Instant::now() < quiet {
        latencies.since(&consumer.recorder, &ledger);
        sleep(Duration::from_millis(100)).await; // wait: the poll of a bounded loop
    }
    let missing = ledger.confirmed();
    let delivered = consumer.recorder.messages();
    let (_, ended) = consumer.stop().await;
    troubles.extend(ended.err().map(|error| format!("the consumer: {error}")));
    troubles.extend(relays.stop_all().await);

    let mut text = format!(
        "{servers}, {} messages/s, {} minutes: {delivered} messages delivered, {missing} missing\n",
        arguments.rate, arguments.minutes
    );
    let level = verdicts(&samples, &mut text);
    for trouble in &troubles {
        let _ = writeln!(text, "trouble: {trouble}");
    }
    print!("{text}");
    let logs = folder;
    let folder = arguments.report.join(format!("soak-{kind}"));
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("report.txt"), text)?;
    std::fs::write(folder.join("soak.csv"), csv(&samples))?;
    for (number, Series { name, .. }) in SERIES.iter().enumerate() {
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
    let sound = level && missing == 0 && troubles.is_empty();
    if !sound {
        keep_logs(logs.path(), &folder)?;
        keep_tables(&pool, &folder).await?;
    }
    broker.delete_topic().await?;
    Ok(sound)
}

/// How long messages took that have arrived.
#[derive(Default)]
struct Latencies {
    /// What arrived before the answer to its commit.
    open: Vec<Arrival>,
}

impl Latencies {
    /// Of each message that has arrived since the last call, from the answer to its commit, in milliseconds.
    fn since(&mut self, recorder: &Recorder, ledger: &Ledger) -> Vec<f64> {
        let mut arrivals = std::mem::take(&mut self.open);
        arrivals.extend(recorder.take());
        let mut latencies = Vec::new();
        for arrival in arrivals {
            match ledger.settle(&arrival.id) {
                Settled::Committed(committed) => {
                    let took = arrival.at.saturating_sub(committed);
                    latencies.push(took.as_secs_f64() * 1000.0);
                }
                Settled::NotYet => self.open.push(arrival),
                Settled::Before => {}
            }
        }
        latencies.sort_by(f64::total_cmp);
        latencies
    }
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

/// Writes a line for each series; whether none goes wrong.
fn verdicts(samples: &[Sample], text: &mut String) -> bool {
    let mut right = true;
    for (number, series) in SERIES.iter().enumerate() {
        let values: Vec<f64> = samples.iter().map(|(_, values)| values[number]).collect();
        let trend = series.trend(&values);
        right &= trend.is_right();
        let _ = writeln!(text, "{:<28} {trend}", series.name);
    }
    right
}

fn csv(samples: &[Sample]) -> String {
    let names: Vec<String> = SERIES
        .iter()
        .map(|series| series.name.replace(',', ""))
        .collect();
    let mut text = format!("seconds,{}\n", names.join(","));
    for (at, values) in samples {
        let values: Vec<String> = values.iter().map(|value| format!("{value:.2}")).collect();
        let _ = writeln!(text, "{at:.0},{}", values.join(","));
    }
    text
}
