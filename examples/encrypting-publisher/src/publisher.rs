//! The wrapping: every message is encrypted, and its answer goes where the original's belongs.

use outbox_core::{Delivery, Publisher, StoppedKeys, async_trait};

use crate::key::Key;
use crate::seal::seal;

/// Encrypts the payloads of what it hands on to another publisher; see the [crate](crate).
///
/// # Answers
///
/// Those of the wrapped publisher, and one more: a message that has the header `encryption` already, or
/// no room for another header, is rejected.
///
/// # Memory
///
/// While a batch is published it is there twice, as it was and encrypted.
///
/// # Cancellation
///
/// As of the wrapped publisher.
#[derive(Clone, Debug)]
pub struct EncryptingPublisher<P> {
    inner: P,
    key: Key,
}

impl<P: Publisher> EncryptingPublisher<P> {
    /// Encrypts with `key` what `inner` publishes.
    pub fn new(inner: P, key: Key) -> Self {
        Self { inner, key }
    }
}

#[async_trait]
impl<P: Publisher> Publisher for EncryptingPublisher<P> {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        let mut sealed = Vec::with_capacity(batch.len());
        let mut stopped = StoppedKeys::new();
        for delivery in batch {
            if stopped.has(delivery) {
                continue;
            }
            match seal(delivery.message(), &self.key) {
                Ok(message) => sealed.push((delivery, message)),
                Err(error) => {
                    delivery.report(Err(error));
                    stopped.stop(delivery);
                }
            }
        }
        let batch: Vec<Delivery<'_>> = sealed
            .iter()
            .map(|(delivery, message)| delivery.with_message(message))
            .collect();
        self.inner.publish(&batch).await;
    }

    fn chains_keys(&self) -> bool {
        self.inner.chains_keys()
    }
}
