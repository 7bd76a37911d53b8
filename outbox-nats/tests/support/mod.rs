//! What the tests know of the real server: streams of their own, and what arrived in them, read with the
//! client and none of our crates.

// Each test program uses a part of it.
#![allow(dead_code)]

pub(crate) mod server;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::Config;
use async_nats::jetstream::{self, Context};
use async_nats::{Client, HeaderMap};
use futures_util::StreamExt;
use outbox_conformance::address;
use outbox_core::{Message, Uuid};

/// How long the server has for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A message of a stream as a consumer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) subject: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) headers: BTreeMap<String, String>,
}

/// The address of the real server.
pub(crate) fn url() -> String {
    address("OUTBOX_TEST_NATS_URL")
}

/// The address of one that knows atomic batches.
pub(crate) fn latest_url() -> String {
    address("OUTBOX_TEST_NATS_LATEST_URL")
}

/// The address of one that knows them and may be stopped and killed.
pub(crate) fn latest_faults_url() -> String {
    address("OUTBOX_TEST_NATS_LATEST_FAULTS_URL")
}

pub(crate) async fn connect(url: &str) -> Client {
    async_nats::connect(url).await.expect("a connection")
}

/// A subject that nobody else uses, which may also be the name of a stream.
pub(crate) fn new_subject() -> String {
    format!("test-{}", Uuid::now_v7().simple())
}

/// A message of a key whose payload says which it is.
pub(crate) fn message(topic: &str, key: &str, payload: impl Into<Vec<u8>>) -> Message {
    let payload: Vec<u8> = payload.into();
    Message::to(topic).key(key).bytes(payload).expect("valid")
}

/// What a stream of this subject and name is made with.
pub(crate) fn stream(subject: &str) -> Config {
    Config {
        name: subject.to_owned(),
        subjects: vec![subject.to_owned()],
        ..Config::default()
    }
}

pub(crate) async fn create(client: &Client, config: Config) -> Context {
    let context = jetstream::new(client.clone());
    context.create_stream(config).await.expect("a stream");
    context
}

pub(crate) async fn delete(client: &Client, stream: &str) {
    let context = jetstream::new(client.clone());
    context.delete_stream(stream).await.expect("no stream");
}

/// All that is in a stream now, in its order.
pub(crate) async fn read(client: &Client, stream: &str) -> Vec<Record> {
    let context = jetstream::new(client.clone());
    let stream = context.get_stream(stream).await.expect("the stream");
    let count = stream.get_info().await.expect("its state").state.messages;
    let count = usize::try_from(count).expect("a number of messages");
    let consumer = stream
        .create_consumer(pull::Config {
            ack_policy: AckPolicy::None,
            ..pull::Config::default()
        })
        .await
        .expect("a consumer");
    let mut records = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while records.len() < count {
        assert!(Instant::now() < deadline, "the stream was not read in time");
        let missing = (count - records.len()).min(100);
        let mut batch = consumer
            .fetch()
            .max_messages(missing)
            .messages()
            .await
            .expect("a batch");
        while let Some(message) = batch.next().await {
            let message = message.expect("a message of the stream");
            let mut headers = BTreeMap::new();
            for (name, values) in message.headers.iter().flat_map(HeaderMap::iter) {
                assert_eq!(values.len(), 1, "header {name} came more than once");
                headers.insert(name.to_string(), values[0].to_string());
            }
            records.push(Record {
                subject: message.subject.to_string(),
                payload: message.payload.to_vec(),
                headers,
            });
        }
    }
    records
}

/// The payloads of a stream, as text.
pub(crate) async fn payloads(client: &Client, stream: &str) -> Vec<String> {
    let records = read(client, stream).await;
    records
        .into_iter()
        .map(|record| String::from_utf8(record.payload).expect("text"))
        .collect()
}
