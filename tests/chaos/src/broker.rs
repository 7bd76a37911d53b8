//! What a run asks of a broker: a topic, a consumer that records all it gets, and states in which it takes
//! no writes.
//!
//! A broker is a file beside this one, written with the broker's own client and none of our crates. So
//! that file is also where the names on the wire are: what it does not find under them it does not find.

mod amqp;
mod kafka;
mod nats;
mod redis;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use crate::Result;
use crate::consumer::Recorder;
use crate::service::Service;

/// How long one question to a server may take that is perhaps not there.
pub(crate) const QUESTION: Duration = Duration::from_secs(20);

/// Which broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Kafka,
    Amqp,
    Nats,
    Redis,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kafka => "kafka",
            Self::Amqp => "amqp",
            Self::Nats => "nats",
            Self::Redis => "redis",
        })
    }
}

impl Kind {
    /// Where its server is: the one that nobody stops, or the one that may be broken. The latter's name too.
    pub(crate) fn server(self, faulty: bool) -> (String, &'static str) {
        let (plain, faults, service) = match self {
            Self::Kafka => (
                "OUTBOX_TEST_KAFKA",
                "OUTBOX_TEST_KAFKA_FAULTS",
                "kafka-faults",
            ),
            Self::Amqp => (
                "OUTBOX_TEST_RABBITMQ_URL",
                "OUTBOX_TEST_RABBITMQ_FAULTS_URL",
                "rabbitmq-faults",
            ),
            Self::Nats => (
                "OUTBOX_TEST_NATS_URL",
                "OUTBOX_TEST_NATS_FAULTS_URL",
                "nats-faults",
            ),
            Self::Redis => (
                "OUTBOX_TEST_REDIS_URL",
                "OUTBOX_TEST_REDIS_FAULTS_URL",
                "redis-faults",
            ),
        };
        let address = outbox_conformance::address(if faulty { faults } else { plain });
        (address, service)
    }

    /// The states in which it takes no writes.
    pub(crate) fn states(self) -> &'static [&'static str] {
        match self {
            Self::Kafka => kafka::STATES,
            Self::Amqp => amqp::STATES,
            Self::Nats => nats::STATES,
            Self::Redis => redis::STATES,
        }
    }

    /// At an address, with a topic of that name.
    pub(crate) fn open(self, address: &str, topic: &str) -> Result<Box<dyn Broker>> {
        Ok(match self {
            Self::Kafka => Box::new(kafka::Kafka::new(address, topic)?),
            Self::Amqp => Box::new(amqp::RabbitMq::new(address, topic)),
            Self::Nats => Box::new(nats::Nats::new(address, topic)),
            Self::Redis => Box::new(redis::Redis::new(address, topic)),
        })
    }
}

/// The port in an address of `scripts/services`.
pub(crate) fn port(address: &str) -> Result<u16> {
    let digits = address
        .rsplit(':')
        .next()
        .and_then(|it| it.split('/').next());
    Ok(digits.ok_or("an address without a port")?.parse()?)
}

/// A server with a topic.
#[async_trait]
pub(crate) trait Broker: Send + Sync {
    /// Makes the topic ready to take messages.
    async fn create_topic(&self) -> Result<()>;

    /// Deletes the topic with all that is in it.
    async fn delete_topic(&self) -> Result<()>;

    /// Records what is in the topic and what comes, from where the last call ended. It returns with an error
    /// when the server goes away, and without one when the recorder wants no more.
    async fn consume(&self, recorder: &Recorder) -> Result<()>;

    /// Has the server take no writes, in one of the states of its kind.
    async fn fill(&self, state: &str, service: &Service) -> Result<()>;

    /// Has it take writes again.
    async fn drain(&self, state: &str, service: &Service) -> Result<()>;
}

/// The message id, which is hyphenated text.
fn message_id(text: &[u8]) -> Result<Uuid> {
    if text.len() != 36 {
        return Err(format!("the message id is not hyphenated: {text:?}").into());
    }
    Ok(Uuid::try_parse_ascii(text)?)
}

/// Keys and headers are text.
fn text(bytes: &[u8]) -> Result<String> {
    Ok(String::from_utf8(bytes.to_vec())?)
}
