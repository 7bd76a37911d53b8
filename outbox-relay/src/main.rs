//! The program `outbox`: the relay for applications in any language, and an operator's tool.
//!
//! `cli.rs` says what can be asked, and `commands/` has one file for each of it. `settings.rs` says what
//! can be configured. What a store and a broker do is in their own crates; here they are only chosen and
//! opened, in `store.rs` and `broker.rs`.

mod broker;
mod cli;
mod commands;
mod failure;
mod http;
mod json;
mod logs;
mod metrics;
mod pause;
mod probe;
mod settings;
mod signals;
#[cfg(feature = "otel")]
mod spans;
mod store;
mod terminal;
mod text;

use std::process::ExitCode;

use clap::Parser as _;

#[tokio::main]
async fn main() -> ExitCode {
    match commands::run(cli::Cli::parse()).await {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

#[cfg(not(any(feature = "postgres", feature = "sqlite")))]
compile_error!("choose a store: the feature `postgres` or `sqlite`");
#[cfg(not(any(
    feature = "amqp",
    feature = "kafka",
    feature = "nats",
    feature = "redis"
)))]
compile_error!("choose a broker: the feature `amqp`, `kafka`, `nats` or `redis`");
