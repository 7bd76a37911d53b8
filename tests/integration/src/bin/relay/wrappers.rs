//! What goes wrong on demand, in front of a broker that is in good health.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use outbox_core::{Delivery, Message, PublishError, Publisher, StoppedKeys, Uuid};

/// Once, in mid-batch, says what the broker confirmed, logs that and then does not return.
pub(crate) struct Holding<P> {
    inner: P,
    after: usize,
    handed_over: AtomicUsize,
}

impl<P> Holding<P> {
    /// In the call that hands over the message of number `after`; in none if that is 0.
    pub(crate) fn new(inner: P, after: usize) -> Self {
        Self {
            inner,
            after,
            handed_over: AtomicUsize::new(0),
        }
    }
}

#[async_trait]
impl<P: Publisher> Publisher for Holding<P> {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        let before = self.handed_over.fetch_add(batch.len(), Ordering::Relaxed);
        self.inner.publish(batch).await;
        if before < self.after && self.after <= before + batch.len() {
            tracing::info!("the call does not return");
            std::future::pending::<()>().await;
        }
    }

    fn chains_keys(&self) -> bool {
        self.inner.chains_keys()
    }
}

/// Answers in place of the broker to a message that asks for it with a header, as often as that says:
/// `fails` for now, or `refused` for good. After that, and all others, the broker gets. One with the header
/// `fatal` ends the process, before any of its batch is handed over.
pub(crate) struct Failing {
    inner: Box<dyn Publisher>,
    answered: Mutex<HashMap<Uuid, usize>>,
}

impl Failing {
    pub(crate) fn new(inner: Box<dyn Publisher>) -> Self {
        Self {
            inner,
            answered: Mutex::default(),
        }
    }

    fn failure(&self, message: &Message) -> Option<PublishError> {
        let asked = |name| message.headers().get(name)?.parse::<usize>().ok();
        let (times, error) = match (asked("fails"), asked("refused")) {
            (Some(times), _) => (times, PublishError::retryable("fails for now")),
            (None, Some(times)) => (times, PublishError::rejected("refused for good")),
            (None, None) => return None,
        };
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = answered.entry(message.id()).or_default();
        *answered += 1;
        (*answered <= times).then_some(error)
    }
}

#[async_trait]
impl Publisher for Failing {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        let mut rest = Vec::with_capacity(batch.len());
        let is_fatal =
            |delivery: &Delivery<'_>| delivery.message().headers().get("fatal").is_some();
        if batch.iter().any(is_fatal) {
            std::process::abort();
        }
        let mut stopped = StoppedKeys::new();
        for delivery in batch {
            if stopped.has(delivery) {
                continue;
            }
            match self.failure(delivery.message()) {
                Some(error) => {
                    delivery.report(Err(error));
                    stopped.stop(delivery);
                }
                None => rest.push(*delivery),
            }
        }
        self.inner.publish(&rest).await;
    }

    fn chains_keys(&self) -> bool {
        self.inner.chains_keys()
    }
}
