//! Enqueue: writing messages inside the application's transaction.
//!
//! An `INSERT` and nothing else: it does not wait for a relay and does not know of one. A relay that
//! sleeps in this process is told that a commit may come soon; see `store.rs`.

use std::time::Duration;

use outbox_core::{Message, Uuid};
use sqlx::{Connection as _, SqliteConnection};

use crate::{Outbox, line, wake};

impl Outbox {
    /// Enqueues a message in the transaction of `conn`: it is delivered if and after that commits.
    ///
    /// `conn` is what a transaction or a savepoint gives by `&mut tx`, and a pooled connection by
    /// `&mut conn`. A pool does not fit, on purpose: a message that does not commit with the rows it
    /// speaks of is what an outbox is there to prevent. Outside of a transaction the statement commits
    /// by itself.
    ///
    /// One with a [delay](outbox_core::MessageBuilder::deliver_after) is due so long after this statement, to
    /// the millisecond.
    ///
    /// ```compile_fail,E0308
    /// # async fn wrong(pool: sqlx::SqlitePool, message: outbox_core::Message) {
    /// outbox_sqlite::Outbox::new().enqueue(&pool, &message).await;
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// What the database answered. `database is locked` is another writer that did not end within the
    /// busy timeout of the connection, or, at once, one that wrote after this transaction began to read:
    /// begin it with `BEGIN IMMEDIATE`.
    ///
    /// # Cancellation
    ///
    /// Of a dropped call it is open whether it enqueued: roll the transaction back.
    pub async fn enqueue(
        &self,
        conn: &mut SqliteConnection,
        message: &Message,
    ) -> Result<(), sqlx::Error> {
        let delay = message.deliver_after();
        let statement = match delay {
            Duration::ZERO => include_str!("../sql/enqueue.sql"),
            _ => include_str!("../sql/enqueue_delayed.sql"),
        };
        let query = sqlx::query(self.sql(statement))
            .bind(line::of(message))
            .bind(message.id())
            .bind(message.topic())
            .bind(message.key())
            .bind(message.headers().to_json())
            .bind(message.payload().map(|payload| payload.as_ref()));
        let query = match delay {
            Duration::ZERO => query,
            delay => query.bind(i64::try_from(delay.as_micros()).unwrap_or(i64::MAX)),
        };
        query.execute(conn).await?;
        wake::soon();
        Ok(())
    }

    /// Drops a delayed message in the transaction of `conn`: when that commits, it is never delivered. `false`:
    /// no delayed message has this id, perhaps since it became due and was enqueued.
    ///
    /// # Errors
    ///
    /// What the database answered, as of [`enqueue`](Self::enqueue).
    ///
    /// # Cancellation
    ///
    /// Of a dropped call it is open whether it cancelled the message: roll the transaction back.
    pub async fn cancel(&self, conn: &mut SqliteConnection, id: Uuid) -> Result<bool, sqlx::Error> {
        let cancelled = sqlx::query(self.sql(include_str!("../sql/cancel.sql")))
            .bind(id)
            .execute(conn)
            .await?;
        Ok(cancelled.rows_affected() > 0)
    }

    /// Enqueues messages in their order, all or none.
    ///
    /// In a transaction it makes a savepoint of its own, outside of one a transaction. Otherwise as
    /// [`enqueue`](Self::enqueue).
    ///
    /// # Errors
    ///
    /// What the database answered; nothing is enqueued then. In a transaction that was begun by a
    /// statement, behind the back of sqlx, the caller has to roll it back.
    ///
    /// # Cancellation
    ///
    /// Of a dropped call it is open whether it enqueued: roll the transaction back.
    pub async fn enqueue_all(
        &self,
        conn: &mut SqliteConnection,
        messages: &[Message],
    ) -> Result<(), sqlx::Error> {
        let refused = match conn.begin().await {
            Ok(mut tx) => {
                self.enqueue_each(&mut tx, messages).await?;
                return tx.commit().await;
            }
            Err(error) => error,
        };
        match refused {
            // Within a transaction that sqlx did not begin there is none to begin.
            sqlx::Error::Database(_) => self.enqueue_each(conn, messages).await,
            error => Err(error),
        }
    }

    async fn enqueue_each(
        &self,
        conn: &mut SqliteConnection,
        messages: &[Message],
    ) -> Result<(), sqlx::Error> {
        for message in messages {
            self.enqueue(conn, message).await?;
        }
        Ok(())
    }
}
