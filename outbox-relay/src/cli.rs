//! What can be asked of the program: the commands, their arguments and the help.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::commands;

/// A transactional outbox: the relay, and an operator's tool.
///
/// Settings come from a file, from the environment (OUTBOX__RELAY__WORKERS=8) and from --set
/// (--set relay.workers=8); the later ones win. `outbox config` shows what is in effect.
///
/// Exit codes: 0 done, 1 failed, 2 wrong arguments or configuration.
#[derive(Parser)]
#[command(name = "outbox", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) sources: Sources,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where settings come from, beside the environment.
#[derive(Args)]
pub(crate) struct Sources {
    /// The configuration file; without it `outbox.toml`, if there is one
    #[arg(long, global = true, env = "OUTBOX_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Sets one setting, whatever file and environment say, as in `relay.workers=8`
    #[arg(long = "set", global = true, value_name = "SETTING=VALUE")]
    pub(crate) set: Vec<String>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Deliver messages until SIGTERM or SIGINT
    Run(commands::run::Arguments),
    /// Make the tables, or bring them up to date
    Migrate(commands::migrate::Arguments),
    /// Print the rights that a role needs, as SQL for the owner of the tables
    Grants(commands::grants::Arguments),
    /// Enqueue one message, for trials and scripts
    Enqueue(commands::enqueue::Arguments),
    /// Say whether messages move, what waits, what is stuck and why, and what to do next
    Status(commands::status::Arguments),
    /// List the keys that are held up, or have them tried now
    Keys(commands::keys::Arguments),
    /// List, show, replay and discard what was given up
    #[command(subcommand)]
    Dead(commands::dead::Arguments),
    /// List the messages that are not due yet, or cancel some
    #[command(subcommand)]
    Delayed(commands::delayed::Arguments),
    /// Stop a topic at all relays of this program until it is resumed, or list what is paused
    Pause(commands::pause::Pause),
    /// Go on with a topic that was paused
    Resume(commands::pause::Resume),
    /// Forget what consumers have processed long ago
    #[command(subcommand)]
    Inbox(commands::inbox::Arguments),
    /// For monitors: exit code 0 while all is within the limits, 1 when one is exceeded
    Check(commands::check::Arguments),
    /// Look for what is wrong around the outbox: database, brokers, topics; exit code 1 for a problem
    Doctor(commands::doctor::Arguments),
    /// Show the settings in effect and where each comes from, with secrets hidden
    Config,
    /// Print a shell's completions of these commands
    Completions(commands::manual::Completions),
    /// Print the manual page, or write those of all commands into a folder
    Man(commands::manual::Man),
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;
    use outbox_tidy::{documents, files, keep};

    use super::*;

    #[test]
    fn the_documents_show_commands_that_there_are() {
        let mut tried = 0;
        let mut broken = Vec::new();
        for document in files::all().iter().filter(|file| file.is("md")) {
            for shown in documents::shown(document, "outbox") {
                // In a sentence an argument may be left out, or be a word in capitals that stands for it.
                let in_a_sentence = |kind| {
                    use ErrorKind::{InvalidValue, MissingRequiredArgument, ValueValidation};
                    [InvalidValue, MissingRequiredArgument, ValueValidation].contains(&kind)
                };
                let helps = shown.words[1] == "help";
                match Cli::try_parse_from(&shown.words) {
                    Err(error) if !helps && (shown.whole || !in_a_sentence(error.kind())) => {
                        let command = shown.words.join(" ");
                        broken.push(format!("{}: `{command}`: {:?}", shown.place, error.kind()));
                    }
                    _ => tried += 1,
                }
            }
        }
        keep("Documents show commands that the program has:", &broken);
        assert!(tried > 80, "only {tried} were found");
    }
}
