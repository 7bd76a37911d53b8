//! What a publisher that chains remembers during one call: the keys that have come to a stop.
//!
//! Not here: the promise itself, which is at [`Publisher::chains_keys`](crate::Publisher::chains_keys), and
//! what the relay makes of it, which is in `order.rs`.

use std::collections::HashSet;

use crate::Delivery;

/// The keys of one call of a publisher of which nothing more may be written.
///
/// ```
/// use outbox_core::{Answer, Delivery, Message, PublishError, StoppedKeys};
///
/// # fn main() -> Result<(), outbox_core::InvalidMessage> {
/// let answers = [Answer::new(), Answer::new()];
/// let messages = [Message::to("t").key(7).json(&1)?, Message::to("t").key(7).json(&2)?];
/// let first = Delivery::new(&messages[0], &answers[0]).chained();
/// let second = Delivery::new(&messages[1], &answers[1]).chained();
///
/// let mut stopped = StoppedKeys::new();
/// assert!(!stopped.has(&first));
/// first.report(Err(PublishError::retryable("not now")));
/// stopped.stop(&first);
/// assert!(stopped.has(&second));
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
pub struct StoppedKeys<'a>(HashSet<&'a str>);

impl<'a> StoppedKeys<'a> {
    /// None so far.
    pub fn new() -> Self {
        Self::default()
    }

    /// This delivery is not written, or it is not known whether it is: nothing behind it in its chain may
    /// be. One that is in no chain stops nothing.
    pub fn stop(&mut self, delivery: &Delivery<'a>) {
        if delivery.is_chained() {
            self.0.extend(delivery.message().key());
        }
    }

    /// Whether this delivery is behind one that has stopped its key. It is then neither sent nor
    /// answered.
    pub fn has(&self, delivery: &Delivery<'_>) -> bool {
        !self.0.is_empty()
            && delivery.is_chained()
            && delivery
                .message()
                .key()
                .is_some_and(|key| self.0.contains(key))
    }
}
