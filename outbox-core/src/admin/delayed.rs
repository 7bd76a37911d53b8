//! Messages that are not due yet.

use std::fmt;
use std::str::FromStr;
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

/// A part of a list, by when they are due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayedPage {
    /// The messages.
    pub messages: Vec<DelayedMessage>,
    /// Where the next page begins; `None`: this was the last one.
    pub next: Option<DelayedPlace>,
    /// The database's clock, which the times of the messages are to be compared with.
    pub now: SystemTime,
}

/// A place among the delayed messages. Messages may be due at the same moment, so the time alone is none.
///
/// ```
/// use outbox_core::admin::DelayedPlace;
///
/// let place: DelayedPlace = "1764547200000000/17".parse()?;
/// assert_eq!(place.to_string(), "1764547200000000/17");
/// assert!("17".parse::<DelayedPlace>().is_err());
/// # Ok::<(), outbox_core::admin::InvalidPlace>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayedPlace {
    /// When the message there is due, in microseconds since the epoch.
    pub micros: i64,
    /// Its number, which orders those that are due at the same moment.
    pub number: i64,
}

/// A text that is no place in a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no place in the list: one is two numbers with a `/` between them")]
pub struct InvalidPlace {
    given: String,
}

impl fmt::Display for DelayedPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.micros, self.number)
    }
}

impl FromStr for DelayedPlace {
    type Err = InvalidPlace;

    fn from_str(text: &str) -> Result<Self, InvalidPlace> {
        let parsed = text.split_once('/').and_then(|(micros, number)| {
            Some(Self {
                micros: micros.parse().ok()?,
                number: number.parse().ok()?,
            })
        });
        parsed.ok_or_else(|| InvalidPlace {
            given: text.to_owned(),
        })
    }
}
