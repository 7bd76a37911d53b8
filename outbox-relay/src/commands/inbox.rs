//! `outbox inbox`: what consumers remember.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::failure::Failure;
use crate::settings::Settings;
use crate::store::Store;
use crate::terminal;
use crate::text::counted;

#[derive(Subcommand)]
pub(crate) enum Arguments {
    /// Forget what all consumers have processed long ago: a message that comes again after that is processed again
    Forget(Forget),
}

#[derive(Args)]
pub(crate) struct Forget {
    /// How long ago, as in `30d`: longer than any repeat can take, a replay and a consumer that is set back among them
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    older_than: Duration,
}

pub(crate) async fn run(arguments: Arguments, settings: Settings) -> Result<(), Failure> {
    let Arguments::Forget(forget) = arguments;
    let store = Store::ready(&settings.store).await?;
    let forgotten = store.forget(forget.older_than).await?;
    let messages = counted(forgotten, "message", "messages");
    terminal::print(&format!("forgot {messages}\n"))
}
