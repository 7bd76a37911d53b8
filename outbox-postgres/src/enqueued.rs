//! What a transaction has enqueued so far, for the tests of applications.

use std::time::Duration;

use outbox_core::Message;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};

use crate::Outbox;
use crate::admin::unsigned;
use crate::claim::decode;

impl Outbox {
    /// The messages that the transaction of `conn` has enqueued so far, in their order and the delayed ones
    /// last: from Rust or in SQL,
    /// but not what was rolled back to a savepoint, nor anything of other transactions. A test asserts what
    /// they are, and may then roll back:
    ///
    /// ```no_run
    /// # use outbox_core::Message;
    /// # use outbox_postgres::Outbox;
    /// # static OUTBOX: Outbox = Outbox::new();
    /// # async fn place_order(conn: &mut sqlx::PgConnection, order: u64) -> Result<(), sqlx::Error> { Ok(()) }
    /// # async fn example(pool: &sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// use outbox_core::testing::assert_enqueued;
    ///
    /// let mut tx = pool.begin().await?;
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
    /// It reads the whole tables of waiting and of delayed messages, and takes the right to read it: for tests.
    ///
    /// # Errors
    ///
    /// What the database answered; [`sqlx::Error::Decode`] for a row that is no message, which only a
    /// statement by hand can have written.
    pub async fn enqueued(&self, conn: &mut PgConnection) -> Result<Vec<Message>, sqlx::Error> {
        let rows = sqlx::query(self.sql(include_str!("../sql/enqueued.sql")))
            .persistent(false)
            .fetch_all(conn)
            .await?;
        let message = |row: &PgRow| {
            let message = decode(row, 0).map_err(|reason| sqlx::Error::Decode(reason.into()))?;
            let delay = Duration::from_micros(unsigned(row.try_get(5)?));
            let delayed = message.with_deliver_after(delay);
            delayed.map_err(|error| sqlx::Error::Decode(error.into()))
        };
        rows.iter().map(message).collect()
    }
}
