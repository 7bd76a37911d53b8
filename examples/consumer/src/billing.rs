//! The work: an invoice for each order, in one transaction with the inbox.

use outbox::postgres::{Inbox, MigrateError};
use sqlx::{PgConnection, PgPool};

use crate::Received;

pub(crate) static INBOX: Inbox = Inbox::new();

/// All instances of the service have this name. Another service has another one, and its own effects.
const CONSUMER: &str = "billing";

#[derive(serde::Deserialize)]
struct Order {
    id: i64,
    cents: i64,
}

/// Makes the tables of the service and the inbox, where they are missing.
///
/// # Errors
///
/// What the database answered.
pub async fn prepare(pool: &PgPool) -> Result<(), MigrateError> {
    INBOX.migrate(pool).await?;
    // Nothing here is unique: that each order is billed once is the inbox's doing.
    let tables = "
        CREATE TABLE IF NOT EXISTS invoice (number bigserial, order_id bigint NOT NULL, cents bigint NOT NULL);
        CREATE TABLE IF NOT EXISTS refused (payload bytea NOT NULL, reason text NOT NULL)";
    sqlx::raw_sql(tables).execute(pool).await?;
    Ok(())
}

/// Bills the order of a message, unless that was done before. `false`: it was.
pub(crate) async fn process(pool: &PgPool, message: &Received) -> Result<bool, sqlx::Error> {
    let id = match &message.id {
        Ok(id) => *id,
        // Nothing tells its copies apart, so it may be set aside twice.
        Err(why) => {
            refuse(&mut *pool.acquire().await?, message, &why.to_string()).await?;
            return Ok(true);
        }
    };
    let done = INBOX
        .once(pool, CONSUMER, id, async |tx| {
            match serde_json::from_slice(&message.payload) {
                Ok(order) => bill(tx, order).await,
                // It would come again for ever, and fail each time: a person looks at it.
                Err(error) => refuse(tx, message, &error.to_string()).await,
            }
        })
        .await?;
    Ok(done.is_some())
}

async fn bill(tx: &mut PgConnection, order: Order) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO invoice (order_id, cents) VALUES ($1, $2)")
        .bind(order.id)
        .bind(order.cents)
        .execute(tx)
        .await?;
    Ok(())
}

async fn refuse(conn: &mut PgConnection, message: &Received, why: &str) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO refused (payload, reason) VALUES ($1, $2)")
        .bind(&message.payload)
        .bind(why)
        .execute(conn)
        .await?;
    Ok(())
}
