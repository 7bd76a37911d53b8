//! What an example brings of its broker.

use std::env;
use std::fmt::Display;
use std::time::Duration;

use outbox::{Publisher, async_trait};

use crate::{Error, Event};

/// How long a server has to answer at the start and at the end.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A broker at an address.
#[async_trait]
pub trait Broker: Send + Sync {
    /// What the relay delivers with: the adapter.
    type Publisher: Publisher;
    /// What the consumer reads with: the broker's own client.
    type Reader: Reader;

    /// Makes a topic with the broker's own client. Names the server that is [`missing`], within
    /// [`PATIENCE`].
    async fn create(&self, topic: &str) -> Result<(), Error>;

    /// The publisher of the relay.
    async fn publisher(&self) -> Result<Self::Publisher, Error>;

    /// Begins to read a topic at its beginning.
    async fn reader(&self, topic: &str) -> Result<Self::Reader, Error>;

    /// Removes the topic.
    async fn remove(&self, topic: &str) -> Result<(), Error>;
}

/// A consumer of one topic. It knows nothing of the outbox but the wire contract.
#[async_trait]
pub trait Reader: Send {
    /// Waits for the next record. The records of a key come in the order that they have in the topic.
    /// Cancel safe: a dropped call takes no record.
    async fn next(&mut self) -> Result<Event, Error>;

    /// How many records the topic has, those that were read among them. Asked when nobody writes.
    async fn count(&mut self) -> Result<u64, Error>;
}

/// The flag, else the first variable that is set, else the default.
pub fn address(flag: Option<String>, variables: [&str; 2], default: &str) -> String {
    flag.or_else(|| {
        variables
            .iter()
            .find_map(|variable| env::var(variable).ok())
    })
    .unwrap_or_else(|| default.to_owned())
}

/// The error of a server that does not answer: what is missing, and what to do. `place` is host and port
/// without a password.
pub fn missing(server: &str, place: impl Display, reason: impl Display) -> Error {
    format!("no {server} at {place} ({reason}); run `scripts/services up`").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_goes_before_a_variable_and_that_before_the_default() {
        let unset = ["ORDERS_UNSET_1", "ORDERS_UNSET_2"];
        assert_eq!(
            address(Some("flag".to_owned()), ["PATH"; 2], "default"),
            "flag"
        );
        assert_eq!(address(None, unset, "default"), "default");
        let path = env::var("PATH").unwrap();
        assert_eq!(address(None, [unset[0], "PATH"], "default"), path);
    }
}
