//! The main job, whole: an order service writes orders and messages in one transaction, a relay
//! delivers, a consumer reads back, and an audit compares what arrived with what was committed.
//!
//! ```sh
//! scripts/services up && cargo run -p orders-kafka
//! ```
//!
//! Where to read next: `shop.rs` for what an application does, [`job`] below for the relay beside it,
//! `reader.rs` for a consumer, `audit.rs` for what is checked. `ground.rs` gives each run a topic and
//! schemas of its own, which an application does not need.

mod audit;
mod ground;
mod progress;
mod reader;
mod shop;

use std::env;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clap::Parser;
use outbox::kafka::KafkaPublisher;
use outbox::{OrderMode, Relay};
use tokio::sync::oneshot;

use audit::{Audit, audit};
use ground::Ground;
use progress::Progress;
use reader::Reader;
use shop::Shop;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// When nothing leaves the outbox for so long, the audit is made with what there is.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes orders to Postgres, delivers their messages to Kafka, reads them back and audits both.
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
    /// Address of Postgres [default: DATABASE_URL, OUTBOX_TEST_POSTGRES_URL, or the one of scripts/services]
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// Addresses of Kafka, with commas between [default: KAFKA_BROKERS, OUTBOX_TEST_KAFKA, or the one of scripts/services]
    #[arg(long, value_name = "HOST:PORT")]
    kafka_brokers: Option<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(env::var("RUST_LOG").unwrap_or("warn".to_owned()))
        .init();
    match run(args).await {
        Ok(audit) if audit.passed() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("orders-kafka: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<Audit, Error> {
    let database_url = address(
        args.database_url,
        ["DATABASE_URL", "OUTBOX_TEST_POSTGRES_URL"],
        "postgres://outbox:outbox@127.0.0.1:25415/outbox",
    );
    let kafka_brokers = address(
        args.kafka_brokers,
        ["KAFKA_BROKERS", "OUTBOX_TEST_KAFKA"],
        "127.0.0.1:29192",
    );
    let ground = Ground::prepare(&database_url, &kafka_brokers).await?;
    let result = tokio::select! {
        result = job(&ground, args.orders) => result,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    };
    ground.remove().await;
    let audit = result?;
    println!("{audit}");
    Ok(audit)
}

/// The flag, else the first variable that is set, else the default.
fn address(flag: Option<String>, variables: [&str; 2], default: &str) -> String {
    flag.or_else(|| {
        variables
            .iter()
            .find_map(|variable| env::var(variable).ok())
    })
    .unwrap_or_else(|| default.to_owned())
}

/// The service, the relay and the consumer side by side, and then the audit.
async fn job(ground: &Ground, orders: u64) -> Result<Audit, Error> {
    let progress = Arc::new(Progress::of(shop::messages_of_all(orders)));
    let shop = Shop {
        pool: ground.pool.clone(),
        outbox: ground.outbox.clone(),
        topic: ground.topic.clone(),
        progress: Arc::clone(&progress),
    };
    let store = ground.outbox.store(&ground.pool);
    let publisher = KafkaPublisher::new(ground.kafka.clone())?;
    let relay = Relay::builder(store, publisher)
        .order(OrderMode::PerKey)
        .build()?;
    let reader = Reader::new(ground, Arc::clone(&progress))?;

    // Each end of a channel is dropped when its part is done, and that ends the next one.
    let (all_left, stop) = oneshot::channel::<()>();
    let (all_settled, complete) = oneshot::channel::<()>();
    let serve = shop.place_all(orders);
    let watch = async {
        wait_until_all_left(ground, &progress).await?;
        drop(all_left);
        Ok(())
    };
    let deliver = async {
        relay.run_until(async { _ = stop.await }).await;
        drop(all_settled);
        Ok(())
    };
    let read = reader.read_all(async { _ = complete.await });

    let work = async { tokio::try_join!(serve, watch, deliver, read) };
    let ((), (), (), read) = tokio::select! {
        done = work => done?,
        never = progress.show() => match never {},
    };

    let committed = shop.committed().await?;
    let audit = audit(&committed, &read);
    println!(
        "{} messages of {} orders committed, {} read back, {} of them repeats; \
         rolled back on purpose: {} transactions, {} savepoints",
        committed.len(),
        audit.committed,
        read.len(),
        audit.repeats,
        progress.rolled_back.load(Relaxed),
        progress.rolled_back_savepoints.load(Relaxed),
    );
    Ok(audit)
}

/// Looks at the outbox until everything was written and nothing waits in it any more.
async fn wait_until_all_left(ground: &Ground, progress: &Progress) -> Result<(), Error> {
    let mut before = (0, 0);
    let mut changed = Instant::now();
    loop {
        // Read first, so that what it says is committed is seen by the look at the outbox.
        let written = progress.written.load(Relaxed);
        let counts = ground.outbox.counts(&ground.pool).await?;
        let left = counts.waiting + counts.parked;
        let delivered = written.saturating_sub(left + counts.dead);
        progress.delivered.fetch_max(delivered, Relaxed);

        if written == progress.total && left == 0 {
            return Ok(());
        }
        if before != (written, left) {
            (before, changed) = ((written, left), Instant::now());
        } else if changed.elapsed() > PATIENCE {
            let seconds = PATIENCE.as_secs();
            eprintln!("{left} messages wait, and none left the outbox for {seconds} s: giving up");
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
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

    #[test]
    fn a_flag_goes_before_a_variable_and_that_before_the_default() {
        let unset = ["ORDERS_KAFKA_UNSET_1", "ORDERS_KAFKA_UNSET_2"];
        assert_eq!(
            address(Some("flag".to_owned()), ["PATH"; 2], "default"),
            "flag"
        );
        assert_eq!(address(None, unset, "default"), "default");
        let path = env::var("PATH").unwrap();
        assert_eq!(address(None, [unset[0], "PATH"], "default"), path);
    }
}
