//! RabbitMQ: a durable queue, through the default exchange.

use std::sync::Arc;

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use outbox_amqp::{AmqpConfig, AmqpPublisher};
use outbox_core::{Publisher, async_trait};

use super::Broker;
use crate::Result;

pub(super) struct RabbitMq {
    url: String,
    /// Its connection stays open with it.
    channel: Channel,
}

impl RabbitMq {
    pub(super) async fn at(url: String) -> Result<Self> {
        let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        Ok(Self { url, channel })
    }

    async fn declare(&self, topic: &str, passive: bool) -> Result<u64> {
        let options = QueueDeclareOptions {
            durable: true,
            passive,
            ..QueueDeclareOptions::default()
        };
        let queue = self
            .channel
            .queue_declare(topic.into(), options, FieldTable::default())
            .await?;
        Ok(queue.message_count().into())
    }
}

#[async_trait]
impl Broker for RabbitMq {
    async fn publisher(&self) -> Result<Arc<dyn Publisher>> {
        Ok(Arc::new(AmqpPublisher::new(AmqpConfig::new(&self.url))?))
    }

    async fn create(&self, topic: &str) -> Result<()> {
        self.declare(topic, false).await?;
        Ok(())
    }

    async fn remove(&self, topic: &str) -> Result<()> {
        self.channel
            .queue_delete(topic.into(), QueueDeleteOptions::default())
            .await?;
        Ok(())
    }

    async fn count(&self, topic: &str) -> Result<u64> {
        self.declare(topic, true).await
    }
}
