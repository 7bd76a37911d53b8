//! A consumer of RabbitMQ whose effects happen once: it acknowledges after the transaction.
//!
//! ```sh
//! DATABASE_URL=postgres://user:password@127.0.0.1/billing AMQP_URL=amqp://127.0.0.1 \
//!     TOPIC=orders.placed cargo run -p consumer-amqp
//! ```
//!
//! `TOPIC` is the name of the queue. Here is only what is RabbitMQ's. Where to read next:
//! `examples/consumer` for the work and the loop.

mod queue;

use consumer::{Error, run, setting};
use lapin::{Connection, ConnectionProperties};

use queue::QueueSource;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let (url, queue) = (setting("AMQP_URL")?, setting("TOPIC")?);
    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    let mut source = QueueSource::new(&connection, &queue).await?;
    run(&mut source).await?;
    // The last acknowledgements are on their way. The source's channel closes with the connection: dropped before it,
    // it would be closing already, which is an error here.
    Ok(connection.close(200, "done".into()).await?)
}
