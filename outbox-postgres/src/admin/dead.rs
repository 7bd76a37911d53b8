//! Dead messages: lists of them, and decisions, in steps.
//!
//! Whatever is asked for, one look goes over a bounded number of rows by an index, in the order of
//! position, and the next one begins behind it. So a filter that fits nothing in a million rows takes a
//! hundred short statements and none that is long.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use outbox_core::Uuid;
use outbox_core::admin::{DeadContent, DeadFilter, DeadMessage, DeadPage, Decided};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, Row as _, SqlSafeStr as _, SqlStr};

use super::{
    BEGIN_LOOK, CHANGED_AT_ONCE, LOOKED_AT, count, like, micros, time, to_micros, unsigned,
};
use crate::Outbox;

/// A step decides about so many messages at most, each lane's in a transaction of its own.
const STEP: u32 = 4_000;
/// A step looks for so many ids at a time.
const IDS_AT_ONCE: usize = 1_000;
/// A transaction moves so many bytes of payload at most; one larger message goes alone.
const BYTES_AT_ONCE: i64 = 16 * 1024 * 1024;

/// What is done with the messages that are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Count,
    Replay,
    Discard,
}

/// A decision about dead messages, carried out step by step: made by [`Outbox::replay`],
/// [`Outbox::discard`] and [`Outbox::count_dead`], and nothing until its first step.
///
/// It means the messages that are dead when its first step begins, and each of them once: what dies
/// later, or again, is left alone. So it ends, whatever dies meanwhile. Of two people who decide about
/// the same messages at the same time, each message is decided about by one.
///
/// ```no_run
/// # async fn example(pool: &sqlx::PgPool) -> Result<(), sqlx::Error> {
/// use outbox_core::admin::DeadFilter;
/// use outbox_postgres::Outbox;
///
/// let mut replay = Outbox::new().replay(pool, DeadFilter::all());
/// while replay.step().await? {
///     println!("{} so far", replay.done().messages);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is decided before the first step"]
pub struct DeadSteps {
    outbox: Outbox,
    pool: PgPool,
    decision: Decision,
    filter: DeadFilter,
    limit: u64,
    /// When the first step began, in microseconds since the epoch.
    begun: Option<i64>,
    /// The position behind which the next step looks.
    after: i64,
    /// How many of the filter's ids were looked for.
    ids_done: usize,
    over: bool,
    done: Decided,
}

/// A message that a decision is about.
struct Found {
    position: i64,
    lane: i16,
    bytes: i64,
    died_ago: Duration,
}

/// What one look found.
struct Looked {
    found: Vec<Found>,
    number: u64,
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
        let limit = limit.clamp(1, LOOKED_AT);
        let mut tx = pool.begin_with(BEGIN_LOOK).await?;
        let sql = self.statement(include_str!("../../sql/dead_page.sql"), filter);
        let ids = filter.ids.as_deref();
        let rows = query(sql, filter, ids, after.unwrap_or(i64::MIN), limit, None)
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        let (_, next, now) = looked(&rows, filter, limit)?;
        let messages = rows
            .iter()
            .filter(|row| !matches!(row.try_get::<Option<i64>, _>(3), Ok(None)))
            .map(|row| dead_message(row, 3));
        Ok(DeadPage {
            messages: messages.collect::<Result<_, _>>()?,
            next,
            now: time(now),
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
                message: dead_message(&row, 0)?,
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

    fn decide(&self, pool: &PgPool, mut filter: DeadFilter, decision: Decision) -> DeadSteps {
        if let Some(ids) = &mut filter.ids {
            ids.sort_unstable();
            ids.dedup();
        }
        DeadSteps {
            outbox: self.clone(),
            pool: pool.clone(),
            decision,
            filter,
            limit: u64::MAX,
            begun: None,
            after: i64::MIN,
            ids_done: 0,
            over: false,
            done: Decided::default(),
        }
    }

    /// A statement that looks for what a filter means, by the index that finds it.
    fn statement(&self, text: &'static str, filter: &DeadFilter) -> SqlStr {
        let source = match filter {
            DeadFilter { ids: Some(_), .. } => include_str!("../../sql/dead_from_ids.sql"),
            DeadFilter { key: Some(_), .. } => include_str!("../../sql/dead_from_key.sql"),
            _ => include_str!("../../sql/dead_from_all.sql"),
        };
        let text = text
            .replace("{matches}", include_str!("../../sql/dead_matches.sql"))
            .replace("{source}", source);
        AssertSqlSafe(self.schema.sql(&text)).into_sql_str()
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
    /// Ends after so many messages, those that were enqueued first.
    pub fn limit(mut self, messages: u64) -> Self {
        self.limit = messages;
        self
    }

    /// What came of it so far.
    pub fn done(&self) -> Decided {
        self.done
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
        let left = self.limit.saturating_sub(self.done.messages);
        if self.over || left == 0 {
            return Ok(false);
        }
        let ids = self.ids().map(<[Uuid]>::to_vec);
        if ids.as_ref().is_some_and(Vec::is_empty) {
            self.over = true;
            return Ok(false);
        }
        let step = u32::try_from(left).map_or(STEP, |left| left.min(STEP));
        let looked = self.look(ids.as_deref(), step).await?;
        let begun = *self.begun.get_or_insert(looked.now);
        if self.decision == Decision::Count {
            for found in &looked.found {
                self.done.add(1, Some(found.died_ago));
            }
        } else {
            self.decide(looked.found, begun).await?;
        }
        self.done.looked_at += looked.number;
        match looked.next {
            Some(next) => self.after = next,
            None => {
                self.after = i64::MIN;
                self.ids_done += ids.as_ref().map_or(0, Vec::len);
                self.over = ids.is_none();
            }
        }
        Ok(!self.over)
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
        Ok(self.done)
    }

    /// The ids that this step looks for; `None`: it does not go by ids.
    fn ids(&self) -> Option<&[Uuid]> {
        let left = self.filter.ids.as_ref()?.get(self.ids_done..)?;
        Some(&left[..left.len().min(IDS_AT_ONCE)])
    }

    async fn look(&self, ids: Option<&[Uuid]>, limit: u32) -> Result<Looked, sqlx::Error> {
        let (outbox, filter) = (&self.outbox, &self.filter);
        let mut tx = self.pool.begin_with(BEGIN_LOOK).await?;
        let sql = outbox.statement(include_str!("../../sql/dead_step.sql"), filter);
        let rows = query(sql, filter, ids, self.after, limit, self.begun)
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        let (number, next, now) = looked(&rows, filter, limit)?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Some(position) = row.try_get(3)? {
                found.push(Found {
                    position,
                    lane: row.try_get(4)?,
                    bytes: row.try_get(5)?,
                    died_ago: micros(row.try_get(6)?),
                });
            }
        }
        Ok(Looked {
            found,
            number,
            now,
            next,
        })
    }

    /// Lanes that are free first; then those that claims hold, which are waited for.
    async fn decide(&mut self, found: Vec<Found>, begun: i64) -> Result<(), sqlx::Error> {
        let mut held = Vec::new();
        for (lane, positions) in transactions(found) {
            if !self.decide_lane(lane, &positions, begun, false).await? {
                held.push((lane, positions));
            }
        }
        for (lane, positions) in held {
            self.decide_lane(lane, &positions, begun, true).await?;
        }
        Ok(())
    }

    async fn decide_lane(
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
        let decided = match self.decision {
            Decision::Discard => outbox.discard_messages(&mut tx, positions, begun).await?,
            _ => outbox.replay_messages(&mut tx, positions, begun).await?,
        };
        outbox.commit_decision(tx).await?;
        self.done.add(decided.messages, decided.youngest);
        Ok(true)
    }
}

/// What goes together: messages of one lane, bounded in number and in bytes.
fn transactions(found: Vec<Found>) -> Vec<(i16, Vec<i64>)> {
    let mut lanes: BTreeMap<i16, Vec<Found>> = BTreeMap::new();
    for message in found {
        lanes.entry(message.lane).or_default().push(message);
    }
    let mut transactions: Vec<(i16, Vec<i64>)> = Vec::new();
    for (lane, messages) in lanes {
        let mut bytes = 0;
        let mut positions = Vec::new();
        for message in messages {
            let full = bytes + message.bytes > BYTES_AT_ONCE || positions.len() >= CHANGED_AT_ONCE;
            if full && !positions.is_empty() {
                transactions.push((lane, std::mem::take(&mut positions)));
                bytes = 0;
            }
            bytes += message.bytes;
            positions.push(message.position);
        }
        transactions.push((lane, positions));
    }
    transactions
}

/// The parameters that a page and a step have in common.
fn query(
    sql: SqlStr,
    filter: &DeadFilter,
    ids: Option<&[Uuid]>,
    after: i64,
    limit: u32,
    begun: Option<i64>,
) -> Query<'static, Postgres, PgArguments> {
    sqlx::query(sql)
        .bind(after)
        .bind(i64::from(looks_at(filter, limit)))
        .bind(i64::from(limit))
        .bind(begun)
        .bind(ids.map(<[Uuid]>::to_vec))
        .bind(filter.key.clone())
        .bind(filter.topic.as_ref().map(like))
        .bind(filter.error_kind.clone())
        .bind(filter.older_than.map(to_micros))
        .bind(filter.younger_than.map(to_micros))
        .persistent(false)
}

/// How many messages one look goes over: where all fit, no more than are asked for.
fn looks_at(filter: &DeadFilter, limit: u32) -> u32 {
    if *filter == DeadFilter::all() {
        limit
    } else {
        LOOKED_AT
    }
}

/// How many messages were looked at, where the next look begins, and the database's clock.
fn looked(
    rows: &[PgRow],
    filter: &DeadFilter,
    limit: u32,
) -> Result<(u64, Option<i64>, i64), sqlx::Error> {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
        return Err(sqlx::Error::RowNotFound);
    };
    let number = unsigned(first.try_get(0)?);
    let end: Option<i64> = first.try_get(1)?;
    let last_found: Option<i64> = last.try_get(3)?;
    let bounded = filter.ids.is_none() && number >= u64::from(looks_at(filter, limit));
    // Where the page is full, what was looked at behind its last message is looked at again.
    let next = match last_found {
        Some(_) if rows.len() >= limit as usize && last_found < end => last_found,
        _ if bounded => end,
        _ => None,
    };
    Ok((number, next, first.try_get(2)?))
}

/// A message from its columns, the first of which is at `column`.
fn dead_message(row: &PgRow, column: usize) -> Result<DeadMessage, sqlx::Error> {
    Ok(DeadMessage {
        position: row.try_get(column)?,
        id: row.try_get(column + 1)?,
        topic: row.try_get(column + 2)?,
        key: row.try_get(column + 3)?,
        payload_bytes: row.try_get::<Option<i64>, _>(column + 4)?.map(unsigned),
        enqueued_at: time(row.try_get(column + 5)?),
        died_at: time(row.try_get(column + 6)?),
        parked: count(row.try_get(column + 7)?),
        failures: count(row.try_get(column + 8)?),
        error_kind: row.try_get(column + 9)?,
        error: row.try_get(column + 10)?,
        halted: row.try_get(column + 11)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(position: i64, lane: i16, bytes: i64) -> Found {
        Found {
            position,
            lane,
            bytes,
            died_ago: Duration::ZERO,
        }
    }

    #[test]
    fn a_transaction_is_of_one_lane_and_bounded() {
        let half = BYTES_AT_ONCE / 2;
        let messages = vec![
            found(1, 7, half),
            found(2, 3, 1),
            found(3, 7, half),
            found(4, 7, 1),
            found(5, 3, 3 * BYTES_AT_ONCE),
            found(6, 3, 1),
        ];
        assert_eq!(
            transactions(messages),
            [
                (3, vec![2]),
                (3, vec![5]),
                (3, vec![6]),
                (7, vec![1, 3]),
                (7, vec![4])
            ]
        );
        let many = (0..2_500).map(|position| found(position, 1, 0)).collect();
        let lengths: Vec<usize> = transactions(many).iter().map(|(_, p)| p.len()).collect();
        assert_eq!(lengths, [1_000, 1_000, 500]);
    }
}
