//! What people do: look at the outbox, and decide about dead messages.
//!
//! A decision takes the lane of its key, as a claim does, and waits for the claim that has it. It holds
//! one lane at a time, so that it never keeps a lane while it waits for another. The relay is told
//! afterwards; it need not be stopped.
//!
//! A single read is in a transaction as well: without one, a pooler that gives out connections by
//! transaction may send its parsing to one server connection and its execution to another.

use std::time::{Duration, SystemTime};

use outbox_core::Uuid;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgPool, Row as _};

use crate::Outbox;

/// A decision about many messages is cut into steps of so many.
const STEP: u32 = 1_000;

/// Begins a decision. The isolation is named so that a statement sees what was committed while the one
/// before it waited for a lock, whatever the server's default is. The wait for a lane is bounded: a
/// claim is held for 50 s at most unless the relay's timeouts are longer.
const BEGIN: &str =
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = '2min'";

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
    pub async fn counts(&self, pool: &PgPool) -> Result<Counts, sqlx::Error> {
        let mut tx = pool.begin().await?;
        let row = sqlx::query(self.sql(include_str!("../sql/counts.sql")))
            .persistent(false)
            .fetch_one(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(Counts {
            waiting: unsigned(row.try_get(0)?),
            parked: unsigned(row.try_get(1)?),
            dead: unsigned(row.try_get(2)?),
            blocked_keys: unsigned(row.try_get(3)?),
            halted_keys: unsigned(row.try_get(4)?),
            oldest_waiting: row
                .try_get::<Option<i64>, _>(5)?
                .map(|micros| Duration::from_micros(unsigned(micros))),
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
        pool: &PgPool,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<DeadMessage>, sqlx::Error> {
        let mut tx = pool.begin().await?;
        let rows = sqlx::query(self.sql(include_str!("../sql/dead.sql")))
            .bind(after.unwrap_or(i64::MIN))
            .bind(i64::from(limit))
            .persistent(false)
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
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
    /// What the database answered; a lane that a claim holds is waited for, but no longer than two
    /// minutes. Some of the messages may have been put back: each lane's are in a transaction of their
    /// own.
    ///
    /// # Cancellation
    ///
    /// As after an error.
    pub async fn replay(&self, pool: &PgPool, ids: &[Uuid]) -> Result<u64, sqlx::Error> {
        self.decide(pool, ids, Decision::Replay).await
    }

    /// Puts up to `limit` dead messages back, oldest first. Otherwise as [`replay`](Self::replay).
    ///
    /// # Errors
    ///
    /// As of [`replay`](Self::replay).
    pub async fn replay_oldest(&self, pool: &PgPool, limit: u64) -> Result<u64, sqlx::Error> {
        self.decide_oldest(pool, limit, Decision::Replay).await
    }

    /// Drops dead messages for good. Gives back how many there were.
    ///
    /// Ids that are not dead are passed over. A key that was halted goes on with what waits, unless
    /// another dead message halts it too.
    ///
    /// # Errors
    ///
    /// As of [`replay`](Self::replay).
    ///
    /// # Cancellation
    ///
    /// As after an error.
    pub async fn discard(&self, pool: &PgPool, ids: &[Uuid]) -> Result<u64, sqlx::Error> {
        self.decide(pool, ids, Decision::Discard).await
    }

    /// Drops up to `limit` dead messages, oldest first. Otherwise as [`discard`](Self::discard).
    ///
    /// # Errors
    ///
    /// As of [`discard`](Self::discard).
    pub async fn discard_oldest(&self, pool: &PgPool, limit: u64) -> Result<u64, sqlx::Error> {
        self.decide_oldest(pool, limit, Decision::Discard).await
    }

    async fn decide_oldest(
        &self,
        pool: &PgPool,
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
        pool: &PgPool,
        ids: &[Uuid],
        decision: Decision,
    ) -> Result<u64, sqlx::Error> {
        let mut decided = 0;
        for ids in ids.chunks(STEP as usize) {
            let mut tx = pool.begin().await?;
            let lanes: Vec<(i16, Vec<Uuid>)> =
                sqlx::query_as(self.sql(include_str!("../sql/dead_lanes.sql")))
                    .bind(ids)
                    .persistent(false)
                    .fetch_all(&mut *tx)
                    .await?;
            tx.commit().await?;
            for (lane, ids) in lanes {
                let mut tx = pool.begin_with(BEGIN).await?;
                sqlx::query(self.sql(include_str!("../sql/lock_lane.sql")))
                    .bind(lane)
                    .persistent(false)
                    .execute(&mut *tx)
                    .await?;
                decided += match decision {
                    Decision::Replay => self.replay_lane(&mut tx, lane, &ids).await?,
                    Decision::Discard => self.discard_lane(&mut tx, lane, &ids).await?,
                };
                sqlx::query(self.sql(include_str!("../sql/wake.sql")))
                    .persistent(false)
                    .execute(&mut *tx)
                    .await?;
                tx.commit().await?;
            }
        }
        Ok(decided)
    }

    async fn replay_lane(
        &self,
        conn: &mut PgConnection,
        lane: i16,
        ids: &[Uuid],
    ) -> Result<u64, sqlx::Error> {
        let keys: Vec<(i64, i64, i64)> =
            sqlx::query_as(self.sql(include_str!("../sql/replay.sql")))
                .bind(ids)
                .bind(lane)
                .persistent(false)
                .fetch_all(&mut *conn)
                .await?;
        let (hashes, heads): (Vec<i64>, Vec<i64>) =
            keys.iter().map(|&(hash, head, _)| (hash, head)).unzip();
        sqlx::query(self.sql(include_str!("../sql/replay_keys.sql")))
            .bind(hashes)
            .bind(heads)
            .persistent(false)
            .execute(conn)
            .await?;
        Ok(keys.iter().map(|&(_, _, count)| unsigned(count)).sum())
    }

    async fn discard_lane(
        &self,
        conn: &mut PgConnection,
        lane: i16,
        ids: &[Uuid],
    ) -> Result<u64, sqlx::Error> {
        let dropped: Vec<(i64, bool)> =
            sqlx::query_as(self.sql(include_str!("../sql/discard.sql")))
                .bind(ids)
                .bind(lane)
                .persistent(false)
                .fetch_all(&mut *conn)
                .await?;
        let mut halted: Vec<i64> = dropped
            .iter()
            .filter(|(_, halted)| *halted)
            .map(|&(hash, _)| hash)
            .collect();
        halted.sort_unstable();
        halted.dedup();
        sqlx::query(self.sql(include_str!("../sql/discard_keys.sql")))
            .bind(halted)
            .persistent(false)
            .execute(conn)
            .await?;
        Ok(dropped.len() as u64)
    }
}

impl DeadMessage {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            position: row.try_get(0)?,
            id: row.try_get(1)?,
            topic: row.try_get(2)?,
            key: row.try_get(3)?,
            payload_bytes: row.try_get::<Option<i64>, _>(4)?.map(unsigned),
            enqueued_at: time(row.try_get(5)?),
            died_at: time(row.try_get(6)?),
            parked: count(row.try_get(7)?),
            failures: count(row.try_get(8)?),
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

fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or_default()
}

fn time(micros_since_epoch: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(unsigned(micros_since_epoch))
}
