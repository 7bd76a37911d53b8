//! Keys that are held up: lists of them, and having them tried at once.

use outbox_core::admin::steps::{CHANGED_AT_ONCE, DECIDED_AT_ONCE, Looked, looks_at};
use outbox_core::admin::{Count, Head, HeldKey, KeyFilter, KeyPage, Retried};
use serde_json::Value;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, Row as _, SqlSafeStr as _, SqlStr, Sqlite, SqlitePool};

use super::{glob, text, time, unsigned};
use crate::{Outbox, line, wake};

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
    pool: SqlitePool,
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
        pool: &SqlitePool,
        filter: &KeyFilter,
        from: Option<i64>,
        limit: u32,
    ) -> Result<KeyPage, sqlx::Error> {
        let limit = limit.clamp(1, PAGE);
        let sql = self.keys_statement(include_str!("../../sql/keys_page.sql"));
        let rows = query(sql, filter, from.unwrap_or(i64::MIN), limit)
            .bind(FOLLOWERS as i64)
            .fetch_all(pool)
            .await?;
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
    pub fn retry_now(&self, pool: &SqlitePool, filter: KeyFilter) -> KeySteps {
        KeySteps {
            outbox: self.clone(),
            pool: pool.clone(),
            filter,
            from: Some(i64::MIN),
            done: Retried::default(),
        }
    }

    fn keys_statement(&self, text: &'static str) -> SqlStr {
        let text = text.replace("{found}", include_str!("../../sql/keys_found.sql"));
        AssertSqlSafe(self.prefix.sql(&text)).into_sql_str()
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
    /// What the database answered. Some of the keys may be due then. The step may be repeated.
    ///
    /// # Cancellation
    ///
    /// As after an error. [`done`](Self::done) does not know of the transaction that was under way.
    pub async fn step(&mut self) -> Result<bool, sqlx::Error> {
        let Some(from) = self.from else {
            return Ok(false);
        };
        let sql = self
            .outbox
            .keys_statement(include_str!("../../sql/keys_step.sql"));
        let rows = query(sql, &self.filter, from, DECIDED_AT_ONCE)
            .fetch_all(&self.pool)
            .await?;
        let (number, next) = looked(&rows, 2, &self.filter, DECIDED_AT_ONCE)?;
        let mut lines: Vec<i64> = Vec::new();
        for row in &rows {
            lines.extend(row.try_get::<Option<i64>, _>(2)?);
        }
        for lines in lines.chunks(CHANGED_AT_ONCE) {
            let statement = self.outbox.sql(include_str!("../../sql/retry_keys.sql"));
            let done = sqlx::query(statement)
                .bind(Value::from(lines).to_string())
                .execute(&self.pool)
                .await?;
            wake::soon();
            self.done.keys += done.rows_affected();
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
}

/// The parameters that a page and a step have in common. A key is looked for where it is.
fn query(
    sql: SqlStr,
    filter: &KeyFilter,
    from: i64,
    limit: u32,
) -> Query<'static, Sqlite, SqliteArguments> {
    let (from, to) = match filter.key.as_deref().map(line::of_key) {
        Some(line) => (from.max(line), line),
        None => (from, i64::MAX),
    };
    sqlx::query(sql)
        .bind(from)
        .bind(to)
        .bind(looks_at(*filter == KeyFilter::all(), limit))
        .bind(filter.key.clone())
        .bind(filter.topic.as_ref().map(glob))
        .bind(filter.halted)
        .bind(limit)
}

/// How many keys were looked at, and where the next look begins; the key itself is at `column`.
fn looked(
    rows: &[SqliteRow],
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

fn held_key(row: &SqliteRow) -> Result<HeldKey, sqlx::Error> {
    let head = match row.try_get::<Option<i64>, _>(4)? {
        Some(position) => Some(Head {
            position,
            id: row.try_get(5)?,
            topic: text(row.try_get(6)?),
            key: row.try_get::<Option<Vec<u8>>, _>(7)?.map(text),
            enqueued_at: time(row.try_get(8)?),
            parked: row.try_get(9)?,
            failures: row.try_get(10)?,
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
