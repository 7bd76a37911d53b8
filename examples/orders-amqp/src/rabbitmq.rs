//! RabbitMQ as the example needs it: a durable queue, and the publisher of the relay.

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties};
use orders::{Broker, Error, PATIENCE, missing};
use outbox::amqp::{AmqpConfig, AmqpPublisher};
use outbox::async_trait;
use tokio::time::timeout;

use crate::reader::QueueReader;

/// RabbitMQ at a URL.
pub(crate) struct RabbitMq {
    url: String,
}

impl RabbitMq {
    pub(crate) fn at(url: String) -> Self {
        Self { url }
    }

    /// A channel on a connection of its own, which it keeps open.
    async fn channel(&self) -> Result<Channel, Error> {
        let uri: AMQPUri = self
            .url
            .parse()
            .map_err(|_| "the URL of RabbitMQ is not an AMQP URI")?;
        let place = format!("{}:{}", uri.authority.host, uri.authority.port);
        let connecting = Connection::connect_uri(uri, ConnectionProperties::default());
        let connection = timeout(PATIENCE, connecting)
            .await
            .map_err(|_| missing("RabbitMQ", &place, "no answer"))?
            .map_err(|error| missing("RabbitMQ", &place, error))?;
        Ok(connection.create_channel().await?)
    }
}

#[async_trait]
impl Broker for RabbitMq {
    type Publisher = AmqpPublisher;
    type Reader = QueueReader;

    async fn create(&self, topic: &str) -> Result<(), Error> {
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let channel = self.channel().await?;
        channel
            .queue_declare(topic.into(), options, FieldTable::default())
            .await?;
        Ok(())
    }

    async fn publisher(&self) -> Result<AmqpPublisher, Error> {
        // A topic is a queue's name.
        Ok(AmqpPublisher::new(AmqpConfig::new(&self.url))?)
    }

    async fn reader(&self, topic: &str) -> Result<QueueReader, Error> {
        QueueReader::new(self.channel().await?, topic).await
    }

    async fn remove(&self, topic: &str) -> Result<(), Error> {
        let channel = self.channel().await?;
        channel
            .queue_delete(topic.into(), QueueDeleteOptions::default())
            .await?;
        Ok(())
    }
}
