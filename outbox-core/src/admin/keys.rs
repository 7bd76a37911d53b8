//! Keys that are held up: which are meant, and how they stand.

use std::time::SystemTime;

use crate::admin::Count;
use crate::{TopicPattern, Uuid};

/// Which of the keys that are held up are meant: those that fit everything it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyFilter {
    /// The topics of their heads.
    pub topic: Option<TopicPattern>,
    /// The key.
    pub key: Option<String>,
    /// Whether they are halted behind a dead message.
    pub halted: Option<bool>,
}

impl KeyFilter {
    /// All keys that are held up, to be narrowed down.
    pub const fn all() -> Self {
        Self {
            topic: None,
            key: None,
            halted: None,
        }
    }

    /// Only those whose head is of these topics.
    #[must_use]
    pub fn topic(mut self, topic: TopicPattern) -> Self {
        self.topic = Some(topic);
        self
    }

    /// Only this key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Only those that are halted, or only those that are not.
    #[must_use]
    pub fn halted(mut self, halted: bool) -> Self {
        self.halted = Some(halted);
        self
    }
}

/// A key that is held up. A message without a key that was set aside counts as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldKey {
    /// What stands for the key, and where it comes in the list: unique, and in no order that means
    /// anything.
    pub line: i64,
    /// The message that holds it up: the parked one that is tried next, or the dead one that halts
    /// the key. `None` for a moment only, until the relay has seen that nothing does.
    pub head: Option<Head>,
    /// The kind of the last error of the key, the word of
    /// [`PublishErrorKind::as_str`](crate::PublishErrorKind::as_str); `None`: nothing of it was tried
    /// since the message became its head.
    pub error_kind: Option<String>,
    /// The last error of the key.
    pub error: Option<String>,
    /// Since when the key is held up.
    pub since: SystemTime,
    /// When the head is tried again; not later than now: as soon as a relay has time. `None`: halted.
    pub next_try: Option<SystemTime>,
    /// How many messages wait behind the head.
    pub followers: Count,
    /// Whether the key waits for a decision about a dead message.
    pub halted: bool,
}

/// The message that holds a key up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Where it stands among the messages.
    pub position: i64,
    /// The message id.
    pub id: Uuid,
    /// Its topic.
    pub topic: String,
    /// Its key.
    pub key: Option<String>,
    /// When it was enqueued.
    pub enqueued_at: SystemTime,
    /// How often it was parked.
    pub parked: u32,
    /// How many of these were failures, which count.
    pub failures: u32,
}

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys. There may be fewer than were asked for, even none, before the last page: looking for
    /// what a filter means has a bound too.
    pub keys: Vec<HeldKey>,
    /// Where the next page begins; `None`: this was the last one.
    pub next: Option<i64>,
    /// The database's clock, which the times of the keys are to be compared with.
    pub now: SystemTime,
}

/// What came of having keys tried at once, so far or in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retried {
    /// How many keys are due now that were not.
    pub keys: u64,
    /// How many were looked at for it.
    pub looked_at: u64,
}
