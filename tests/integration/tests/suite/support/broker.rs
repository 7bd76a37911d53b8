//! What the tests ask of a broker, and what they know of it.
//!
//! A broker is a file beside this one with a `BROKER`: an [`Install`] that says where its servers are,
//! and a [`Broker`] made with the broker's own client and none of our crates. So that file is also where
//! the names on the wire are: what it does not find under them it does not find.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

/// How long one question to a server may take that is perhaps not there.
pub(crate) const QUESTION: Duration = Duration::from_secs(5);

/// A server.
#[async_trait]
pub(crate) trait Broker: Send + Sync {
    /// Arguments of the relay: `broker=…`, which adapter it takes, and settings with which that finds
    /// this server.
    fn relay_arguments(&self) -> Vec<String>;

    /// Makes a topic ready to take messages.
    async fn create_topic(&self, topic: &str);

    /// Deletes a topic with all that is in it.
    async fn delete_topic(&self, topic: &str);

    /// How many records a topic holds; none while the server does not say, and that soon.
    async fn count(&self, topic: &str) -> u64;

    /// All that is in a topic now, and stays there; the records of each partition in their order. Fails
    /// on a record that is not as the wire contract says.
    async fn read(&self, topic: &str) -> Vec<Record>;
}

/// What there is of a kind of broker.
pub(crate) struct Install {
    /// The variable with the address of the server that nobody stops.
    pub(crate) steady: &'static str,
    /// The variable with the address of the server that tests may break.
    pub(crate) faulty: &'static str,
    /// The name of that server in `scripts/services`.
    pub(crate) faulty_service: &'static str,
    /// The server at an address, which may be away and come back.
    pub(crate) at: fn(String) -> Box<dyn Broker>,
    /// Settings of the adapter with which it explains an outage within six seconds, also when the
    /// server keeps its connections and answers nothing.
    pub(crate) impatient: &'static [&'static str],
    /// The bytes of a payload that is refused for good, with these settings of the adapter.
    pub(crate) too_large: (usize, &'static [&'static str]),
    /// Whether the broker itself drops what it has had a short time ago.
    pub(crate) drops_repeats: bool,
    /// A header as odd as the broker can carry it.
    pub(crate) odd_header: (&'static str, &'static str),
}

/// A message as a consumer finds it, by the names of the wire contract.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Record {
    pub(crate) id: Uuid,
    pub(crate) key: Option<String>,
    pub(crate) payload: Option<Vec<u8>>,
    /// All but those that the wire contract adds.
    pub(crate) headers: BTreeMap<String, String>,
    /// Where the order of its records is kept; 0 with a broker that has no partitions.
    pub(crate) partition: i32,
}

/// The message id, which is hyphenated text.
pub(crate) fn message_id(text: &[u8]) -> Uuid {
    assert_eq!(text.len(), 36, "the message id is hyphenated: {text:?}");
    Uuid::try_parse_ascii(text).expect("a message id")
}

/// Keys and headers are text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}
