//! The loop that outboxes are commonly built on, as fast as it can reasonably be made: what the
//! outbox is compared with.
//!
//! Workers lock the oldest rows that nobody else has locked, publish them, delete them and commit.
//! That keeps no order per key and delays every key behind a failing batch, but it is the simplest
//! loop that loses nothing. It gets what the outbox has: one connection a worker, prepared statements,
//! rows decoded into messages, an asynchronous commit, a planner that cannot choose a sequential scan,
//! and a table with the same vacuum settings.

use outbox_core::{Headers, Message};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, Row};
use uuid::Uuid;

use crate::Result;
use crate::setup::{Database, Workload};

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
    SET LOCAL synchronous_commit = off; \
    SET LOCAL jit = off; \
    SET LOCAL enable_seqscan = off; \
    SET LOCAL plan_cache_mode = force_generic_plan";

/// Creates the table in `schema`, with all messages in it.
pub(crate) async fn fill(database: &Database, schema: &str, workload: &Workload) -> Result<()> {
    database
        .execute(format!(
            "CREATE SCHEMA {schema};
             CREATE TABLE {schema}.queue (
                 position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                 id uuid NOT NULL,
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
    workload
        .fill(database, schema, "queue", "id", "bench")
        .await
}

/// Empties the table with so many workers, and gives back how many messages there were.
pub(crate) async fn drain(
    database: &Database,
    schema: &str,
    workers: usize,
    batch: usize,
) -> Result<u64> {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..workers {
        let options = (*database.pool.connect_options()).clone();
        let connection = options.disable_statement_logging().connect().await?;
        tasks.spawn(work(connection, schema.to_owned(), batch));
    }
    let mut delivered = 0;
    while let Some(done) = tasks.join_next().await {
        delivered += done??;
    }
    Ok(delivered)
}

async fn work(mut connection: PgConnection, schema: String, batch: usize) -> Result<u64> {
    let next = format!(
        "SELECT position, id, topic, key, payload, headers::text FROM {schema}.queue
          ORDER BY position LIMIT $1 FOR UPDATE SKIP LOCKED"
    );
    let delete = format!("DELETE FROM {schema}.queue WHERE position = ANY ($1)");
    let mut delivered = 0;
    loop {
        sqlx::raw_sql(BEGIN).execute(&mut connection).await?;
        let rows = sqlx::query(AssertSqlSafe(next.clone()))
            .bind(batch as i64)
            .fetch_all(&mut connection)
            .await?;
        if rows.is_empty() {
            sqlx::raw_sql("COMMIT").execute(&mut connection).await?;
            return Ok(delivered);
        }
        let mut positions: Vec<i64> = Vec::with_capacity(rows.len());
        for row in &rows {
            positions.push(row.try_get(0)?);
            // The null publisher: made, and forgotten.
            std::hint::black_box(decode(row)?);
        }
        let deleted = sqlx::query(AssertSqlSafe(delete.clone()))
            .bind(positions)
            .execute(&mut connection)
            .await?;
        sqlx::raw_sql("COMMIT").execute(&mut connection).await?;
        delivered += deleted.rows_affected();
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
