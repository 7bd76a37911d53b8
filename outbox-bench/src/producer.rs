//! What the outbox costs those who enqueue.
//!
//! Clients run small transactions as fast as they can, each with one row of business. They do so without
//! an outbox, with one message more in each transaction, and with a relay beside them that is woken,
//! or that polls only. A table with a plain trigger that notifies at every insert is there for comparison:
//! Postgres commits such transactions one after the other.
//!
//! Goal: with a relay that is woken at least 0.9 of the transactions with one that polls only, and 100,000
//! messages a second by `enqueue_all`.

use std::time::{Duration, Instant};

use outbox_core::{Message, Relay};
use outbox_postgres::Outbox;
use serde::Serialize;
use sqlx::{AssertSqlSafe, Connection};
use tokio::task::JoinSet;

use crate::measure::{Clock, median};
use crate::relay::{NullPublisher, beside, new_outbox};
use crate::report::Outcome;
use crate::setup::{Database, Workload};
use crate::{Failure, Result};

/// Measures transactions a second with and without the outbox.
#[derive(clap::Args, Serialize)]
pub(crate) struct Args {
    /// Connections that run transactions.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=80))]
    clients: u32,
    /// For how long, each way.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// The size of a payload, in bytes.
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    bytes: u32,
    /// How many rows `enqueue_all` enqueues, 10,000 at a time.
    #[arg(long, default_value_t = 500_000, value_parser = clap::value_parser!(u32).range(10_000..))]
    rows: u32,
    /// How often everything is measured; every second time backwards. Medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
}

/// How many messages one call of `enqueue_all` has.
const CALL: usize = 10_000;

/// What goes on beside the row of business.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Alone,
    NoRelay,
    WakeUp,
    Polling,
    Notify,
}

impl Way {
    const ALL: [Self; 5] = [
        Self::Alone,
        Self::NoRelay,
        Self::WakeUp,
        Self::Polling,
        Self::Notify,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Alone => "no outbox",
            Self::NoRelay => "outbox, no relay",
            Self::WakeUp => "outbox, a relay that is woken",
            Self::Polling => "outbox, a relay that polls only",
            Self::Notify => "outbox, that relay, NOTIFY at every insert",
        }
    }
}

/// Transactions a second, by way, and rows of `enqueue_all`.
#[derive(Clone, Copy, Serialize)]
struct Round {
    alone: f64,
    no_relay: f64,
    wake_up: f64,
    polling: f64,
    notify: f64,
    enqueue_all: f64,
}

#[derive(Serialize)]
struct Report {
    args: Args,
    rounds: Vec<Round>,
    outbox_to_alone: Option<f64>,
    wake_up_to_polling: Option<f64>,
    notify_to_polling: Option<f64>,
    enqueue_all: Option<f64>,
}

pub(crate) async fn run(args: Args, database: &Database) -> Result<Outcome> {
    println!(
        "{} clients, a row of business and a message of {} bytes in each transaction, {} s each",
        args.clients, args.bytes, args.seconds
    );
    let mut order = Way::ALL;
    let mut rounds = Vec::new();
    for number in 1..=args.rounds {
        println!();
        let mut rates = [0.0; Way::ALL.len()];
        for way in order {
            let rate = database
                .with_schema(async |schema| transactions(way, &args, database, schema).await)
                .await
                .map_err(|error| format!("{}: {error}", way.name()))?;
            println!("{number:>3}  {:<44} {rate:>9.0} transactions/s", way.name());
            rates[way as usize] = rate;
        }
        let workload = Workload::new(args.rows.into(), 10_000, args.bytes as usize);
        let enqueue_all = database
            .with_schema(async |schema| {
                let outbox = new_outbox(database, schema).await?;
                enqueue_all(database, &outbox, &workload, Duration::ZERO).await
            })
            .await?;
        println!(
            "{number:>3}  {:<44} {enqueue_all:>9.0} messages/s",
            "enqueue_all"
        );
        let [alone, no_relay, wake_up, polling, notify] = rates;
        rounds.push(Round {
            alone,
            no_relay,
            wake_up,
            polling,
            notify,
            enqueue_all,
        });
        order.reverse();
    }
    let of = |ratio: fn(&Round) -> f64| median(rounds.iter().map(ratio));
    let report = Report {
        outbox_to_alone: of(|it| it.no_relay / it.alone),
        wake_up_to_polling: of(|it| it.wake_up / it.polling),
        notify_to_polling: of(|it| it.notify / it.polling),
        enqueue_all: of(|it| it.enqueue_all),
        args,
        rounds,
    };
    println!();
    for (name, ratio) in [
        ("outbox / no outbox", report.outbox_to_alone),
        ("NOTIFY / polling", report.notify_to_polling),
    ] {
        println!("{name:<49} {:>9.2}", ratio.unwrap_or(f64::NAN));
    }
    Ok(Outcome::of(&report)?
        .at_least("woken / polling", report.wake_up_to_polling, 0.9)
        .at_least("enqueue_all, messages/s", report.enqueue_all, 100_000.0))
}

async fn transactions(way: Way, args: &Args, database: &Database, schema: &str) -> Result<f64> {
    let outbox = new_outbox(database, schema).await?;
    database
        .execute(format!(
            "CREATE TABLE {schema}.business (
                 id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text NOT NULL)"
        ))
        .await?;
    if way == Way::Notify {
        database
            .execute(format!(
                "CREATE FUNCTION {schema}.tell() RETURNS trigger LANGUAGE plpgsql AS
                     'BEGIN PERFORM pg_notify(''{schema}'', ''''); RETURN NULL; END';
                 CREATE TRIGGER tell AFTER INSERT ON {schema}.message
                     FOR EACH ROW EXECUTE FUNCTION {schema}.tell()"
            ))
            .await?;
    }
    let store = outbox.store(&database.pool);
    let store = match way {
        Way::Alone | Way::NoRelay => return clients(way, args, database, &outbox).await,
        Way::WakeUp => store,
        Way::Polling | Way::Notify => store.through_pooler(),
    };
    let relay = Relay::builder(store, NullPublisher).build()?;
    beside(relay, clients(way, args, database, &outbox)).await
}

/// Runs transactions until the time is over.
async fn clients(way: Way, args: &Args, database: &Database, outbox: &Outbox) -> Result<f64> {
    let mut connections = Vec::new();
    for _ in 0..args.clients {
        connections.push(database.connect().await?);
    }
    let clock = Clock::start();
    let end = Instant::now() + Duration::from_secs(args.seconds.into());
    let mut clients = JoinSet::new();
    for (number, mut connection) in connections.into_iter().enumerate() {
        let workload = Workload::new(0, 1, args.bytes as usize);
        let business = format!(
            "INSERT INTO {}.business (what) VALUES ('something')",
            outbox.schema()
        );
        let outbox = outbox.clone();
        clients.spawn(async move {
            let mut done = 0;
            while Instant::now() < end {
                let mut tx = connection.begin().await?;
                sqlx::query(AssertSqlSafe(business.clone()))
                    .execute(&mut *tx)
                    .await?;
                if way != Way::Alone {
                    let message = workload.message("bench", number as u32)?;
                    outbox.enqueue(&mut tx, &message).await?;
                }
                tx.commit().await?;
                done += 1;
            }
            Ok::<u64, Failure>(done)
        });
    }
    let mut done = 0;
    while let Some(client) = clients.join_next().await {
        done += client??;
    }
    Ok(clock.stop(done).messages_per_second)
}

/// Enqueues messages with a delay, or none, [`CALL`] at a time; so many a second. To make them is not measured.
pub(crate) async fn enqueue_all(
    database: &Database,
    outbox: &Outbox,
    workload: &Workload,
    delay: Duration,
) -> Result<f64> {
    let mut connection = database.connect().await?;
    let mut keys = workload.keys();
    let (mut rows, mut seconds) = (0, 0.0);
    loop {
        let messages: Vec<Message> = keys
            .by_ref()
            .take(CALL)
            .map(|key| Ok(workload.message("bench", key)?.with_deliver_after(delay)?))
            .collect::<Result<_>>()?;
        if messages.is_empty() {
            break;
        }
        rows += messages.len();
        let start = Instant::now();
        outbox.enqueue_all(&mut connection, &messages).await?;
        seconds += start.elapsed().as_secs_f64();
    }
    Ok(rows as f64 / seconds)
}
