//! NATS JetStream, through its own client. A topic is a stream of the same name.

use std::collections::BTreeMap;
use std::time::Instant;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::{self, Context, Message, stream};
use async_nats::{ConnectOptions, HeaderMap};
use async_trait::async_trait;
use futures_util::StreamExt;
use tokio::time::timeout;

use super::PATIENCE;
use super::broker::{Broker, Install, QUESTION, Record, message_id};

pub(crate) static BROKER: Install = Install {
    steady: "OUTBOX_TEST_NATS_URL",
    faulty: "OUTBOX_TEST_NATS_FAULTS_URL",
    faulty_service: "nats-faults",
    at: |url| Box::new(Nats { url }),
    // Silence is explained after 1.5 s and at most two more.
    impatient: &["ack_timeout_ms=1500"],
    too_large: (1024 * 1024, &[]),
    drops_repeats: true,
    odd_header: (
        "!\"#$%&'()*+,-./;<=>?@[\\]^_`{|}~",
        "\u{1F980} größe\t\\ \u{1}\u{7f} ' : \"",
    ),
};

/// A server. Each question has a connection of its own, since it may be away in between.
struct Nats {
    url: String,
}

impl Nats {
    async fn ask(&self) -> Option<Context> {
        let connecting = ConnectOptions::new().connect(&self.url);
        let client = timeout(QUESTION, connecting).await.ok()?.ok()?;
        Some(jetstream::new(client))
    }

    async fn stream(&self, topic: &str) -> Option<stream::Stream> {
        let context = self.ask().await?;
        timeout(QUESTION, context.get_stream(topic))
            .await
            .ok()?
            .ok()
    }
}

#[async_trait]
impl Broker for Nats {
    fn relay_arguments(&self) -> Vec<String> {
        vec!["broker=nats".to_owned(), format!("url={}", self.url)]
    }

    async fn create_topic(&self, topic: &str) {
        let context = self.ask().await.expect("NATS");
        context
            .create_stream(stream::Config {
                name: topic.to_owned(),
                subjects: vec![topic.to_owned()],
                ..stream::Config::default()
            })
            .await
            .expect("a stream is created");
    }

    async fn delete_topic(&self, topic: &str) {
        let context = self.ask().await.expect("NATS");
        context
            .delete_stream(topic)
            .await
            .expect("a stream is deleted");
    }

    async fn count(&self, topic: &str) -> u64 {
        let counting = async {
            let stream = self.stream(topic).await?;
            Some(stream.get_info().await.ok()?.state.messages)
        };
        timeout(QUESTION, counting)
            .await
            .ok()
            .flatten()
            .unwrap_or(0)
    }

    async fn read(&self, topic: &str) -> Vec<Record> {
        let count = usize::try_from(self.count(topic).await).expect("a number of messages");
        let stream = self.stream(topic).await.expect("the stream");
        let consumer = stream
            .create_consumer(pull::Config {
                ack_policy: AckPolicy::None,
                ..pull::Config::default()
            })
            .await
            .expect("a consumer");
        let mut records = Vec::new();
        let start = Instant::now();
        while records.len() < count {
            assert!(start.elapsed() < PATIENCE, "{topic} was not read in time");
            let missing = (count - records.len()).min(1_000);
            let fetching = consumer.fetch().max_messages(missing).messages();
            let mut batch = fetching.await.expect("a batch of messages");
            while let Some(message) = batch.next().await {
                records.push(record(&message.expect("a message of the stream")));
            }
        }
        records
    }
}

/// By the names of the wire contract: headers `Nats-Msg-Id`, `Outbox-Key` and `Outbox-Tombstone`, payload
/// and headers.
fn record(message: &Message) -> Record {
    let mut headers = BTreeMap::new();
    for (name, values) in message.headers.iter().flat_map(HeaderMap::iter) {
        assert_eq!(values.len(), 1, "header {name} came more than once");
        headers.insert(name.to_string(), values[0].to_string());
    }
    let id = headers.remove("Nats-Msg-Id").expect("a message id");
    let payload = message.payload.to_vec();
    let payload = match headers.remove("Outbox-Tombstone").as_deref() {
        None => Some(payload),
        Some("true") if payload.is_empty() => None,
        other => panic!("a tombstone of {other:?} with {payload:?}"),
    };
    Record {
        id: message_id(id.as_bytes()),
        key: headers.remove("Outbox-Key"),
        payload,
        headers,
        partition: 0,
    }
}
