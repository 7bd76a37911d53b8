//! A relay from Postgres to a broker in a process of its own, for tests that stop, freeze and kill it.
//!
//! Its settings are arguments of the form `name=value`, listed in [`Settings::set`]; it logs to standard
//! error and stops on SIGTERM. It is no product: the `outbox` program is what one runs.
//!
//! Where to read next: `publishers.rs` for the brokers and their settings, `wrappers.rs` for what goes
//! wrong on demand.

mod publishers;
mod wrappers;

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use outbox_core::{ExponentialBackoff, OnDead, OrderMode, Relay};
use outbox_postgres::Outbox;
use sqlx::postgres::PgPoolOptions;
use tokio::signal::unix::{SignalKind, signal};
use wrappers::{Failing, Holding};

struct Settings {
    database: String,
    schema: String,
    pooled: bool,
    broker: String,
    publisher: BTreeMap<String, String>,
    order: OrderMode,
    on_dead: OnDead,
    workers: usize,
    batch: usize,
    publish_timeout: Duration,
    settle_timeout: Duration,
    stop_grace: Duration,
    retry_longest: Duration,
    hold_after: usize,
}

impl Settings {
    fn from_arguments(arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut settings = Self {
            database: String::new(),
            schema: String::new(),
            pooled: false,
            broker: String::new(),
            publisher: BTreeMap::new(),
            order: OrderMode::PerKey,
            on_dead: OnDead::Continue,
            workers: 4,
            batch: 1000,
            publish_timeout: Duration::from_secs(30),
            settle_timeout: Duration::from_secs(10),
            stop_grace: Duration::from_secs(5),
            retry_longest: Duration::from_secs(2),
            hold_after: 0,
        };
        for argument in arguments {
            let (name, value) = argument
                .split_once('=')
                .ok_or_else(|| format!("{argument:?} is not name=value"))?;
            settings
                .set(name, value)
                .map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Box<dyn Error>> {
        let millis = || value.parse().map(Duration::from_millis);
        match name {
            "database" => self.database = value.to_owned(),
            "schema" => self.schema = value.to_owned(),
            // The database is reached through a transaction pooler.
            "pooled" => self.pooled = value.parse()?,
            "broker" => self.broker = value.to_owned(),
            "order" => {
                self.order = match value {
                    "per_key" => OrderMode::PerKey,
                    "per_key_pipelined" => OrderMode::PerKeyPipelined,
                    "unordered" => OrderMode::Unordered,
                    _ => return Err("there is no such order".into()),
                }
            }
            "on_dead" => {
                self.on_dead = match value {
                    "continue" => OnDead::Continue,
                    "halt_key" => OnDead::HaltKey,
                    _ => return Err("there is no such choice".into()),
                }
            }
            "workers" => self.workers = value.parse()?,
            "batch" => self.batch = value.parse()?,
            "publish_timeout_ms" => self.publish_timeout = millis()?,
            "settle_timeout_ms" => self.settle_timeout = millis()?,
            "stop_grace_ms" => self.stop_grace = millis()?,
            "retry_longest_ms" => self.retry_longest = millis()?,
            // The call that hands over the message of this number does not return.
            "hold_after" => self.hold_after = value.parse()?,
            // Everything else is the publisher's.
            name => _ = self.publisher.insert(name.to_owned(), value.to_owned()),
        }
        Ok(())
    }
}

async fn run(settings: Settings) -> Result<(), Box<dyn Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let pool = PgPoolOptions::new().connect_lazy(&settings.database)?;
    let outbox = Outbox::in_schema(settings.schema)?;
    let broker = publishers::open(&settings.broker, settings.publisher).await?;
    let publisher = Holding::new(Failing::new(broker), settings.hold_after);
    let store = match settings.pooled {
        true => outbox.store(&pool).through_pooler(),
        false => outbox.store(&pool),
    };
    Relay::builder(store, publisher)
        .order(settings.order)
        .on_dead(settings.on_dead)
        .workers(settings.workers)
        .batch_messages(settings.batch)
        .publish_timeout(settings.publish_timeout)
        .settle_timeout(settings.settle_timeout)
        .stop_grace(settings.stop_grace)
        .retry(ExponentialBackoff::new(
            ExponentialBackoff::FIRST,
            settings.retry_longest,
            ExponentialBackoff::MAX_FAILURES,
        )?)
        .backoff_longest(Duration::from_secs(1))
        .build()?
        .run_until(async {
            terminate.recv().await;
        })
        .await;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_env_filter("info")
        .init();
    tracing::info!("the relay starts");
    let outcome = match Settings::from_arguments(std::env::args().skip(1)) {
        Ok(settings) => run(settings).await,
        Err(error) => Err(error),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
