//! What people do: look at the outbox, and decide about what is stuck in it.
//!
//! What there is to see and to ask for is in [`outbox_core::admin`], the same for every store. Here it is
//! SQL: [`delayed`] for messages that are not due yet, [`dead`] for dead ones, [`keys`] for those that are held
//! up, [`pause`] for topics, [`status`] for the whole, [`doctor`] for the server around it.
//!
//! A decision takes the lane of its key, as a claim does, and waits for the claim that has it. It holds
//! one lane at a time, so that it never keeps a lane while it waits for another. The relay is told
//! afterwards; it need not be stopped.
//!
//! A single read is in a transaction as well: without one, a pooler that gives out connections by
//! transaction may send its parsing to one server connection and its execution to another.

mod dead;
mod delayed;
mod doctor;
mod keys;
mod pause;
mod status;

use std::time::{Duration, SystemTime};

use outbox_core::TopicPattern;
use sqlx::{PgPool, Postgres, Transaction};

use crate::Outbox;

pub use dead::DeadSteps;
pub use keys::KeySteps;

/// Begins a decision.
///
/// * The isolation is named so that a statement sees what was committed while the one before it waited
///   for a lock, whatever the server's default is.
/// * The wait for a lane is bounded: a claim is held for 50 s at most unless the relay's timeouts are
///   longer. The server's own bound on statements must not cut it.
/// * A person's machine that falls asleep keeps no lane.
/// * The planner is told what it cannot know, as a claim tells it: statistics are often those of empty
///   tables, and every scan here is by index.
const BEGIN: &str = "\
    BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
    SET LOCAL lock_timeout = '2min'; \
    SET LOCAL statement_timeout = '5min'; \
    SET LOCAL idle_in_transaction_session_timeout = '30s'; \
    SET LOCAL jit = off; \
    SET LOCAL enable_seqscan = off; \
    SET LOCAL enable_bitmapscan = off";

/// Begins a look: all of its statements see the same.
const BEGIN_LOOK: &str = "\
    BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
    SET LOCAL statement_timeout = '30s'; \
    SET LOCAL idle_in_transaction_session_timeout = '30s'; \
    SET LOCAL jit = off; \
    SET LOCAL enable_seqscan = off; \
    SET LOCAL enable_bitmapscan = off";

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
    /// Messages that were enqueued with a delay, and did not become due yet.
    pub delayed: u64,
    /// Keys that are held up behind a message that was set aside. A message without a key is one.
    pub blocked_keys: u64,
    /// Those of them that wait for a decision about a dead message.
    pub halted_keys: u64,
    /// How long ago the oldest of the waiting was enqueued, on the database's clock.
    pub oldest_waiting: Option<Duration>,
}

impl Outbox {
    /// Counts what is where.
    ///
    /// The rows are really counted, so the time grows with them: for tests and small outboxes.
    ///
    /// # Errors
    ///
    /// What the database answered.
    pub async fn counts(&self, pool: &PgPool) -> Result<Counts, sqlx::Error> {
        use sqlx::Row as _;

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
            delayed: unsigned(row.try_get(6)?),
            blocked_keys: unsigned(row.try_get(3)?),
            halted_keys: unsigned(row.try_get(4)?),
            oldest_waiting: row.try_get::<Option<i64>, _>(5)?.map(micros),
        })
    }

    /// A transaction that has locked a lane. `None`: a claim has the lane, and was not to be waited for.
    async fn with_lane<'p>(
        &self,
        pool: &'p PgPool,
        lane: i16,
        wait: bool,
    ) -> Result<Option<Transaction<'p, Postgres>>, sqlx::Error> {
        let mut tx = pool.begin_with(BEGIN).await?;
        let lock = if wait {
            include_str!("../sql/lock_lane.sql")
        } else {
            include_str!("../sql/try_lane.sql")
        };
        let locked = sqlx::query(self.sql(lock))
            .bind(lane)
            .persistent(false)
            .fetch_optional(&mut *tx)
            .await?;
        if locked.is_some() {
            return Ok(Some(tx));
        }
        tx.rollback().await?;
        Ok(None)
    }

    /// Tells the relay what was decided, and ends the transaction.
    async fn commit_decision(&self, mut tx: Transaction<'_, Postgres>) -> Result<(), sqlx::Error> {
        sqlx::query(self.sql(include_str!("../sql/wake.sql")))
            .persistent(false)
            .execute(&mut *tx)
            .await?;
        tx.commit().await
    }
}

/// The pattern as `LIKE` takes it.
fn like(topic: &TopicPattern) -> String {
    let literals: Vec<String> = topic
        .literals()
        .map(|literal| {
            literal
                .replace('\\', "\\\\")
                .replace('%', "\\%")
                .replace('_', "\\_")
        })
        .collect();
    literals.join("%")
}

/// Of what SQL has no unsigned type for, and is never below zero.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or_default()
}

fn micros(number: i64) -> Duration {
    Duration::from_micros(unsigned(number))
}

/// For Postgres, which knows no time that is longer ago than that.
pub(crate) fn to_micros(time: Duration) -> i64 {
    const FIVE_THOUSAND_YEARS: i64 = 5_000 * 365 * 24 * 3_600 * 1_000_000;
    i64::try_from(time.as_micros())
        .unwrap_or(i64::MAX)
        .min(FIVE_THOUSAND_YEARS)
}

fn time(micros_since_epoch: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + micros(micros_since_epoch)
}
