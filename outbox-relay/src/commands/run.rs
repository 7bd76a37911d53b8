//! `outbox run`: the relay, from its start to its stop.
//!
//! Everything that the configuration can get wrong is refused before a connection is made. Then the relay
//! waits for its database and the tables, and says so once. It needs no broker to start: a broker that is
//! away is an outage, which the relay itself waits out.

use std::pin::pin;
use std::process;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use outbox_core::memory::{MemoryPublisher, MemoryStore};
use outbox_core::{ExponentialBackoff, Publisher, Relay};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::failure::Failure;
use crate::http::{self, Progress};
use crate::pause::Pausable;
use crate::settings::{self, InvalidSettings, Settings};
use crate::signals::Signals;
#[cfg(feature = "otel")]
use crate::spans::Exporter;
use crate::store::{Opened, Store};
use crate::{broker, logs, metrics};

/// How often a relay that waits for its database looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// What is missing, and what to do about it.
const NOT_MIGRATED: &str = "the tables are not there or not up to date: run `outbox migrate`";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Make the tables first, or bring them up to date
    #[arg(long)]
    migrate: bool,
}

pub(crate) async fn run(arguments: Arguments, settings: Settings) -> Result<(), Failure> {
    let relay = &settings.relay;
    build(relay, MemoryStore::new(), MemoryPublisher::new())?;
    let store = Arc::new(Store::open(&settings.store)?);
    let serve = match settings.http.listen {
        // Before the brokers, whose gauges begin when they are opened.
        Some(listen) => Some((listen, metrics::start()?)),
        None => None,
    };
    let publisher = broker::open_all(&settings).await?;
    let publisher = Pausable::new(publisher, Arc::clone(&store));
    logs::start(&settings.log)?;
    #[cfg(feature = "otel")]
    let spans = Exporter::start()?;
    let mut signals = Signals::install().map_err(Failure::of)?;
    let progress = Progress::default();
    if let Some((listen, metrics)) = serve {
        http::serve(listen, metrics, progress.clone()).await?;
    }

    let opened = tokio::select! {
        opened = open(&store, arguments.migrate, &progress) => opened?,
        () = signals.next() => return Ok(()),
    };
    let relay = build(relay, opened, publisher)?;
    progress.runs(relay.monitor());
    if settings.http.listen.is_some() {
        metrics::watch(Arc::clone(&store));
    }
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        brokers = settings
            .broker
            .keys()
            .cloned()
            .collect::<Vec<_>>()
            .join(","),
        workers = settings.relay.workers,
        "the relay runs",
    );
    deliver(relay, settings.relay.shutdown_grace.0, signals, &progress).await;
    #[cfg(feature = "otel")]
    if let Some(spans) = spans {
        spans.stop().await;
    }
    Ok(())
}

/// Runs the relay until a signal, and stops it in the time that it has for that.
async fn deliver(relay: Relay, grace: Duration, mut signals: Signals, progress: &Progress) {
    let (stop, stopped) = oneshot::channel::<()>();
    // Either a value or the end of the sender stops it.
    let mut running = pin!(relay.run_until(async move { drop(stopped.await) }));
    tokio::select! {
        () = &mut running => return,
        () = signals.next() => {}
    }
    progress.stops();
    tracing::info!(grace = grace.as_secs_f64(), "the relay stops");
    drop(stop);
    let ended = tokio::select! {
        () = &mut running => "the relay has stopped",
        // The process ends here and now: what it holds is free for others as after a crash.
        () = signals.next() => end("ended at once, by a second signal"),
        () = sleep(grace) => end("not drained within the grace time"),
    };
    tracing::info!("{ended}");
}

fn end(reason: &str) -> ! {
    tracing::error!("{reason}");
    process::exit(1)
}

/// Waits until the database answers and has the tables. Says once what it waits for.
async fn open(
    store: &Store,
    migrate: bool,
    progress: &Progress,
) -> Result<Box<dyn outbox_core::Store>, Failure> {
    let mut said = String::new();
    loop {
        let reason = match store.relay().await? {
            Opened::NotMigrated if migrate => {
                store.migrate().await?;
                tracing::info!("the tables are up to date");
                continue;
            }
            Opened::NotMigrated => NOT_MIGRATED.to_owned(),
            Opened::NotYet(reason) => reason,
            Opened::Store(store) => {
                if !said.is_empty() {
                    tracing::info!("the store is there");
                }
                return Ok(store);
            }
        };
        if reason != said {
            tracing::warn!(reason, "waiting for the store");
            progress.waits(&reason);
            said = reason;
        }
        // wait: a database that starts, or a colleague who migrates, takes seconds.
        sleep(LOOK_AGAIN).await;
    }
}

/// A relay with the settings of `[relay]`.
pub(crate) fn build(
    settings: &settings::Relay,
    store: impl outbox_core::Store,
    publisher: impl Publisher,
) -> Result<Relay, InvalidSettings> {
    let retry = ExponentialBackoff::new(
        settings.retry_first.0,
        settings.retry_longest.0,
        settings.max_failures,
    );
    // What is confirmed has to be settled within the grace time too.
    let stop_grace = settings
        .shutdown_grace
        .0
        .saturating_sub(settings.settle_timeout.0);
    Relay::builder(store, publisher)
        .workers(settings.workers)
        .batch_messages(settings.batch_messages)
        .batch_bytes(settings.batch_bytes.0)
        .order(settings.order.into())
        .on_dead(settings.on_dead.into())
        .crash_limit(settings.crash_limit)
        .retry(retry.map_err(|error| InvalidSettings::of_core(&error))?)
        .claim_wait(settings.claim_wait.0)
        .publish_timeout(settings.publish_timeout.0)
        .settle_timeout(settings.settle_timeout.0)
        .store_timeout(settings.store_timeout.0)
        .stop_grace(stop_grace)
        .backoff_first(settings.backoff_first.0)
        .backoff_longest(settings.backoff_longest.0)
        .build()
        .map_err(|error| InvalidSettings::of_core(&error))
}
