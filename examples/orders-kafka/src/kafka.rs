//! Kafka as the example needs it: a topic of several partitions, and the publisher of the relay.

use orders::{Broker, Error, PATIENCE, missing};
use outbox::async_trait;
use outbox::kafka::KafkaPublisher;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;

use crate::reader::KafkaReader;

pub(crate) const PARTITIONS: i32 = 4;

/// Kafka at some addresses.
pub(crate) struct Kafka {
    brokers: String,
}

impl Kafka {
    pub(crate) fn at(brokers: String) -> Self {
        Self { brokers }
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers);
        config
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>, Error> {
        Ok(self.config().create()?)
    }
}

#[async_trait]
impl Broker for Kafka {
    type Publisher = KafkaPublisher;
    type Reader = KafkaReader;

    async fn create(&self, topic: &str) -> Result<(), Error> {
        let options = AdminOptions::new()
            .request_timeout(Some(PATIENCE))
            .operation_timeout(Some(PATIENCE));
        let new = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1));
        let admin = self.admin()?;
        let created = admin
            .create_topics([&new], &options)
            .await
            .map_err(|error| missing("Kafka", &self.brokers, error))?;
        for result in created {
            result.map_err(|(topic, code)| format!("Kafka does not make topic {topic}: {code}"))?;
        }
        Ok(())
    }

    async fn publisher(&self) -> Result<KafkaPublisher, Error> {
        Ok(KafkaPublisher::new(self.config())?)
    }

    async fn reader(&self, topic: &str) -> Result<KafkaReader, Error> {
        KafkaReader::new(self.config(), topic)
    }

    async fn remove(&self, topic: &str) -> Result<(), Error> {
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
        let admin = self.admin()?;
        for result in admin.delete_topics(&[topic], &options).await? {
            result.map_err(|(_, code)| code)?;
        }
        Ok(())
    }
}
