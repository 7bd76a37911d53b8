//! Messages that are not due yet. Cancelling one is `enqueue.rs`'s, in a transaction.

use std::time::SystemTime;

use outbox_core::admin::{DelayedList, DelayedMessage};
use sqlx::{Row as _, SqlitePool};

use super::{text, time, unsigned};
use crate::Outbox;

impl Outbox {
    /// The delayed messages that are due first, at most `most` of them. [`cancel`](Self::cancel) drops one.
    ///
    /// # Errors
    ///
    /// What the database answered.
    pub async fn delayed(&self, pool: &SqlitePool, most: u32) -> Result<DelayedList, sqlx::Error> {
        let mut rows = sqlx::query(self.sql(include_str!("../../sql/delayed.sql")))
            .bind(i64::from(most) + 1)
            .fetch_all(pool)
            .await?;
        let now = match rows.first() {
            Some(row) => time(row.try_get(6)?),
            None => SystemTime::now(),
        };
        let more = rows.len() > most as usize;
        rows.truncate(most as usize);
        let message = |row: &sqlx::sqlite::SqliteRow| {
            Ok(DelayedMessage {
                id: row.try_get(0)?,
                topic: text(row.try_get(1)?),
                key: row.try_get::<Option<Vec<u8>>, _>(2)?.map(text),
                payload_bytes: row.try_get::<Option<i64>, _>(3)?.map(unsigned),
                enqueued_at: time(row.try_get(4)?),
                deliver_at: time(row.try_get(5)?),
            })
        };
        let messages: Result<_, sqlx::Error> = rows.iter().map(message).collect();
        Ok(DelayedList {
            messages: messages?,
            more,
            now,
        })
    }
}
