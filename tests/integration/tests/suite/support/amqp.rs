//! RabbitMQ, through its own client: a topic is a queue.

use std::collections::BTreeMap;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{
    BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, Queue};
use tokio::time::timeout;

use super::PATIENCE;
use super::broker::{Broker, Install, QUESTION, Record, message_id, text};

pub(crate) static BROKER: Install = Install {
    steady: "OUTBOX_TEST_RABBITMQ_URL",
    faulty: "OUTBOX_TEST_RABBITMQ_FAULTS_URL",
    faulty_service: "rabbitmq-faults",
    at: |url| Box::new(RabbitMq { url }),
    // After both the adapter asks for two seconds whether the server is there.
    impatient: &["connect_timeout_ms=1500", "confirm_timeout_ms=2000"],
    too_large: (8 * 1024 * 1024 + 1, &[]),
    drops_repeats: false,
    odd_header: ("größe in m², \"=:\r\n", "\u{1F980}\r\n\t\\ \u{7f} ' \" "),
};

/// A server.
struct RabbitMq {
    url: String,
}

impl RabbitMq {
    /// A channel on a connection of its own, which it keeps open.
    async fn channel(&self) -> lapin::Result<Channel> {
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await?;
        connection.create_channel().await
    }

    async fn ask_for_count(&self, topic: &str) -> lapin::Result<u64> {
        let queue = look(&self.channel().await?, topic).await?;
        Ok(queue.message_count().into())
    }
}

#[async_trait]
impl Broker for RabbitMq {
    fn relay_arguments(&self) -> Vec<String> {
        vec!["broker=amqp".to_owned(), format!("uri={}", self.url)]
    }

    async fn create_topic(&self, topic: &str) {
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let channel = self.channel().await.expect("a channel");
        channel
            .queue_declare(topic.into(), options, FieldTable::default())
            .await
            .expect("a queue");
    }

    async fn delete_topic(&self, topic: &str) {
        let channel = self.channel().await.expect("a channel");
        channel
            .queue_delete(topic.into(), QueueDeleteOptions::default())
            .await
            .expect("the end of a queue");
    }

    async fn count(&self, topic: &str) -> u64 {
        match timeout(QUESTION, self.ask_for_count(topic)).await {
            Ok(Ok(count)) => count,
            _ => 0,
        }
    }

    async fn read(&self, topic: &str) -> Vec<Record> {
        let channel = self.channel().await.expect("a channel");
        let queue = look(&channel, topic).await.expect("a queue");
        let count = queue.message_count() as usize;
        let mut records = Vec::new();
        let mut consumer = channel
            .basic_consume(
                topic.into(),
                "test".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await
            .expect("a consumer");
        while records.len() < count {
            let next = timeout(PATIENCE, consumer.next()).await;
            let delivery = next.expect("in time").expect("more").expect("a message");
            records.push(record(&delivery));
        }

        // All that was read goes back to its place, and is there when the queue has answered.
        channel
            .basic_cancel("test".into(), BasicCancelOptions::default())
            .await
            .expect("the end of the consumer");
        let all = BasicNackOptions {
            multiple: true,
            requeue: true,
        };
        channel.basic_nack(0, all).await.expect("all put back");
        look(&channel, topic).await.expect("a queue");
        records
    }
}

async fn look(channel: &Channel, topic: &str) -> lapin::Result<Queue> {
    let options = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    channel
        .queue_declare(topic.into(), options, FieldTable::default())
        .await
}

/// By the names of the wire contract: the property `message_id`, the headers `outbox-key` and
/// `outbox-tombstone`, and the body.
fn record(delivery: &Delivery) -> Record {
    let properties = &delivery.properties;
    assert_eq!(properties.delivery_mode(), &Some(2), "not persistent");
    let id = properties.message_id().as_ref().expect("a message id");
    let table = properties.headers().clone().unwrap_or_default();
    let mut headers: BTreeMap<_, _> = table
        .into_iter()
        .map(|(name, value)| (name.to_string(), value.clone()))
        .collect();
    let is_absent = match headers.remove("outbox-tombstone") {
        None => false,
        Some(AMQPValue::Boolean(true)) if delivery.data.is_empty() => true,
        other => panic!("a tombstone with the header {other:?}"),
    };
    Record {
        id: message_id(id.as_str().as_bytes()),
        key: headers.remove("outbox-key").map(|key| long_string(&key)),
        payload: (!is_absent).then(|| delivery.data.clone()),
        headers: headers
            .into_iter()
            .map(|(name, value)| (name, long_string(&value)))
            .collect(),
        partition: 0,
    }
}

fn long_string(value: &AMQPValue) -> String {
    match value {
        AMQPValue::LongString(value) => text(value.as_bytes()),
        other => panic!("not text: {other:?}"),
    }
}
