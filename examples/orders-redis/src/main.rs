//! The main job over Redis Streams: an order service writes orders and messages in one transaction, a
//! relay delivers to Redis, a consumer reads back, and an audit compares what arrived with what was
//! committed.
//!
//! ```sh
//! scripts/services up && cargo run -p orders-redis
//! ```
//!
//! Here is only what is Redis's. Where to read next: `examples/orders` for the service, the relay and
//! the audit, `streams.rs` for the stream and the publisher, `reader.rs` for a consumer.

mod reader;
mod streams;

use std::process::ExitCode;

use clap::Parser;

use streams::Redis;

/// Writes orders to Postgres, delivers their messages to Redis, reads them back and audits both.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    run: orders::Args,
    /// Where Redis is [default: REDIS_URL, OUTBOX_TEST_REDIS_URL, or the one of scripts/services]
    #[arg(long, value_name = "URL")]
    redis_url: Option<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let url = orders::address(
        args.redis_url,
        ["REDIS_URL", "OUTBOX_TEST_REDIS_URL"],
        "redis://127.0.0.1:26479",
    );
    orders::run(args.run, Redis::at(url)).await
}
