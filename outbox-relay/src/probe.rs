//! Asks a broker whether it is there and has the topics: for `doctor`, and without leaving a trace.
//!
//! A publisher learns of a missing topic from the first message that fails. Here nothing is published and
//! nothing is made: each broker is asked in the way that it has for looking, on a connection of its own,
//! and what it has no way to tell is said to be unknown. Every wait is bounded.
//!
//! Where to read next: the file of each broker.

#[cfg(feature = "amqp")]
pub(crate) mod amqp;
#[cfg(feature = "kafka")]
pub(crate) mod kafka;
#[cfg(feature = "nats")]
pub(crate) mod nats;
#[cfg(feature = "redis")]
pub(crate) mod redis;

use std::time::Duration;

use crate::settings::{Broker, InvalidSettings};

/// How long a broker has to answer one question.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Asks the broker that is configured under `[broker.NAME]`.
pub(crate) async fn ask(name: &str, settings: &Broker, topics: &[String]) -> Result<Answer, Away> {
    let section = format!("broker.{name}");
    match settings {
        #[cfg(feature = "amqp")]
        Broker::Amqp(settings) => amqp::ask(&section, settings, topics).await,
        #[cfg(feature = "kafka")]
        Broker::Kafka(settings) => kafka::ask(settings, topics).await,
        #[cfg(feature = "nats")]
        Broker::Nats(settings) => nats::ask(&section, settings, topics).await,
        #[cfg(feature = "redis")]
        Broker::Redis(settings) => redis::ask(&section, settings, topics).await,
        #[allow(unreachable_patterns, reason = "reached where a feature is off")]
        _ => Err(Away(format!(
            "{section}.kind: this program was built without it"
        ))),
    }
}

/// What a broker has for a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A message finds it; what it is.
    Found(String),
    /// A message would fail, and why.
    Missing(String),
    /// The broker does not say, and why.
    Unknown(String),
}

/// What a broker answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// What it says of itself.
    pub(crate) broker: String,
    /// In the order in which they were asked for.
    pub(crate) places: Vec<Place>,
}

/// Why a broker could not be asked at all, in words without secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Away(pub(crate) String);

impl Away {
    #[cfg(any(feature = "amqp", feature = "nats"))]
    fn silent() -> Self {
        Self(format!("no answer within {} s", PATIENCE.as_secs()))
    }
}

impl From<InvalidSettings> for Away {
    fn from(error: InvalidSettings) -> Self {
        Self(error.to_string())
    }
}
