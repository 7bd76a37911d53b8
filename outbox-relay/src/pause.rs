//! Topics that a person has paused: their messages are set aside, uncounted, and all others go on.
//!
//! The list is read again where it is needed and older than a second, so an idle relay asks for nothing.
//! It is also read again before a message is refused for what it said: a relay that goes by an old list
//! would set aside what was just resumed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::admin::PausedTopic;
use outbox_core::{Delivery, PublishError, Publisher, StoppedKeys};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::store::Store;

/// How long a list counts as the newest.
const FRESH: Duration = Duration::from_secs(1);
/// How long the reading of a list may keep messages back.
const PATIENCE: Duration = Duration::from_secs(2);

/// A publisher that heeds pauses.
pub(crate) struct Pausable {
    publisher: Box<dyn Publisher>,
    store: Arc<Store>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    paused: Arc<[PausedTopic]>,
    read: Option<Instant>,
    /// Whether the last reading failed, which is said once.
    failing: bool,
}

impl Pausable {
    pub(crate) fn new(publisher: Box<dyn Publisher>, store: Arc<Store>) -> Self {
        Self {
            publisher,
            store,
            known: Mutex::default(),
        }
    }

    /// What is paused, as far as it concerns this batch.
    async fn paused(&self, batch: &[Delivery<'_>]) -> Arc<[PausedTopic]> {
        let asked = Instant::now();
        let mut known = self.known.lock().await;
        let concerned = |paused: &[PausedTopic]| {
            let mut topics = batch.iter().map(|delivery| delivery.message().topic());
            topics.any(|topic| paused.iter().any(|it| it.topic.matches(topic)))
        };
        let fresh = match known.read {
            // Read by another worker while this one waited for it.
            Some(read) if read >= asked => true,
            Some(read) => read.elapsed() < FRESH && !concerned(&known.paused),
            None => false,
        };
        if !fresh {
            let read = timeout(PATIENCE, self.store.paused()).await;
            // Also after a failure, so that not every batch waits for the next one.
            known.read = Some(Instant::now());
            match read {
                Ok(Ok(paused)) => {
                    known.paused = paused.into();
                    known.failing = false;
                }
                failed => {
                    if !known.failing {
                        let reason = match failed {
                            Ok(Err(error)) => error.to_string(),
                            _ => format!("no answer within {PATIENCE:?}"),
                        };
                        tracing::warn!(reason, "the list of paused topics cannot be read");
                    }
                    known.failing = true;
                }
            }
        }
        Arc::clone(&known.paused)
    }
}

#[async_trait]
impl Publisher for Pausable {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        let paused = self.paused(batch).await;
        if paused.is_empty() {
            return self.publisher.publish(batch).await;
        }
        let mut free = Vec::with_capacity(batch.len());
        let mut stopped = StoppedKeys::new();
        for delivery in batch {
            if stopped.has(delivery) {
                continue;
            }
            let topic = delivery.message().topic();
            match paused.iter().find(|paused| paused.topic.matches(topic)) {
                Some(paused) => {
                    let reason = format!("paused: {} by {}", paused.topic, paused.by);
                    let error = PublishError::topic_unavailable(reason);
                    delivery.report(Err(error.without_broker()));
                    stopped.stop(delivery);
                }
                None => free.push(*delivery),
            }
        }
        if !free.is_empty() {
            self.publisher.publish(&free).await;
        }
    }

    fn chains_keys(&self) -> bool {
        self.publisher.chains_keys()
    }
}
