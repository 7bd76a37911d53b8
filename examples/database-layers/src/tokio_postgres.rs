//! tokio-postgres.

use outbox::Message;
use tokio_postgres::{Error, Transaction};

/// Enqueues in the transaction: the message is delivered if and after it commits.
///
/// # Errors
///
/// What the database answered; the transaction has failed then.
pub async fn enqueue(tx: &Transaction<'_>, message: &Message) -> Result<(), Error> {
    let payload = message.payload().map(|payload| payload.as_ref());
    let headers = message.headers().to_json();
    let id = message.id().to_string();
    let delay = message.deliver_after().as_micros() as i64; // up to 366 days
    tx.execute(
        "SELECT outbox.enqueue($1, $2, $3, $4::text::jsonb, $5::text::uuid, $6::bigint * interval '1 microsecond')",
        &[&message.topic(), &payload, &message.key(), &headers, &id, &delay],
    )
    .await?;
    Ok(())
}
