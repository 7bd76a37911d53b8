//! What a transaction has enqueued so far, for the tests of applications.

use std::time::Duration;

use outbox_core::Message;
use sqlx::sqlite::{SqliteConnectOptions, SqliteRow};
use sqlx::{ConnectOptions as _, Connection as _, Row as _, SqliteConnection};

use crate::Outbox;
use crate::admin::unsigned;
use crate::claim::decode;

/// How long the look at what has committed waits for another process's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

impl Outbox {
    /// The messages that the transaction of `conn` has enqueued so far, in their order and the delayed ones last,
    /// but not what was rolled back to a savepoint, nor anything of other transactions. A test asserts what they
    /// are, and may then roll back:
    ///
    /// ```no_run
    /// # use outbox_core::Message;
    /// # use outbox_sqlite::Outbox;
    /// # static OUTBOX: Outbox = Outbox::new();
    /// # async fn place_order(conn: &mut sqlx::SqliteConnection, order: u64) -> Result<(), sqlx::Error> { Ok(()) }
    /// # async fn example(pool: &sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
    /// use outbox_core::testing::assert_enqueued;
    ///
    /// let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    /// place_order(&mut tx, 7).await?;
    /// assert_enqueued(
    ///     &OUTBOX.enqueued(&mut tx).await?,
    ///     &[Message::to("orders.placed").key(7).json(&7)?],
    /// );
    /// tx.rollback().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// What has committed is asked on a second connection to the file, opened for the moment. A database in memory
    /// has none: there, all that waits is given, also what an earlier transaction has enqueued.
    ///
    /// # Errors
    ///
    /// What the database answered: where the journal mode is not WAL, `database is locked` for a transaction that
    /// has outgrown SQLite's cache, after 5 seconds. [`sqlx::Error::Decode`] for a row that is no message, which
    /// only a statement by hand can have written.
    pub async fn enqueued(&self, conn: &mut SqliteConnection) -> Result<Vec<Message>, sqlx::Error> {
        let file: String = sqlx::query_scalar(include_str!("../sql/database_file.sql"))
            .fetch_one(&mut *conn)
            .await?;
        let (position, number) = match file.is_empty() {
            true => (0, 0),
            false => self.last_committed(&file).await?,
        };
        let rows = sqlx::query(self.sql(include_str!("../sql/enqueued.sql")))
            .persistent(false)
            .bind(position)
            .bind(number)
            .fetch_all(conn)
            .await?;
        let message = |row: &SqliteRow| {
            let message = decode(row).map_err(|reason| sqlx::Error::Decode(reason.into()))?;
            let delay = Duration::from_micros(unsigned(row.try_get(7)?));
            let delayed = message.with_deliver_after(delay);
            delayed.map_err(|error| sqlx::Error::Decode(error.into()))
        };
        rows.iter().map(message).collect()
    }

    /// The last position, and the last number of a delayed message, of a transaction that has ended. All behind them
    /// are those of the one that writes: there is no other.
    async fn last_committed(&self, file: &str) -> Result<(i64, i64), sqlx::Error> {
        let mut conn = SqliteConnectOptions::new()
            .filename(file)
            .read_only(true)
            .busy_timeout(BUSY_TIMEOUT)
            .disable_statement_logging()
            .connect()
            .await?;
        let last: (Option<i64>, Option<i64>) =
            sqlx::query_as(self.sql(include_str!("../sql/last_position.sql")))
                .fetch_one(&mut conn)
                .await?;
        conn.close().await?;
        Ok((last.0.unwrap_or(0), last.1.unwrap_or(0)))
    }
}
