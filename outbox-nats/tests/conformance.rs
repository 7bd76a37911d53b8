//! The publisher to NATS passes the suite, on real servers: one message of a key after the other, and in atomic
//! batches.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::{Arc, Mutex};

use async_nats::Client;
use async_nats::jetstream::context::CreateStreamErrorKind;
use async_nats::jetstream::stream::Config;
use async_nats::jetstream::{self, ErrorCode};
use outbox_conformance::publisher::{OpenBroker, PublisherHarness, Received};
use outbox_core::{Publisher, async_trait};
use outbox_nats::{ID_HEADER, KEY_HEADER, NatsConfig, NatsPublisher, TOMBSTONE_HEADER};
use support::{connect, delete, latest_url, new_subject, read, url};

enum Nats {
    OneByOne,
    InBatches,
}

#[async_trait]
impl PublisherHarness for Nats {
    async fn open(&self) -> Box<dyn OpenBroker> {
        let (url, batches) = match self {
            Self::OneByOne => (url(), false),
            Self::InBatches => (latest_url(), true),
        };
        let client = connect(&url).await;
        let config = NatsConfig::new().atomic_batches(batches);
        let publisher = NatsPublisher::new(client.clone(), config).unwrap();
        Box::new(Open {
            client,
            batches,
            publisher: Arc::new(publisher),
            streams: Mutex::default(),
        })
    }
}

struct Open {
    client: Client,
    batches: bool,
    publisher: Arc<NatsPublisher>,
    /// By topic.
    streams: Mutex<Vec<(String, String)>>,
}

#[async_trait]
impl OpenBroker for Open {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.publisher) as Arc<dyn Publisher>
    }

    async fn create_topic(&self, topic: &str) -> bool {
        let name = new_subject();
        let created = jetstream::new(self.client.clone())
            .create_stream(Config {
                name: name.clone(),
                subjects: vec![topic.to_owned()],
                allow_atomic_publish: self.batches,
                ..Config::default()
            })
            .await;
        match created {
            Ok(_) => {
                self.streams.lock().unwrap().push((topic.to_owned(), name));
                true
            }
            Err(error) => match error.kind() {
                CreateStreamErrorKind::JetStream(error)
                    if error.error_code() == ErrorCode::STREAM_INVALID_CONFIG =>
                {
                    false
                }
                kind => panic!("creating a stream for {topic:?}: {kind}"),
            },
        }
    }

    async fn received(&self, topic: &str) -> Vec<Received> {
        let stream = {
            let streams = self.streams.lock().unwrap();
            let (_, stream) = streams.iter().find(|(of, _)| of == topic).unwrap();
            stream.clone()
        };
        let records = read(&self.client, &stream).await;
        records
            .into_iter()
            .map(|record| {
                let mut headers = record.headers;
                // The server keeps what says that a message came in a batch.
                headers.retain(|name, _| !name.starts_with("Nats-Batch-"));
                let tombstone = headers.remove(TOMBSTONE_HEADER);
                Received {
                    id: headers.remove(ID_HEADER),
                    key: headers.remove(KEY_HEADER),
                    payload: match tombstone.as_deref() {
                        None => Some(record.payload),
                        Some("true") if record.payload.is_empty() => None,
                        other => panic!("a tombstone of {other:?} with {:?}", record.payload),
                    },
                    headers,
                }
            })
            .collect()
    }

    fn has_missing_topics(&self) -> bool {
        true
    }

    // The server's max_payload is 1 MiB, with the headers.
    fn large_payload(&self) -> usize {
        1024 * 1024 - 500
    }

    fn too_large_payload(&self) -> Option<usize> {
        Some(1024 * 1024)
    }

    fn chains_keys(&self) -> bool {
        self.batches
    }

    async fn close(self: Box<Self>) {
        for (_, stream) in self.streams.into_inner().unwrap() {
            delete(&self.client, &stream).await;
        }
    }
}

mod one_by_one {
    outbox_conformance::publisher_suite!(super::Nats::OneByOne);
}

mod in_batches {
    outbox_conformance::publisher_suite!(super::Nats::InBatches);
}
