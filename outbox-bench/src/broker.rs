//! The brokers that are measured: a topic for each measurement, a publisher, and how much arrived.
//!
//! Each broker is a file; what it makes and counts it does with the broker's own client.

mod amqp;
mod kafka;
mod nats;
mod redis;

use std::collections::BTreeMap;
use std::env;
use std::sync::Arc;

use clap::ValueEnum;
use outbox_core::{Publisher, async_trait};
use serde::Serialize;

use crate::Result;
use crate::setup::unique;

/// Which broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Kafka,
    Amqp,
    Nats,
    Redis,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Kafka, Self::Amqp, Self::Nats, Self::Redis];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kafka => "Kafka",
            Self::Amqp => "RabbitMQ",
            Self::Nats => "NATS",
            Self::Redis => "Redis",
        }
    }

    /// The server that the environment names, or that of `scripts/services`.
    pub(crate) async fn connect(self) -> Result<Box<dyn Broker>> {
        let connected = self.try_connect().await;
        connected.map_err(|error| format!("{}: {error}", self.name()).into())
    }

    async fn try_connect(self) -> Result<Box<dyn Broker>> {
        let at = |variable, default: &str| env::var(variable).unwrap_or(default.to_owned());
        Ok(match self {
            Self::Kafka => Box::new(kafka::Kafka::at(at("OUTBOX_TEST_KAFKA", "127.0.0.1:29192"))),
            Self::Amqp => {
                let url = "amqp://guest:guest@127.0.0.1:25772/%2f";
                Box::new(amqp::RabbitMq::at(at("OUTBOX_TEST_RABBITMQ_URL", url)).await?)
            }
            Self::Nats => {
                let url = "nats://127.0.0.1:24223";
                Box::new(nats::Nats::at(at("OUTBOX_TEST_NATS_LATEST_URL", url)).await?)
            }
            Self::Redis => {
                let url = "redis://127.0.0.1:26479";
                Box::new(redis::Redis::at(at("OUTBOX_TEST_REDIS_URL", url)).await?)
            }
        })
    }
}

/// The brokers of these kinds.
pub(crate) async fn connect(
    kinds: impl IntoIterator<Item = Kind>,
) -> Result<BTreeMap<Kind, Box<dyn Broker>>> {
    let mut brokers = BTreeMap::new();
    for kind in kinds {
        brokers.insert(kind, kind.connect().await?);
    }
    Ok(brokers)
}

/// A broker at an address.
#[async_trait]
pub(crate) trait Broker: Send + Sync {
    /// A publisher with the adapter's defaults, and with what makes it chain.
    async fn publisher(&self) -> Result<Arc<dyn Publisher>>;

    async fn create(&self, topic: &str) -> Result<()>;

    async fn remove(&self, topic: &str) -> Result<()>;

    /// How many messages a topic holds.
    async fn count(&self, topic: &str) -> Result<u64>;
}

/// Lends a topic that is removed afterwards.
pub(crate) async fn with_topic<T>(
    broker: &dyn Broker,
    work: impl AsyncFnOnce(&str) -> Result<T>,
) -> Result<T> {
    let topic = unique();
    broker.create(&topic).await?;
    let done = work(&topic).await;
    let removed = broker.remove(&topic).await;
    let done = done?;
    removed.map(|()| done)
}
