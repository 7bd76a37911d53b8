//! The publisher to RabbitMQ passes the suite, on a real server.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::{Arc, Mutex};

use lapin::types::AMQPValue;
use outbox_amqp::{AmqpConfig, AmqpPublisher, KEY_HEADER, TOMBSTONE_HEADER};
use outbox_conformance::publisher::{OpenBroker, PublisherHarness, Received};
use outbox_core::{Publisher, async_trait};
use support::{Server, url};

struct RabbitMq;

#[async_trait]
impl PublisherHarness for RabbitMq {
    async fn open(&self) -> Box<dyn OpenBroker> {
        let publisher = AmqpPublisher::new(AmqpConfig::new(url())).unwrap();
        Box::new(Open {
            publisher: Arc::new(publisher),
            server: Server::connect(&url()).await,
            queues: Mutex::default(),
        })
    }
}

struct Open {
    publisher: Arc<AmqpPublisher>,
    server: Server,
    queues: Mutex<Vec<String>>,
}

#[async_trait]
impl OpenBroker for Open {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.publisher) as Arc<dyn Publisher>
    }

    async fn create_topic(&self, name: &str) -> bool {
        let queue = self.server.queue(name).await;
        let is_possible = queue == name;
        self.queues.lock().unwrap().push(queue);
        is_possible
    }

    async fn received(&self, topic: &str) -> Vec<Received> {
        let received = self.server.read(topic).await;
        let messages = received.into_iter().map(|message| {
            let mut headers = message.headers;
            let is_absent = match headers.remove(TOMBSTONE_HEADER) {
                None => false,
                Some(AMQPValue::Boolean(true)) if message.body.is_empty() => true,
                other => panic!("a tombstone with the header {other:?}"),
            };
            Received {
                id: message.message_id,
                key: headers.remove(KEY_HEADER).map(text),
                payload: (!is_absent).then_some(message.body),
                headers: headers
                    .into_iter()
                    .map(|(name, value)| (name, text(value)))
                    .collect(),
            }
        });
        messages.collect()
    }

    fn has_missing_topics(&self) -> bool {
        true
    }

    // The server's max_message_size is 8 MiB, of payload alone.
    fn too_large_payload(&self) -> Option<usize> {
        Some(8 * 1024 * 1024 + 1)
    }

    async fn close(self: Box<Self>) {
        for queue in self.queues.into_inner().unwrap() {
            self.server.delete_queue(&queue).await;
        }
        self.server.close().await;
    }
}

fn text(value: AMQPValue) -> String {
    match value {
        AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).unwrap(),
        other => panic!("not text: {other:?}"),
    }
}

outbox_conformance::publisher_suite!(RabbitMq);
