//! One run: the service, the relay and the consumer side by side, and then the audit.

use std::env;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use outbox::{OrderMode, Relay};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::audit::{Audit, audit};
use crate::broker::{Broker, Reader, address};
use crate::ground::Ground;
use crate::shop::Shop;
use crate::work::{Left, summary, wait_until_all_left};
use crate::{Error, Event, Progress, plan};

/// How long the broker has to give what is known to be there.
const LONGEST_READ: Duration = Duration::from_secs(30);

/// What is asked of every example.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// How many orders are placed, 1 to 1000000
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000)
    )]
    pub orders: u64,
    /// Address of Postgres [default: DATABASE_URL, OUTBOX_TEST_POSTGRES_URL, or the one of scripts/services]
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
}

/// Runs the example on a topic and schemas of its own, and prints the audit as the last line. The code is
/// that of a failure when the audit does not pass.
pub async fn run(args: Args, broker: impl Broker) -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(env::var("RUST_LOG").unwrap_or("warn".to_owned()))
        .init();
    match on_its_ground(args, broker).await {
        Ok(audit) if audit.passed() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn on_its_ground(args: Args, broker: impl Broker) -> Result<Audit, Error> {
    let database_url = address(
        args.database_url,
        ["DATABASE_URL", "OUTBOX_TEST_POSTGRES_URL"],
        "postgres://outbox:outbox@127.0.0.1:25415/outbox",
    );
    let ground = Ground::prepare(&database_url, broker).await?;
    let result = tokio::select! {
        result = job(&ground, args.orders) => result,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    };
    ground.remove().await;
    let audit = result?;
    println!("{audit}");
    Ok(audit)
}

/// The service, the relay and the consumer side by side, and then the audit.
async fn job(ground: &Ground<impl Broker>, orders: u64) -> Result<Audit, Error> {
    let progress = Arc::new(Progress::of(plan::messages_of_all(orders)));
    let shop = Shop {
        pool: ground.pool.clone(),
        outbox: ground.outbox.clone(),
        topic: ground.topic.clone(),
        progress: Arc::clone(&progress),
    };
    let store = ground.outbox.store(&ground.pool);
    let publisher = ground.broker.publisher().await?;
    let relay = Relay::builder(store, publisher)
        .order(OrderMode::PerKey)
        .build()?;
    let reader = ground.broker.reader(&ground.topic).await?;

    // Each end of a channel is dropped when its part is done, and that ends the next one.
    let (all_left, stop) = oneshot::channel::<()>();
    let (all_settled, complete) = oneshot::channel::<()>();
    let serve = shop.place_all(orders);
    let watch = async {
        let look = async || {
            let counts = ground.outbox.counts(&ground.pool).await?;
            Ok(Left {
                waiting: counts.waiting + counts.parked,
                dead: counts.dead,
            })
        };
        wait_until_all_left(&progress, look).await?;
        drop(all_left);
        Ok(())
    };
    let deliver = async {
        relay.run_until(async { _ = stop.await }).await;
        drop(all_settled);
        Ok(())
    };
    let read = read_all(reader, &progress, async { _ = complete.await });

    let work = async { tokio::try_join!(serve, watch, deliver, read) };
    let ((), (), (), read) = tokio::select! {
        done = work => done?,
        never = progress.show() => match never {},
    };

    let committed = shop.committed().await?;
    let audit = audit(&committed, &read);
    println!(
        "{}",
        summary(&progress, &audit, &committed, &read, "read back")
    );
    Ok(audit)
}

/// Reads until `complete` ends, which says that nothing more will be written, and then up to the end of
/// the topic.
async fn read_all(
    mut reader: impl Reader,
    progress: &Progress,
    complete: impl Future<Output = ()>,
) -> Result<Vec<Event>, Error> {
    let mut events = Vec::new();
    let mut take = |event| {
        events.push(event);
        progress.read.fetch_add(1, Relaxed);
    };
    let mut complete = std::pin::pin!(complete);
    loop {
        tokio::select! {
            event = reader.next() => take(event?),
            () = &mut complete => break,
        }
    }
    let count = reader.count().await?;
    while progress.read.load(Relaxed) < count {
        let event = timeout(LONGEST_READ, reader.next()).await.map_err(|_| {
            let seconds = LONGEST_READ.as_secs();
            format!("the broker has {count} records and gives nothing more for {seconds} s")
        })?;
        take(event?);
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Args::augment_args(clap::Command::new("orders")).debug_assert();
    }
}
