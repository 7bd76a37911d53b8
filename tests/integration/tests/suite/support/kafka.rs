//! What the tests know of Kafka: topics, and what arrived in them, read with the client and none of
//! our crates.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier};
use rdkafka::admin::{OwnedResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers, Message};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::PATIENCE;

const PARTITIONS: i32 = 4;
/// How long one question to a server may take that is perhaps not there.
const QUESTION: Duration = Duration::from_secs(5);

/// A record as a consumer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) partition: i32,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: BTreeMap<String, Vec<u8>>,
}

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

    pub(crate) fn servers(&self) -> &str {
        &self.servers
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        config(&self.servers).create().expect("an admin client")
    }

    pub(crate) async fn create_topic(&self, topic: &str, settings: &[(&str, &str)]) {
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

    pub(crate) async fn delete_topics(&self, topics: &[String]) {
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        let admin = self.admin();
        admin
            .delete_topics(&topics, &AdminOptions::new())
            .await
            .expect("an answer to the deletion of topics");
    }

    /// How many records a topic holds; none while the server does not say.
    pub(crate) async fn count(&self, topic: &str) -> u64 {
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

    /// All that is in a topic now, in the order of each partition.
    pub(crate) async fn read(&self, topic: &str) -> Vec<Record> {
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
            Some(Ok(message)) => records.push(Record {
                partition: message.partition(),
                key: message.key().map(<[u8]>::to_vec),
                value: message.payload().map(<[u8]>::to_vec),
                headers: headers(&message),
            }),
        }
    }
    records
}

fn headers(message: &impl Message) -> BTreeMap<String, Vec<u8>> {
    let Some(set) = message.headers() else {
        return BTreeMap::new();
    };
    let headers: BTreeMap<_, _> = set
        .iter()
        .map(|header| {
            let value = header.value.expect("a header value that is not null");
            (header.key.to_owned(), value.to_vec())
        })
        .collect();
    assert_eq!(headers.len(), set.count(), "a header came twice");
    headers
}
