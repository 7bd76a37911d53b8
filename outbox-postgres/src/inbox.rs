//! The inbox: a consumer's memory of the messages that it has processed.
//!
//! Delivery is at-least-once, so a consumer gets some messages again. It asks here, in the transaction of
//! its work, whether it meets a message for the first time; what it is told is remembered by that
//! transaction, and so for ever or not at all. The unique index makes transactions that ask for one message
//! at the same time wait for each other.
//!
//! It knows no broker: a consumer acknowledges to its broker after the transaction, never before.

use std::time::Duration;

use outbox_core::Uuid;
use outbox_core::inbox::check_consumer;
use sqlx::{PgConnection, PgPool};

use crate::admin::{to_micros, unsigned};
use crate::enqueue::in_transaction;
use crate::{InvalidSchema, MigrateError, Outbox};

/// One step of [`Inbox::forget`] deletes at most so many rows.
const FORGOTTEN_IN_A_STEP: i64 = 1_000;

/// Begins a step. The isolation is named, so that a stricter default of the server makes no step fail; a
/// consumer that asks for a message that is being forgotten waits no longer than a step takes.
const BEGIN_STEP: &str = "\
    BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
    SET LOCAL statement_timeout = '10s'; \
    SET LOCAL idle_in_transaction_session_timeout = '10s'; \
    SET LOCAL jit = off; \
    SET LOCAL enable_seqscan = off; \
    SET LOCAL enable_bitmapscan = off";

/// The inbox in a Postgres database, in the schema of an outbox, `outbox` unless told otherwise.
///
/// It holds no connection and costs nothing to make, so a `static` is a good place for it.
///
/// ```no_run
/// use outbox_core::Uuid;
/// use outbox_postgres::Inbox;
/// use sqlx::PgPool;
///
/// static INBOX: Inbox = Inbox::new();
///
/// async fn bill(pool: &PgPool, message_id: Uuid, order: i64) -> Result<(), sqlx::Error> {
///     INBOX
///         .once(pool, "billing", message_id, async |tx| {
///             sqlx::query("INSERT INTO invoices (order_id) VALUES ($1)").bind(order).execute(tx).await
///         })
///         .await?;
///     // Now, and not before, the message is acknowledged to the broker.
///     Ok(())
/// }
/// ```
///
/// A consumer is a name: what one has processed another has not. All instances of a service have the same
/// one. An id is remembered whatever topic or broker it came from, since it is that of the message.
#[derive(Clone, Debug, Default)]
pub struct Inbox {
    outbox: Outbox,
}

impl Inbox {
    /// The inbox in the schema `outbox`.
    pub const fn new() -> Self {
        Self {
            outbox: Outbox::new(),
        }
    }

    /// The inbox in a schema of another name.
    ///
    /// # Errors
    ///
    /// [`InvalidSchema`]: the name would need quotes, or is too long for Postgres.
    pub fn in_schema(name: impl Into<String>) -> Result<Self, InvalidSchema> {
        let outbox = Outbox::in_schema(name)?;
        Ok(Self { outbox })
    }

    /// As [`Outbox::without_prepared_statements`].
    #[must_use]
    pub const fn without_prepared_statements(mut self) -> Self {
        self.outbox.prepared = false;
        self
    }

    /// Makes the tables or brings them up to date: [`Outbox::migrate`], for a service that only consumes.
    /// The tables of the outbox are made too and stay empty.
    ///
    /// # Errors
    ///
    /// [`MigrateError`].
    ///
    /// # Cancellation
    ///
    /// Of a dropped call it is open whether it migrated; it may be repeated.
    pub async fn migrate(&self, pool: &PgPool) -> Result<(), MigrateError> {
        self.outbox.migrate(pool).await
    }

    /// Whether `consumer` meets this message for the first time. If so, it is remembered with the
    /// transaction of `conn`: a rollback forgets it, also one to a savepoint.
    ///
    /// Ask before the work, in its transaction, and do it only for `true`:
    ///
    /// ```no_run
    /// # use outbox_core::Uuid;
    /// # use outbox_postgres::Inbox;
    /// # static INBOX: Inbox = Inbox::new();
    /// # async fn work(conn: &mut sqlx::PgConnection) -> Result<(), sqlx::Error> { Ok(()) }
    /// # async fn example(pool: &sqlx::PgPool, message_id: Uuid) -> Result<(), sqlx::Error> {
    /// let mut tx = pool.begin().await?;
    /// if INBOX.first_time(&mut tx, "billing", message_id).await? {
    ///     work(&mut tx).await?;
    /// }
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// While another transaction has asked for the same and is open, this waits for its end, or for that of
    /// the savepoint in which it asked, and answers by what became of it. When it rolled back, this is the
    /// first time. When it committed, it is not under `READ COMMITTED`; under `REPEATABLE READ` and
    /// `SERIALIZABLE` this is the error 40001 (could not serialize), and so it is without any wait where the
    /// other committed after this transaction's snapshot was taken: begin again, and the answer is `false`.
    ///
    /// A transaction that asks for several messages should do so in the order of their ids: two that ask
    /// for the same ones in another order may wait for each other, and Postgres ends one of them (40P01).
    ///
    /// After a statement that has failed, this or one of the work, roll back, to a savepoint where the work
    /// goes on. Do not commit: Postgres answers `COMMIT` of a failed transaction with a rollback and no error,
    /// and a message that is acknowledged after that is lost.
    ///
    /// # Errors
    ///
    /// What the database answered; in a transaction it has failed as after any other error. Or, before
    /// anything was sent, [`sqlx::Error::InvalidArgument`]: a name that a consumer cannot have
    /// ([`InvalidConsumer`](outbox_core::inbox::InvalidConsumer)), or no transaction, in which the message
    /// would count as processed before the work for it was.
    ///
    /// # Cancellation
    ///
    /// Of a dropped call it is open whether it remembered: roll the transaction back.
    #[must_use = "for a message that is not met for the first time the work must not be done"]
    pub async fn first_time(
        &self,
        conn: &mut PgConnection,
        consumer: &str,
        message_id: Uuid,
    ) -> Result<bool, sqlx::Error> {
        check_consumer(consumer)
            .map_err(|error| sqlx::Error::InvalidArgument(error.to_string()))?;
        if !in_transaction(conn).await? {
            return Err(sqlx::Error::InvalidArgument(
                "the inbox is asked within the transaction of the work, and there is none"
                    .to_owned(),
            ));
        }
        let written = sqlx::query(self.outbox.sql(include_str!("../sql/first_time.sql")))
            .bind(consumer)
            .bind(message_id)
            .persistent(self.outbox.prepared)
            .execute(conn)
            .await?;
        Ok(written.rows_affected() == 1)
    }

    /// Runs `handler` in a transaction of its own if `consumer` meets this message for the first time, and
    /// commits. `None`: it was a repeat, and the handler did not run.
    ///
    /// What the handler does in its transaction takes effect once, however often the message comes. What it
    /// does elsewhere, such as a call to another service, may happen again.
    ///
    /// A handler that goes on after a failed statement keeps it to a savepoint (`tx.begin()`).
    ///
    /// The transaction has the isolation that is the server's default; [`first_time`](Self::first_time) says
    /// what that means, and is for those who begin it themselves.
    ///
    /// # Errors
    ///
    /// The handler's, after which everything is rolled back and the message is as if it had never come; or
    /// what the database answered. So is `Ok` of a handler whose transaction has failed (25P02: it passed over
    /// the error of a statement) or is no more (25P01: it sent `COMMIT` or `ROLLBACK`). The message must not
    /// be acknowledged then. Where the commit failed it is open whether it took place, and the answer to the
    /// repeat will tell.
    ///
    /// # Cancellation
    ///
    /// As after an error.
    pub async fn once<T, E: From<sqlx::Error>>(
        &self,
        pool: &PgPool,
        consumer: &str,
        message_id: Uuid,
        handler: impl AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        let mut tx = pool.begin().await?;
        let done = if self.first_time(&mut tx, consumer, message_id).await? {
            handler(&mut tx).await.map(Some)
        } else {
            Ok(None)
        };
        match done {
            Ok(Some(_)) => {
                // Of a transaction that has failed or ended, where the handler did not say so, `COMMIT` answers
                // without an error that it rolled back; this is an error.
                sqlx::raw_sql("SAVEPOINT outbox_goes_on")
                    .execute(&mut *tx)
                    .await?;
                tx.commit().await?;
            }
            // Nothing was written, or nothing may stay. Of a connection that fails now the server rolls back.
            Ok(None) | Err(_) => drop(tx.rollback().await),
        }
        done
    }

    /// Forgets what was processed longer ago than `age`, for all consumers, and gives the number. A message
    /// that comes again after that is processed again, so `age` is longer than any repeat can take: longer
    /// than the broker keeps messages, than the longest outage, than a dead message waits for its replay.
    ///
    /// For a task that calls it now and then, such as once an hour:
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use outbox_postgres::Inbox;
    /// # async fn example(pool: sqlx::PgPool) {
    /// # static INBOX: Inbox = Inbox::new();
    /// let mut hourly = tokio::time::interval(Duration::from_secs(3_600));
    /// loop {
    ///     hourly.tick().await;
    ///     if let Err(error) = INBOX.forget(&pool, Duration::from_secs(30 * 24 * 3_600)).await {
    ///         eprintln!("the inbox is not cleaned up: {error}"); // the next hour tries again
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// It goes in steps of up to 1,000 rows, each a short transaction and by index. It waits for no
    /// consumer, and a consumer waits for it only with a message that is being forgotten, for a step. Several
    /// processes may call it: while one is at it the others find nothing to do. Ages are by the database's
    /// clock.
    ///
    /// # Errors
    ///
    /// What the database answered. What the steps before have forgotten stays forgotten; it may be repeated.
    ///
    /// # Cancellation
    ///
    /// As after an error.
    pub async fn forget(&self, pool: &PgPool, age: Duration) -> Result<u64, sqlx::Error> {
        let mut forgotten = 0;
        let mut from: Option<i64> = None;
        loop {
            let mut tx = pool.begin_with(BEGIN_STEP).await?;
            let turn: bool =
                sqlx::query_scalar(self.outbox.sql(include_str!("../sql/inbox_turn.sql")))
                    .persistent(false)
                    .fetch_one(&mut *tx)
                    .await?;
            if !turn {
                return Ok(forgotten);
            }
            let (found, deleted, last): (i64, i64, Option<i64>) =
                sqlx::query_as(self.outbox.sql(include_str!("../sql/inbox_forget.sql")))
                    .bind(from)
                    .bind(to_micros(age))
                    .bind(FORGOTTEN_IN_A_STEP)
                    .persistent(false)
                    .fetch_one(&mut *tx)
                    .await?;
            tx.commit().await?;
            forgotten += unsigned(deleted);
            if found < FORGOTTEN_IN_A_STEP {
                return Ok(forgotten);
            }
            from = last;
        }
    }
}
