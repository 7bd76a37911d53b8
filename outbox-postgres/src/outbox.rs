//! The handle to one outbox: which schema it lives in, and how statements reach it.
//!
//! What it does is in files of its own: [`enqueue`](crate::Outbox::enqueue) for producers,
//! [`migrate`](crate::Outbox::migrate) for the tables, grants for their rights, administration for
//! people.

use sqlx::AssertSqlSafe;
use sqlx::SqlSafeStr as _;
use sqlx::SqlStr;

use crate::schema::{InvalidSchema, Schema};

/// One outbox in a Postgres database: a schema of its own, `outbox` unless told otherwise.
///
/// It holds no connection and costs nothing to make, so a `static` is a good place for it.
///
/// ```
/// use outbox_core::Message;
/// use outbox_postgres::Outbox;
/// use sqlx::PgPool;
///
/// static OUTBOX: Outbox = Outbox::new();
///
/// async fn place_order(pool: &PgPool, order: i64) -> Result<(), Box<dyn std::error::Error>> {
///     let message = Message::to("orders.placed").key(order).json(&order)?;
///     let mut tx = pool.begin().await?;
///     sqlx::query("INSERT INTO orders (id) VALUES ($1)").bind(order).execute(&mut *tx).await?;
///     OUTBOX.enqueue(&mut tx, &message).await?;
///     tx.commit().await?;
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Outbox {
    pub(crate) schema: Schema,
    pub(crate) prepared: bool,
}

impl Outbox {
    /// The outbox in the schema `outbox`.
    pub const fn new() -> Self {
        Self {
            schema: Schema::DEFAULT,
            prepared: true,
        }
    }

    /// The outbox in a schema of another name. Two of them in one database do not disturb each other.
    ///
    /// # Errors
    ///
    /// [`InvalidSchema`]: the name would need quotes, or is too long for Postgres.
    pub fn in_schema(name: impl Into<String>) -> Result<Self, InvalidSchema> {
        Ok(Self {
            schema: Schema::new(name)?,
            ..Self::new()
        })
    }

    /// Enqueues without named prepared statements, for producers behind a transaction pooler that does
    /// not follow them (PgBouncer before 1.21, or with `max_prepared_statements = 0`).
    ///
    /// Each enqueue then takes two round trips instead of one, and must be in a transaction.
    #[must_use]
    pub const fn without_prepared_statements(mut self) -> Self {
        self.prepared = false;
        self
    }

    /// The name of the schema.
    pub fn schema(&self) -> &str {
        self.schema.name()
    }

    /// A statement of this crate, for this outbox. Nothing but the schema's name is put into it, which
    /// is safe by construction.
    pub(crate) fn sql(&self, statement: &'static str) -> SqlStr {
        AssertSqlSafe(self.schema.sql(statement)).into_sql_str()
    }
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new()
    }
}
