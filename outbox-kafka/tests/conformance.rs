//! The publisher to Kafka passes the suite, on a real server.

mod support;

use std::sync::{Arc, Mutex, PoisonError};

use outbox_conformance::publisher::{OpenBroker, PublisherHarness, Received};
use outbox_core::{Publisher, async_trait};
use outbox_kafka::{ID_HEADER, KafkaPublisher};
use rdkafka::error::RDKafkaErrorCode;
use support::{config, delete_topics, read, try_create_topic};

struct Kafka;

#[async_trait]
impl PublisherHarness for Kafka {
    async fn open(&self) -> Box<dyn OpenBroker> {
        let publisher = KafkaPublisher::new(config()).expect("a configuration that is accepted");
        Box::new(Open {
            publisher: Arc::new(publisher),
            topics: Mutex::default(),
        })
    }
}

struct Open {
    publisher: Arc<KafkaPublisher>,
    topics: Mutex<Vec<String>>,
}

#[async_trait]
impl OpenBroker for Open {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.publisher) as Arc<dyn Publisher>
    }

    async fn create_topic(&self, name: &str) -> bool {
        match try_create_topic(name, 3, &[]).await {
            Ok(()) => {
                let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
                topics.push(name.to_owned());
                true
            }
            Err(RDKafkaErrorCode::InvalidTopic) => false,
            Err(code) => panic!("creating the topic {name:?}: {code}"),
        }
    }

    async fn received(&self, topic: &str) -> Vec<Received> {
        let records = read(topic).await;
        records
            .into_iter()
            .map(|record| {
                let mut headers = record.headers;
                Received {
                    id: headers.remove(ID_HEADER).map(text),
                    key: record.key.map(text),
                    payload: record.value,
                    headers: headers
                        .into_iter()
                        .map(|(name, value)| (name, text(value)))
                        .collect(),
                }
            })
            .collect()
    }

    fn has_missing_topics(&self) -> bool {
        true
    }

    fn chains_keys(&self) -> bool {
        true
    }

    // The client's message.max.bytes is 1,000,000, with key, headers and framing.
    fn large_payload(&self) -> usize {
        999_000
    }

    fn too_large_payload(&self) -> Option<usize> {
        Some(1_000_000)
    }

    async fn close(self: Box<Self>) {
        let topics = self.topics.into_inner();
        delete_topics(&topics.unwrap_or_else(PoisonError::into_inner)).await;
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}

outbox_conformance::publisher_suite!(Kafka);
