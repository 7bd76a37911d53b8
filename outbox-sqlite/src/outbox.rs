//! The handle to one outbox: what its tables are called, and how statements reach them.
//!
//! What it does is in files of its own: [`enqueue`](crate::Outbox::enqueue) for producers,
//! [`migrate`](crate::Outbox::migrate) for the tables, [`store`](crate::Outbox::store) for the relay,
//! administration for people.

use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use crate::prefix::{InvalidPrefix, Prefix};

/// One outbox in a SQLite database: tables whose names begin with `outbox_` unless told otherwise.
///
/// It holds no connection and costs nothing to make, so a `static` is a good place for it.
///
/// ```
/// use outbox_core::Message;
/// use outbox_sqlite::Outbox;
/// use sqlx::SqlitePool;
///
/// static OUTBOX: Outbox = Outbox::new();
///
/// async fn place_order(pool: &SqlitePool, order: i64) -> Result<(), Box<dyn std::error::Error>> {
///     let message = Message::to("orders.placed").key(order).json(&order)?;
///     let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
///     sqlx::query("INSERT INTO orders (id) VALUES (?1)").bind(order).execute(&mut *tx).await?;
///     OUTBOX.enqueue(&mut tx, &message).await?;
///     tx.commit().await?;
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Outbox {
    pub(crate) prefix: Prefix,
}

impl Outbox {
    /// The outbox whose tables are `outbox_message`, `outbox_parked` and so on.
    pub const fn new() -> Self {
        Self {
            prefix: Prefix::DEFAULT,
        }
    }

    /// The outbox whose tables have names that begin otherwise. Two of them in one database do not
    /// disturb each other, and each has a relay of its own.
    ///
    /// # Errors
    ///
    /// [`InvalidPrefix`]: the names would need quotes, or belong to SQLite.
    pub fn with_prefix(prefix: impl Into<String>) -> Result<Self, InvalidPrefix> {
        Ok(Self {
            prefix: Prefix::new(prefix)?,
        })
    }

    /// What the names of the tables begin with.
    pub fn prefix(&self) -> &str {
        self.prefix.as_str()
    }

    /// A statement of this crate, for this outbox. Nothing but the prefix is put into it, which is safe
    /// by construction.
    pub(crate) fn sql(&self, statement: &'static str) -> SqlStr {
        AssertSqlSafe(self.prefix.sql(statement)).into_sql_str()
    }
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new()
    }
}
