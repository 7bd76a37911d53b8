//! The publisher to an HTTP endpoint passes the suite, against a server on a real socket.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::sync::Arc;

use outbox_conformance::publisher::{OpenBroker, PublisherHarness, Received};
use outbox_core::{Publisher, async_trait};
use support::{LIMIT, PATIENCE, Receiver};
use webhook_publisher::{WebhookConfig, WebhookPublisher};

struct Webhook;

#[async_trait]
impl PublisherHarness for Webhook {
    async fn open(&self) -> Box<dyn OpenBroker> {
        let receiver = Receiver::start_strict().await;
        // Ten thousand messages in one call are more than a relay claims.
        let config = WebhookConfig::new(&receiver.url).send_within(PATIENCE);
        Box::new(Open {
            publisher: Arc::new(WebhookPublisher::new(config).unwrap()),
            receiver,
        })
    }
}

struct Open {
    publisher: Arc<WebhookPublisher>,
    receiver: Receiver,
}

#[async_trait]
impl OpenBroker for Open {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.publisher) as Arc<dyn Publisher>
    }

    async fn create_topic(&self, name: &str) -> bool {
        self.receiver.create_topic(name)
    }

    async fn received(&self, topic: &str) -> Vec<Received> {
        self.receiver.taken(Some(topic))
    }

    fn has_missing_topics(&self) -> bool {
        true
    }

    fn large_payload(&self) -> usize {
        LIMIT
    }

    fn too_large_payload(&self) -> Option<usize> {
        Some(LIMIT + 1)
    }
}

outbox_conformance::publisher_suite!(Webhook);
