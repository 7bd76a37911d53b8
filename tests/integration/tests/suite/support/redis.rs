//! Redis Streams, through the client of Redis.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisResult, Value};

use super::PATIENCE;
use super::broker::{Broker, Install, QUESTION, Record, message_id, text};

pub(crate) static BROKER: Install = Install {
    steady: "OUTBOX_TEST_REDIS_URL",
    faulty: "OUTBOX_TEST_REDIS_FAULTS_URL",
    faulty_service: "redis-faults",
    at: |url| Box::new(Redis { url }),
    impatient: &["response_timeout_ms=2500", "connect_timeout_ms=2500"],
    too_large: (1_000_000, &["max_message_bytes=1000000"]),
    drops_repeats: false,
    odd_header: ("größe in m², \"=:\r\n", "\u{1F980}\r\n\t\\ \u{7f} ' \" "),
};

/// A server.
struct Redis {
    url: String,
}

impl Redis {
    /// Asks over a new connection.
    async fn ask<T: FromRedisValue>(&self, command: &Cmd, within: Duration) -> RedisResult<T> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(within))
            .set_response_timeout(Some(within));
        let mut connection = Client::open(self.url.as_str())?
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        command.query_async(&mut connection).await
    }
}

#[async_trait]
impl Broker for Redis {
    fn relay_arguments(&self) -> Vec<String> {
        vec!["broker=redis".to_owned(), format!("url={}", self.url)]
    }

    async fn create_topic(&self, _topic: &str) {
        // The first message makes the stream.
    }

    async fn delete_topic(&self, topic: &str) {
        let mut command = redis::cmd("DEL");
        command.arg(topic);
        let deleted = self.ask::<Value>(&command, PATIENCE).await;
        deleted.expect("an answer to the deletion of a stream");
    }

    async fn count(&self, topic: &str) -> u64 {
        let mut command = redis::cmd("XLEN");
        command.arg(topic);
        self.ask(&command, QUESTION).await.unwrap_or(0)
    }

    async fn read(&self, topic: &str) -> Vec<Record> {
        let mut command = redis::cmd("XRANGE");
        command.arg(topic).arg("-").arg("+");
        let entries = self.ask::<Vec<(String, Vec<(String, Vec<u8>)>)>>(&command, PATIENCE);
        let entries = entries.await.expect("all entries of a stream");
        entries
            .into_iter()
            .map(|(_, fields)| record(fields))
            .collect()
    }
}

/// By the names of the wire contract: fields `id`, `key`, `payload` and `header:<name>`.
fn record(fields: Vec<(String, Vec<u8>)>) -> Record {
    let count = fields.len();
    let mut fields: BTreeMap<_, _> = fields.into_iter().collect();
    assert_eq!(fields.len(), count, "a field came twice");
    Record {
        id: message_id(&fields.remove("id").expect("a message id")),
        key: fields.remove("key").map(|key| text(&key)),
        payload: fields.remove("payload"),
        headers: fields
            .into_iter()
            .map(|(field, value)| {
                let name = field.strip_prefix("header:");
                let name = name.unwrap_or_else(|| panic!("{field:?} is no field of the contract"));
                (name.to_owned(), text(&value))
            })
            .collect(),
        partition: 0,
    }
}
