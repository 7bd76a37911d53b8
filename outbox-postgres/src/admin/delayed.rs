//! Messages that are not due yet. Cancelling one is `enqueue.rs`'s, in a transaction.

use outbox_core::admin::{DelayedMessage, DelayedPage, DelayedPlace};
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row as _};

use super::{BEGIN_LOOK, time, unsigned};
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
        pool: &PgPool,
        after: Option<DelayedPlace>,
        limit: u32,
    ) -> Result<DelayedPage, sqlx::Error> {
        let limit = limit.clamp(1, PAGE);
        let mut tx = pool.begin_with(BEGIN_LOOK).await?;
        let mut rows = sqlx::query(self.sql(include_str!("../../sql/delayed.sql")))
            .bind(after.map(|after| after.micros))
            .bind(after.map_or(0, |after| after.number))
            .bind(i64::from(limit) + 1)
            .persistent(false)
            .fetch_all(&mut *tx)
            .await?;
        let now: i64 = sqlx::query_scalar(include_str!("../../sql/now.sql"))
            .persistent(false)
            .fetch_one(&mut *tx)
            .await?;
        tx.commit().await?;
        let has_more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let last = rows.last().filter(|_| has_more);
        Ok(DelayedPage {
            messages: rows.iter().map(message).collect::<Result<_, _>>()?,
            next: last.map(place).transpose()?,
            now: time(now),
        })
    }
}

fn message(row: &PgRow) -> Result<DelayedMessage, sqlx::Error> {
    Ok(DelayedMessage {
        id: row.try_get(0)?,
        topic: row.try_get(1)?,
        key: row.try_get(2)?,
        payload_bytes: row.try_get::<Option<i64>, _>(3)?.map(unsigned),
        enqueued_at: time(row.try_get(4)?),
        deliver_at: time(row.try_get(5)?),
    })
}

fn place(row: &PgRow) -> Result<DelayedPlace, sqlx::Error> {
    Ok(DelayedPlace {
        micros: row.try_get(5)?,
        number: row.try_get(6)?,
    })
}
