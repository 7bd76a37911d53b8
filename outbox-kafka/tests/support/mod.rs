//! What the tests know of the real server: topics of their own, and what arrived at them, read with
//! the client and none of our crates.

// Each test program uses a part of it.
#![allow(dead_code)]

pub(crate) mod protocol;
pub(crate) mod rights;

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant, SystemTime};

use outbox_conformance::address;
use outbox_conformance::publisher::refusal;
use outbox_core::{PublishError, PublishErrorKind, Uuid};
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Headers, Message};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

/// How long the server has for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A record as a consumer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) partition: i32,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: BTreeMap<String, Vec<u8>>,
}

/// A topic name that nobody else uses.
pub(crate) fn new_topic() -> String {
    format!("test-{}", Uuid::now_v7().simple())
}

/// What was reported is a failure of this kind; gives back its reason.
pub(crate) fn fails_as(answer: &Option<Result<(), PublishError>>, kind: PublishErrorKind) -> &str {
    let (found, reason) = refusal(answer);
    assert_eq!(found, kind, "{reason}");
    reason
}

/// Not longer ago than this.
pub(crate) fn within(limit: Duration, start: Instant) {
    let took = start.elapsed();
    assert!(took < limit, "it took {took:?}");
}

/// The address of the real server.
pub(crate) fn servers() -> String {
    address("OUTBOX_TEST_KAFKA")
}

/// Its port.
pub(crate) fn port() -> u16 {
    let servers = servers();
    let (_, port) = servers.rsplit_once(':').expect("host:port");
    port.parse().expect("a port")
}

/// A configuration for the real server.
pub(crate) fn config() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", servers());
    config
}

fn admin() -> AdminClient<DefaultClientContext> {
    config().create().expect("an admin client")
}

/// Creates a topic.
pub(crate) async fn create_topic(topic: &str, partitions: i32, settings: &[(&str, &str)]) {
    try_create_topic(topic, partitions, settings)
        .await
        .expect("a topic is created");
}

/// Creates a topic, or says why the server does not.
pub(crate) async fn try_create_topic(
    topic: &str,
    partitions: i32,
    settings: &[(&str, &str)],
) -> Result<(), RDKafkaErrorCode> {
    let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
    for (name, value) in settings {
        new = new.set(name, value);
    }
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    let created = admin()
        .create_topics([&new], &options)
        .await
        .expect("an answer to the creation of a topic");
    created
        .into_iter()
        .try_for_each(|result| result.map(drop).map_err(|(_, code)| code))
}

/// Changes a setting of a topic.
pub(crate) async fn set_on_topic(topic: &str, name: &str, value: &str) {
    let change = AlterConfig::new(ResourceSpecifier::Topic(topic)).set(name, value);
    // Kept until the answer is there, which nobody would receive otherwise.
    let admin = admin();
    let altered = admin
        .alter_configs([&change], &AdminOptions::new())
        .await
        .expect("an answer to a change of a topic");
    for result in altered {
        result.expect("a topic is changed");
    }
}

/// Writes a record with a timestamp so many milliseconds ahead of this host's clock, with the client alone.
/// What the server says.
pub(crate) async fn produce_ahead(topic: &str, millis: i64) -> Result<(), RDKafkaErrorCode> {
    let client: FutureProducer = config().create().expect("a producer");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = i64::try_from(now.expect("a clock").as_millis()).expect("a time");
    let record = FutureRecord::<(), [u8]>::to(topic)
        .payload(b"x".as_slice())
        .timestamp(now + millis);
    match client.send(record, PATIENCE).await {
        Ok(_) => Ok(()),
        Err((error, _)) => Err(error.rdkafka_error_code().expect("a code")),
    }
}

/// Deletes topics, whether they exist or not.
pub(crate) async fn delete_topics(topics: &[String]) {
    if topics.is_empty() {
        return;
    }
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    admin()
        .delete_topics(&topics, &AdminOptions::new())
        .await
        .expect("an answer to the deletion of topics");
}

/// All that is in a topic now, in the order of each partition.
pub(crate) async fn read(topic: &str) -> Vec<Record> {
    read_from(&servers(), topic).await
}

/// [`read`] from another server.
pub(crate) async fn read_from(servers: &str, topic: &str) -> Vec<Record> {
    let (servers, topic) = (servers.to_owned(), topic.to_owned());
    tokio::task::spawn_blocking(move || read_blocking(&servers, &topic))
        .await
        .expect("reading")
}

fn read_blocking(servers: &str, topic: &str) -> Vec<Record> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", servers)
        .set("group.id", "outbox-test")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("fetch.wait.max.ms", "10")
        .set("fetch.message.max.bytes", "20000000")
        .set("check.crcs", "true")
        .create()
        .expect("a consumer");
    let metadata = consumer
        .fetch_metadata(Some(topic), PATIENCE)
        .expect("the topic's metadata");
    let mut assignment = TopicPartitionList::new();
    let mut open = HashSet::new();
    for partition in metadata.topics()[0].partitions() {
        assignment
            .add_partition_offset(topic, partition.id(), Offset::Beginning)
            .expect("an offset");
        open.insert(partition.id());
    }
    consumer.assign(&assignment).expect("an assignment");

    let mut records = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while !open.is_empty() {
        assert!(Instant::now() < deadline, "{topic} was not read in time");
        match consumer.poll(Duration::from_millis(100)) {
            None => {}
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                open.remove(&partition);
            }
            Some(Err(error)) => panic!("reading {topic}: {error}"),
            Some(Ok(message)) => {
                let headers = message.headers().map_or_else(BTreeMap::new, |headers| {
                    headers
                        .iter()
                        .map(|header| {
                            let value = header.value.expect("a header value that is not null");
                            (header.key.to_owned(), value.to_vec())
                        })
                        .collect()
                });
                if let Some(set) = message.headers() {
                    assert_eq!(headers.len(), set.count(), "a header came twice");
                }
                records.push(Record {
                    partition: message.partition(),
                    key: message.key().map(<[u8]>::to_vec),
                    value: message.payload().map(<[u8]>::to_vec),
                    headers,
                });
            }
        }
    }
    records
}
