//! Kafka: a topic of several partitions.

use std::sync::Arc;

use outbox_core::{Publisher, async_trait};
use outbox_kafka::KafkaPublisher;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};

use super::Broker;
use crate::Result;
use crate::setup::PATIENCE;

const PARTITIONS: i32 = 4;

pub(super) struct Kafka {
    servers: String,
}

impl Kafka {
    pub(super) fn at(servers: String) -> Self {
        Self { servers }
    }

    /// A configuration for the client that names nothing but the server.
    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.servers);
        config
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>> {
        Ok(self.config().create()?)
    }
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(PATIENCE))
}

#[async_trait]
impl Broker for Kafka {
    async fn publisher(&self) -> Result<Arc<dyn Publisher>> {
        Ok(Arc::new(KafkaPublisher::new(self.config())?))
    }

    async fn create(&self, topic: &str) -> Result<()> {
        let new = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1));
        let admin = self.admin()?;
        for created in admin.create_topics([&new], &options()).await? {
            created.map_err(|(topic, code)| format!("topic {topic} is not created: {code}"))?;
        }
        Ok(())
    }

    async fn remove(&self, topic: &str) -> Result<()> {
        let admin = self.admin()?;
        admin.delete_topics(&[topic], &options()).await?;
        Ok(())
    }

    /// Nothing here uses Kafka's transactions, so every offset is a record.
    async fn count(&self, topic: &str) -> Result<u64> {
        let consumer: BaseConsumer = self.config().create()?;
        let topic = topic.to_owned();
        let count = tokio::task::spawn_blocking(move || {
            (0..PARTITIONS)
                .map(|partition| consumer.fetch_watermarks(&topic, partition, PATIENCE))
                .map(|marks| marks.map(|(low, high)| (high - low).unsigned_abs()))
                .sum::<std::result::Result<u64, _>>()
        });
        Ok(count.await??)
    }
}
