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
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::Result;
use crate::consumer::Recorder;
use crate::service::Service;

/// How long one question to a server may take that is perhaps not there.
pub(crate) const QUESTION: Duration = Duration::from_secs(20);

/// How many messages a broker gives its consumer that has not confirmed one of them.
pub(crate) const GIVEN: u16 = 500;

/// A state in which a broker takes no writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) name: &'static str,
    pub(crate) says: Says,
}

/// What the broker says to who writes all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    /// That it has not taken it.
    No,
    /// Nothing. It may take it when the state is over.
    Nothing,
}

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
    /// Where its server is, and its name: the one that nobody stops, or the one that may be broken.
    pub(crate) fn server(self, faulty: bool) -> (String, &'static str) {
        let (variable, name) = match (self, faulty) {
            (Self::Kafka, false) => ("OUTBOX_TEST_KAFKA", "kafka"),
            (Self::Kafka, true) => ("OUTBOX_TEST_KAFKA_FAULTS", "kafka-faults"),
            (Self::Amqp, false) => ("OUTBOX_TEST_RABBITMQ_URL", "rabbitmq"),
            (Self::Amqp, true) => ("OUTBOX_TEST_RABBITMQ_FAULTS_URL", "rabbitmq-faults"),
            (Self::Nats, false) => ("OUTBOX_TEST_NATS_URL", "nats"),
            (Self::Nats, true) => ("OUTBOX_TEST_NATS_FAULTS_URL", "nats-faults"),
            (Self::Redis, false) => ("OUTBOX_TEST_REDIS_URL", "redis"),
            (Self::Redis, true) => ("OUTBOX_TEST_REDIS_FAULTS_URL", "redis-faults"),
        };
        (outbox_conformance::address(variable), name)
    }

    /// The states in which it takes no writes.
    pub(crate) fn states(self) -> &'static [State] {
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
    async fn fill(&self, state: State, service: &Service) -> Result<()>;

    /// Has it take writes again.
    async fn drain(&self, state: State, service: &Service) -> Result<()>;

    /// Whether the server takes a [probe](probe_id) into the topic, or refuses it for that state. An error when
    /// it does neither.
    async fn takes_writes(&self, state: State) -> Result<bool>;
}

/// Fills it, and sees that it refuses a write: a state that does nothing would be survived by everybody.
pub(crate) async fn fill(broker: &dyn Broker, state: State, service: &Service) -> Result<()> {
    broker.fill(state, service).await?;
    await_writes(broker, state, false).await
}

/// Drains it, and sees that it takes a write.
pub(crate) async fn drain(broker: &dyn Broker, state: State, service: &Service) -> Result<()> {
    broker.drain(state, service).await?;
    await_writes(broker, state, true).await
}

async fn await_writes(broker: &dyn Broker, state: State, wanted: bool) -> Result<()> {
    let start = Instant::now();
    loop {
        let said = match broker.takes_writes(state).await {
            Ok(taken) if taken == wanted => return Ok(()),
            Ok(true) => "a write is taken".to_owned(),
            Ok(false) => "a write is refused".to_owned(),
            Err(error) => error.to_string(),
        };
        if start.elapsed() > QUESTION {
            return Err(format!("after {QUESTION:?} {said}").into());
        }
        sleep(Duration::from_millis(100)).await; // wait: the poll of a bounded loop
    }
}

/// The id of a message that only asks whether a write is taken. Its upper half is zero, where that of every
/// other message has the time.
fn probe_id() -> Uuid {
    Uuid::from_u64_pair(0, fastrand::u64(..))
}

pub(crate) fn is_probe(id: Uuid) -> bool {
    id.as_u64_pair().0 == 0
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

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    /// Stays as it is, whatever one asks of it.
    struct Stubborn {
        takes: bool,
    }

    #[async_trait]
    impl Broker for Stubborn {
        async fn create_topic(&self) -> Result<()> {
            Ok(())
        }

        async fn delete_topic(&self) -> Result<()> {
            Ok(())
        }

        async fn consume(&self, _: &Recorder) -> Result<()> {
            Ok(())
        }

        async fn fill(&self, _: State, _: &Service) -> Result<()> {
            Ok(())
        }

        async fn drain(&self, _: State, _: &Service) -> Result<()> {
            Ok(())
        }

        async fn takes_writes(&self, _: State) -> Result<bool> {
            Ok(self.takes)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_state_that_does_nothing_is_found_and_so_is_one_that_stays() {
        let full = State {
            name: "full",
            says: Says::No,
        };
        for takes in [true, false] {
            let broker = Stubborn { takes };
            let error = await_writes(&broker, full, !takes).await;
            let said = error.expect_err("a broker that does nothing").to_string();
            let what = if takes { "taken" } else { "refused" };
            assert_eq!(said, format!("after 20s a write is {what}"));
            assert!(await_writes(&broker, full, takes).await.is_ok());
        }
    }

    /// On the real servers.
    #[tokio::test]
    async fn each_state_of_each_broker_is_seen_and_so_is_its_end() -> Result<()> {
        let states = Kind::value_variants().iter().map(async |kind| {
            let (address, service) = kind.server(true);
            let service = Service::take(service).await?;
            let topic = format!("states-{}", std::process::id());
            let broker = kind.open(&address, &topic)?;
            broker.create_topic().await?;
            for state in kind.states().iter().copied() {
                let filled = fill(&*broker, state, &service).await;
                drain(&*broker, state, &service).await?;
                filled.map_err(|error| format!("{}: {error}", state.name))?;
            }
            broker.delete_topic().await
        });
        futures_util::future::join_all(states)
            .await
            .into_iter()
            .collect()
    }

    #[test]
    fn a_probe_is_told_from_a_message() {
        assert!(is_probe(probe_id()));
        assert!(!is_probe(Uuid::now_v7()));
    }
}
