//! The inbox: a consumer's memory of the messages that it has processed.
//!
//! Delivery is at-least-once, so a consumer gets some messages again. It asks here, in the transaction of
//! its work, whether it meets a message for the first time; what it is told is remembered by that
//! transaction, and so for ever or not at all. SQLite has one writer at a time, and asking writes: no two
//! transactions ask at the same time.
//!
//! It knows no broker: a consumer acknowledges to its broker after the transaction, never before.

use std::time::Duration;

use outbox_core::Uuid;
use outbox_core::inbox::check_consumer;
use sqlx::{Connection as _, SqliteConnection, SqlitePool};

use crate::admin::to_millis;
use crate::{InvalidPrefix, MigrateError, Outbox};

/// One step of [`Inbox::forget`] deletes at most so many rows.
const FORGOTTEN_IN_A_STEP: i64 = 1_000;

/// The inbox in a SQLite database: the table `outbox_inbox`, unless told otherwise.
///
/// It holds no connection and costs nothing to make, so a `static` is a good place for it.
///
/// ```no_run
/// use outbox_core::Uuid;
/// use outbox_sqlite::Inbox;
/// use sqlx::SqlitePool;
///
/// static INBOX: Inbox = Inbox::new();
///
/// async fn bill(pool: &SqlitePool, message_id: Uuid, order: i64) -> Result<(), sqlx::Error> {
///     INBOX
///         .once(pool, "billing", message_id, async |tx| {
///             sqlx::query("INSERT INTO invoices (order_id) VALUES (?1)").bind(order).execute(tx).await
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
    /// The inbox whose table is `outbox_inbox`.
    pub const fn new() -> Self {
        Self {
            outbox: Outbox::new(),
        }
    }

    /// The inbox whose table has a name that begins otherwise.
    ///
    /// # Errors
    ///
    /// [`InvalidPrefix`]: the name would need quotes, or belongs to SQLite.
    pub fn with_prefix(prefix: impl Into<String>) -> Result<Self, InvalidPrefix> {
        let outbox = Outbox::with_prefix(prefix)?;
        Ok(Self { outbox })
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
    pub async fn migrate(&self, pool: &SqlitePool) -> Result<(), MigrateError> {
        self.outbox.migrate(pool).await
    }

    /// Whether `consumer` meets this message for the first time. If so, it is remembered with the
    /// transaction of `conn`: a rollback forgets it, also one to a savepoint.
    ///
    /// Ask before the work, in its transaction, and do it only for `true`. Asking writes, so it waits for
    /// another writer as any write does; begin the transaction with `BEGIN IMMEDIATE` where it reads before
    /// it asks.
    ///
    /// After a failed statement SQLite goes on with the transaction, except after the few errors that end it:
    /// `ON CONFLICT ROLLBACK`, a full disk, an I/O error. What is written then is in no transaction, so roll
    /// back after every error that is not expected.
    ///
    /// # Errors
    ///
    /// What the database answered: `database is locked` is another writer that did not end within the busy
    /// timeout of the connection, or, at once, one that wrote after this transaction began to read. Or,
    /// before anything was written, [`sqlx::Error::InvalidArgument`]: a name that a consumer cannot have
    /// ([`InvalidConsumer`](outbox_core::inbox::InvalidConsumer)), or no transaction, in which the message
    /// would count as processed before the work for it was.
    ///
    /// # Cancellation
    ///
    /// Of a dropped call it is open whether it remembered: roll the transaction back.
    #[must_use = "for a message that is not met for the first time the work must not be done"]
    pub async fn first_time(
        &self,
        conn: &mut SqliteConnection,
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
            .execute(conn)
            .await?;
        Ok(written.rows_affected() == 1)
    }

    /// Runs `handler` in a transaction of its own, begun with `BEGIN IMMEDIATE`, if `consumer` meets this
    /// message for the first time, and commits. `None`: it was a repeat, and the handler did not run.
    ///
    /// What the handler does in its transaction takes effect once, however often the message comes. What it
    /// does elsewhere, such as a call to another service, may happen again; and nobody else can write while
    /// it runs.
    ///
    /// # Errors
    ///
    /// The handler's, after which everything is rolled back and the message is as if it had never come; or
    /// what the database answered. So is `Ok` of a handler whose transaction SQLite has ended, after an error
    /// that the handler passed over (`no transaction is active`); what it wrote after that error stays. The
    /// message must not be acknowledged then.
    ///
    /// # Cancellation
    ///
    /// As after an error, except that the commit may have taken place; the answer to the repeat will tell.
    pub async fn once<T, E: From<sqlx::Error>>(
        &self,
        pool: &SqlitePool,
        consumer: &str,
        message_id: Uuid,
        handler: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        let mut conn = pool.acquire().await?;
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
        let done = match self.first_time(&mut tx, consumer, message_id).await {
            Ok(true) => handler(&mut tx).await.map(Some),
            Ok(false) => Ok(None),
            Err(error) => Err(error.into()),
        };
        let ended = match done {
            Ok(Some(_)) => tx.commit().await,
            // Nothing was written, or nothing may stay.
            Ok(None) | Err(_) => tx.rollback().await,
        };
        let Err(error) = ended else { return done };
        // Where SQLite has ended the transaction by itself, sqlx takes it for open, now and for whoever would
        // have the connection next.
        conn.close_on_drop();
        match done {
            Ok(Some(_)) => Err(error.into()),
            done => done,
        }
    }

    /// Forgets what was processed longer ago than `age`, for all consumers, and gives the number. A message
    /// that comes again after that is processed again, so `age` is longer than any repeat can take: longer
    /// than the broker keeps messages, than the longest outage, than a dead message waits for its replay.
    ///
    /// For a task that calls it now and then, such as once an hour. It goes in steps of up to 1,000 rows,
    /// each a short transaction of its own, so that other writers have their turn.
    ///
    /// # Errors
    ///
    /// What the database answered. What the steps before have forgotten stays forgotten; it may be repeated.
    ///
    /// # Cancellation
    ///
    /// As after an error.
    pub async fn forget(&self, pool: &SqlitePool, age: Duration) -> Result<u64, sqlx::Error> {
        let mut forgotten = 0;
        loop {
            let step = sqlx::query(self.outbox.sql(include_str!("../sql/inbox_forget.sql")))
                .bind(to_millis(age))
                .bind(FORGOTTEN_IN_A_STEP)
                .execute(pool)
                .await?
                .rows_affected();
            forgotten += step;
            if step < FORGOTTEN_IN_A_STEP.unsigned_abs() {
                return Ok(forgotten);
            }
        }
    }
}

/// Whether SQLite has a transaction open. sqlx does not know it: an application may have sent `BEGIN` by hand, and
/// some errors (`ON CONFLICT ROLLBACK`, a full disk) end one behind its back.
///
/// The question is one statement, so that a dropped call leaves nothing behind: the pragma is refused within a
/// transaction, and without one it does nothing, since temporary tables are never synced.
async fn in_transaction(conn: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
    match sqlx::raw_sql("PRAGMA temp.synchronous = OFF")
        .execute(conn)
        .await
    {
        Ok(_) => Ok(false),
        Err(sqlx::Error::Database(error)) if error.message().contains("inside a transaction") => {
            Ok(true)
        }
        Err(error) => Err(error),
    }
}
