//! Kafka, through its own client.

mod rights;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{Header, Headers as _, Message, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use uuid::Uuid;

use super::{Broker, QUESTION, Says, State, message_id, probe_id, text};
use crate::Result;
use crate::consumer::Recorder;
use crate::record::Content;
use crate::service::Service;

/// With one node it cannot be too few replicas: of a topic that asks for more than it has, Kafka 4 takes
/// what it has (KIP-966).
const READ_ONLY: State = State {
    name: "kafka topic read-only",
    says: Says::No,
};
pub(super) const STATES: &[State] = &[READ_ONLY];

const PARTITIONS: i32 = 4;

pub(super) struct Kafka {
    servers: String,
    topic: String,
    consumer: Arc<Mutex<BaseConsumer>>,
}

impl Kafka {
    pub(super) fn new(servers: &str, topic: &str) -> Result<Self> {
        // It goes on by itself after its server was away, from where it was.
        let consumer: BaseConsumer = config(servers)
            .set("group.id", topic)
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "error")
            .set("fetch.wait.max.ms", "100")
            .create()?;
        let mut partitions = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            partitions.add_partition_offset(topic, partition, Offset::Beginning)?;
        }
        consumer.assign(&partitions)?;
        Ok(Self {
            servers: servers.to_owned(),
            topic: topic.to_owned(),
            consumer: Arc::new(Mutex::new(consumer)),
        })
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>> {
        Ok(config(&self.servers).create()?)
    }
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(QUESTION))
        .operation_timeout(Some(QUESTION))
}

fn config(servers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", servers)
        .set("reconnect.backoff.max.ms", "500")
        // A server that is away is what this is about, not worth a line.
        .set("log_level", "2");
    config
}

#[async_trait]
impl Broker for Kafka {
    async fn create_topic(&self) -> Result<()> {
        let new = NewTopic::new(&self.topic, PARTITIONS, TopicReplication::Fixed(1));
        let (admin, options) = (self.admin()?, options());
        for answer in admin.create_topics([&new], &options).await? {
            answer.map_err(|(_, code)| code.to_string())?;
        }
        Ok(())
    }

    async fn delete_topic(&self) -> Result<()> {
        let (admin, options) = (self.admin()?, options());
        for answer in admin
            .delete_topics(&[self.topic.as_str()], &options)
            .await?
        {
            answer.map_err(|(_, code)| code.to_string())?;
        }
        Ok(())
    }

    async fn consume(&self, recorder: &Recorder) -> Result<()> {
        while !recorder.is_done() {
            let consumer = Arc::clone(&self.consumer);
            let polled = tokio::task::spawn_blocking(move || {
                let consumer = consumer.lock().unwrap_or_else(PoisonError::into_inner);
                let mut records = Vec::new();
                let mut wait = Duration::from_millis(200);
                // An error is for the log: the client goes on.
                while let Some(Ok(message)) = consumer.poll(wait) {
                    records.push((content(&message), message.partition()));
                    wait = Duration::ZERO;
                    if records.len() >= 500 {
                        break;
                    }
                }
                records
            });
            for (content, partition) in polled.await? {
                recorder.arrived(content, partition, false);
            }
        }
        Ok(())
    }

    async fn fill(&self, _: State, _: &Service) -> Result<()> {
        rights::let_only_read(&self.servers, &self.topic).await
    }

    async fn drain(&self, _: State, _: &Service) -> Result<()> {
        rights::let_all(&self.servers, &self.topic).await
    }

    async fn takes_writes(&self, _: State) -> Result<bool> {
        let producer: FutureProducer = config(&self.servers)
            .set("message.timeout.ms", QUESTION.as_millis().to_string())
            .create()?;
        let id = probe_id().to_string();
        let id = Header {
            key: "outbox-id",
            value: Some(&id),
        };
        let probe: FutureRecord<'_, str, str> =
            FutureRecord::to(&self.topic).headers(OwnedHeaders::new().insert(id));
        match producer.send(probe, QUESTION).await {
            Ok(_) => Ok(true),
            Err((error, _)) => match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::TopicAuthorizationFailed) => Ok(false),
                _ => Err(error.into()),
            },
        }
    }
}

/// By the names of the wire contract: header `outbox-id`, the record's key, value and headers.
fn content(message: &impl Message) -> Result<(Uuid, Content)> {
    let set = message.headers().ok_or("no headers")?;
    let mut headers = BTreeMap::new();
    for header in set.iter() {
        let value = text(header.value.ok_or("a header that is null")?)?;
        if headers.insert(header.key.to_owned(), value).is_some() {
            return Err(format!("header {:?} came twice", header.key).into());
        }
    }
    let id = headers.remove("outbox-id").ok_or("no message id")?;
    let content = Content {
        key: message.key().map(text).transpose()?,
        payload: message.payload().map(<[u8]>::to_vec),
        headers,
    };
    Ok((message_id(id.as_bytes())?, content))
}
