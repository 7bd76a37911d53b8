//! `outbox grants`: what a role may do.

use clap::{Args, ValueEnum};

use crate::failure::Failure;
use crate::settings::Settings;
use crate::store::Store;
use crate::terminal;

#[derive(Args)]
pub(crate) struct Arguments {
    /// What the role is there for; one that is there for several things gets them one after the other
    access: Access,
    /// The name of the role
    role: String,
}

/// As `outbox_postgres::Access`, which a program without Postgres has not.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Access {
    /// Enqueues
    Producer,
    /// Delivers: `outbox run`
    Relay,
    /// Asks the inbox
    Consumer,
    /// Looks and decides: all other commands but `migrate`
    Operator,
}

/// Connects to nothing, so it is no matter whose address is configured.
pub(crate) fn run(arguments: Arguments, settings: Settings) -> Result<(), Failure> {
    let store = Store::open(&settings.store)?;
    terminal::print_bytes(
        store
            .grants_sql(arguments.access, &arguments.role)?
            .as_bytes(),
    )
}
