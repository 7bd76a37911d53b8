//! The loops that outboxes are commonly built on, as fast as they can reasonably be made: what the outbox
//! is compared with.
//!
//! Workers take the oldest rows that nobody else has, publish them and delete them. They differ in what
//! holds a row meanwhile. None keeps the order of a key when there are two workers, and all but the first
//! two lose nothing. They get what the outbox has: one connection a worker, prepared statements, rows decoded
//! into messages, an asynchronous commit, a planner that cannot choose a sequential scan, and a table with
//! the same vacuum settings.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use outbox_core::{Headers, Message};
use serde::Serialize;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, Row};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::Result;
use crate::setup::{Database, Workload};
use crate::times::Times;

const SETTINGS: &str = "SET synchronous_commit = off; \
    SET jit = off; \
    SET enable_seqscan = off; \
    SET plan_cache_mode = force_generic_plan";

/// What is read of a row.
const COLUMNS: &str = "position, id, topic, key, payload, headers::text";

/// The rows that a worker takes next, as many as `$1`.
const NEXT: &str = "ORDER BY position LIMIT $1 FOR UPDATE SKIP LOCKED";

/// The small loop's batch, and its pause after each one.
const SMALL: usize = 10;
const PAUSE: Duration = Duration::from_millis(10);

/// How long a worker waits for more where more is to come.
const POLL: Duration = Duration::from_millis(5);

/// How long the lease of a row lasts; no worker here ever takes so long.
const LEASE: &str = "interval '30 seconds'";

/// One of the loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Loop {
    /// Deleted, committed, then published; ten at a time, with a pause.
    DeleteSmall,
    /// Deleted, committed, then published.
    Delete,
    /// Locked, published, deleted and committed.
    RowLocks,
    /// Marked as taken and committed, published, then deleted.
    Lease,
}

impl Loop {
    pub(crate) const ALL: [Self; 4] =
        [Self::DeleteSmall, Self::Delete, Self::RowLocks, Self::Lease];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DeleteSmall => "delete returning, 10 at a time, 10 ms pause",
            Self::Delete => "delete returning",
            Self::RowLocks => "row locks held",
            Self::Lease => "lease column",
        }
    }

    /// Whether a crash at any moment loses nothing.
    pub(crate) fn is_safe(self) -> bool {
        matches!(self, Self::RowLocks | Self::Lease)
    }

    /// Creates the table in `schema`, with all messages in it.
    pub(crate) async fn fill(
        self,
        database: &Database,
        schema: &str,
        workload: &Workload,
    ) -> Result<()> {
        let lease = match self {
            Self::Lease => "leased_until timestamptz,",
            _ => "",
        };
        database
            .execute(format!(
                "CREATE SCHEMA {schema};
                 CREATE TABLE {schema}.queue (
                     position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                     id uuid NOT NULL,
                     {lease}
                     topic text COLLATE \"C\" NOT NULL,
                     key text COLLATE \"C\",
                     payload bytea,
                     headers jsonb,
                     enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp()
                 ) WITH (
                     autovacuum_vacuum_scale_factor = 0,
                     autovacuum_vacuum_threshold = 10000,
                     autovacuum_analyze_scale_factor = 0,
                     autovacuum_analyze_threshold = 100000,
                     vacuum_truncate = off
                 )"
            ))
            .await?;
        workload.fill(database, schema, "queue", "bench").await
    }

    /// Empties the table with so many workers, or ends when the time is over; how many messages it delivered.
    pub(crate) async fn drain(
        self,
        database: &Database,
        schema: &str,
        workers: usize,
        batch: usize,
        end: Option<Instant>,
    ) -> Result<u64> {
        self.start(database, schema, workers, batch, end, None)
            .await
    }

    /// Delivers what comes until the time is over, and says what it has.
    pub(crate) async fn follow(
        self,
        database: &Database,
        schema: &str,
        workers: usize,
        batch: usize,
        end: Instant,
        times: &Arc<Times>,
    ) -> Result<u64> {
        let times = Some(Arc::clone(times));
        self.start(database, schema, workers, batch, Some(end), times)
            .await
    }

    async fn start(
        self,
        database: &Database,
        schema: &str,
        workers: usize,
        batch: usize,
        end: Option<Instant>,
        times: Option<Arc<Times>>,
    ) -> Result<u64> {
        let mut tasks = JoinSet::new();
        for _ in 0..workers {
            let options = (*database.pool.connect_options()).clone();
            let mut connection = options.disable_statement_logging().connect().await?;
            sqlx::raw_sql(SETTINGS).execute(&mut connection).await?;
            let worker = Worker {
                connection,
                table: format!("{schema}.queue"),
                batch: batch as i64,
                times: times.clone(),
            };
            tasks.spawn(self.work(worker, end));
        }
        let mut delivered = 0;
        while let Some(done) = tasks.join_next().await {
            delivered += done??;
        }
        Ok(delivered)
    }

    async fn work(self, mut worker: Worker, end: Option<Instant>) -> Result<u64> {
        let mut delivered = 0;
        while end.is_none_or(|end| Instant::now() < end) {
            let done = match self {
                Self::DeleteSmall => {
                    worker.batch = SMALL as i64;
                    let done = worker.delete().await?;
                    tokio::time::sleep(PAUSE).await; // The loop that is measured pauses.
                    done
                }
                Self::Delete => worker.delete().await?,
                Self::RowLocks => worker.lock().await?,
                Self::Lease => worker.lease().await?,
            };
            match (done, &worker.times) {
                (0, None) => break,
                (0, Some(_)) => tokio::time::sleep(POLL).await,
                (some, _) => delivered += some,
            }
        }
        Ok(delivered)
    }
}

struct Worker {
    connection: PgConnection,
    table: String,
    batch: i64,
    /// Told what is published, if there is one; then the worker waits for more.
    times: Option<Arc<Times>>,
}

/// Each takes some messages to their end, and says how many.
impl Worker {
    async fn delete(&mut self) -> Result<u64> {
        let table = &self.table;
        let rows = self
            .take(format!(
                "DELETE FROM {table} WHERE position = ANY (ARRAY(SELECT position FROM {table} {NEXT}))
                 RETURNING {COLUMNS}"
            ))
            .await?;
        self.publish(&rows)?;
        Ok(rows.len() as u64)
    }

    async fn lock(&mut self) -> Result<u64> {
        self.run("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
            .await?;
        let rows = self
            .take(format!("SELECT {COLUMNS} FROM {} {NEXT}", self.table))
            .await?;
        self.publish(&rows)?;
        let done = self.forget(&rows).await?;
        self.run("COMMIT").await?;
        Ok(done)
    }

    async fn lease(&mut self) -> Result<u64> {
        let table = &self.table;
        let rows = self
            .take(format!(
                "UPDATE {table} SET leased_until = clock_timestamp() + {LEASE}
                  WHERE position = ANY (ARRAY(
                      SELECT position FROM {table}
                       WHERE leased_until IS NULL OR leased_until < clock_timestamp() {NEXT}))
                 RETURNING {COLUMNS}"
            ))
            .await?;
        self.publish(&rows)?;
        self.forget(&rows).await
    }

    async fn take(&mut self, statement: String) -> Result<Vec<PgRow>> {
        Ok(sqlx::query(AssertSqlSafe(statement))
            .bind(self.batch)
            .fetch_all(&mut self.connection)
            .await?)
    }

    async fn forget(&mut self, rows: &[PgRow]) -> Result<u64> {
        if rows.is_empty() {
            return Ok(0);
        }
        let positions: Vec<i64> = rows
            .iter()
            .map(|row| row.try_get(0))
            .collect::<std::result::Result<_, _>>()?;
        let delete = format!("DELETE FROM {} WHERE position = ANY ($1)", self.table);
        let deleted = sqlx::query(AssertSqlSafe(delete))
            .bind(positions)
            .execute(&mut self.connection)
            .await?;
        Ok(deleted.rows_affected())
    }

    /// The null publisher: made, and forgotten.
    fn publish(&self, rows: &[PgRow]) -> Result<()> {
        let mut ids = Vec::new();
        for row in rows {
            let message = black_box(decode(row)?);
            if self.times.is_some() {
                ids.push(message.id());
            }
        }
        if let Some(times) = &self.times {
            times.acknowledged(ids);
        }
        Ok(())
    }

    async fn run(&mut self, statement: &'static str) -> Result<()> {
        sqlx::raw_sql(statement)
            .execute(&mut self.connection)
            .await?;
        Ok(())
    }
}

fn decode(row: &PgRow) -> Result<Message> {
    let payload: Option<Vec<u8>> = row.try_get(4)?;
    let headers = match row.try_get::<Option<String>, _>(5)? {
        Some(json) => Headers::from_json(&json)?,
        None => Headers::default(),
    };
    Ok(Message::from_parts(
        row.try_get::<Uuid, _>(1)?,
        row.try_get(2)?,
        row.try_get(3)?,
        payload.map(Into::into),
        headers,
    )?)
}
