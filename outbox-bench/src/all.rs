//! Every scenario, one after the other, and one table at the end.
//!
//! What runs are commands, as they could be given one by one. Quick ones take ten minutes in all: they show
//! that everything works and roughly where it stands. What goes into `docs/performance.md` is measured
//! by the full ones.

use std::time::Instant;

use clap::Parser;

use crate::report::Document;
use crate::setup::Database;
use crate::{Cli, Command, Result, Scenario};

/// Runs every scenario, and prints one table of what was to be shown.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Smaller and shorter: ten minutes in all instead of an hour and a half.
    #[arg(long)]
    quick: bool,
}

const FULL: [&str; 12] = [
    "drain",
    "drain --order per-key-pipelined",
    "compare",
    "horizon",
    "backlog",
    "latency",
    "producer",
    "hot-key",
    "scale",
    "sizes",
    "idle",
    "retention",
];

const QUICK: [&str; 12] = [
    "drain --messages 100000",
    "drain --messages 100000 --order per-key-pipelined",
    "compare --messages 200000 --seconds 5",
    "horizon --seconds 18 --warm-up 3 --loops row-locks,lease",
    "backlog --waiting 10000,300000 --claims 200 --seconds 2",
    "latency --seconds 3",
    "producer --seconds 3 --rows 100000 --rounds 1",
    "hot-key --messages 50000 --seconds 2 --keys 1,10000 --brokers kafka,nats,redis --rounds 1",
    "scale --messages 200000 --takeovers 3",
    "sizes --brokers nats,redis --bytes 100,10000,1000000 --megabytes 30",
    "idle --seconds 15",
    "retention --messages 50000 --rounds 1",
];

/// A scenario, and how it is told to run.
pub(crate) type Commands = Vec<(String, Scenario)>;

impl Args {
    pub(crate) fn commands(&self) -> Result<Commands> {
        let lines = if self.quick { QUICK } else { FULL };
        lines.into_iter().map(parse).collect()
    }
}

fn parse(line: &str) -> Result<(String, Scenario)> {
    let words = [env!("CARGO_PKG_NAME")].into_iter().chain(line.split(' '));
    match Cli::try_parse_from(words)?.command {
        Command::One(scenario) => Ok((line.to_owned(), scenario)),
        _ => Err(format!("{line} is no scenario").into()),
    }
}

/// What this process was told.
pub(crate) fn given() -> String {
    std::env::args().skip(1).collect::<Vec<_>>().join(" ")
}

/// Runs them all, also those behind one that fails, into the document.
pub(crate) async fn run(commands: Commands, database: &Database, document: &mut Document) {
    for (command, scenario) in commands {
        println!("\n== {command}");
        let start = Instant::now();
        let outcome = scenario.run(database).await;
        document.add(command, start.elapsed(), outcome);
    }
    document.print_goals();
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn both_lists_have_every_scenario_and_can_be_parsed() {
        let scenarios: BTreeSet<String> = Cli::command()
            .get_subcommands()
            .map(|it| it.get_name().to_owned())
            .filter(|name| !["all", "plot", "relay-process"].contains(&name.as_str()))
            .collect();
        for quick in [false, true] {
            let commands = Args { quick }.commands().unwrap();
            let names = commands.iter().map(|(line, _)| line.split(' ').next());
            let names: BTreeSet<String> = names.flatten().map(str::to_owned).collect();
            assert_eq!(names, scenarios);
        }
    }
}
