//! Dead messages: lists of them, and decisions, in steps.
//!
//! Whatever is asked for, one look goes over a bounded number of rows by an index, in the order of
//! position, and the next one begins behind it. So a filter that fits nothing in a million rows takes a
//! hundred short statements and none that is long.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use outbox_core::Uuid;
use outbox_core::admin::steps::{
    DeadProgress, DeadStep, Decision, LOOKED_AT, Looked, looks_at, portions,
};
use outbox_core::admin::{DeadContent, DeadFilter, DeadMessage, DeadPage, Decided};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Row as _, SqlSafeStr as _, SqlStr};

use super::{BEGIN_LOOK, count, like, micros, time, to_micros, unsigned};
use crate::Outbox;

/// A decision about dead messages, carried out step by step: made by [`Outbox::replay`],
/// [`Outbox::discard`] and [`Outbox::count_dead`], and nothing until its first step.
///
/// It means the messages that are dead when its first step begins, and each of them once: what dies
/// later, or again, is left alone. So it ends, whatever dies meanwhile. Of two people who decide about
/// the same messages at the same time, each message is decided about by one.
///
/// ```no_run
/// # use outbox_postgres::Outbox;
/// # type Error = Box<dyn std::error::Error>;
/// # async fn example(outbox: &Outbox, pool: &sqlx::PgPool) -> Result<(), Error> {
/// use std::time::Duration;
/// use outbox_core::admin::{DeadFilter, KeyFilter};
///
/// const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// let old = DeadFilter::all().topic("orders.*".parse()?).older_than(30 * DAY);
/// let so_many = outbox.count_dead(pool, old.clone()).finish().await?.messages;
/// let mut discard = outbox.discard(pool, old); // nothing until its first step
/// while discard.step().await? {
///     println!("{} of {so_many}", discard.done().messages); // and one may stop after each
/// }
/// outbox.replay(pool, DeadFilter::all().key("order-7")).finish().await?;
/// outbox.retry_now(pool, KeyFilter::all().topic("orders.*".parse()?)).finish().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is decided before the first step"]
pub struct DeadSteps {
    outbox: Outbox,
    pool: PgPool,
    progress: DeadProgress,
}

/// A message that a decision is about.
struct Found {
    position: i64,
    lane: i16,
    bytes: u64,
    died_ago: Duration,
}

/// What one look found.
struct Look {
    found: Vec<Found>,
    number: u64,
    /// The database's clock, in microseconds since the epoch.
    now: i64,
    next: Option<i64>,
}

impl Outbox {
    /// A page of dead messages, in the order of enqueue: up to `limit` of those behind the position
    /// `after`, which is the [`next`](DeadPage::next) of the page before.
    ///
    /// One call goes over 10,000 messages at most, so with a filter that fits few it may give back none
    /// and still have a next page.
    ///
    /// # Errors
    ///
    /// What the database answered.
    pub async fn dead(
        &self,
        pool: &PgPool,
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
        let mut tx = pool.begin_with(BEGIN_LOOK).await?;
        let look = self.look(&mut tx, &step).await?;
        let positions: Vec<i64> = look.found.iter().map(|found| found.position).collect();
        let rows = sqlx::query(self.sql(include_str!("../../sql/dead_rows.sql")))
            .bind(positions)
            .persistent(false)
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
        pool: &PgPool,
        id: Uuid,
    ) -> Result<Option<DeadContent>, sqlx::Error> {
        let mut tx = pool.begin_with(BEGIN_LOOK).await?;
        let row = sqlx::query(self.sql(include_str!("../../sql/dead_content.sql")))
            .bind(id)
            .persistent(false)
            .fetch_optional(&mut *tx)
            .await?;
        tx.commit().await?;
        row.map(|row| {
            Ok(DeadContent {
                message: dead_message(&row)?,
                payload: row.try_get::<Option<Vec<u8>>, _>(12)?.map(Bytes::from),
                headers: row.try_get(13)?,
            })
        })
        .transpose()
    }

    /// Counts the dead messages that a decision with this filter would be about, in the same steps.
    pub fn count_dead(&self, pool: &PgPool, filter: DeadFilter) -> DeadSteps {
        self.decide(pool, filter, Decision::Count)
    }

    /// Puts dead messages back, to be delivered in their old place among those of their key, with their
    /// old ids and no failures counted.
    ///
    /// A key that was halted goes on, unless another dead message halts it too. What is not dead any
    /// more is passed over, so it may be repeated. [`Decided::youngest`] says whether a broker that
    /// drops repeats could drop some.
    pub fn replay(&self, pool: &PgPool, filter: DeadFilter) -> DeadSteps {
        self.decide(pool, filter, Decision::Replay)
    }

    /// Drops dead messages for good.
    ///
    /// A key that was halted goes on with what waits, unless another dead message halts it too. What is
    /// not dead any more is passed over, so it may be repeated.
    pub fn discard(&self, pool: &PgPool, filter: DeadFilter) -> DeadSteps {
        self.decide(pool, filter, Decision::Discard)
    }

    fn decide(&self, pool: &PgPool, filter: DeadFilter, decision: Decision) -> DeadSteps {
        DeadSteps {
            outbox: self.clone(),
            pool: pool.clone(),
            progress: DeadProgress::new(decision, filter),
        }
    }

    /// Looks for what is meant, by the index that finds it.
    async fn look(
        &self,
        conn: &mut PgConnection,
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
        let rows = sqlx::query(AssertSqlSafe(self.schema.sql(&statement)).into_sql_str())
            .bind(step.after)
            .bind(i64::from(looks_at))
            .bind(i64::from(step.limit))
            .bind(step.begun)
            .bind(step.ids)
            .bind(&filter.key)
            .bind(filter.topic.as_ref().map(like))
            .bind(&filter.error_kind)
            .bind(filter.older_than.map(to_micros))
            .bind(filter.younger_than.map(to_micros))
            .persistent(false)
            .fetch_all(conn)
            .await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Some(position) = row.try_get(3)? {
                found.push(Found {
                    position,
                    lane: row.try_get(4)?,
                    bytes: unsigned(row.try_get(5)?),
                    died_ago: micros(row.try_get(6)?),
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
        // All messages of the ids are looked at, however many use one.
        let bound = step.ids.is_none().then_some(looks_at);
        Ok(Look {
            number: looked.number,
            next: looked.next(step.limit, bound),
            now: first.try_get(2)?,
            found,
        })
    }

    /// A statement that takes out of `dead` what is decided about.
    fn deciding(&self, text: &'static str) -> SqlStr {
        let text = text.replace("{decided}", include_str!("../../sql/dead_decided.sql"));
        AssertSqlSafe(self.schema.sql(&text)).into_sql_str()
    }

    async fn replay_messages(
        &self,
        conn: &mut PgConnection,
        positions: &[i64],
        begun: i64,
    ) -> Result<Decided, sqlx::Error> {
        let keys: Vec<(i64, i64, i64, i64)> =
            sqlx::query_as(self.deciding(include_str!("../../sql/replay.sql")))
                .bind(positions)
                .bind(begun)
                .persistent(false)
                .fetch_all(&mut *conn)
                .await?;
        let (hashes, heads): (Vec<i64>, Vec<i64>) =
            keys.iter().map(|&(hash, head, ..)| (hash, head)).unzip();
        sqlx::query(self.sql(include_str!("../../sql/replay_keys.sql")))
            .bind(hashes)
            .bind(heads)
            .persistent(false)
            .execute(conn)
            .await?;
        let mut decided = Decided::default();
        for (.., number, died_ago) in keys {
            decided.add(unsigned(number), Some(micros(died_ago)));
        }
        Ok(decided)
    }

    async fn discard_messages(
        &self,
        conn: &mut PgConnection,
        positions: &[i64],
        begun: i64,
    ) -> Result<Decided, sqlx::Error> {
        let dropped: Vec<(i64, bool, i64)> =
            sqlx::query_as(self.deciding(include_str!("../../sql/discard.sql")))
                .bind(positions)
                .bind(begun)
                .persistent(false)
                .fetch_all(&mut *conn)
                .await?;
        let mut halted: Vec<i64> = dropped
            .iter()
            .filter(|(_, halted, _)| *halted)
            .map(|&(hash, ..)| hash)
            .collect();
        halted.sort_unstable();
        halted.dedup();
        sqlx::query(self.sql(include_str!("../../sql/discard_keys.sql")))
            .bind(halted)
            .persistent(false)
            .execute(conn)
            .await?;
        let mut decided = Decided::default();
        for (.., died_ago) in dropped {
            decided.add(1, Some(micros(died_ago)));
        }
        Ok(decided)
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
    /// What the database answered; a lane that a claim holds is waited for, but no longer than two
    /// minutes. Some of the step's messages may have been decided about, since each lane's are in
    /// transactions of their own of up to 1,000. The step may be repeated: it passes over those.
    ///
    /// # Cancellation
    ///
    /// As after an error. [`done`](Self::done) does not know of the transaction that was under way.
    pub async fn step(&mut self) -> Result<bool, sqlx::Error> {
        let Some(step) = self.progress.step() else {
            return Ok(false);
        };
        let mut tx = self.pool.begin_with(BEGIN_LOOK).await?;
        let look = self.outbox.look(&mut tx, &step).await?;
        tx.commit().await?;
        let begun = self.progress.begun(look.now);
        if self.progress.decision() == Decision::Count {
            for found in &look.found {
                self.progress.decided(1, Some(found.died_ago));
            }
        } else {
            // Lanes that are free first; then those that claims hold, which are waited for.
            let mut held = Vec::new();
            for (lane, positions) in transactions(look.found) {
                if !self.decide(lane, &positions, begun, false).await? {
                    held.push((lane, positions));
                }
            }
            for (lane, positions) in held {
                self.decide(lane, &positions, begun, true).await?;
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

    /// One transaction. `false`: a claim has the lane, and was not to be waited for.
    async fn decide(
        &mut self,
        lane: i16,
        positions: &[i64],
        begun: i64,
        wait: bool,
    ) -> Result<bool, sqlx::Error> {
        let outbox = &self.outbox;
        let Some(mut tx) = outbox.with_lane(&self.pool, lane, wait).await? else {
            return Ok(false);
        };
        let decided = match self.progress.decision() {
            Decision::Discard => outbox.discard_messages(&mut tx, positions, begun).await?,
            _ => outbox.replay_messages(&mut tx, positions, begun).await?,
        };
        outbox.commit_decision(tx).await?;
        self.progress.decided(decided.messages, decided.youngest);
        Ok(true)
    }
}

/// What goes together: messages of one lane, bounded in number and in bytes.
fn transactions(found: Vec<Found>) -> Vec<(i16, Vec<i64>)> {
    let mut lanes: BTreeMap<i16, Vec<(i64, u64)>> = BTreeMap::new();
    for message in found {
        let lane = lanes.entry(message.lane).or_default();
        lane.push((message.position, message.bytes));
    }
    let of_lane = |(lane, messages)| portions(messages).into_iter().map(move |it| (lane, it));
    lanes.into_iter().flat_map(of_lane).collect()
}

fn dead_message(row: &PgRow) -> Result<DeadMessage, sqlx::Error> {
    Ok(DeadMessage {
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
