//! Messages that are not due yet. Cancelling one is `enqueue.rs`'s, in a transaction.

use outbox_core::admin::{DelayedList, DelayedMessage};
use sqlx::{PgPool, Row as _};

use super::{BEGIN_LOOK, time, unsigned};
use crate::Outbox;

impl Outbox {
    /// The delayed messages that are due first, at most `most` of them. [`cancel`](Self::cancel) drops one.
    ///
    /// # Errors
    ///
    /// What the database answered.
    pub async fn delayed(&self, pool: &PgPool, most: u32) -> Result<DelayedList, sqlx::Error> {
        let mut tx = pool.begin_with(BEGIN_LOOK).await?;
        let mut rows = sqlx::query(self.sql(include_str!("../../sql/delayed.sql")))
            .bind(i64::from(most) + 1)
            .persistent(false)
            .fetch_all(&mut *tx)
            .await?;
        let now: i64 = sqlx::query_scalar(include_str!("../../sql/now.sql"))
            .persistent(false)
            .fetch_one(&mut *tx)
            .await?;
        tx.commit().await?;
        let more = rows.len() > most as usize;
        rows.truncate(most as usize);
        let message = |row: &sqlx::postgres::PgRow| {
            Ok(DelayedMessage {
                id: row.try_get(0)?,
                topic: row.try_get(1)?,
                key: row.try_get(2)?,
                payload_bytes: row.try_get::<Option<i64>, _>(3)?.map(unsigned),
                enqueued_at: time(row.try_get(4)?),
                deliver_at: time(row.try_get(5)?),
            })
        };
        let messages: Result<_, sqlx::Error> = rows.iter().map(message).collect();
        Ok(DelayedList {
            messages: messages?,
            more,
            now: time(now),
        })
    }
}
