//! The main job with RabbitMQ: an order service writes orders and messages in one transaction, a relay
//! delivers to a queue, a consumer reads it, and an audit compares what arrived with what was committed.
//!
//! ```sh
//! scripts/services up && cargo run -p orders-amqp
//! ```
//!
//! Here is only what is RabbitMQ's. Where to read next: `examples/orders` for the service, the relay and
//! the audit, `rabbitmq.rs` for the queue and the publisher, `reader.rs` for a consumer.

mod rabbitmq;
mod reader;

use std::process::ExitCode;

use clap::Parser;

use rabbitmq::RabbitMq;

/// Writes orders to Postgres, delivers their messages to RabbitMQ, reads them back and audits both.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    run: orders::Args,
    /// URL of RabbitMQ [default: AMQP_URL, OUTBOX_TEST_RABBITMQ_URL, or the one of scripts/services]
    #[arg(long, value_name = "URL")]
    amqp_url: Option<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let url = orders::address(
        args.amqp_url,
        ["AMQP_URL", "OUTBOX_TEST_RABBITMQ_URL"],
        "amqp://guest:guest@127.0.0.1:25772/%2f",
    );
    orders::run(args.run, RabbitMq::at(url)).await
}
