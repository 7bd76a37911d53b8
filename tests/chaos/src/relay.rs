//! The relay of a run, which is this program once more in a process of its own. `relays.rs` starts, freezes
//! and kills it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_amqp::{AmqpConfig, AmqpPublisher};
use outbox_core::{Delivery, ExponentialBackoff, Message, Publisher, PublisherExt as _, Relay};
use outbox_kafka::{ClientConfig, KafkaPublisher};
use outbox_nats::{ConnectOptions, NatsConfig, NatsPublisher};
use outbox_postgres::Outbox;
use outbox_redis::{Client, RedisConfig, RedisPublisher};
use sqlx::postgres::PgPoolOptions;
use tokio::signal::unix::{SignalKind, signal};

use crate::Result;
use crate::audit::Bounds;
use crate::broker::{self, Kind};

const WORKERS: usize = 2;
const BATCH: usize = 200;
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(14);
const SETTLE_TIMEOUT: Duration = Duration::from_secs(4);
/// The longest before a message, or everything, is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const STOP_GRACE: Duration = Duration::from_secs(4);
/// How long the server of a database lets an idle claim live: both timeouts, and what the store adds.
const CLAIM: Duration = PUBLISH_TIMEOUT
    .saturating_add(SETTLE_TIMEOUT)
    .saturating_add(Duration::from_secs(10));
/// An adapter must have explained an outage in less than half of the publish timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
const NATS_PING: Duration = Duration::from_secs(5);

/// What bounds the repeats that come of a fault, with some seconds for a busy machine.
pub(crate) const BOUNDS: Bounds = Bounds {
    under_way: WORKERS * BATCH,
    given: broker::GIVEN as usize,
    batch: PUBLISH_TIMEOUT.saturating_add(SETTLE_TIMEOUT),
    soon: ANSWER_TIMEOUT
        .saturating_add(LONGEST_PAUSE)
        .saturating_add(Duration::from_secs(2)),
    claim: CLAIM,
};

/// How long a stop may take, with some seconds for a busy machine.
pub(crate) const STOP: Duration = STOP_GRACE
    .saturating_add(SETTLE_TIMEOUT)
    .saturating_add(Duration::from_secs(5));

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    database: String,
    #[arg(long)]
    broker: Kind,
    #[arg(long)]
    address: String,
    #[arg(long)]
    hasty: bool,
}

impl Arguments {
    /// As a process is given them.
    pub(crate) fn of(database: &str, broker: Kind, address: &str, hasty: bool) -> Vec<String> {
        let mut arguments = vec![
            "relay".to_owned(),
            format!("--database={database}"),
            format!("--broker={broker}"),
            format!("--address={address}"),
        ];
        if hasty {
            arguments.push("--hasty".to_owned());
        }
        arguments
    }
}

/// Delivers until SIGTERM.
pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_env_filter("info")
        .init();
    let mut terminate = signal(SignalKind::terminate())?;
    let pool = PgPoolOptions::new().connect_lazy(&arguments.database)?;
    let mut publisher = open(arguments.broker, &arguments.address).await?;
    if arguments.hasty {
        publisher = Box::new(Hasty {
            inner: publisher.into(),
        });
    }
    Relay::builder(Outbox::new().store(&pool), publisher)
        .workers(WORKERS)
        .batch_messages(BATCH)
        .publish_timeout(PUBLISH_TIMEOUT)
        .settle_timeout(SETTLE_TIMEOUT)
        .stop_grace(STOP_GRACE)
        .backoff_longest(Duration::from_secs(1))
        .retry(ExponentialBackoff::new(
            ExponentialBackoff::FIRST,
            LONGEST_PAUSE,
            ExponentialBackoff::MAX_FAILURES,
        )?)
        .build()?
        .run_until(async {
            terminate.recv().await;
        })
        .await;
    Ok(())
}

async fn open(kind: Kind, address: &str) -> Result<Box<dyn Publisher>> {
    Ok(match kind {
        Kind::Amqp => Box::new(AmqpPublisher::new(
            AmqpConfig::new(format!("amqp://guest:guest@{address}/%2f"))
                .connect_timeout(CONNECT_TIMEOUT)
                .confirm_timeout(ANSWER_TIMEOUT),
        )?),
        Kind::Kafka => {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", address);
            config.set(
                "delivery.timeout.ms",
                ANSWER_TIMEOUT.as_millis().to_string(),
            );
            Box::new(KafkaPublisher::new(config)?)
        }
        Kind::Nats => {
            // The client gives a connection up that is dead without a word after three pings.
            let options = ConnectOptions::new()
                .retry_on_initial_connect()
                .ping_interval(NATS_PING);
            let client = options.connect(format!("nats://{address}")).await?;
            Box::new(NatsPublisher::new(
                client,
                NatsConfig::new().ack_timeout(ANSWER_TIMEOUT),
            )?)
        }
        Kind::Redis => Box::new(RedisPublisher::new(
            RedisConfig::new(Client::open(format!("redis://{address}"))?)
                .connect_timeout(CONNECT_TIMEOUT)
                .response_timeout(ANSWER_TIMEOUT),
        )?),
    })
}

/// How long a message that was reported as delivered is not handed over yet.
const HASTE: Duration = Duration::from_secs(1);

/// Breaks the promise: says of each message that it is delivered, and hands it over a little later. It
/// shows that the audit would find such a relay.
struct Hasty {
    inner: Arc<dyn Publisher>,
}

#[async_trait]
impl Publisher for Hasty {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        let messages: Vec<Message> = batch.iter().map(|it| it.message().clone()).collect();
        for delivery in batch {
            delivery.report(Ok(()));
        }
        let inner = Arc::clone(&self.inner);
        tokio::spawn(async move {
            // wait: the time in which a kill loses the batch
            tokio::time::sleep(HASTE).await;
            inner.publish_all(&messages, PUBLISH_TIMEOUT).await;
        });
    }
}
