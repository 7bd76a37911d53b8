//! What people do: look at the outbox, and decide about what is stuck in it.
//!
//! What there is to see and to ask for is in [`outbox_core::admin`], the same for every store. Here it is
//! SQL: [`delayed`] for messages that are not due yet, [`dead`] for dead ones, [`keys`] for those that are held
//! up, [`pause`] for topics, [`status`] for the whole, [`doctor`] for the database around it.
//!
//! A decision touches dead messages and the state of their lines, which no claim holds, so it needs no
//! claim to end. It may be made from any process. A relay in this one is told afterwards.

mod dead;
mod delayed;
mod doctor;
mod keys;
mod pause;
mod status;

use std::time::{Duration, SystemTime};

use outbox_core::TopicPattern;
use sqlx::{Row as _, SqlitePool};

use crate::Outbox;

pub use dead::DeadSteps;
pub use keys::KeySteps;

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
    pub async fn counts(&self, pool: &SqlitePool) -> Result<Counts, sqlx::Error> {
        let row = sqlx::query(self.sql(include_str!("../sql/counts.sql")))
            .fetch_one(pool)
            .await?;
        Ok(Counts {
            waiting: unsigned(row.try_get(0)?),
            parked: unsigned(row.try_get(1)?),
            dead: unsigned(row.try_get(2)?),
            delayed: unsigned(row.try_get(6)?),
            blocked_keys: unsigned(row.try_get(3)?),
            halted_keys: unsigned(row.try_get(4)?),
            oldest_waiting: row.try_get::<Option<i64>, _>(5)?.map(millis),
        })
    }
}

/// The pattern as `GLOB` takes it.
fn glob(topic: &TopicPattern) -> String {
    let literals: Vec<String> = topic
        .literals()
        .map(|literal| literal.replace('[', "[[]").replace('?', "[?]"))
        .collect();
    literals.join("*")
}

/// Of what SQL has no unsigned type for, and is never below zero.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

fn millis(number: i64) -> Duration {
    Duration::from_millis(unsigned(number))
}

/// So that sums of it and a time stay a number of SQLite.
pub(crate) fn to_millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis())
        .unwrap_or(i64::MAX)
        .min(i64::MAX / 2)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn time(millis_since_epoch: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + millis(millis_since_epoch)
}
