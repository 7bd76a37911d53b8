//! What scenarios share: the servers, a schema and a topic for each measurement, and the messages.

use std::env;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use outbox_core::Message;
use outbox_postgres::Outbox;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use sqlx::{AssertSqlSafe, PgPool, Row};
use uuid::Uuid;

use crate::Result;

const POSTGRES: &str = "postgres://outbox:outbox@127.0.0.1:25415/outbox";
const KAFKA: &str = "127.0.0.1:29192";

/// How long a server has for anything that is not measured.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many messages one transaction enqueues while a table is filled.
const FILL: usize = 50_000;

/// Where all messages go unless a broker is measured.
const TOPIC: &str = "bench";

/// The servers.
pub(crate) struct Servers {
    pub(crate) pool: PgPool,
    pub(crate) kafka: String,
}

impl Servers {
    /// Those that the environment names, or those of `scripts/services`.
    pub(crate) fn new() -> Result<Self> {
        let named = |variable, default: &str| env::var(variable).unwrap_or(default.to_owned());
        Ok(Self {
            pool: PgPool::connect_lazy(&named("OUTBOX_TEST_POSTGRES_URL", POSTGRES))?,
            kafka: named("OUTBOX_TEST_KAFKA", KAFKA),
        })
    }

    /// Lends a schema that is removed afterwards.
    pub(crate) async fn with_schema<T>(
        &self,
        work: impl AsyncFnOnce(&str) -> Result<T>,
    ) -> Result<T> {
        let schema = unique();
        let done = work(&schema).await;
        let drop = format!(
            "SET client_min_messages = warning; DROP SCHEMA IF EXISTS {schema} CASCADE; \
             RESET client_min_messages"
        );
        self.execute(drop).await?;
        done
    }

    /// Lends a topic that is removed afterwards.
    pub(crate) async fn with_topic<T>(
        &self,
        partitions: i32,
        work: impl AsyncFnOnce(&str) -> Result<T>,
    ) -> Result<T> {
        let admin: AdminClient<DefaultClientContext> = self.kafka_config().create()?;
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
        let topic = unique();
        let new = NewTopic::new(&topic, partitions, TopicReplication::Fixed(1));
        for created in admin.create_topics([&new], &options).await? {
            created.map_err(|(topic, code)| format!("topic {topic} is not created: {code}"))?;
        }
        let done = work(&topic).await;
        admin.delete_topics(&[&topic], &options).await?;
        done
    }

    /// Statements without parameters.
    pub(crate) async fn execute(&self, statements: String) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(statements))
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// How many rows a table has.
    pub(crate) async fn count(&self, table: &str) -> Result<u64> {
        let statement = AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        let count: i64 = sqlx::query(statement)
            .fetch_one(&self.pool)
            .await?
            .try_get(0)?;
        Ok(count.unsigned_abs())
    }

    /// How many records a topic holds. Nothing here uses Kafka's transactions, so every offset is a
    /// record.
    pub(crate) async fn records(&self, topic: &str, partitions: i32) -> Result<u64> {
        let consumer: BaseConsumer = self.kafka_config().create()?;
        let topic = topic.to_owned();
        let count = tokio::task::spawn_blocking(move || {
            (0..partitions)
                .map(|partition| consumer.fetch_watermarks(&topic, partition, PATIENCE))
                .map(|marks| marks.map(|(low, high)| (high - low).unsigned_abs()))
                .sum::<std::result::Result<u64, _>>()
        });
        Ok(count.await??)
    }

    /// A configuration for the client that names nothing but the server.
    pub(crate) fn kafka_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.kafka);
        config
    }
}

/// A name that no other run uses.
fn unique() -> String {
    format!("bench_{}", Uuid::now_v7().simple())
}

/// The messages of a run: the same keys in the same order wherever they are made.
#[derive(Clone)]
pub(crate) struct Workload {
    pub(crate) messages: usize,
    keys: u32,
    payload: Bytes,
}

impl Workload {
    pub(crate) fn new(messages: usize, keys: u32, bytes: usize) -> Self {
        // Not one byte repeated, though nothing compresses it unless it is told to.
        let mut rng = Rng::with_seed(bytes as u64);
        let payload = (0..bytes).map(|_| rng.u8(..)).collect();
        Self {
            messages,
            keys,
            payload,
        }
    }

    /// The numbers of the keys, message by message, each key as likely as the others.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u32> + use<> {
        let (mut rng, keys) = (Rng::with_seed(1), self.keys);
        (0..self.messages).map(move |_| rng.u32(..keys))
    }

    /// The message of one key.
    pub(crate) fn message(&self, topic: &str, key: u32) -> Result<Message> {
        Ok(Message::to(topic)
            .key(key_name(key))
            .bytes(self.payload.clone())?)
    }

    /// Creates an outbox in `schema` with all messages in it, to `topic` where one is given.
    pub(crate) async fn enqueue(
        &self,
        servers: &Servers,
        schema: &str,
        topic: Option<&str>,
    ) -> Result<Outbox> {
        let outbox = Outbox::in_schema(schema)?;
        outbox.migrate(&servers.pool).await?;
        self.fill(servers, schema, "message", "id", topic.unwrap_or(TOPIC))
            .await?;
        Ok(outbox)
    }

    /// Inserts all messages into a table with the columns of an outbox, in transactions of a size
    /// that this process can hold.
    pub(crate) async fn fill(
        &self,
        servers: &Servers,
        schema: &str,
        table: &str,
        id: &str,
        topic: &str,
    ) -> Result<()> {
        let insert = format!(
            "INSERT INTO {schema}.{table} ({id}, topic, key, payload)
             SELECT gen_random_uuid(), $1, key, $2 FROM unnest($3::text[]) AS key"
        );
        let mut keys = self.keys().map(key_name);
        loop {
            let some: Vec<String> = keys.by_ref().take(FILL).collect();
            if some.is_empty() {
                return Ok(());
            }
            sqlx::query(AssertSqlSafe(insert.clone()))
                .bind(topic)
                .bind(&self.payload[..])
                .bind(some)
                .execute(&servers.pool)
                .await?;
        }
    }
}

fn key_name(key: u32) -> String {
    format!("key-{key}")
}
