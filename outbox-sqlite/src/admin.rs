//! What people do: look at the outbox, and decide about dead messages.
//!
//! A decision touches dead messages and the state of their lines, which no claim holds, so it needs no
//! claim to end. It may be made from any process. A relay in this one is told afterwards.

use std::time::{Duration, SystemTime};

use outbox_core::Uuid;
use serde_json::Value;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection, SqlitePool};

use crate::{Outbox, wake};

/// A decision about many messages is cut into steps of so many, each a transaction of its own.
const STEP: u32 = 1_000;

/// How many messages are where, from [`Outbox::counts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Messages that were never set aside.
    pub waiting: u64,
    /// Messages that were set aside, due or not.
    pub parked: u64,
    /// Messages that were given up.
    pub dead: u64,
    /// Keys that are held up behind a message that was set aside. A message without a key is one.
    pub blocked_keys: u64,
    /// Those of them that wait for a decision about a dead message.
    pub halted_keys: u64,
    /// How long ago the oldest of the waiting was enqueued, on the database's clock.
    pub oldest_waiting: Option<Duration>,
}

/// A message that was given up, from [`Outbox::dead`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadMessage {
    /// Where the next page begins: unique, and in the order of enqueue.
    pub position: i64,
    /// The message id.
    pub id: Uuid,
    /// Its topic.
    pub topic: String,
    /// Its key.
    pub key: Option<String>,
    /// The length of its payload, which is not read.
    pub payload_bytes: Option<u64>,
    /// When it was enqueued.
    pub enqueued_at: SystemTime,
    /// When it was given up.
    pub died_at: SystemTime,
    /// How often it was parked before.
    pub parked: u32,
    /// How many failures were counted.
    pub failures: u32,
    /// The kind of the last error, the word of
    /// [`PublishErrorKind::as_str`](outbox_core::PublishErrorKind::as_str).
    pub error_kind: String,
    /// The last error.
    pub error: String,
    /// Whether the later messages of its key wait for a decision.
    pub halted: bool,
}

/// What is decided about a dead message.
#[derive(Clone, Copy)]
enum Decision {
    Replay,
    Discard,
}

impl Outbox {
    /// Counts what is where.
    ///
    /// The rows are really counted, so the time grows with them.
    ///
    /// # Errors
    ///
    /// What the database answered.
    pub async fn counts(&self, pool: &SqlitePool) -> Result<Counts, sqlx::Error> {
        let row = sqlx::query(self.sql(include_str!("../sql/counts.sql")))
            .fetch_one(pool)
            .await?;
        Ok(Counts {
            waiting: unsigned(row.try_get(0)?),
            parked: unsigned(row.try_get(1)?),
            dead: unsigned(row.try_get(2)?),
            blocked_keys: unsigned(row.try_get(3)?),
            halted_keys: unsigned(row.try_get(4)?),
            oldest_waiting: row
                .try_get::<Option<i64>, _>(5)?
                .map(|millis| Duration::from_millis(unsigned(millis))),
        })
    }

    /// A page of dead messages, oldest first: up to `limit` of those behind the position `after`, the
    /// last one of the page before.
    ///
    /// # Errors
    ///
    /// What the database answered.
    pub async fn dead(
        &self,
        pool: &SqlitePool,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<DeadMessage>, sqlx::Error> {
        let rows = sqlx::query(self.sql(include_str!("../sql/dead.sql")))
            .bind(after.unwrap_or(i64::MIN))
            .bind(limit)
            .fetch_all(pool)
            .await?;
        rows.iter().map(DeadMessage::from_row).collect()
    }

    /// Puts dead messages back, to be delivered in their old place among those of their key, with
    /// their old ids and no failures counted. Gives back how many there were.
    ///
    /// Ids that are not dead are passed over, so it may be repeated, and of two at once each message
    /// returns once. A key that was halted goes on, unless another dead message halts it too.
    ///
    /// # Errors
    ///
    /// What the database answered. Some of the messages may have been put back: each 1000 are in a
    /// transaction of their own.
    ///
    /// # Cancellation
    ///
    /// As after an error.
    pub async fn replay(&self, pool: &SqlitePool, ids: &[Uuid]) -> Result<u64, sqlx::Error> {
        self.decide(pool, ids, Decision::Replay).await
    }

    /// Puts up to `limit` dead messages back, oldest first. Otherwise as [`replay`](Self::replay).
    ///
    /// # Errors
    ///
    /// As of [`replay`](Self::replay).
    pub async fn replay_oldest(&self, pool: &SqlitePool, limit: u64) -> Result<u64, sqlx::Error> {
        self.decide_oldest(pool, limit, Decision::Replay).await
    }

    /// Drops dead messages for good. Gives back how many there were.
    ///
    /// Ids that are not dead are passed over. A key that was halted goes on with what waits, unless
    /// another dead message halts it too.
    ///
    /// # Errors
    ///
    /// What the database answered. Some of the messages may have been dropped: each 1000 are in a
    /// transaction of their own.
    ///
    /// # Cancellation
    ///
    /// As after an error.
    pub async fn discard(&self, pool: &SqlitePool, ids: &[Uuid]) -> Result<u64, sqlx::Error> {
        self.decide(pool, ids, Decision::Discard).await
    }

    /// Drops up to `limit` dead messages, oldest first. Otherwise as [`discard`](Self::discard).
    ///
    /// # Errors
    ///
    /// As of [`discard`](Self::discard).
    pub async fn discard_oldest(&self, pool: &SqlitePool, limit: u64) -> Result<u64, sqlx::Error> {
        self.decide_oldest(pool, limit, Decision::Discard).await
    }

    async fn decide_oldest(
        &self,
        pool: &SqlitePool,
        limit: u64,
        decision: Decision,
    ) -> Result<u64, sqlx::Error> {
        let mut decided = 0;
        let mut after = None;
        // A message that is replayed and dies again stays behind `after`: it is not decided about twice.
        while decided < limit {
            let step = u32::try_from(limit - decided).map_or(STEP, |left| left.min(STEP));
            let page = self.dead(pool, after, step).await?;
            let Some(last) = page.last() else {
                break;
            };
            after = Some(last.position);
            let ids: Vec<Uuid> = page.iter().map(|dead| dead.id).collect();
            decided += self.decide(pool, &ids, decision).await?;
        }
        Ok(decided)
    }

    async fn decide(
        &self,
        pool: &SqlitePool,
        ids: &[Uuid],
        decision: Decision,
    ) -> Result<u64, sqlx::Error> {
        let mut decided = 0;
        for ids in ids.chunks(STEP as usize) {
            let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
            decided += self.decide_step(&mut tx, ids, decision).await?;
            tx.commit().await?;
            wake::soon();
        }
        Ok(decided)
    }

    async fn decide_step(
        &self,
        conn: &mut SqliteConnection,
        ids: &[Uuid],
        decision: Decision,
    ) -> Result<u64, sqlx::Error> {
        let ids: Vec<String> = ids.iter().map(|id| id.simple().to_string()).collect();
        let ids = Value::from(ids).to_string();
        let lines: Vec<(i64, bool)> =
            sqlx::query_as(self.sql(include_str!("../sql/dead_lines.sql")))
                .bind(&ids)
                .fetch_all(&mut *conn)
                .await?;
        let lines: Vec<i64> = lines
            .into_iter()
            // A line that none of these halts is not concerned when they are dropped.
            .filter(|(_, halted)| *halted || matches!(decision, Decision::Replay))
            .map(|(line, _)| line)
            .collect();
        let lines = Value::from(lines).to_string();
        if matches!(decision, Decision::Replay) {
            self.run(include_str!("../sql/replay.sql"), &ids, conn)
                .await?;
            self.run(include_str!("../sql/replay_lines.sql"), &lines, conn)
                .await?;
        }
        let removed = self
            .run(include_str!("../sql/remove_dead.sql"), &ids, conn)
            .await?;
        self.run(include_str!("../sql/promote.sql"), &lines, conn)
            .await?;
        self.run(include_str!("../sql/unblock.sql"), &lines, conn)
            .await?;
        Ok(removed)
    }

    async fn run(
        &self,
        statement: &'static str,
        array: &str,
        conn: &mut SqliteConnection,
    ) -> Result<u64, sqlx::Error> {
        let done = sqlx::query(self.sql(statement))
            .bind(array)
            .execute(conn)
            .await?;
        Ok(done.rows_affected())
    }
}

impl DeadMessage {
    fn from_row(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            position: row.try_get(0)?,
            id: row.try_get(1)?,
            topic: text(row.try_get(2)?),
            key: row.try_get::<Option<Vec<u8>>, _>(3)?.map(text),
            payload_bytes: row.try_get::<Option<i64>, _>(4)?.map(unsigned),
            enqueued_at: time(row.try_get(5)?),
            died_at: time(row.try_get(6)?),
            parked: row.try_get(7)?,
            failures: row.try_get(8)?,
            error_kind: row.try_get(9)?,
            error: row.try_get(10)?,
            halted: row.try_get(11)?,
        })
    }
}

/// Of what SQL has no unsigned type for, and is never below zero.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

fn time(millis_since_epoch: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(unsigned(millis_since_epoch))
}
