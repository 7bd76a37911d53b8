//! A consumer of Kafka whose effects happen once: it commits the offset after the transaction.
//!
//! ```sh
//! DATABASE_URL=postgres://user:password@127.0.0.1/billing KAFKA_BROKERS=127.0.0.1:9092 \
//!     TOPIC=orders.placed cargo run -p consumer-kafka
//! ```
//!
//! `GROUP` is the group, `billing` unless it is given. `INSTANCE` is a name that stays with an instance over
//! its restarts: it has its partitions back at once then, without a rebalance.
//!
//! Here is only what is Kafka's. Where to read next: `examples/consumer` for the work and the loop.

mod kafka;

use consumer::{Error, run, setting};

use kafka::KafkaSource;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let group = setting("GROUP").unwrap_or_else(|_| "billing".to_owned());
    let (brokers, topic) = (setting("KAFKA_BROKERS")?, setting("TOPIC")?);
    run(&mut KafkaSource::new(
        &brokers,
        &topic,
        &group,
        setting("INSTANCE").ok(),
    )?)
    .await
}
