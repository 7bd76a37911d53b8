//! `outbox migrate`: the tables.

use clap::Args;

use crate::failure::Failure;
use crate::settings::Settings;
use crate::store::Store;
use crate::terminal;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Print the SQL instead, without connecting: to read it, or to run it with another tool
    #[arg(long)]
    print: bool,
}

pub(crate) async fn run(arguments: Arguments, settings: Settings) -> Result<(), Failure> {
    let store = Store::open(&settings.store)?;
    if arguments.print {
        return terminal::print(&store.migrations_sql()?);
    }
    store.migrate().await?;
    eprintln!("outbox: the tables are up to date");
    Ok(())
}
