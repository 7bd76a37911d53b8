//! Breaks everything around the outbox, and audits what arrived.
//!
//! ```sh
//! eval "$(scripts/services env)"
//! cargo run -p outbox-chaos -- --broker kafka --minutes 10 --seed 7
//! cargo run -p outbox-chaos -- soak --broker redis --minutes 20 --rate 800
//! ```
//!
//! A run has producers, three relays as processes, a Postgres of its own, a real broker, and a consumer
//! that records all it gets; a schedule drawn from the seed breaks each of them but the consumer. In the
//! end the checker holds the consumer's record against the database's own log of commits. The exit code is
//! 1 when a promise was not kept or the run itself had trouble.
//!
//! Where to read next: `audit.rs` for what is checked, `schedule.rs` for what is broken, `storm.rs` for how
//! a run goes, `soak.rs` for hours at a steady rate.

mod audit;
mod broker;
mod consumer;
mod faults;
mod folder;
mod kept;
mod plot;
mod postgres;
mod process;
mod producer;
mod record;
mod relay;
mod relays;
mod report;
mod schedule;
mod service;
mod soak;
mod storm;
mod timeline;
mod trend;

use std::process::ExitCode;

use clap::Parser;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Breaks everything around the outbox on real servers, and audits what arrived.
#[derive(Parser)]
#[command(
    name = "chaos",
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    storm: Option<storm::Arguments>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Keeps a steady rate for long, and says what grows
    Soak(soak::Arguments),
    /// The relay of a run, in a process of its own
    #[command(hide = true)]
    Relay(relay::Arguments),
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let run = async {
        match (cli.command, cli.storm) {
            (Some(Command::Relay(arguments)), _) => relay::run(arguments).await.map(|()| true),
            (Some(Command::Soak(arguments)), _) => soak::run(arguments).await,
            (None, Some(arguments)) => storm::run(arguments).await,
            (None, None) => Err("a broker is wanted: --broker kafka, amqp, nats or redis".into()),
        }
    };
    let outcome = tokio::select! {
        outcome = run => outcome,
        // Dropped, the run clears up.
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chaos: {error}");
            ExitCode::FAILURE
        }
    }
}
