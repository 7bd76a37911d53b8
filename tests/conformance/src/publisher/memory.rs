//! A broker in memory, for publishers that wrap another one.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outbox_core::memory::MemoryPublisher;
use outbox_core::{Message, PublishError, Publisher, async_trait};

use super::{OpenBroker, PublisherHarness, Received};

/// The largest payload that the broker takes, in bytes.
const LIMIT: usize = 1024 * 1024;
/// What a wrapper may add to a payload that must be taken, in bytes.
const ROOM: usize = 4096;

/// A harness for what ends in a [`MemoryPublisher`]: that publisher itself, or a wrapper around it.
///
/// Behind it is a broker with limits: a topic has to be created and has no space in its name, and a
/// payload has at most a MiB.
pub struct InMemory {
    /// Makes the publisher under test from the one in memory.
    pub wrap: fn(MemoryPublisher) -> Arc<dyn Publisher>,
    /// Reads back what arrived, as a consumer does: undoes what the wrapper did.
    pub read: fn(&Message) -> Received,
    /// Whether the publisher under test chains, as the one in memory does.
    pub chains: bool,
}

#[async_trait]
impl PublisherHarness for InMemory {
    async fn open(&self) -> Box<dyn OpenBroker> {
        let memory = MemoryPublisher::new();
        let topics = Arc::new(Mutex::new(HashSet::new()));
        memory.answer_with({
            let topics = Arc::clone(&topics);
            move |message| answer(message, &lock(&topics))
        });
        Box::new(Open {
            publisher: (self.wrap)(memory.clone()),
            read: self.read,
            chains: self.chains,
            memory,
            topics,
        })
    }
}

fn answer(message: &Message, topics: &HashSet<String>) -> Result<(), PublishError> {
    let size = message.payload().map_or(0, |payload| payload.len());
    if !is_possible(message.topic()) {
        Err(PublishError::rejected("the topic has a space"))
    } else if !topics.contains(message.topic()) {
        Err(PublishError::topic_unavailable("no such topic"))
    } else if size > LIMIT {
        Err(PublishError::rejected(format!("{size} bytes are too many")))
    } else {
        Ok(())
    }
}

fn is_possible(topic: &str) -> bool {
    !topic.contains(' ')
}

struct Open {
    publisher: Arc<dyn Publisher>,
    read: fn(&Message) -> Received,
    chains: bool,
    memory: MemoryPublisher,
    topics: Arc<Mutex<HashSet<String>>>,
}

#[async_trait]
impl OpenBroker for Open {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.publisher)
    }

    async fn create_topic(&self, name: &str) -> bool {
        is_possible(name) && lock(&self.topics).insert(name.to_owned())
    }

    async fn received(&self, topic: &str) -> Vec<Received> {
        let published = self.memory.published();
        let there = published.iter().filter(|message| message.topic() == topic);
        there.map(self.read).collect()
    }

    fn has_missing_topics(&self) -> bool {
        true
    }

    fn large_payload(&self) -> usize {
        LIMIT - ROOM
    }

    fn too_large_payload(&self) -> Option<usize> {
        Some(LIMIT + 1)
    }

    fn chains_keys(&self) -> bool {
        self.chains
    }
}

/// A case that panics elsewhere leaves nothing half done here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
