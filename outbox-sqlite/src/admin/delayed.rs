//! Messages that are not due yet. Cancelling one is `enqueue.rs`'s, in a transaction.

use std::time::SystemTime;

use outbox_core::admin::{DelayedMessage, DelayedPage, DelayedPlace};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqlitePool};

use super::{text, time, unsigned};
use crate::Outbox;

/// A page has so many messages at most.
const PAGE: u32 = 10_000;

impl Outbox {
    /// A page of the delayed messages, those that are due first: up to `limit` (at most 10,000) of those behind
    /// `after`, which is the [`next`](DelayedPage::next) of the page before. [`cancel`](Self::cancel) drops one.
    ///
    /// # Errors
    ///
    /// What the database answered.
    pub async fn delayed(
        &self,
        pool: &SqlitePool,
        after: Option<DelayedPlace>,
        limit: u32,
    ) -> Result<DelayedPage, sqlx::Error> {
        let limit = limit.clamp(1, PAGE);
        let mut rows = sqlx::query(self.sql(include_str!("../../sql/delayed.sql")))
            .bind(after.map(|after| after.micros / 1_000))
            .bind(after.map_or(0, |after| after.number))
            .bind(i64::from(limit) + 1)
            .fetch_all(pool)
            .await?;
        let now = match rows.first() {
            Some(row) => time(row.try_get(7)?),
            None => SystemTime::now(),
        };
        let has_more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let last = rows.last().filter(|_| has_more);
        Ok(DelayedPage {
            messages: rows.iter().map(message).collect::<Result<_, _>>()?,
            next: last.map(place).transpose()?,
            now,
        })
    }
}

fn message(row: &SqliteRow) -> Result<DelayedMessage, sqlx::Error> {
    Ok(DelayedMessage {
        id: row.try_get(0)?,
        topic: text(row.try_get(1)?),
        key: row.try_get::<Option<Vec<u8>>, _>(2)?.map(text),
        payload_bytes: row.try_get::<Option<i64>, _>(3)?.map(unsigned),
        enqueued_at: time(row.try_get(4)?),
        deliver_at: time(row.try_get(5)?),
    })
}

fn place(row: &SqliteRow) -> Result<DelayedPlace, sqlx::Error> {
    let millis: i64 = row.try_get(5)?;
    Ok(DelayedPlace {
        micros: millis.saturating_mul(1_000),
        number: row.try_get(6)?,
    })
}
