//! What scenarios share: the database, a schema for each measurement, and the messages.

use std::env;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use outbox_core::Message;
use outbox_postgres::Outbox;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Row};
use uuid::Uuid;

use crate::Result;

const POSTGRES: &str = "postgres://outbox:outbox@127.0.0.1:25415/outbox";

/// How long a server has for anything that is not measured.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How many messages one transaction enqueues while a table is filled.
const FILL: usize = 50_000;

/// Where all messages go unless a broker is measured.
const TOPIC: &str = "bench";

/// Postgres.
pub(crate) struct Database {
    pub(crate) pool: PgPool,
}

impl Database {
    /// That which the environment names, or that of `scripts/services`.
    pub(crate) fn new() -> Result<Self> {
        let url = env::var("OUTBOX_TEST_POSTGRES_URL").unwrap_or(POSTGRES.to_owned());
        Ok(Self {
            pool: PgPool::connect_lazy(&url)?,
        })
    }

    /// A connection of its own.
    pub(crate) async fn connect(&self) -> Result<PgConnection> {
        Ok(PgConnection::connect_with(&self.pool.connect_options()).await?)
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
}

/// A name that no other run uses.
pub(crate) fn unique() -> String {
    format!("bench_{}", Uuid::now_v7().simple())
}

/// The messages of a run: the same keys in the same order wherever they are made.
#[derive(Clone)]
pub(crate) struct Workload {
    pub(crate) messages: u64,
    keys: u32,
    payload: Bytes,
}

impl Workload {
    pub(crate) fn new(messages: u64, keys: u32, bytes: usize) -> Self {
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
        database: &Database,
        schema: &str,
        topic: Option<&str>,
    ) -> Result<Outbox> {
        let outbox = Outbox::in_schema(schema)?;
        outbox.migrate(&database.pool).await?;
        self.fill(database, schema, "message", topic.unwrap_or(TOPIC))
            .await?;
        Ok(outbox)
    }

    /// Inserts all messages into a table with the columns of an outbox, in transactions of a size
    /// that this process can hold.
    pub(crate) async fn fill(
        &self,
        database: &Database,
        schema: &str,
        table: &str,
        topic: &str,
    ) -> Result<()> {
        let insert = format!(
            "INSERT INTO {schema}.{table} (id, topic, key, payload)
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
                .execute(&database.pool)
                .await?;
        }
    }
}

fn key_name(key: u32) -> String {
    format!("key-{key}")
}
