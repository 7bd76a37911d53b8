//! A consumer of Redis Streams whose effects happen once: it acknowledges after the transaction.
//!
//! ```sh
//! DATABASE_URL=postgres://user:password@127.0.0.1/billing REDIS_URL=redis://127.0.0.1 \
//!     TOPIC=orders.placed INSTANCE=one cargo run -p consumer-redis
//! ```
//!
//! `INSTANCE` is a name that stays with an instance over its restarts. Here is only what is Redis's. Where to
//! read next: `examples/consumer` for the work and the loop.

mod stream;

use consumer::{Error, run, setting};

use stream::StreamSource;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let (url, stream) = (setting("REDIS_URL")?, setting("TOPIC")?);
    run(&mut StreamSource::new(&url, stream, setting("INSTANCE")?).await?).await
}
