//! The main job, whole: an order service writes orders and messages in one transaction, a relay
//! delivers to NATS JetStream, a consumer reads back, and an audit compares what arrived with what was
//! committed.
//!
//! ```sh
//! scripts/services up && cargo run -p orders-nats
//! ```
//!
//! Here is only what is NATS's. Where to read next: `examples/orders` for the service, the relay and
//! the audit, `nats.rs` for the stream and the publisher, `reader.rs` for a consumer.

mod nats;
mod reader;

use std::process::ExitCode;

use clap::Parser;

use nats::Nats;

/// Writes orders to Postgres, delivers their messages to NATS JetStream, reads them back and audits both.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    run: orders::Args,
    /// Address of NATS [default: NATS_URL, OUTBOX_TEST_NATS_URL, or the one of scripts/services]
    #[arg(long, value_name = "URL")]
    nats_url: Option<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let url = orders::address(
        args.nats_url,
        ["NATS_URL", "OUTBOX_TEST_NATS_URL"],
        "nats://127.0.0.1:24222",
    );
    orders::run(args.run, Nats::at(url)).await
}
