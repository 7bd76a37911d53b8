//! The outbox without a server. An order service writes orders and messages in one transaction of an
//! SQLite file, a relay delivers the messages, and an audit compares what arrived with what was committed.
//!
//! ```sh
//! cargo run -p quickstart
//! ```
//!
//! The broker is [`MemoryPublisher`]: it confirms every message and remembers it. With `KafkaPublisher` in
//! its place the messages go to Kafka, and nothing else changes.
//!
//! Where to read next: `shop.rs` for what an application does; `examples/axum-orders` for a web service.

mod shop;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::{env, fs, process};

use clap::Parser;
use orders::audit::{Audit, audit};
use orders::work::{LONGEST_STALL, Left, summary, wait_until_all_left};
use orders::{Error, Event};
use outbox::memory::MemoryPublisher;
use outbox::sqlite::Outbox;
use outbox::{Message, Relay};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

use shop::Shop;

static OUTBOX: Outbox = Outbox::new();

/// Writes orders to an SQLite file, delivers their messages within this process and audits both.
#[derive(Parser)]
struct Args {
    /// How many orders are placed, 1 to 1000000
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000)
    )]
    orders: u64,
    /// A database to use and to keep [default: a new one that is removed at the end]
    #[arg(long, value_name = "PATH")]
    database: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(audit) if audit.passed() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<Audit, Error> {
    let temporary = Temporary::new()?;
    let database = args.database.unwrap_or(temporary.0.join("shop.db"));
    let pool = open(&database).await?;
    OUTBOX.migrate(&pool).await?;
    let shop = Shop::open(&pool, args.orders).await?;

    let broker = MemoryPublisher::new();
    let progress = Arc::clone(&shop.progress);
    broker.answer_with(move |_| {
        progress.read.fetch_add(1, Relaxed);
        Ok(())
    });
    let relay = Relay::builder(OUTBOX.store(&pool).await?, broker.clone()).build()?;

    // The relay runs until all orders are placed and their messages have left the outbox.
    let look = async || {
        let counts = OUTBOX.counts(&pool).await?;
        Ok(Left {
            waiting: counts.waiting + counts.parked,
            dead: counts.dead,
        })
    };
    let all_left = wait_until_all_left(&shop.progress, look);
    let work = async { tokio::try_join!(shop.place_all(), all_left) };
    let mut worked = Ok(());
    relay
        .run_until(async {
            worked = tokio::select! {
                done = work => done.map(|_| ()),
                never = shop.progress.show() => match never {},
                _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
            };
        })
        .await;
    worked?;

    let committed = shop.committed().await?;
    let arrived = shop.of_this_run(arrived(&broker)?);
    let audit = audit(&committed, &arrived);
    println!(
        "{}",
        summary(&shop.progress, &audit, &committed, &arrived, "arrived")
    );
    pool.close().await;
    println!("{audit}");
    Ok(audit)
}

async fn open(database: &Path) -> Result<SqlitePool, Error> {
    let options = SqliteConnectOptions::new()
        .filename(database)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // What has committed outlives this process. To outlive a loss of power, each commit would have to
        // wait for the disk, as it does without this line.
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(LONGEST_STALL);
    let pool = SqlitePoolOptions::new().connect_with(options).await;
    pool.map_err(|error| format!("{}: {error}", database.display()).into())
}

/// What the broker has confirmed, in that order.
fn arrived(broker: &MemoryPublisher) -> Result<Vec<Event>, Error> {
    let decode = |message: &Message| {
        let key = message.key().unwrap_or_default();
        let payload = message.payload().map_or(&[][..], |payload| payload);
        Event::decode(message.id().to_string().as_bytes(), key.as_bytes(), payload)
    };
    broker.published().iter().map(decode).collect()
}

/// A folder that is removed, with everything in it, when the run has ended.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Result<Self, Error> {
        let folder = env::temp_dir().join(format!("outbox-quickstart-{}", process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // What cannot be removed is left to the system.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Args::command().debug_assert();
    }
}
