//! A run: everything is started, broken by the schedule while producers write, left alone until it is
//! quiet, and audited.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbox_postgres::Outbox;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::Result;
use crate::audit::{Audit, Evidence};
use crate::broker::{self, Broker, Kind};
use crate::consumer::{Consumer, Recorder};
use crate::faults::Stage;
use crate::folder::Folder;
use crate::kept::{keep_logs, keep_records, keep_tables};
use crate::postgres::{self, Postgres};
use crate::producer::{self, Ledger, Producers, Work};
use crate::record::{Failures, Left};
use crate::relay::BOUNDS;
use crate::relays::Relays;
use crate::report::Report;
use crate::schedule::{Abilities, schedule};
use crate::service::{self, Service};
use crate::timeline::Timeline;

/// How long after the last fault everything may take to be settled, on a busy machine.
const QUIET: Duration = Duration::from_secs(150);
/// How often the run says how far it is.
const STATUS: Duration = Duration::from_secs(5);
/// What the database's disk holds besides the log of commits, and what a message takes there, in bytes.
const DISK_MIB: u64 = 160;
const DISK_PER_MESSAGE: u64 = 1000;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The broker: its server for tests that break servers is taken, or waited for
    #[arg(long)]
    broker: Kind,
    /// How long producers write and things are broken
    #[arg(long, default_value_t = 3.0)]
    minutes: f64,
    /// What the faults and the messages are drawn from
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Messages that commit in a second
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Where the report is written
    #[arg(long, default_value = "target/chaos")]
    report: PathBuf,
    /// Take the broker's server that all tests share, and break everything but that
    #[arg(long)]
    spare_broker: bool,
    /// Only kill relays
    #[arg(long)]
    kills_only: bool,
    /// Let the relays settle before the broker has answered, to see the audit fail
    #[arg(long)]
    unsafe_relays: bool,
}

/// Whether every promise was kept.
pub(crate) async fn run(arguments: Arguments) -> Result<bool> {
    let kind = arguments.broker;
    let lasts = Duration::try_from_secs_f64(arguments.minutes * 60.0)?;
    let mut folder = Folder::make()?;
    let messages = lasts.as_secs() * u64::from(arguments.rate);
    let disk = DISK_MIB + messages * DISK_PER_MESSAGE / (1024 * 1024);
    let postgres = Postgres::start(&mut folder, Some(disk)).await?;
    let abilities = Abilities {
        broker: !arguments.spare_broker,
        broker_states: kind.states(),
        disk: postgres.has_own_disk(),
        kills_only: arguments.kills_only,
    };
    if !abilities.disk {
        println!("Its disk is not filled: this process may not mount one for Postgres.");
    }

    let (address, name) = kind.server(abilities.broker);
    let service = match abilities.broker {
        true => Some(Service::take(name).await?),
        false => None,
    };
    let topic = format!("chaos-{}", std::process::id());
    let broker: Arc<dyn Broker> = Arc::from(kind.open(&address, &topic)?);
    broker.create_topic().await?;
    if let Some(service) = &service {
        // Whoever was killed may have left the server in a state.
        for state in kind.states() {
            broker.drain(*state, service).await?;
        }
    }

    let pool = PgPoolOptions::new()
        .acquire_timeout(Duration::from_secs(5))
        .max_connections(16)
        .connect_lazy(&postgres.url())?;
    Outbox::new().migrate(&pool).await?;
    sqlx::raw_sql(include_str!("log.sql"))
        .execute(&pool)
        .await?;
    let servers = format!(
        "{kind} {}, Postgres {}",
        service::version(name)?,
        postgres::version(&pool).await?
    );

    let ports = (broker::port(&address)?, postgres.port());
    let timeline = Arc::new(Timeline::begin());
    let consumer = Consumer::start(Arc::clone(&broker), Arc::clone(&timeline));
    let hasty = arguments.unsafe_relays;
    let relays = Relays::start(folder.path(), kind, ports.0, ports.1, hasty).await?;
    let planned = schedule(arguments.seed, lasts, &abilities);
    timeline.say(&format!(
        "{servers}, seed {}, {} s, {} faults, {} messages/s",
        arguments.seed,
        lasts.as_secs(),
        planned.len(),
        arguments.rate
    ));
    let work = Work {
        pool: &pool,
        topic: &topic,
        rate: arguments.rate,
        seed: arguments.seed,
        producers: 4,
        long: true,
        log: true,
    };
    let producers = Producers::start(&work, &timeline);
    let stage = Stage {
        timeline: &timeline,
        relays: &relays,
        postgres: tokio::sync::Mutex::new(postgres),
        broker: &*broker,
        service,
        troubles: Mutex::default(),
    };

    let ledger = Arc::clone(&producers.ledger);
    let storm = async {
        stage.carry_out(&planned, lasts).await;
        sleep_until(timeline.moment(lasts)).await; // wait: the producers have until then
        stage.or_trouble("the producers", producers.stop().await);
        timeline.say("the producers have stopped, and all is mended");
        // First, since nothing can commit after it.
        let committed = stage.or_trouble("the log of commits", producer::log(&pool).await);
        settle(&stage, &pool, &ledger, &consumer.recorder).await;
        committed
    };
    let committed = tokio::select! {
        committed = storm => committed,
        never = tell(&timeline, &ledger, &consumer.recorder) => match never {},
    };

    // From here on an error must not take the evidence with it.
    consumer.catch_up(committed.len()).await;
    for trouble in relays.stop_all().await {
        stage.trouble(trouble);
    }
    let left = stage.or_trouble("what is left", left(&pool).await);
    let failures = stage.or_trouble("the failures", failures(&pool, &timeline).await);
    let (arrivals, ended) = consumer.stop().await;
    stage.or_trouble("the consumer", ended);
    let attempts: HashMap<_, _> = ledger.take();
    let disturbances = timeline.disturbances();
    let audit = Audit::of(&Evidence {
        committed: &committed,
        attempts: &attempts,
        arrivals: &arrivals,
        disturbances: &disturbances,
        bounds: BOUNDS,
        left,
        failures: &failures,
    });

    let troubles = stage
        .troubles
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let sound = audit.is_sound() && troubles.is_empty();
    let name = format!("{kind}-seed{}", arguments.seed);
    let report = Report {
        // Not where the next run writes its own.
        name: match sound {
            true => name,
            false => format!("{name}-failed-{}", std::process::id()),
        },
        title: format!(
            "{kind}, seed {}, {} minutes",
            arguments.seed, arguments.minutes
        ),
        command: std::env::args().skip(1).collect::<Vec<_>>().join(" "),
        servers: &servers,
        audit: &audit,
        troubles: &troubles,
        disturbances: &disturbances,
        planned: planned.len(),
        committed: attempts
            .values()
            .filter_map(|it| it.commit_answered)
            .collect(),
        delivered: arrivals.iter().map(|it| it.at).collect(),
    };
    println!("\n{}", report.summary());
    let written = report.write(&arguments.report)?;
    println!("report: {}", written.display());
    if !sound {
        let kept = written.with_file_name("");
        for done in [
            keep_logs(folder.path(), &kept),
            keep_records(&attempts, &arrivals, &kept),
            keep_tables(&pool, &kept).await,
        ] {
            if let Err(error) = done {
                println!("not kept: {error}");
            }
        }
        println!("logs, tables and records: {}", kept.display());
    }
    broker.delete_topic().await?;
    Ok(sound)
}

/// Waits until nothing waits any more; what it is that waits where that takes too long is the audit's.
async fn settle(stage: &Stage<'_>, pool: &PgPool, ledger: &Ledger, recorder: &Recorder) {
    let (start, mut said) = (Instant::now(), String::new());
    while start.elapsed() < QUIET {
        if let Ok(left) = left(pool).await {
            if left.waiting == 0 && left.parked == 0 {
                let took = start.elapsed().as_secs_f64();
                stage
                    .timeline
                    .say(&format!("all is settled, after {took:.1} s"));
                return;
            }
            said = format!("{} wait and {} are parked", left.waiting, left.parked);
        }
        sleep(Duration::from_millis(100)).await; // wait: the poll of a bounded loop
    }
    let missing = ledger.confirmed().saturating_sub(recorder.messages());
    stage.trouble(format!(
        "after {QUIET:?} {said}, {missing} have not arrived"
    ));
}

async fn left(pool: &PgPool) -> Result<Left> {
    let counts = timeout(Duration::from_secs(10), Outbox::new().counts(pool)).await??;
    Ok(Left {
        waiting: counts.waiting,
        parked: counts.parked,
        dead: counts.dead,
    })
}

/// What was counted against messages, by kind and reason, the most frequent first.
async fn failures(pool: &PgPool, timeline: &Timeline) -> Result<Vec<Failures>> {
    let rows: Vec<(String, String, i64, f64, f64)> = sqlx::query_as(
        "SELECT coalesce(kind, ''), coalesce(error, ''), count(*),
                min(extract(epoch FROM at))::float8, max(extract(epoch FROM at))::float8
           FROM log.failure GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2",
    )
    .fetch_all(pool)
    .await?;
    let failures = rows
        .into_iter()
        .map(|(kind, reason, count, first, last)| Failures {
            kind,
            reason,
            count: count.unsigned_abs(),
            first: timeline.at(first),
            last: timeline.at(last),
        });
    Ok(failures.collect())
}

/// Says now and then how far the run is.
async fn tell(
    timeline: &Timeline,
    ledger: &Ledger,
    recorder: &Recorder,
) -> std::convert::Infallible {
    let (mut before, mut at) = ((0, 0), STATUS);
    loop {
        sleep_until(timeline.moment(at)).await; // wait: the time between two lines
        let (committed, delivered, copies) =
            (ledger.confirmed(), recorder.messages(), recorder.copies());
        let seconds = STATUS.as_secs() as usize;
        timeline.say(&format!(
            "committed {committed} (+{}/s), delivered {delivered} (+{}/s), {} repeats",
            (committed - before.0) / seconds,
            (delivered - before.1) / seconds,
            copies - delivered,
        ));
        before = (committed, delivered);
        at += STATUS;
    }
}
