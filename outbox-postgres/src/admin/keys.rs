//! Keys that are held up: lists of them, and having them tried at once.

use std::collections::BTreeMap;

use outbox_core::admin::steps::{CHANGED_AT_ONCE, DECIDED_AT_ONCE, Looked, looks_at};
use outbox_core::admin::{Count, Head, HeldKey, KeyFilter, KeyPage, Retried};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, PgPool, Postgres, Row as _, SqlSafeStr as _, SqlStr};

use super::{BEGIN_LOOK, count, like, time, unsigned};
use crate::Outbox;

/// What waits behind a head is counted so far.
const FOLLOWERS: u64 = 1_000;
/// A page has so many keys at most, since those behind each are counted.
const PAGE: u32 = 1_000;

/// Has keys tried at once, step by step: made by [`Outbox::retry_now`], and nothing until its first
/// step. Each key is looked at once, so it ends, whatever is parked again meanwhile.
#[derive(Debug)]
#[must_use = "nothing is retried before the first step"]
pub struct KeySteps {
    outbox: Outbox,
    pool: PgPool,
    filter: KeyFilter,
    from: Option<i64>,
    done: Retried,
}

impl Outbox {
    /// A page of the keys that are held up, of up to `limit` (at most 1,000): those from `from` on,
    /// which is the [`next`](KeyPage::next) of the page before.
    ///
    /// One call goes over 10,000 keys at most, so with a filter that fits few it may give back none and
    /// still have a next page. Followers are counted to 1,000.
    ///
    /// # Errors
    ///
    /// What the database answered.
    pub async fn held_keys(
        &self,
        pool: &PgPool,
        filter: &KeyFilter,
        from: Option<i64>,
        limit: u32,
    ) -> Result<KeyPage, sqlx::Error> {
        let limit = limit.clamp(1, PAGE);
        let mut tx = pool.begin_with(BEGIN_LOOK).await?;
        let sql = self.keys_statement(include_str!("../../sql/keys_page.sql"), filter);
        let rows = query(sql, filter, from, limit)
            .bind(FOLLOWERS as i64)
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        let (_, next) = looked(&rows, 3, filter, limit)?;
        let now = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(2)?;
        let keys = rows
            .iter()
            .filter(|row| !matches!(row.try_get::<Option<i64>, _>(3), Ok(None)))
            .map(held_key);
        Ok(KeyPage {
            keys: keys.collect::<Result<_, _>>()?,
            next,
            now: time(now),
        })
    }

    /// Has keys that are held up tried as soon as a relay has time, instead of after their back-off.
    /// Nothing is counted for it, and what was counted stays. A halted key waits for a decision about
    /// its dead message, so it is passed over.
    pub fn retry_now(&self, pool: &PgPool, filter: KeyFilter) -> KeySteps {
        KeySteps {
            outbox: self.clone(),
            pool: pool.clone(),
            filter,
            from: Some(i64::MIN),
            done: Retried::default(),
        }
    }

    /// A statement that looks for what a filter means, by the index that finds it.
    fn keys_statement(&self, text: &'static str, filter: &KeyFilter) -> SqlStr {
        let source = match filter.key {
            Some(_) => include_str!("../../sql/keys_from_key.sql"),
            None => include_str!("../../sql/keys_from_all.sql"),
        };
        let text = text
            .replace("{found}", include_str!("../../sql/keys_found.sql"))
            .replace("{source}", source);
        AssertSqlSafe(self.schema.sql(&text)).into_sql_str()
    }
}

impl KeySteps {
    /// What came of it so far.
    pub fn done(&self) -> Retried {
        self.done
    }

    /// Looks at up to 10,000 keys and has up to 4,000 of them tried. Gives back whether there may be
    /// more.
    ///
    /// # Errors
    ///
    /// What the database answered; a lane that a claim holds is waited for, but no longer than two
    /// minutes. The keys of some lanes may be due then. The step may be repeated.
    ///
    /// # Cancellation
    ///
    /// As after an error. [`done`](Self::done) does not know of the transaction that was under way.
    pub async fn step(&mut self) -> Result<bool, sqlx::Error> {
        let Some(from) = self.from else {
            return Ok(false);
        };
        let outbox = &self.outbox;
        let mut tx = self.pool.begin_with(BEGIN_LOOK).await?;
        let sql = outbox.keys_statement(include_str!("../../sql/keys_step.sql"), &self.filter);
        let rows = query(sql, &self.filter, Some(from), DECIDED_AT_ONCE)
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        let (number, next) = looked(&rows, 2, &self.filter, DECIDED_AT_ONCE)?;
        let mut lanes: BTreeMap<i16, Vec<i64>> = BTreeMap::new();
        for row in &rows {
            if let Some(key_hash) = row.try_get(2)? {
                lanes.entry(row.try_get(3)?).or_default().push(key_hash);
            }
        }
        // Lanes that are free first; then those that claims hold, which are waited for.
        let mut held = Vec::new();
        for (lane, keys) in lanes {
            for keys in keys.chunks(CHANGED_AT_ONCE) {
                if !self.retry(lane, keys, false).await? {
                    held.push((lane, keys.to_vec()));
                }
            }
        }
        for (lane, keys) in held {
            self.retry(lane, &keys, true).await?;
        }
        self.done.looked_at += number;
        self.from = next;
        Ok(self.from.is_some())
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
    pub async fn finish(mut self) -> Result<Retried, sqlx::Error> {
        while self.step().await? {}
        Ok(self.done)
    }

    /// One transaction. `false`: a claim has the lane, and was not to be waited for.
    async fn retry(&mut self, lane: i16, keys: &[i64], wait: bool) -> Result<bool, sqlx::Error> {
        let outbox = &self.outbox;
        let Some(mut tx) = outbox.with_lane(&self.pool, lane, wait).await? else {
            return Ok(false);
        };
        let done = sqlx::query(outbox.sql(include_str!("../../sql/retry_keys.sql")))
            .bind(keys)
            .persistent(false)
            .execute(&mut *tx)
            .await?;
        outbox.commit_decision(tx).await?;
        self.done.keys += done.rows_affected();
        Ok(true)
    }
}

/// The parameters that a page and a step have in common.
fn query(
    sql: SqlStr,
    filter: &KeyFilter,
    from: Option<i64>,
    limit: u32,
) -> Query<'static, Postgres, PgArguments> {
    sqlx::query(sql)
        .bind(from.unwrap_or(i64::MIN))
        .bind(i64::from(looks_at(*filter == KeyFilter::all(), limit)))
        .bind(filter.key.clone())
        .bind(filter.topic.as_ref().map(like))
        .bind(filter.halted)
        .bind(i64::from(limit))
        .persistent(false)
}

/// How many keys were looked at, and where the next look begins; the key itself is at `column`.
fn looked(
    rows: &[PgRow],
    column: usize,
    filter: &KeyFilter,
    limit: u32,
) -> Result<(u64, Option<i64>), sqlx::Error> {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
        return Err(sqlx::Error::RowNotFound);
    };
    let looked = Looked {
        number: unsigned(first.try_get(0)?),
        last: first.try_get(1)?,
        found: rows.len(),
        last_found: last.try_get(column)?,
    };
    let bound = looks_at(*filter == KeyFilter::all(), limit);
    let behind = looked.next(limit, Some(bound));
    Ok((looked.number, behind.and_then(|last| last.checked_add(1))))
}

fn held_key(row: &PgRow) -> Result<HeldKey, sqlx::Error> {
    let head = match row.try_get::<Option<i64>, _>(4)? {
        Some(position) => Some(Head {
            position,
            id: row.try_get(5)?,
            topic: row.try_get(6)?,
            key: row.try_get(7)?,
            enqueued_at: time(row.try_get(8)?),
            parked: count(row.try_get(9)?),
            failures: count(row.try_get(10)?),
        }),
        None => None,
    };
    Ok(HeldKey {
        line: row.try_get(3)?,
        head,
        error_kind: row.try_get(11)?,
        error: row.try_get(12)?,
        since: time(row.try_get(13)?),
        next_try: row.try_get::<Option<i64>, _>(14)?.map(time),
        followers: Count::up_to(FOLLOWERS, unsigned(row.try_get(15)?)),
        halted: row.try_get(16)?,
    })
}
