//! The store in SQLite.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use outbox_core::Message;
use outbox_sqlite::{Inbox, OpenError, Outbox};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{ConnectOptions as _, SqlitePool};

use super::{CONNECT_TIMEOUT, CONNECTIONS, Opened};
use crate::commands::grants::Access;
use crate::failure::{Failure, chain};
use crate::settings::{self, InvalidSettings};

pub(crate) struct Sqlite {
    pub(crate) outbox: Outbox,
    pub(crate) inbox: Inbox,
    pub(crate) pool: SqlitePool,
}

impl Sqlite {
    pub(super) fn open(settings: &settings::Sqlite) -> Result<Self, InvalidSettings> {
        let invalid = |error| InvalidSettings::new("store.prefix", error);
        let outbox = Outbox::with_prefix(&settings.prefix).map_err(invalid)?;
        let inbox = Inbox::with_prefix(&settings.prefix).map_err(invalid)?;
        let options = SqliteConnectOptions::new()
            .filename(&settings.path)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(5))
            .disable_statement_logging();
        let pool = pool(options);
        Ok(Self {
            outbox,
            inbox,
            pool,
        })
    }

    pub(super) async fn relay(&self) -> Result<Opened, Failure> {
        match self.outbox.store(&self.pool).await {
            Ok(store) => Ok(Opened::Store(Box::new(store))),
            Err(OpenError::NotMigrated { .. }) => Ok(Opened::NotMigrated),
            // Migrating makes the file.
            Err(OpenError::Database { .. }) if !self.file().exists() => Ok(Opened::NotMigrated),
            Err(error @ (OpenError::Locked { .. } | OpenError::Database { .. })) => {
                Ok(Opened::NotYet(chain(&error)))
            }
            Err(error) => Err(Failure::of(error)),
        }
    }

    fn file(&self) -> PathBuf {
        self.pool.connect_options().get_filename().to_owned()
    }

    /// The only one that makes the file.
    pub(super) async fn migrate(&self) -> Result<(), Failure> {
        let options = (*self.pool.connect_options()).clone();
        let pool = pool(options.create_if_missing(true));
        self.outbox.migrate(&pool).await.map_err(Failure::of)
    }

    pub(super) fn grants_sql(&self, _access: Access, _role: &str) -> Result<String, Failure> {
        Err(Failure::new(
            "there are no roles in SQLite: whoever may write the file may do everything",
        ))
    }

    pub(super) async fn enqueue(&self, messages: &[Message]) -> Result<(), Failure> {
        let begun = self.pool.begin_with("BEGIN IMMEDIATE").await;
        let mut tx = begun.map_err(Failure::of)?;
        let enqueued = self.outbox.enqueue_all(&mut tx, messages).await;
        enqueued.map_err(Failure::of)?;
        tx.commit().await.map_err(Failure::of)
    }
}

impl fmt::Display for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.pool.connect_options();
        write!(f, "{}", options.get_filename().display())
    }
}

fn pool(options: SqliteConnectOptions) -> SqlitePool {
    SqlitePoolOptions::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(CONNECT_TIMEOUT)
        .connect_lazy_with(options)
}
