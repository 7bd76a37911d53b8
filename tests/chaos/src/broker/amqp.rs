//! RabbitMQ, through its own client: a topic is a queue.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::{Broker, GIVEN, QUESTION, Says, State, message_id, probe_id, text};
use crate::Result;
use crate::consumer::Recorder;
use crate::record::Content;
use crate::service::Service;

const MEMORY: State = State {
    name: "rabbitmq memory alarm",
    says: Says::Nothing,
};
const DISK: State = State {
    name: "rabbitmq disk alarm",
    says: Says::Nothing,
};
pub(super) const STATES: &[State] = &[MEMORY, DISK];

/// Who has no confirm after so long has written nothing.
const SILENCE: Duration = Duration::from_secs(5);

/// How long it waits for a message before it looks whether the channel is still there.
const GLANCE: Duration = Duration::from_millis(500);

pub(super) struct RabbitMq {
    url: String,
    topic: String,
}

impl RabbitMq {
    pub(super) fn new(url: &str, topic: &str) -> Self {
        Self {
            url: url.to_owned(),
            topic: topic.to_owned(),
        }
    }

    /// A channel, and the connection that it is on.
    async fn channel(&self) -> Result<(Connection, Channel)> {
        let connecting = Connection::connect(&self.url, ConnectionProperties::default());
        let connection = timeout(QUESTION, connecting).await??;
        let channel = timeout(QUESTION, connection.create_channel()).await??;
        Ok((connection, channel))
    }
}

#[async_trait]
impl Broker for RabbitMq {
    async fn create_topic(&self) -> Result<()> {
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let (_connection, channel) = self.channel().await?;
        channel
            .queue_declare(self.topic.as_str().into(), options, FieldTable::default())
            .await?;
        Ok(())
    }

    async fn delete_topic(&self) -> Result<()> {
        let (_connection, channel) = self.channel().await?;
        channel
            .queue_delete(self.topic.as_str().into(), QueueDeleteOptions::default())
            .await?;
        Ok(())
    }

    async fn consume(&self, recorder: &Recorder) -> Result<()> {
        let (_connection, channel) = self.channel().await?;
        channel.basic_qos(GIVEN, BasicQosOptions::default()).await?;
        let mut consumer = channel
            .basic_consume(
                self.topic.as_str().into(),
                "chaos".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await?;
        while !recorder.is_done() {
            let Ok(next) = timeout(GLANCE, consumer.next()).await else {
                if !channel.status().connected() {
                    return Err("the channel has ended".into());
                }
                continue;
            };
            let delivery = next.ok_or("the consumer was ended")??;
            recorder.arrived(content(&delivery), 0, delivery.redelivered);
            delivery.ack(BasicAckOptions::default()).await?;
        }
        Ok(())
    }

    async fn fill(&self, state: State, service: &Service) -> Result<()> {
        service
            .rabbitmqctl(match state {
                MEMORY => &["set_vm_memory_high_watermark", "absolute", "1"],
                _ => &["set_disk_free_limit", "100000GB"],
            })
            .await
    }

    async fn drain(&self, state: State, service: &Service) -> Result<()> {
        service
            .rabbitmqctl(match state {
                MEMORY => &["set_vm_memory_high_watermark", "absolute", "1GB"],
                _ => &["set_disk_free_limit", "256MB"],
            })
            .await
    }

    async fn takes_writes(&self, _: State) -> Result<bool> {
        let (connection, channel) = self.channel().await?;
        let confirms = channel.confirm_select(ConfirmSelectOptions::default());
        timeout(QUESTION, confirms).await??;
        // The server may take the first one that a connection writes, and only then stop reading from it.
        for _ in 0..2 {
            let id = probe_id().to_string();
            let properties = BasicProperties::default()
                .with_delivery_mode(2)
                .with_message_id(id.as_str().into());
            let options = BasicPublishOptions::default();
            let queue = self.topic.as_str().into();
            let publishing = channel.basic_publish("".into(), queue, options, b"", properties);
            // The client does not write to a connection that is blocked.
            let Ok(confirm) = timeout(SILENCE, publishing).await else {
                return Ok(false);
            };
            let mut confirm = confirm?;
            let start = Instant::now();
            loop {
                match timeout(GLANCE, &mut confirm).await {
                    Ok(confirmation) => match confirmation? {
                        Confirmation::Ack(_) => break,
                        other => return Err(format!("{other:?}").into()),
                    },
                    Err(_) if connection.status().blocked() => return Ok(false),
                    Err(_) if start.elapsed() > SILENCE => return Ok(false),
                    Err(_) => {}
                }
            }
        }
        Ok(true)
    }
}

/// By the names of the wire contract: the property `message_id`, the headers `outbox-key` and
/// `outbox-tombstone`, and the body.
fn content(delivery: &Delivery) -> Result<(Uuid, Content)> {
    let properties = &delivery.properties;
    if properties.delivery_mode() != &Some(2) {
        return Err("not persistent".into());
    }
    let id = properties.message_id().as_ref().ok_or("no message id")?;
    let table = properties.headers().clone().unwrap_or_default();
    let mut headers: BTreeMap<_, _> = table
        .into_iter()
        .map(|(name, value)| (name.to_string(), value.clone()))
        .collect();
    let is_absent = match headers.remove("outbox-tombstone") {
        None => false,
        Some(AMQPValue::Boolean(true)) if delivery.data.is_empty() => true,
        other => return Err(format!("a tombstone with the header {other:?}").into()),
    };
    let content = Content {
        key: headers
            .remove("outbox-key")
            .map(|key| long_string(&key))
            .transpose()?,
        payload: (!is_absent).then(|| delivery.data.clone()),
        headers: headers
            .into_iter()
            .map(|(name, value)| Ok((name, long_string(&value)?)))
            .collect::<Result<_>>()?,
    };
    Ok((message_id(id.as_str().as_bytes())?, content))
}

fn long_string(value: &AMQPValue) -> Result<String> {
    match value {
        AMQPValue::LongString(value) => text(value.as_bytes()),
        other => Err(format!("not text: {other:?}").into()),
    }
}
