//! Kafka, through its own client.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier};
use rdkafka::admin::{OwnedResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers, Message};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::PATIENCE;
use super::broker::{Broker, Install, QUESTION, Record, message_id, text};

pub(crate) static BROKER: Install = Install {
    steady: "OUTBOX_TEST_KAFKA",
    faulty: "OUTBOX_TEST_KAFKA_FAULTS",
    faulty_service: "kafka-faults",
    at: |servers| Box::new(Kafka::at(servers)),
    // Unanswered messages are explained after 2.5 s and at most three more.
    impatient: &["delivery.timeout.ms=2500"],
    too_large: (2_000_000, &[]),
    drops_repeats: false,
    odd_header: ("größe in m², \"=:\r\n", "\u{1F980}\r\n\t\\ \u{7f} ' \" "),
};

const PARTITIONS: i32 = 4;

/// A server, and a client that asks it questions.
pub(crate) struct Kafka {
    servers: String,
    client: Arc<BaseConsumer>,
}

impl Kafka {
    pub(crate) fn at(servers: String) -> Self {
        let client = config(&servers).create().expect("a consumer");
        Self {
            servers,
            client: Arc::new(client),
        }
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        config(&self.servers).create().expect("an admin client")
    }

    pub(crate) async fn create_topic_with(&self, topic: &str, settings: &[(&str, &str)]) {
        let mut new = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1));
        for (name, value) in settings {
            new = new.set(name, value);
        }
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
        let admin = self.admin();
        let created = admin
            .create_topics([&new], &options)
            .await
            .expect("an answer to the creation of a topic");
        for result in created {
            result.expect("a topic is created");
        }
    }

    pub(crate) async fn set_on_topic(&self, topic: &str, name: &str, value: &str) {
        let change = AlterConfig::new(ResourceSpecifier::Topic(topic)).set(name, value);
        // Kept until the answer is there, which nobody would receive otherwise.
        let admin = self.admin();
        let altered = admin
            .alter_configs([&change], &AdminOptions::new())
            .await
            .expect("an answer to a change of a topic");
        for result in altered {
            let changed: OwnedResourceSpecifier = result.expect("a topic is changed");
            assert_eq!(changed, OwnedResourceSpecifier::Topic(topic.to_owned()));
        }
    }
}

#[async_trait]
impl Broker for Kafka {
    fn relay_arguments(&self) -> Vec<String> {
        vec![
            "broker=kafka".to_owned(),
            format!("bootstrap.servers={}", self.servers),
        ]
    }

    async fn create_topic(&self, topic: &str) {
        self.create_topic_with(topic, &[]).await;
    }

    async fn delete_topic(&self, topic: &str) {
        let admin = self.admin();
        admin
            .delete_topics(&[topic], &AdminOptions::new())
            .await
            .expect("an answer to the deletion of a topic");
    }

    async fn count(&self, topic: &str) -> u64 {
        let (client, topic) = (Arc::clone(&self.client), topic.to_owned());
        let count = tokio::task::spawn_blocking(move || {
            (0..PARTITIONS)
                .map(|partition| client.fetch_watermarks(&topic, partition, QUESTION))
                .try_fold(0, |sum, marks| {
                    marks.map(|(_, high)| sum + high.unsigned_abs())
                })
                .unwrap_or(0)
        });
        count.await.expect("counting")
    }

    async fn read(&self, topic: &str) -> Vec<Record> {
        let (servers, topic) = (self.servers.clone(), topic.to_owned());
        tokio::task::spawn_blocking(move || read(&servers, &topic))
            .await
            .expect("reading")
    }
}

fn config(servers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", servers)
        .set("reconnect.backoff.max.ms", "500")
        // A server that is away is what is tested, not worth a line.
        .set("log_level", "2");
    config
}

fn read(servers: &str, topic: &str) -> Vec<Record> {
    let consumer: BaseConsumer = config(servers)
        .set("group.id", "outbox-test")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("fetch.wait.max.ms", "10")
        .create()
        .expect("a consumer");
    let mut assignment = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        assignment
            .add_partition_offset(topic, partition, Offset::Beginning)
            .expect("an offset");
    }
    consumer.assign(&assignment).expect("an assignment");

    let mut records = Vec::new();
    let mut open: HashSet<i32> = (0..PARTITIONS).collect();
    let start = Instant::now();
    while !open.is_empty() {
        assert!(start.elapsed() < PATIENCE, "{topic} was not read in time");
        match consumer.poll(Duration::from_millis(100)) {
            None => {}
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                open.remove(&partition);
            }
            Some(Err(error)) => panic!("reading {topic}: {error}"),
            Some(Ok(message)) => records.push(record(&message)),
        }
    }
    records
}

/// By the names of the wire contract: header `outbox-id`, the record's key, value and headers.
fn record(message: &impl Message) -> Record {
    let set = message.headers().expect("headers");
    let mut headers: BTreeMap<_, _> = set
        .iter()
        .map(|header| {
            let value = header.value.expect("a header value that is not null");
            (header.key.to_owned(), text(value))
        })
        .collect();
    assert_eq!(headers.len(), set.count(), "a header came twice");
    let id = headers.remove("outbox-id").expect("a message id");
    Record {
        id: message_id(id.as_bytes()),
        key: message.key().map(text),
        payload: message.payload().map(<[u8]>::to_vec),
        headers,
        partition: message.partition(),
    }
}
