//! Enqueue: writing messages inside the application's transaction.
//!
//! The trigger of the table gives each message its place, so this is an `INSERT` and nothing else: no
//! session state is changed, and with a prepared statement it is one round trip. It does not wait for
//! a relay and does not know of one.

use std::borrow::Cow;
use std::time::Duration;

use outbox_core::{Message, Uuid};
use sqlx::{Connection as _, PgConnection};

use crate::Outbox;
use crate::admin::to_micros;
use crate::statements::column;

/// One statement of [`Outbox::enqueue_all`] inserts at most so many messages…
const MAX_STATEMENT_MESSAGES: usize = 10_000;
/// …and at most so many bytes of them, unless a single one is larger: the server holds the arrays of a
/// statement in memory, and one value of the protocol may not reach 1 GiB.
const MAX_STATEMENT_BYTES: usize = 16 * 1024 * 1024;

/// A savepoint was asked for outside of a transaction.
const NO_ACTIVE_TRANSACTION: &str = "25P01";

impl Outbox {
    /// Enqueues a message in the transaction of `conn`: it is delivered if and after that commits.
    ///
    /// `conn` is what a transaction or a savepoint gives by `&mut tx`, and a pooled connection by
    /// `&mut conn`. A pool does not fit, on purpose: a message that does not commit with the rows it
    /// speaks of is what an outbox is there to prevent. Outside of a transaction the statement commits
    /// by itself.
    ///
    /// One with a [delay](outbox_core::MessageBuilder::deliver_after) is due so long after this statement, on
    /// the server's clock.
    ///
    /// ```compile_fail,E0308
    /// # async fn wrong(pool: sqlx::PgPool, message: outbox_core::Message) {
    /// outbox_postgres::Outbox::new().enqueue(&pool, &message).await;
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// What the database answered. In a transaction it has failed as after any other error.
    ///
    /// # Cancellation
    ///
    /// Of a dropped call it is open whether it enqueued: roll the transaction back.
    pub async fn enqueue(
        &self,
        conn: &mut PgConnection,
        message: &Message,
    ) -> Result<(), sqlx::Error> {
        let delay = message.deliver_after();
        let statement = match delay {
            Duration::ZERO => include_str!("../sql/enqueue.sql"),
            _ => include_str!("../sql/enqueue_delayed.sql"),
        };
        let query = sqlx::query(self.sql(statement))
            .bind(message.id())
            .bind(message.topic())
            .bind(message.key())
            .bind(message.payload().map(|payload| payload.as_ref()))
            .bind(message.headers().to_json());
        let query = match delay {
            Duration::ZERO => query,
            delay => query.bind(to_micros(delay)),
        };
        query.persistent(self.prepared).execute(conn).await?;
        Ok(())
    }

    /// Drops a delayed message in the transaction of `conn`: when that commits, it is never delivered. `false`:
    /// no delayed message has this id, perhaps since it became due and was enqueued.
    ///
    /// # Errors
    ///
    /// What the database answered. Under `REPEATABLE READ` and `SERIALIZABLE` this is the error 40001 (could not
    /// serialize) where the message became due and was enqueued after the transaction's snapshot; begun again,
    /// it is `false`.
    ///
    /// # Cancellation
    ///
    /// Of a dropped call it is open whether it cancelled the message: roll the transaction back.
    pub async fn cancel(&self, conn: &mut PgConnection, id: Uuid) -> Result<bool, sqlx::Error> {
        sqlx::query_scalar(self.sql(include_str!("../sql/cancel.sql")))
            .bind(id)
            .persistent(self.prepared)
            .fetch_one(conn)
            .await
    }

    /// Enqueues messages in their order, all or none, by one round trip for up to 10,000 of them and
    /// 16 MiB, and another one for those with a delay.
    ///
    /// Otherwise as [`enqueue`](Self::enqueue). Outside of a transaction it makes one of its own where
    /// it needs several statements.
    ///
    /// # Errors
    ///
    /// What the database answered; nothing is enqueued then, once the caller's transaction, if there
    /// is one, is rolled back.
    ///
    /// # Cancellation
    ///
    /// Of a dropped call it is open whether it enqueued: roll the transaction back.
    pub async fn enqueue_all(
        &self,
        conn: &mut PgConnection,
        messages: &[Message],
    ) -> Result<(), sqlx::Error> {
        let (delayed, now): (Vec<&Message>, Vec<&Message>) = messages
            .iter()
            .partition(|message| !message.deliver_after().is_zero());
        let statements: Vec<&[&Message]> = [&now, &delayed]
            .into_iter()
            .flat_map(|messages| statements(messages))
            .collect();
        if let [] | [_] = statements[..] {
            return self.enqueue_statements(conn, &statements).await;
        }
        if in_transaction(conn).await? {
            return self.enqueue_statements(conn, &statements).await;
        }
        let mut tx = conn.begin().await?;
        self.enqueue_statements(&mut tx, &statements).await?;
        tx.commit().await
    }

    async fn enqueue_statements(
        &self,
        conn: &mut PgConnection,
        statements: &[&[&Message]],
    ) -> Result<(), sqlx::Error> {
        for messages in statements {
            self.enqueue_statement(conn, messages).await?;
        }
        Ok(())
    }

    /// Of messages that all have a delay, or none.
    async fn enqueue_statement(
        &self,
        conn: &mut PgConnection,
        messages: &[&Message],
    ) -> Result<(), sqlx::Error> {
        let [first, _, ..] = messages else {
            return match messages {
                [message] => self.enqueue(conn, message).await,
                _ => Ok(()),
            };
        };
        let ids: Vec<Uuid> = messages.iter().map(|message| message.id()).collect();
        let topics: Vec<&str> = messages.iter().map(|message| message.topic()).collect();
        let keys: Vec<Option<&str>> = messages.iter().map(|message| message.key()).collect();
        let payloads: Vec<Option<&[u8]>> = messages
            .iter()
            .map(|message| message.payload().map(|payload| payload.as_ref()))
            .collect();
        let headers: Vec<Option<String>> = messages
            .iter()
            .map(|message| message.headers().to_json())
            .collect();
        let delayed = !first.deliver_after().is_zero();
        let statement = match delayed {
            false => include_str!("../sql/enqueue_all.sql"),
            true => include_str!("../sql/enqueue_all_delayed.sql"),
        };
        let query = sqlx::query(self.sql(statement))
            .bind(ids)
            .bind(topics)
            .bind(keys)
            .bind(payloads)
            .bind(headers);
        let query = match delayed {
            false => query,
            true => query.bind(column(messages, |message| {
                to_micros(message.deliver_after())
            })),
        };
        query.persistent(self.prepared).execute(conn).await?;
        Ok(())
    }
}

/// The messages in parts that go into one statement each.
fn statements<'a>(mut messages: &'a [&'a Message]) -> Vec<&'a [&'a Message]> {
    let mut statements = Vec::new();
    while !messages.is_empty() {
        let (statement, rest) = messages.split_at(statement_len(messages));
        statements.push(statement);
        messages = rest;
    }
    statements
}

/// How many of the next messages go into one statement: at least one, if there are any.
fn statement_len(messages: &[&Message]) -> usize {
    let mut bytes = 0;
    messages
        .iter()
        .take(MAX_STATEMENT_MESSAGES)
        .enumerate()
        .take_while(|(nth, message)| {
            bytes += message.size();
            *nth == 0 || bytes <= MAX_STATEMENT_BYTES
        })
        .count()
}

/// Whether the caller's statements so far are part of a transaction, which one of ours would then end.
///
/// Where sqlx began none the server is asked, since an application may have sent `BEGIN` by hand.
pub(crate) async fn in_transaction(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    if conn.is_in_transaction() {
        return Ok(true);
    }
    match sqlx::raw_sql("SAVEPOINT outbox_question")
        .execute(&mut *conn)
        .await
    {
        Ok(_) => {
            sqlx::raw_sql("RELEASE SAVEPOINT outbox_question")
                .execute(conn)
                .await?;
            Ok(true)
        }
        Err(sqlx::Error::Database(error))
            if error.code() == Some(Cow::Borrowed(NO_ACTIVE_TRANSACTION)) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}
