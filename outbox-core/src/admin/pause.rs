//! Topics that a person has stopped.

use std::time::SystemTime;

use crate::TopicPattern;

/// A topic, or several, that no relay sends to until a person resumes it.
///
/// A publisher in front of the relay's own answers for these topics with
/// [`TopicUnavailable`](crate::PublishErrorKind::TopicUnavailable), so their messages are parked,
/// uncounted and in sight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PausedTopic {
    /// Which topics.
    pub topic: TopicPattern,
    /// Since when.
    pub since: SystemTime,
    /// Who did it, in their own words.
    pub by: String,
}

/// What came of resuming a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// Whether it was paused.
    pub was_paused: bool,
    /// How many keys are due now that were held up.
    pub keys: u64,
}
