//! Dead messages: lists of them, and decisions, in steps.
//!
//! Whatever is asked for, one look goes over a bounded number of rows by an index, in the order of
//! position, and the next one begins behind it.

use std::time::Duration;

use bytes::Bytes;
use outbox_core::Uuid;
use outbox_core::admin::steps::{
    DeadProgress, DeadStep, Decision, LOOKED_AT, Looked, looks_at, portions,
};
use outbox_core::admin::{DeadContent, DeadFilter, DeadMessage, DeadPage, Decided};
use serde_json::Value;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row as _, SqlSafeStr as _, SqliteConnection, SqlitePool};

use super::{glob, millis, text, time, to_millis, unsigned};
use crate::{Outbox, line, wake};

/// A decision about dead messages, carried out step by step: made by [`Outbox::replay`],
/// [`Outbox::discard`] and [`Outbox::count_dead`], and nothing until its first step.
///
/// It means the messages that are dead when its first step begins, and each of them once: what dies
/// later, or again, is left alone. So it ends, whatever dies meanwhile. Of two people who decide about
/// the same messages at the same time, each message is decided about by one.
#[derive(Debug)]
#[must_use = "nothing is decided before the first step"]
pub struct DeadSteps {
    outbox: Outbox,
    pool: SqlitePool,
    progress: DeadProgress,
}

/// A message that a decision is about.
struct Found {
    position: i64,
    bytes: u64,
    died_ago: Duration,
}

/// What one look found.
struct Look {
    found: Vec<Found>,
    number: u64,
    /// The database's clock, in milliseconds since the epoch.
    now: i64,
    next: Option<i64>,
}

impl Outbox {
    /// A page of dead messages, in the order of enqueue: up to `limit` of those behind the position
    /// `after`, which is the [`next`](DeadPage::next) of the page before.
    ///
    /// One call goes over 10,000 messages at most, so with a filter that fits few it may give back none
    /// and still have a next page. Text that is no UTF-8 is shown with replacement characters.
    ///
    /// # Errors
    ///
    /// What the database answered.
    pub async fn dead(
        &self,
        pool: &SqlitePool,
        filter: &DeadFilter,
        after: Option<i64>,
        limit: u32,
    ) -> Result<DeadPage, sqlx::Error> {
        let step = DeadStep {
            filter,
            ids: filter.ids.as_deref(),
            after: after.unwrap_or(i64::MIN),
            limit: limit.clamp(1, LOOKED_AT),
            begun: None,
        };
        // Both statements see the same.
        let mut tx = pool.begin().await?;
        let look = self.look(&mut tx, &step).await?;
        let positions = array(look.found.iter().map(|found| found.position));
        let rows = sqlx::query(self.sql(include_str!("../../sql/dead_rows.sql")))
            .bind(positions)
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(DeadPage {
            messages: rows.iter().map(dead_message).collect::<Result<_, _>>()?,
            next: look.next,
            now: time(look.now),
        })
    }

    /// One dead message whole, by its id. Where an application has used an id twice, the message that
    /// was enqueued first. Its payload is up to 128 MiB.
    ///
    /// # Errors
    ///
    /// What the database answered.
    pub async fn dead_content(
        &self,
        pool: &SqlitePool,
        id: Uuid,
    ) -> Result<Option<DeadContent>, sqlx::Error> {
        let row = sqlx::query(self.sql(include_str!("../../sql/dead_content.sql")))
            .bind(id)
            .fetch_optional(pool)
            .await?;
        row.map(|row| {
            Ok(DeadContent {
                message: dead_message(&row)?,
                payload: row.try_get::<Option<Vec<u8>>, _>(12)?.map(Bytes::from),
                headers: row.try_get::<Option<Vec<u8>>, _>(13)?.map(text),
            })
        })
        .transpose()
    }

    /// Counts the dead messages that a decision with this filter would be about, in the same steps.
    pub fn count_dead(&self, pool: &SqlitePool, filter: DeadFilter) -> DeadSteps {
        self.decide(pool, filter, Decision::Count)
    }

    /// Puts dead messages back, to be delivered in their old place among those of their key, with their
    /// old ids and no failures counted.
    ///
    /// A key that was halted goes on, unless another dead message halts it too. What is not dead any
    /// more is passed over, so it may be repeated. [`Decided::youngest`] says whether a broker that
    /// drops repeats could drop some.
    pub fn replay(&self, pool: &SqlitePool, filter: DeadFilter) -> DeadSteps {
        self.decide(pool, filter, Decision::Replay)
    }

    /// Drops dead messages for good.
    ///
    /// A key that was halted goes on with what waits, unless another dead message halts it too. What is
    /// not dead any more is passed over, so it may be repeated.
    pub fn discard(&self, pool: &SqlitePool, filter: DeadFilter) -> DeadSteps {
        self.decide(pool, filter, Decision::Discard)
    }

    fn decide(&self, pool: &SqlitePool, filter: DeadFilter, decision: Decision) -> DeadSteps {
        DeadSteps {
            outbox: self.clone(),
            pool: pool.clone(),
            progress: DeadProgress::new(decision, filter),
        }
    }

    /// Looks for what is meant, by the index that finds it.
    async fn look(
        &self,
        conn: &mut SqliteConnection,
        step: &DeadStep<'_>,
    ) -> Result<Look, sqlx::Error> {
        let filter = step.filter;
        let source = match filter {
            DeadFilter { ids: Some(_), .. } => include_str!("../../sql/dead_from_ids.sql"),
            DeadFilter { key: Some(_), .. } => include_str!("../../sql/dead_from_key.sql"),
            _ => include_str!("../../sql/dead_from_all.sql"),
        };
        let statement = include_str!("../../sql/dead_find.sql")
            .replace("{matches}", include_str!("../../sql/dead_matches.sql"))
            .replace("{source}", source);
        let looks_at = looks_at(*filter == DeadFilter::all(), step.limit);
        let ids = step
            .ids
            .map(|ids| array(ids.iter().map(|id| id.simple().to_string())));
        let rows = sqlx::query(AssertSqlSafe(self.prefix.sql(&statement)).into_sql_str())
            .bind(step.after)
            .bind(looks_at)
            .bind(step.limit)
            .bind(step.begun)
            .bind(ids)
            .bind(filter.key.as_deref().map(line::of_key))
            .bind(&filter.key)
            .bind(filter.topic.as_ref().map(glob))
            .bind(&filter.error_kind)
            .bind(filter.older_than.map(to_millis))
            .bind(filter.younger_than.map(to_millis))
            .fetch_all(conn)
            .await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Some(position) = row.try_get(3)? {
                found.push(Found {
                    position,
                    bytes: unsigned(row.try_get(4)?),
                    died_ago: millis(row.try_get(5)?),
                });
            }
        }
        let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let looked = Looked {
            number: unsigned(first.try_get(0)?),
            last: first.try_get(1)?,
            found: found.len(),
            last_found: found.last().map(|found| found.position),
        };
        Ok(Look {
            number: looked.number,
            next: looked.next(step.limit, Some(looks_at)),
            now: first.try_get(2)?,
            found,
        })
    }

    async fn run(
        &self,
        statement: &'static str,
        array: &str,
        conn: &mut SqliteConnection,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(self.sql(statement))
            .bind(array)
            .execute(conn)
            .await?;
        Ok(())
    }
}

impl DeadSteps {
    /// Ends after so many messages, those that were enqueued first. A filter's ids are looked for 1,000 at a
    /// time, in the order of the ids: with more of them, first means among those of each thousand.
    pub fn limit(mut self, messages: u64) -> Self {
        self.progress = self.progress.limit(messages);
        self
    }

    /// Puts back what these steps have counted: a person who was shown a number and thinks about it
    /// decides about those messages. What died after the counting began is not meant, and no more are
    /// put back than were counted. As [`Outbox::replay`] otherwise.
    pub fn replay(self) -> Self {
        self.again(Decision::Replay)
    }

    /// Drops what these steps have counted, as [`replay`](Self::replay) puts it back.
    pub fn discard(self) -> Self {
        self.again(Decision::Discard)
    }

    fn again(self, decision: Decision) -> Self {
        Self {
            progress: self.progress.again(decision),
            ..self
        }
    }

    /// What came of it so far.
    pub fn done(&self) -> Decided {
        self.progress.done()
    }

    /// Looks at up to 10,000 dead messages and decides about up to 4,000 of them. Gives back whether
    /// there may be more.
    ///
    /// # Errors
    ///
    /// What the database answered. Some of the step's messages may have been decided about, in
    /// transactions of up to 1,000. The step may be repeated: it passes over those.
    ///
    /// # Cancellation
    ///
    /// As after an error. [`done`](Self::done) does not know of the transaction that was under way.
    pub async fn step(&mut self) -> Result<bool, sqlx::Error> {
        let Some(step) = self.progress.step() else {
            return Ok(false);
        };
        let mut conn = self.pool.acquire().await?;
        let look = self.outbox.look(&mut conn, &step).await?;
        drop(conn);
        let begun = self.progress.begun(look.now);
        if self.progress.decision() == Decision::Count {
            for found in &look.found {
                self.progress.decided(1, Some(found.died_ago));
            }
        } else {
            let messages = look.found.iter().map(|found| (found.position, found.bytes));
            for positions in portions(messages) {
                self.decide(&positions, begun).await?;
            }
        }
        Ok(self.progress.looked(look.number, look.next))
    }

    /// All steps that are left.
    ///
    /// # Errors
    ///
    /// As of [`step`](Self::step).
    ///
    /// # Cancellation
    ///
    /// As of [`step`](Self::step).
    pub async fn finish(mut self) -> Result<Decided, sqlx::Error> {
        while self.step().await? {}
        Ok(self.done())
    }

    /// One transaction.
    async fn decide(&mut self, positions: &[i64], begun: i64) -> Result<(), sqlx::Error> {
        let outbox = &self.outbox;
        let is_replay = self.progress.decision() == Decision::Replay;
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await?;
        let decided: Vec<(i64, i64, bool, i64)> =
            sqlx::query_as(outbox.sql(include_str!("../../sql/dead_decided.sql")))
                .bind(array(positions.iter().copied()))
                .bind(begun)
                .fetch_all(&mut *tx)
                .await?;
        // A line that none of these halts is not concerned when they are dropped.
        let concerned = decided
            .iter()
            .filter(|(_, _, halted, _)| *halted || is_replay);
        let mut lines: Vec<i64> = concerned.map(|&(_, line, ..)| line).collect();
        lines.sort_unstable();
        lines.dedup();
        let lines = array(lines);
        let positions = array(decided.iter().map(|&(position, ..)| position));
        if is_replay {
            let replay = include_str!("../../sql/replay.sql");
            outbox.run(replay, &positions, &mut tx).await?;
            let replay_lines = include_str!("../../sql/replay_lines.sql");
            outbox.run(replay_lines, &lines, &mut tx).await?;
        }
        let remove = include_str!("../../sql/remove_dead.sql");
        outbox.run(remove, &positions, &mut tx).await?;
        let promote = include_str!("../../sql/promote.sql");
        outbox.run(promote, &lines, &mut tx).await?;
        let unblock = include_str!("../../sql/unblock.sql");
        outbox.run(unblock, &lines, &mut tx).await?;
        tx.commit().await?;
        wake::soon();
        for (.., died_ago) in decided {
            self.progress.decided(1, Some(millis(died_ago)));
        }
        Ok(())
    }
}

/// As SQLite takes many values at once.
fn array<V: Into<Value>>(values: impl IntoIterator<Item = V>) -> String {
    Value::from_iter(values).to_string()
}

fn dead_message(row: &SqliteRow) -> Result<DeadMessage, sqlx::Error> {
    Ok(DeadMessage {
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
