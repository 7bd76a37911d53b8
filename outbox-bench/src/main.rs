//! Measures the outbox, as ratios within one run.
//!
//! A number of messages a second says something about one machine and one hour. So every scenario
//! measures, beside the outbox, what it is to be compared with, on the same servers and in the same
//! run. Each scenario is a command with a file of its own: `drain.rs`, `compare.rs`, `latency.rs`,
//! `producer.rs`.
//!
//! It is a program and no test: nothing here fails because a machine is slow. It does fail, with exit
//! code 1, when messages are missing at the end.
//!
//! Where to read next: `setup.rs` for the database and the messages that the scenarios share, `broker.rs`
//! for the brokers, `relay.rs` for the relay, `reference.rs` for the loops that the outbox is compared with,
//! `report.rs` for what is told.

mod broker;
mod compare;
mod drain;
mod latency;
mod measure;
mod memory;
mod producer;
mod reference;
mod relay;
mod report;
mod setup;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Any failure ends the run, and its text is all that is wanted of it.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Measures the outbox, as ratios within one run.
///
/// The servers are those of `scripts/services up`, unless the variables that `scripts/services env`
/// prints name others. Every measurement has a schema and a topic of its own, which are
/// removed when it ends.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Subcommand)]
enum Scenario {
    Drain(drain::Args),
    Compare(compare::Args),
    Latency(latency::Args),
    Producer(producer::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Cli::parse().scenario {
        Scenario::Drain(args) => drain::run(args).await,
        Scenario::Compare(args) => compare::run(args).await,
        Scenario::Latency(args) => latency::run(args).await,
        Scenario::Producer(args) => producer::run(args).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
