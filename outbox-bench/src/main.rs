//! Measures the outbox, as ratios within one run.
//!
//! A number of messages a second says something about one machine and one hour. So every scenario
//! measures, beside the outbox, what it is to be compared with, on the same servers and in the same
//! run. Each scenario is a command with a file of its own, which begins with what it measures and what it
//! does not. `all.rs` runs one after the other.
//!
//! It is a program and no test: nothing here fails because a machine is slow, and a goal that is missed is told
//! and no failure. It does fail, with exit code 1, when messages are missing at the end.
//!
//! Where to read next: `setup.rs` for the database and the messages that the scenarios share, `broker.rs`
//! for the brokers, `relay.rs` for the relay and `process.rs` for one in a process of its own, `reference.rs`
//! for the loops that the outbox is compared with, `steady.rs` and `times.rs` for what is measured at a steady
//! rate, `report.rs` for what is told, `plot.rs` for what is drawn of it.

mod all;
mod backlog;
mod broker;
mod compare;
mod drain;
mod horizon;
mod hot_key;
mod idle;
mod latency;
mod measure;
mod memory;
mod plot;
mod process;
mod producer;
mod reference;
mod relay;
mod report;
mod retention;
mod scale;
mod setup;
mod sizes;
mod steady;
mod times;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use report::{Document, Outcome, Run};
use setup::Database;

/// Any failure ends the run, and its text is all that is wanted of it.
type Failure = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Failure>;

/// Measures the outbox, as ratios within one run.
///
/// The servers are those of `scripts/services up`, unless the variables that `scripts/services env`
/// prints name others. A run makes a database of its own, and a topic for each measurement; both
/// are removed when it ends. Let nothing else run meanwhile, and build with `--release`.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Also write what was measured to this file, as JSON.
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    One(Scenario),
    All(all::Args),
    Plot(plot::Args),
    /// What `scale` and `idle` start.
    #[command(hide = true)]
    RelayProcess(process::Args),
}

#[derive(Subcommand)]
enum Scenario {
    Drain(drain::Args),
    Compare(compare::Args),
    Horizon(horizon::Args),
    Backlog(backlog::Args),
    Latency(latency::Args),
    Producer(producer::Args),
    HotKey(hot_key::Args),
    Scale(scale::Args),
    Sizes(sizes::Args),
    Idle(idle::Args),
    Retention(retention::Args),
}

impl Scenario {
    async fn run(self, database: &Database) -> Result<Outcome> {
        match self {
            Self::Drain(args) => drain::run(args, database).await,
            Self::Compare(args) => compare::run(args, database).await,
            Self::Horizon(args) => horizon::run(args, database).await,
            Self::Backlog(args) => backlog::run(args, database).await,
            Self::Latency(args) => latency::run(args, database).await,
            Self::Producer(args) => producer::run(args, database).await,
            Self::HotKey(args) => hot_key::run(args, database).await,
            Self::Scale(args) => scale::run(args, database).await,
            Self::Sizes(args) => sizes::run(args, database).await,
            Self::Idle(args) => idle::run(args, database).await,
            Self::Retention(args) => retention::run(args, database).await,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let measure = async |commands| {
        Database::lend(async |database| {
            let mut document = Document::new(Run::describe(database).await?);
            tokio::select! {
                () = all::run(commands, database, &mut document) => {}
                _ = tokio::signal::ctrl_c() => return Err("interrupted".into()),
            }
            document.write(cli.json.as_deref())?;
            document.failures()
        })
        .await
    };
    let done = match cli.command {
        Command::One(scenario) => measure(vec![(all::given(), scenario)]).await,
        Command::All(args) => match args.commands() {
            Ok(commands) => measure(commands).await,
            Err(error) => Err(error),
        },
        Command::Plot(args) => plot::run(&args),
        Command::RelayProcess(args) => process::run(args).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
