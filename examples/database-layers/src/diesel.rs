//! Diesel.

use diesel::sql_types::{BigInt, Binary, Nullable, Text};
use diesel::{PgConnection, QueryResult, RunQueryDsl as _, sql_query};
use outbox::Message;

/// Enqueues in the transaction of the connection: the message is delivered if and after it commits. Call it
/// within `conn.transaction(…)`.
///
/// # Errors
///
/// What the database answered; the transaction has failed then.
pub fn enqueue(conn: &mut PgConnection, message: &Message) -> QueryResult<()> {
    let delay = message.deliver_after().as_micros() as i64; // up to 366 days
    let sql =
        "SELECT outbox.enqueue($1, $2, $3, $4::jsonb, $5::uuid, $6 * interval '1 microsecond')";
    sql_query(sql)
        .bind::<Text, _>(message.topic())
        .bind::<Nullable<Binary>, _>(message.payload().map(|payload| payload.as_ref()))
        .bind::<Nullable<Text>, _>(message.key())
        .bind::<Nullable<Text>, _>(message.headers().to_json())
        .bind::<Text, _>(message.id().to_string())
        .bind::<BigInt, _>(delay)
        .execute(conn)?;
    Ok(())
}
