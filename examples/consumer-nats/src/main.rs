//! A consumer of NATS JetStream whose effects happen once: it acknowledges after the transaction.
//!
//! ```sh
//! DATABASE_URL=postgres://user:password@127.0.0.1/billing NATS_URL=nats://127.0.0.1 \
//!     TOPIC=orders cargo run -p consumer-nats
//! ```
//!
//! `TOPIC` is the name of the stream; its durable consumer `billing` is made if it is not there. Here is only
//! what is JetStream's. Where to read next: `examples/consumer` for the work and the loop.

mod stream;

use consumer::{Error, run, setting};

use stream::StreamSource;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = async_nats::connect(setting("NATS_URL")?).await?;
    run(&mut StreamSource::new(client, &setting("TOPIC")?).await?).await
}
