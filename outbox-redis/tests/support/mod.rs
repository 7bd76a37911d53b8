//! What the tests know of real servers: what is in a stream, read with the client and none of our
//! crates, servers of their own that may be spoiled, and a bad network.

// Each test program uses a part of it.
#![allow(dead_code)]
#![allow(clippy::unwrap_used)]

pub(crate) mod proxy;
pub(crate) mod server;

use std::time::{Duration, Instant};

use outbox_conformance::address;
use outbox_core::{Message, Uuid};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Value};

/// How long anything has.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An entry of a stream: its fields with their values, in their order.
pub(crate) type Entry = Vec<(String, Vec<u8>)>;

/// The shared server, which no test may spoil.
pub(crate) fn shared() -> Client {
    Client::open(shared_url()).expect("an address that the client takes")
}

/// The address of the shared server.
pub(crate) fn shared_url() -> String {
    address("OUTBOX_TEST_REDIS_URL")
}

/// A topic that nobody else uses.
pub(crate) fn new_topic() -> String {
    format!("test-{}", Uuid::now_v7().simple())
}

pub(crate) fn message(topic: &str, key: &str, payload: impl Into<Vec<u8>>) -> Message {
    let payload: Vec<u8> = payload.into();
    Message::to(topic).key(key).bytes(payload).expect("valid")
}

/// A connection for the test's own questions, which may take long on a machine that is busy.
pub(crate) async fn connection(client: &Client) -> MultiplexedConnection {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .expect("a connection")
}

/// The answer to a command that must succeed.
pub(crate) async fn ask(client: &Client, words: &[&str]) -> Value {
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(*word);
    }
    let mut connection = connection(client).await;
    match command.query_async(&mut connection).await {
        Ok(answer) => answer,
        Err(error) => panic!("{words:?}: {error}"),
    }
}

/// All entries of a stream, the oldest first.
pub(crate) async fn read(client: &Client, stream: &str) -> Vec<Entry> {
    let Value::Array(entries) = ask(client, &["XRANGE", stream, "-", "+"]).await else {
        panic!("XRANGE answers with an array");
    };
    entries.into_iter().map(entry).collect()
}

fn entry(value: Value) -> Entry {
    let Value::Array(mut parts) = value else {
        panic!("an entry is an array: {value:?}");
    };
    let Some(Value::Array(fields)) = parts.pop() else {
        panic!("an entry has fields: {parts:?}");
    };
    fields
        .chunks(2)
        .map(|pair| match pair {
            [Value::BulkString(name), Value::BulkString(value)] => (
                String::from_utf8(name.clone()).expect("text"),
                value.clone(),
            ),
            other => panic!("a field is a name and a value: {other:?}"),
        })
        .collect()
}

/// The payloads in a stream, as text.
pub(crate) async fn payloads(client: &Client, stream: &str) -> Vec<String> {
    let entries = read(client, stream).await;
    let payload = |entry: Entry| entry.into_iter().find(|(name, _)| name == "payload");
    entries
        .into_iter()
        .filter_map(payload)
        .map(|(_, value)| String::from_utf8(value).expect("text"))
        .collect()
}

/// A number from the server's `INFO`.
pub(crate) async fn info(client: &Client, name: &str) -> u64 {
    let info = match ask(client, &["INFO"]).await {
        Value::BulkString(bytes) => String::from_utf8(bytes).expect("text"),
        Value::VerbatimString { text, .. } => text,
        other => panic!("INFO answers with text: {other:?}"),
    };
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or_else(|| panic!("INFO has no {name}"))
        .parse()
        .expect("a number")
}

/// Waits for something to become so.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(
            Instant::now() < deadline,
            "it did not happen in time: {what}"
        );
        // wait: asked again until the deadline
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Removes streams from the shared server.
pub(crate) async fn delete(streams: &[String]) {
    if streams.is_empty() {
        return;
    }
    let mut words = vec!["DEL"];
    words.extend(streams.iter().map(String::as_str));
    ask(&shared(), &words).await;
}
