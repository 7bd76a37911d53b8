//! The main job, whole: an order service writes orders and messages in one transaction, a relay
//! delivers to Kafka, a consumer reads back, and an audit compares what arrived with what was committed.
//!
//! ```sh
//! scripts/services up && cargo run -p orders-kafka
//! ```
//!
//! Here is only what is Kafka's. Where to read next: `examples/orders` for the service, the relay and
//! the audit, `kafka.rs` for the topic and the publisher, `reader.rs` for a consumer.

mod kafka;
mod reader;

use std::process::ExitCode;

use clap::Parser;

use kafka::Kafka;

/// Writes orders to Postgres, delivers their messages to Kafka, reads them back and audits both.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    run: orders::Args,
    /// Addresses of Kafka, with commas between [default: KAFKA_BROKERS, OUTBOX_TEST_KAFKA, or the one of scripts/services]
    #[arg(long, value_name = "HOST:PORT")]
    kafka_brokers: Option<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let brokers = orders::address(
        args.kafka_brokers,
        ["KAFKA_BROKERS", "OUTBOX_TEST_KAFKA"],
        "127.0.0.1:29192",
    );
    orders::run(args.run, Kafka::at(brokers)).await
}
