//! The store of messages that the configuration chooses, for all commands.
//!
//! Opening it connects to nothing: a program that cannot reach its database says so where it first asks.

/// Does the same with whichever store it is of; `… => KIND of …` makes another such thing of what comes of it.
macro_rules! each {
    ($kind:ident, $self:expr, $it:ident => $into:ident of $action:expr) => {
        match $self {
            #[cfg(feature = "postgres")]
            $kind::Postgres($it) => $into::Postgres($action),
            #[cfg(feature = "sqlite")]
            $kind::Sqlite($it) => $into::Sqlite($action),
        }
    };
    ($kind:ident, $self:expr, $it:ident => $action:expr) => {
        match $self {
            #[cfg(feature = "postgres")]
            $kind::Postgres($it) => $action,
            #[cfg(feature = "sqlite")]
            $kind::Sqlite($it) => $action,
        }
    };
}

mod operator;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

use std::fmt;
use std::time::Duration;

use outbox_core::Message;

pub(crate) use operator::DeadSteps;

use crate::commands::grants::Access;
use crate::failure::{Failure, chain};
use crate::settings::{self, InvalidSettings};

/// How long a command waits for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Commands need one at a time; the relay's own are beside them.
const CONNECTIONS: u32 = 2;

/// An outbox, and a pool for administration. The relay's connections are its own.
pub(crate) enum Store {
    #[cfg(feature = "postgres")]
    Postgres(postgres::Postgres),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlite::Sqlite),
}

/// That the database does not answer, and why.
fn away(error: &dyn std::error::Error) -> String {
    format!("the database is away: {}", chain(error))
}

/// What came of asking for a relay's side.
pub(crate) enum Opened {
    Store(Box<dyn outbox_core::Store>),
    /// The database answers, and the tables are not there or not up to date.
    NotMigrated,
    /// For now, for this reason.
    NotYet(String),
}

impl Store {
    pub(crate) fn open(settings: &settings::Store) -> Result<Self, InvalidSettings> {
        match settings {
            #[cfg(feature = "postgres")]
            settings::Store::Postgres(settings) => {
                postgres::Postgres::open(settings).map(Self::Postgres)
            }
            #[cfg(feature = "sqlite")]
            settings::Store::Sqlite(settings) => sqlite::Sqlite::open(settings).map(Self::Sqlite),
            #[allow(unreachable_patterns, reason = "reached where a feature is off")]
            _ => Err(InvalidSettings::new(
                "store.kind",
                "this program was built without it",
            )),
        }
    }

    /// The relay's side, once the database answers and has the tables.
    pub(crate) async fn relay(&self) -> Result<Opened, Failure> {
        each!(Store, self, store => store.relay().await)
    }

    /// Makes the tables, or brings them up to date.
    pub(crate) async fn migrate(&self) -> Result<(), Failure> {
        each!(Store, self, store => store.migrate().await)
    }

    /// What [`migrate`](Self::migrate) does, as SQL. Connects to nothing.
    pub(crate) fn migrations_sql(&self) -> Result<String, Failure> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => Ok(store.outbox.migrations_sql()),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => Err(Failure::new(
                "there is no script for SQLite: `outbox migrate` looks first at what is there",
            )),
        }
    }

    /// The rights of a role, as SQL. Connects to nothing.
    pub(crate) fn grants_sql(&self, access: Access, role: &str) -> Result<String, Failure> {
        each!(Store, self, store => store.grants_sql(access, role))
    }

    /// Enqueues messages in one transaction.
    pub(crate) async fn enqueue(&self, messages: &[Message]) -> Result<(), Failure> {
        each!(Store, self, store => store.enqueue(messages).await)
    }
}

/// Where the outbox is, without secrets.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        each!(Store, self, store => store.fmt(f))
    }
}
