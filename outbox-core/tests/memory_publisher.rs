//! The publisher in memory passes the suite that the real ones pass.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use outbox_conformance::publisher::{OpenBroker, PublisherHarness, Received};
use outbox_core::memory::MemoryPublisher;
use outbox_core::{PublishError, Publisher, async_trait};

const LIMIT: usize = 1024 * 1024;

struct Memory;

#[async_trait]
impl PublisherHarness for Memory {
    async fn open(&self) -> Box<dyn OpenBroker> {
        let open = Open {
            publisher: MemoryPublisher::new(),
            topics: Arc::default(),
        };
        // The script plays a broker that has limits.
        let topics = Arc::clone(&open.topics);
        open.publisher.answer_with(move |message| {
            let topics = topics.lock().unwrap_or_else(PoisonError::into_inner);
            let size = message.payload().map_or(0, |payload| payload.len());
            if message.topic().contains(' ') {
                Err(PublishError::rejected("the topic has a space"))
            } else if !topics.contains(message.topic()) {
                Err(PublishError::topic_unavailable("no such topic"))
            } else if size > LIMIT {
                Err(PublishError::rejected(format!("{size} bytes are too many")))
            } else {
                Ok(())
            }
        });
        Box::new(open)
    }
}

struct Open {
    publisher: MemoryPublisher,
    topics: Arc<Mutex<HashSet<String>>>,
}

#[async_trait]
impl OpenBroker for Open {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(self.publisher.clone())
    }

    async fn create_topic(&self, name: &str) -> bool {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        !name.contains(' ') && topics.insert(name.to_owned())
    }

    async fn received(&self, topic: &str) -> Vec<Received> {
        let published = self.publisher.published();
        let there = published.iter().filter(|message| message.topic() == topic);
        there.map(Received::of).collect()
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

outbox_conformance::publisher_suite!(Memory);
