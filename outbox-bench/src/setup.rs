//! What scenarios share: the database, a schema for each measurement, and the messages.

use std::env;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use outbox_core::Message;
use outbox_postgres::Outbox;
use serde::Serialize;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Row};
use uuid::Uuid;

use crate::Result;
use crate::relay::new_outbox;

const POSTGRES: &str = "postgres://outbox:outbox@127.0.0.1:25415/outbox";

/// How long a server has for anything that is not measured.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How many messages one transaction enqueues while a table is filled.
const FILL: usize = 10_000;

/// Where all messages go unless a broker is measured.
const TOPIC: &str = "bench";

/// A database of Postgres.
pub(crate) struct Database {
    pub(crate) pool: PgPool,
}

/// That which the environment names, or that of `scripts/services`.
pub(crate) fn server() -> Result<PgConnectOptions> {
    let url = env::var("OUTBOX_TEST_POSTGRES_URL").unwrap_or(POSTGRES.to_owned());
    Ok(url.parse()?)
}

impl Database {
    pub(crate) fn at(options: PgConnectOptions) -> Self {
        Self {
            pool: PgPool::connect_lazy_with(options),
        }
    }

    /// Lends a database of its own, which is removed afterwards. An old transaction in a database keeps
    /// all that is deleted there: those of others would spoil what is measured, and those of a
    /// scenario would spoil the work of others.
    pub(crate) async fn lend<T>(work: impl AsyncFnOnce(&Self) -> Result<T>) -> Result<T> {
        let (name, server) = (unique(), server()?);
        let keeper = Self::at(server.clone());
        keeper.execute(format!("CREATE DATABASE {name}")).await?;
        let database = Self::at(server.database(&name));
        let done = work(&database).await;
        database.pool.close().await;
        let drop = format!("DROP DATABASE {name} WITH (FORCE)");
        let dropped = keeper.execute(drop).await;
        let done = done?;
        dropped.map(|()| done)
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
        let dropped = self.execute(drop).await;
        let done = done?;
        dropped.map(|()| done)
    }

    /// Statements without parameters.
    pub(crate) async fn execute(&self, statements: String) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(statements))
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// How many bytes of write-ahead log the server has written, for whomever.
    pub(crate) async fn wal(&self) -> Result<f64> {
        let bytes = "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8";
        Ok(sqlx::query(bytes).fetch_one(&self.pool).await?.try_get(0)?)
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

/// What messages look like.
#[derive(Clone, Copy, clap::Args, Serialize)]
pub(crate) struct Shape {
    /// The size of a payload, in bytes.
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    bytes: u32,
    /// How many keys the messages are spread over.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
}

impl Shape {
    pub(crate) fn workload(self, messages: u64) -> Workload {
        Workload::new(messages, self.keys, self.bytes as usize)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "messages of {} bytes, {} keys", self.bytes, self.keys)
    }
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
        let outbox = new_outbox(database, schema).await?;
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

pub(crate) fn key_name(key: u32) -> String {
    format!("key-{key}")
}
