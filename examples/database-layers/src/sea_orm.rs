//! SeaORM.

use outbox::Message;
use sea_orm::{ConnectionTrait as _, DatabaseTransaction, DbBackend, DbErr, Statement};

/// Enqueues in the transaction: the message is delivered if and after it commits.
///
/// # Errors
///
/// What the database answered; the transaction has failed then.
pub async fn enqueue(tx: &DatabaseTransaction, message: &Message) -> Result<(), DbErr> {
    let delay = message.deliver_after().as_micros() as i64; // up to 366 days
    let values = [
        message.topic().into(),
        message.payload().map(|payload| payload.to_vec()).into(),
        message.key().into(),
        message.headers().to_json().into(),
        message.id().to_string().into(),
        delay.into(),
    ];
    let sql =
        "SELECT outbox.enqueue($1, $2, $3, $4::jsonb, $5::uuid, $6 * interval '1 microsecond')";
    let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
    tx.execute_raw(statement).await?;
    Ok(())
}
