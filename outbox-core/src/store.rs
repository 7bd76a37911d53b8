//! The contract between the relay and a place that holds messages.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::{Message, PublishError};

/// Holds messages until they are settled.
///
/// Every implementation passes the store suite of the conformance crate.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Holds the next messages, waiting up to `limits.wait` for some; `None`: there were none.
    ///
    /// No two claims hold messages of one key. May be called by many workers at once.
    ///
    /// # Cancellation
    ///
    /// Cancel safe: a dropped call holds nothing, at the latest soon after.
    async fn claim(&self, limits: &ClaimLimits) -> Result<Option<Box<dyn Claim>>, StoreError>;
}

#[async_trait]
impl<S: Store + ?Sized> Store for Box<S> {
    async fn claim(&self, limits: &ClaimLimits) -> Result<Option<Box<dyn Claim>>, StoreError> {
        (**self).claim(limits).await
    }
}

/// Messages held by one worker. Dropping it releases them all, untouched, soon after.
#[async_trait]
pub trait Claim: Send {
    /// At least one; messages of one key in their order.
    fn messages(&self) -> &[Claimed];

    /// Records one outcome for each message, in the order of [`messages`](Self::messages), all or
    /// none, and ends the claim.
    ///
    /// # Errors
    ///
    /// A number of outcomes other than the number of messages is an error and records nothing.
    /// After any other error, and when the call is dropped, it is open whether it was recorded: the
    /// worst is a repeat.
    async fn settle(self: Box<Self>, outcomes: Vec<Outcome>) -> Result<(), StoreError>;
}

/// How much one claim may hold, for how long, and how long it may wait for something to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimLimits {
    /// At most so many messages.
    pub messages: usize,
    /// At most so many bytes of [`Message::size`]; one message that is larger goes alone.
    pub bytes: usize,
    /// How long to wait for the first message. Zero looks once.
    pub wait: Duration,
    /// The caller settles or drops the claim within this time. A store that holds a claim for a
    /// frozen caller ends it itself soon after.
    pub hold: Duration,
}

/// A message that a claim holds, and what became of it before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The message.
    pub message: Message,
    /// How often it was parked, counted or not.
    pub parked: u32,
    /// How many of these were failures, which count.
    pub failures: u32,
    /// How often in a row a process ended, and did not settle, while it held this message and nothing
    /// else. Zero where the store cannot know.
    pub crashes: u32,
}

/// What became of a claimed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The broker confirmed it: it leaves the outbox.
    Delivered,
    /// Set aside until its next try; the later messages of its key wait behind it.
    Park {
        /// How long, on the store's clock.
        after: Duration,
        /// Whether this was a failure of the message, or of something around it.
        counted: bool,
        /// What the broker said.
        error: PublishError,
    },
    /// Set aside behind an earlier message of its key, which this claim parked or halted.
    ///
    /// A store takes one whose key has nothing in front of it as [`Released`](Self::Released).
    Behind,
    /// Given up; kept with its reason until a person replays or discards it.
    Dead {
        /// The reason.
        error: PublishError,
        /// Whether the later messages of its key wait until a person has decided.
        halt: bool,
    },
    /// The hold ends and nothing changes.
    Released,
}

/// A store could not do what was asked.
///
/// The relay treats every one alike: it says so once, waits with back-off and tries again.
#[derive(Debug)]
pub struct StoreError {
    doing: &'static str,
    source: Box<dyn Error + Send + Sync>,
}

impl StoreError {
    /// Says what was being done, such as `"settle"`, and what stopped it. The source must not hold
    /// secrets.
    pub fn new(doing: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            doing,
            source: source.into(),
        }
    }

    /// What was being done.
    pub fn doing(&self) -> &'static str {
        self.doing
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.doing, self.source)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // The text above already says what the source says; its own causes come next.
        self.source.source()
    }
}
