//! Messages that are not due yet.

use std::time::SystemTime;

use crate::Uuid;

/// A message that was enqueued with a delay, as a list shows it: without its payload and headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayedMessage {
    /// The message id.
    pub id: Uuid,
    /// Its topic.
    pub topic: String,
    /// Its key.
    pub key: Option<String>,
    /// The length of its payload; `None`: it has none.
    pub payload_bytes: Option<u64>,
    /// When it was enqueued.
    pub enqueued_at: SystemTime,
    /// When it is due. One that is not later than now is enqueued as soon as a relay has time.
    pub deliver_at: SystemTime,
}

/// Those that are due first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayedList {
    /// The messages, by when they are due.
    pub messages: Vec<DelayedMessage>,
    /// Whether there are more, which are due later.
    pub more: bool,
    /// The database's clock, which the times of the messages are to be compared with.
    pub now: SystemTime,
}
