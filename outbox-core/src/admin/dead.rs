//! Dead messages: which are meant, what there is to see, what came of a decision.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::{TopicPattern, Uuid};

/// Which dead messages are meant: those that fit everything it asks for.
///
/// All of them are meant only by [`all`](Self::all), in so many words.
///
/// ```
/// use std::time::Duration;
/// use outbox_core::admin::DeadFilter;
///
/// const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// let old_orders = DeadFilter::all().topic("orders.*".parse()?).older_than(30 * DAY);
/// # Ok::<(), outbox_core::InvalidPattern>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadFilter {
    /// Their message ids.
    pub ids: Option<Vec<Uuid>>,
    /// Their topics.
    pub topic: Option<TopicPattern>,
    /// Their key. A message without a key has none, also not an empty one.
    pub key: Option<String>,
    /// The kind of their last error, a word of
    /// [`PublishErrorKind::as_str`](crate::PublishErrorKind::as_str).
    pub error_kind: Option<String>,
    /// They died at least so long ago, on the database's clock.
    pub older_than: Option<Duration>,
    /// They died at most so long ago, on the database's clock.
    pub younger_than: Option<Duration>,
}

impl DeadFilter {
    /// All dead messages, to be narrowed down.
    pub const fn all() -> Self {
        Self {
            ids: None,
            topic: None,
            key: None,
            error_kind: None,
            older_than: None,
            younger_than: None,
        }
    }

    /// The messages with these ids. Without any id, none.
    pub fn ids(ids: impl IntoIterator<Item = Uuid>) -> Self {
        Self {
            ids: Some(ids.into_iter().collect()),
            ..Self::all()
        }
    }

    /// Only those of these topics.
    #[must_use]
    pub fn topic(mut self, topic: TopicPattern) -> Self {
        self.topic = Some(topic);
        self
    }

    /// Only those of this key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Only those whose last error was of this kind, a word of
    /// [`PublishErrorKind::as_str`](crate::PublishErrorKind::as_str).
    #[must_use]
    pub fn error_kind(mut self, kind: impl Into<String>) -> Self {
        self.error_kind = Some(kind.into());
        self
    }

    /// Only those that died at least so long ago.
    #[must_use]
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = Some(age);
        self
    }

    /// Only those that died at most so long ago.
    #[must_use]
    pub fn younger_than(mut self, age: Duration) -> Self {
        self.younger_than = Some(age);
        self
    }
}

/// A message that was given up, as a list shows it: without its payload and headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadMessage {
    /// Unique, and in the order of enqueue.
    pub position: i64,
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
    /// When it was given up.
    pub died_at: SystemTime,
    /// How often it was parked before.
    pub parked: u32,
    /// How many failures were counted.
    pub failures: u32,
    /// The kind of the last error, the word of
    /// [`PublishErrorKind::as_str`](crate::PublishErrorKind::as_str).
    pub error_kind: String,
    /// The last error.
    pub error: String,
    /// Whether the later messages of its key wait for a decision.
    pub halted: bool,
}

/// A part of a list, in the order of enqueue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadPage {
    /// The messages. There may be fewer than were asked for, even none, before the last page: looking
    /// for what a filter means has a bound too.
    pub messages: Vec<DeadMessage>,
    /// Where the next page begins; `None`: this was the last one.
    pub next: Option<i64>,
    /// The database's clock, which the times of the messages are to be compared with.
    pub now: SystemTime,
}

/// One dead message whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadContent {
    /// What a list shows of it.
    pub message: DeadMessage,
    /// Its payload, byte for byte; `None`: it has none.
    pub payload: Option<Bytes>,
    /// Its headers, as the text of the JSON that is kept, which may be why the message is dead:
    /// [`Headers::from_json`](crate::Headers::from_json) says so.
    pub headers: Option<String>,
}

/// What came of a decision about dead messages, so far or in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// How many messages were put back, dropped or counted.
    pub messages: u64,
    /// How many were looked at for it.
    pub looked_at: u64,
    /// How long before the decision the youngest of them had died.
    ///
    /// A broker that drops repeats of a message id within a window, as JetStream does and Redis's
    /// idempotent `XADD`, drops a replayed message if it had taken a copy of it within that window,
    /// although the confirmation was lost: it then answers as if it had delivered it. That copy was
    /// sent before the message died, so nothing is dropped where this is longer than the window.
    pub youngest: Option<Duration>,
}

impl Decided {
    /// Adds what came of a further step.
    pub fn add(&mut self, messages: u64, youngest: Option<Duration>) {
        self.messages += messages;
        self.youngest = match (self.youngest, youngest) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_youngest_of_all_steps_is_kept() {
        let mut decided = Decided::default();
        decided.add(0, None);
        assert_eq!(decided, Decided::default());
        for seconds in [5, 3, 4] {
            decided.add(2, Some(Duration::from_secs(seconds)));
        }
        decided.add(0, None);
        assert_eq!(decided.messages, 6);
        assert_eq!(decided.youngest, Some(Duration::from_secs(3)));
    }
}
