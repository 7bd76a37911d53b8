//! The contract between the relay and a broker.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::Message;
use crate::router::Heard;

/// Hands messages to a broker.
///
/// Every implementation passes the publisher suite of the conformance crate. `docs/write-a-publisher.md`
/// in the repository has the contract step by step, with examples.
#[async_trait]
pub trait Publisher: Send + Sync + 'static {
    /// Hands the batch over in slice order and reports on each message as soon as the broker has
    /// answered; `Ok` = the broker took responsibility.
    ///
    /// The caller bounds the time: it may drop the call at any await and keeps what was reported.
    /// Not reported = not delivered. Many calls may run at once; no two of them hold messages of one
    /// key.
    ///
    /// Slice order is for the messages of one key; those of different keys may overtake each other. A
    /// message that is not sent, since the broker is too slow or away, is reported as such: silence
    /// beside confirmations counts as a failure of the message.
    ///
    /// Right: report when the acknowledgement arrives, message by message. Wrong: report `Ok` when
    /// the message was written to a socket or queued in a client; wait for the whole batch before
    /// the first report; retry inside for longer than the caller's patience.
    async fn publish(&self, batch: &[Delivery<'_>]);

    /// Whether it can stop a key at a failure by itself: the relay then gives it several messages of a key
    /// at once in [`PerKey`](crate::OrderMode::PerKey) too, and marks them as [chained](Delivery::is_chained).
    /// `false` unless implemented, and always safe: what is waited for then is one answer for each message
    /// of a key.
    ///
    /// `true` promises: of the chained messages of one key in one call, whatever their topics, what the broker
    /// has is at every moment a prefix, in slice order. One is written only where all before it are, also
    /// after an answer was lost, or the call was dropped or has panicked.
    ///
    /// So behind a message that is refused, or that cannot be encoded, nothing more of its key is sent in
    /// that call. What was not sent for that reason gets no answer. Other keys go on.
    /// [`StoppedKeys`](crate::StoppedKeys) remembers which these are.
    ///
    /// Asked before each batch, so the answer may change. A wrapper may give the inner publisher's answer
    /// where it holds back, behind a chained message that it does not hand on, the others of its key.
    fn chains_keys(&self) -> bool {
        false
    }
}

#[async_trait]
impl<P: Publisher + ?Sized> Publisher for Box<P> {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        (**self).publish(batch).await;
    }

    fn chains_keys(&self) -> bool {
        (**self).chains_keys()
    }
}

/// Where the broker's answer about one message is put: the first one counts.
///
/// The relay makes one for each message; a publisher meets it only inside a [`Delivery`].
#[derive(Debug, Default)]
pub struct Answer(OnceLock<Result<(), PublishError>>);

impl Answer {
    /// No answer yet.
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// What was reported so far.
    pub fn get(&self) -> Option<&Result<(), PublishError>> {
        self.0.get()
    }

    /// What was reported, at the end.
    pub fn into_inner(self) -> Option<Result<(), PublishError>> {
        self.0.into_inner()
    }
}

/// A message and the slot for its answer. It is `Copy`: a part of a batch is a `Vec` of them.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    message: &'a Message,
    answer: &'a Answer,
    one_of_many: bool,
    chained: bool,
    heard: Option<&'a Heard<'a>>,
    deadline: Option<Instant>,
}

impl<'a> Delivery<'a> {
    /// Joins a message and the slot for its answer.
    pub fn new(message: &'a Message, answer: &'a Answer) -> Self {
        Self {
            message,
            answer,
            one_of_many: false,
            chained: false,
            heard: None,
            deadline: None,
        }
    }

    /// The message to publish.
    pub fn message(&self) -> &'a Message {
        self.message
    }

    /// What was reported so far.
    pub fn answer(&self) -> Option<&'a Result<(), PublishError>> {
        self.answer.get()
    }

    /// Reports what the broker answered. The first report counts, later ones are ignored.
    pub fn report(&self, answer: Result<(), PublishError>) {
        if self.answer.get().is_some() {
            return;
        }
        if let Some(heard) = self.heard {
            heard.note(&answer);
        }
        let answer = match answer {
            Err(error)
                if self.one_of_many && error.kind() == PublishErrorKind::BrokerUnavailable =>
            {
                Err(PublishError {
                    kind: PublishErrorKind::TopicUnavailable,
                    ..error
                })
            }
            answer => answer,
        };
        let mut outer = self.heard.and_then(Heard::outer);
        while let Some(heard) = outer {
            heard.note(&answer);
            outer = heard.outer();
        }
        // A second answer has nowhere to go, by contract.
        let _ = self.answer.0.set(answer);
    }

    /// The same slot for another message, for a publisher that wraps another one.
    pub fn with_message<'b>(&self, other: &'b Message) -> Delivery<'b>
    where
        'a: 'b,
    {
        Delivery {
            message: other,
            ..*self
        }
    }

    /// Marks that the broker is one of many behind a router: its absence then is no outage of the
    /// relay but [`TopicUnavailable`](PublishErrorKind::TopicUnavailable) for its own topics.
    #[must_use]
    pub fn one_of_many(self) -> Self {
        Self {
            one_of_many: true,
            ..self
        }
    }

    /// Marks that there are several messages of its key in the call, of which the broker may have nothing
    /// but a prefix: see [`Publisher::chains_keys`].
    #[must_use]
    pub fn chained(self) -> Self {
        Self {
            chained: true,
            ..self
        }
    }

    /// Whether it may only be written where those before it in its key are. Never where the publisher
    /// does not say that it can do that, and never for the only message of a key.
    pub fn is_chained(&self) -> bool {
        self.chained
    }

    /// When the caller drops the call, where that is known.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub(crate) fn until(self, deadline: Instant) -> Self {
        Self {
            deadline: Some(deadline),
            ..self
        }
    }

    /// Who listens to what is reported.
    pub(crate) fn heard(&self) -> Option<&'a Heard<'a>> {
        self.heard
    }

    /// The same slot, and `heard` listens to what is reported into it.
    pub(crate) fn heard_by<'b>(self, heard: &'b Heard<'b>) -> Delivery<'b>
    where
        'a: 'b,
    {
        Delivery {
            heard: Some(heard),
            ..self
        }
    }
}

/// What a failed publish means for what happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PublishErrorKind {
    /// The broker is away: refused, timed out, shut down, blocked. An outage; no message's fault.
    BrokerUnavailable,
    /// This topic cannot take messages now: missing, no leader, over quota, no route. Not counted.
    TopicUnavailable,
    /// This message failed for now. Counted.
    Retryable,
    /// This message fails for good: too large, invalid name or header, refused.
    Rejected,
}

impl PublishErrorKind {
    /// The word for logs, metrics and tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BrokerUnavailable => "broker_unavailable",
            Self::TopicUnavailable => "topic_unavailable",
            Self::Retryable => "retryable",
            Self::Rejected => "rejected",
        }
    }
}

impl fmt::Display for PublishErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why one message was not confirmed: what the caller may do, and what happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct PublishError {
    kind: PublishErrorKind,
    reason: String,
    without_broker: bool,
}

impl PublishError {
    /// The longest reason that is kept, in bytes; the rest is cut off.
    pub const MAX_REASON_BYTES: usize = 1024;

    /// An error of a kind. The reason is stored and logged: it must not hold secrets or payload.
    pub fn new(kind: PublishErrorKind, reason: impl Into<String>) -> Self {
        let mut reason = reason.into();
        // Postgres stores no NUL in text, and a reason must never stop a settle.
        if reason.contains('\0') {
            reason = reason.replace('\0', "\u{fffd}");
        }
        reason.truncate(reason.floor_char_boundary(Self::MAX_REASON_BYTES));
        Self {
            kind,
            reason,
            without_broker: false,
        }
    }

    /// [`BrokerUnavailable`](PublishErrorKind::BrokerUnavailable).
    pub fn broker_unavailable(reason: impl Into<String>) -> Self {
        Self::new(PublishErrorKind::BrokerUnavailable, reason)
    }

    /// [`TopicUnavailable`](PublishErrorKind::TopicUnavailable).
    pub fn topic_unavailable(reason: impl Into<String>) -> Self {
        Self::new(PublishErrorKind::TopicUnavailable, reason)
    }

    /// [`Retryable`](PublishErrorKind::Retryable).
    pub fn retryable(reason: impl Into<String>) -> Self {
        Self::new(PublishErrorKind::Retryable, reason)
    }

    /// [`Rejected`](PublishErrorKind::Rejected).
    pub fn rejected(reason: impl Into<String>) -> Self {
        Self::new(PublishErrorKind::Rejected, reason)
    }

    /// Marks an answer that was given without asking the broker, such as that a topic is paused: it is no
    /// sign that the broker is there, and ends no outage. A rejection is never taken for one.
    #[must_use]
    pub fn without_broker(self) -> Self {
        Self {
            without_broker: true,
            ..self
        }
    }

    /// Whether only a broker that is there says this.
    pub(crate) fn is_brokers_answer(&self) -> bool {
        match self.kind {
            PublishErrorKind::TopicUnavailable | PublishErrorKind::Retryable => {
                !self.without_broker
            }
            // Adapters reject by themselves what their broker cannot carry.
            PublishErrorKind::BrokerUnavailable | PublishErrorKind::Rejected => false,
        }
    }

    /// What it means for what happens next.
    pub fn kind(&self) -> PublishErrorKind {
        self.kind
    }

    /// What happened, for people.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// Conveniences over every [`Publisher`].
#[async_trait]
pub trait PublisherExt: Publisher {
    /// Publishes `messages` in their order and gives back one answer for each, `None` where the
    /// publisher said nothing before it returned or `within` had passed. For tests and trials: the
    /// relay does more.
    async fn publish_all(
        &self,
        messages: &[Message],
        within: Duration,
    ) -> Vec<Option<Result<(), PublishError>>> {
        let answers: Vec<Answer> = messages.iter().map(|_| Answer::new()).collect();
        let batch: Vec<Delivery<'_>> = messages
            .iter()
            .zip(&answers)
            .map(|(message, answer)| Delivery::new(message, answer))
            .collect();
        // The time is bounded here; what was reported before it ran out is kept.
        let _ = tokio::time::timeout(within, self.publish(&batch)).await;
        drop(batch);
        answers.into_iter().map(Answer::into_inner).collect()
    }
}

impl<P: Publisher + ?Sized> PublisherExt for P {}
