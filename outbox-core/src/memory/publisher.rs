//! A publisher that remembers what it confirmed.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::{Delivery, Message, PublishError, Publisher, StoppedKeys};

/// A publisher that confirms every message and remembers it, in the order of confirmation.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), outbox_core::InvalidMessage> {
/// use std::time::Duration;
/// use outbox_core::memory::MemoryPublisher;
/// use outbox_core::{Message, PublishError, PublisherExt};
///
/// let publisher = MemoryPublisher::new();
/// publisher.answer_with(|message| match message.topic() {
///     "orders.refused" => Err(PublishError::rejected("no such thing")),
///     _ => Ok(()),
/// });
/// let batch = [
///     Message::to("orders.placed").json(&7)?,
///     Message::to("orders.refused").json(&8)?,
/// ];
/// let answers = publisher.publish_all(&batch, Duration::from_secs(1)).await;
/// assert_eq!(answers[0], Some(Ok(())));
/// assert_eq!(answers[1], Some(Err(PublishError::rejected("no such thing"))));
/// assert_eq!(publisher.published(), &batch[..1]);
/// # Ok(()) }
/// ```
///
/// Clones share what was published and the script.
#[derive(Clone, Default)]
pub struct MemoryPublisher {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    published: Mutex<Vec<Message>>,
    confirmed: Notify,
    script: Mutex<Option<Script>>,
}

type Script = Arc<dyn Fn(&Message) -> Result<(), PublishError> + Send + Sync>;

impl MemoryPublisher {
    /// A publisher that confirms everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on `script` answers for the broker. What it answers with `Ok` counts as published.
    pub fn answer_with(
        &self,
        script: impl Fn(&Message) -> Result<(), PublishError> + Send + Sync + 'static,
    ) {
        *lock(&self.shared.script) = Some(Arc::new(script));
    }

    /// What was confirmed so far, repeats included, in the order of confirmation.
    pub fn published(&self) -> Vec<Message> {
        lock(&self.shared.published).clone()
    }

    /// Forgets what was confirmed so far; the script stays.
    pub fn clear(&self) {
        lock(&self.shared.published).clear();
    }

    /// Waits until `count` messages were confirmed, at most `within`, and gives back what was
    /// confirmed by then: fewer than `count` when the time ran out.
    ///
    /// Cancel safe.
    pub async fn wait_for(&self, count: usize, within: Duration) -> Vec<Message> {
        let enough = async {
            loop {
                let mut confirmed = std::pin::pin!(self.shared.confirmed.notified());
                // Registered before the look, so that nothing is missed between look and wait.
                confirmed.as_mut().enable();
                if lock(&self.shared.published).len() >= count {
                    return;
                }
                confirmed.await;
            }
        };
        // The caller sees from the number whether the time ran out.
        let _ = tokio::time::timeout(within, enough).await;
        self.published()
    }
}

#[async_trait]
impl Publisher for MemoryPublisher {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        let script = lock(&self.shared.script).clone();
        let mut stopped = StoppedKeys::new();
        for delivery in batch {
            if stopped.has(delivery) {
                continue;
            }
            let message = delivery.message();
            let answer = script.as_ref().map_or(Ok(()), |script| script(message));
            if answer.is_ok() {
                lock(&self.shared.published).push(message.clone());
                self.shared.confirmed.notify_waiters();
            } else {
                stopped.stop(delivery);
            }
            delivery.report(answer);
        }
    }

    fn chains_keys(&self) -> bool {
        true
    }
}

impl fmt::Debug for MemoryPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryPublisher")
            .field("published", &lock(&self.shared.published).len())
            .finish_non_exhaustive()
    }
}

/// A script that panics must not take the record with it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PublisherExt;

    fn message(topic: &str) -> Message {
        Message::to(topic).tombstone().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_with_the_count() {
        let publisher = MemoryPublisher::new();
        let waiting = {
            let publisher = publisher.clone();
            tokio::spawn(async move { publisher.wait_for(2, Duration::from_secs(5)).await })
        };
        let first = [message("a")];
        publisher.publish_all(&first, Duration::from_secs(1)).await;
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        let second = [message("b")];
        publisher.publish_all(&second, Duration::from_secs(1)).await;
        assert_eq!(
            waiting.await.unwrap(),
            [first[0].clone(), second[0].clone()]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_with_the_time() {
        let publisher = MemoryPublisher::new();
        let start = tokio::time::Instant::now();
        assert_eq!(publisher.wait_for(1, Duration::from_secs(5)).await, []);
        assert_eq!(start.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test]
    async fn a_refused_message_is_not_published() {
        let publisher = MemoryPublisher::new();
        publisher.answer_with(|_| Err(PublishError::retryable("not now")));
        let answers = publisher
            .publish_all(&[message("a")], Duration::from_secs(1))
            .await;
        assert_eq!(answers, [Some(Err(PublishError::retryable("not now")))]);
        assert_eq!(publisher.published(), []);
    }

    #[tokio::test]
    async fn clearing_keeps_the_script() {
        let publisher = MemoryPublisher::new();
        publisher.answer_with(|message| match message.topic() {
            "a" => Ok(()),
            _ => Err(PublishError::rejected("not a")),
        });
        let batch = [message("a"), message("b")];
        publisher.publish_all(&batch, Duration::from_secs(1)).await;
        assert_eq!(publisher.published(), &batch[..1]);
        publisher.clear();
        assert_eq!(publisher.published(), []);
        publisher.publish_all(&batch, Duration::from_secs(1)).await;
        assert_eq!(publisher.published(), &batch[..1]);
    }
}
