//! The commands, one file each.

pub(crate) mod check;
pub(crate) mod config;
pub(crate) mod dead;
pub(crate) mod delayed;
pub(crate) mod doctor;
pub(crate) mod enqueue;
pub(crate) mod grants;
pub(crate) mod inbox;
pub(crate) mod keys;
pub(crate) mod manual;
pub(crate) mod migrate;
pub(crate) mod pause;
pub(crate) mod run;
pub(crate) mod status;

use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::failure::Failure;
use crate::settings::{self, Settings};

/// Does what was asked. The exit code is zero unless the answer to a question is no.
pub(crate) async fn run(cli: Cli) -> Result<ExitCode, Failure> {
    // Read where it is needed: a wrong configuration is no reason to keep the manual back.
    let loaded = || settings::load(&cli.sources);
    let settings = || Settings::of(&loaded()?);
    match cli.command {
        Command::Completions(arguments) => manual::completions(arguments)?,
        Command::Man(arguments) => manual::man(arguments)?,
        Command::Config => config::run(&loaded()?)?,
        Command::Run(arguments) => run::run(arguments, settings()?).await?,
        Command::Migrate(arguments) => migrate::run(arguments, settings()?).await?,
        Command::Grants(arguments) => grants::run(arguments, settings()?)?,
        Command::Enqueue(arguments) => enqueue::run(arguments, settings()?).await?,
        Command::Status(arguments) => status::run(arguments, settings()?).await?,
        Command::Keys(arguments) => keys::run(arguments, settings()?).await?,
        Command::Dead(arguments) => dead::run(arguments, settings()?).await?,
        Command::Delayed(arguments) => delayed::run(arguments, settings()?).await?,
        Command::Pause(arguments) => pause::pause(arguments, settings()?).await?,
        Command::Resume(arguments) => pause::resume(arguments, settings()?).await?,
        Command::Inbox(arguments) => inbox::run(arguments, settings()?).await?,
        Command::Check(arguments) => return check::run(arguments, settings()?).await,
        Command::Doctor(arguments) => return doctor::run(arguments, settings()?).await,
    }
    Ok(ExitCode::SUCCESS)
}
