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
    tx.execute(
        "SELECT outbox.enqueue($1, $2, $3, $4::text::jsonb, $5::text::uuid)",
        &[&message.topic(), &payload, &message.key(), &headers, &id],
    )
    .await?;
    Ok(())
}
