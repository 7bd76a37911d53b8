//! The store: how it is opened, and the wait for something to claim.
//!
//! What one look does is in `claim.rs`; how a claim ends in `settle.rs`.
//!
//! The store has two connections of its own, one that reads and one that writes. Claims read one after
//! the other, which takes them milliseconds, and are published side by side.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Claim, ClaimLimits, Store, StoreError};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, SqliteConnection, SqlitePool};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use crate::Outbox;
use crate::claim::{self, Look};
use crate::lanes::Lanes;
use crate::lock::RelayLock;
use crate::statements::Statements;
use crate::wake;

/// How long a statement of ours waits for another writer before it is tried anew or given up.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two looks, once nothing has come for a while.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The same after something may have come.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// The pause after a look that could not do what was left to do, because another writer was in the way.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// The relay's side of an outbox in SQLite.
///
/// Made by [`Outbox::store`]. It has two connections of its own, never one of the application's pool.
///
/// A commit of this process is noticed within milliseconds; when its transaction went on for long after
/// the enqueue, at the latest after as much time again, or a second. What another process commits is
/// noticed within a second.
///
/// Through the `metrics` crate it counts `outbox_sqlite_missing_rows_total`: rows that a claim held and
/// that were gone when it was settled. Anything but zero wants a person, and is logged as an error.
pub struct SqliteStore {
    shared: Arc<Shared>,
}

/// What all claims of one store share.
pub(crate) struct Shared {
    pub(crate) statements: Statements,
    pub(crate) lanes: Arc<Lanes>,
    connect: SqliteConnectOptions,
    /// Empty after an error and after a call that was dropped half-way: then a new one is opened.
    pub(crate) reader: Mutex<Option<SqliteConnection>>,
    pub(crate) writer: Mutex<Option<SqliteConnection>>,
    /// Delayed messages are being enqueued.
    pub(crate) moving: AtomicBool,
    _lock: RelayLock,
}

/// Why the store cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another relay works on this outbox. Two of them would each claim what the other has in hand.
    #[error(
        "the outbox in {} has a relay already{}: one relay at a time may work on it",
        .database.display(),
        .process.map(|id| format!(", in process {id}")).unwrap_or_default()
    )]
    Locked {
        /// The database.
        database: PathBuf,
        /// The process that has it, where that can be told.
        process: Option<u32>,
    },
    /// The tables are not there: [`Outbox::migrate`] makes them.
    #[error("{} has no table {table}: migrate first", .database.display())]
    NotMigrated {
        /// The database.
        database: PathBuf,
        /// One of the tables that are missing.
        table: String,
    },
    /// The database is in memory or temporary: its messages would die with the process, which is what an
    /// outbox is there to prevent.
    #[error(
        "the database is in memory: an outbox needs a file, and tests without one have \
         outbox::memory::MemoryStore"
    )]
    InMemory,
    /// The file that keeps other relays out cannot be made or locked.
    #[error("lock file {}: {source}", .path.display())]
    LockFile {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// What the database answered.
    #[error("{}: {source}", .database.display())]
    Database {
        /// The database, as the pool names it.
        database: PathBuf,
        /// The answer.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl Outbox {
    /// The relay's side of this outbox. Takes the pool's connection options, never its connections.
    ///
    /// One relay at a time works on an outbox: as long as this store or a claim of it lives, another one
    /// is refused, in this process and in every other. When the process ends, however it ends, the
    /// outbox is free. Any number of processes may enqueue and decide about dead messages meanwhile.
    ///
    /// # Errors
    ///
    /// [`OpenError`]: another relay, no tables, no file, or a file that cannot be used.
    pub async fn store(&self, pool: &SqlitePool) -> Result<SqliteStore, OpenError> {
        let connect = (*pool.connect_options())
            .clone()
            .create_if_missing(false)
            .shared_cache(false)
            .busy_timeout(BUSY_TIMEOUT)
            .disable_statement_logging();
        let answered = |source: sqlx::Error| OpenError::Database {
            database: connect.get_filename().to_owned(),
            source: source.into(),
        };
        let mut conn = connect.connect().await.map_err(answered)?;
        let file: String = sqlx::query_scalar(include_str!("../sql/database_file.sql"))
            .fetch_one(&mut conn)
            .await
            .map_err(answered)?;
        if file.is_empty() {
            return Err(OpenError::InMemory);
        }
        let database = PathBuf::from(file);
        let migrated: bool = sqlx::query_scalar(self.sql(include_str!("../sql/is_migrated.sql")))
            .fetch_one(&mut conn)
            .await
            .map_err(answered)?;
        if !migrated {
            let table = format!("{}message", self.prefix());
            return Err(OpenError::NotMigrated { database, table });
        }
        let lock = RelayLock::take(&database, self.prefix())?;
        // A database that cannot be written is noticed now, and not after the first delivery.
        let writable = sqlx::query(self.sql(include_str!("../sql/is_writable.sql")));
        match writable.execute(&mut conn).await {
            Err(error) if !is_busy(&error) => return Err(answered(error)),
            _ => {}
        }
        Ok(SqliteStore {
            shared: Arc::new(Shared {
                statements: Statements::new(&self.prefix),
                lanes: Arc::default(),
                connect,
                reader: Mutex::new(None),
                writer: Mutex::new(Some(conn)),
                moving: AtomicBool::new(false),
                _lock: lock,
            }),
        })
    }
}

impl Shared {
    pub(crate) async fn connect(&self) -> Result<SqliteConnection, sqlx::Error> {
        self.connect.connect().await
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn claim(&self, limits: &ClaimLimits) -> Result<Option<Box<dyn Claim>>, StoreError> {
        let shared = &self.shared;
        let started = Instant::now();
        let mut pause = SHORTEST_PAUSE;
        loop {
            // Enabled before the look, so that nothing is missed between look and wait.
            let mut freed = pin!(shared.lanes.freed());
            let mut woken = pin!(wake::woken());
            freed.as_mut().enable();
            woken.as_mut().enable();
            let look = claim::look(shared, limits).await;
            let left = limits.wait.saturating_sub(started.elapsed());
            let due_in = match look.map_err(|error| StoreError::new("claim", error))? {
                Look::Claimed(claim) => return Ok(Some(claim)),
                _ if left.is_zero() => return Ok(None),
                Look::Again => continue,
                Look::Busy => {
                    sleep(BUSY_PAUSE.min(left)).await;
                    continue;
                }
                Look::Nothing { due_in } => due_in,
            };
            let overdue = shared.lanes.next_overdue();
            let overdue = overdue.map(|until| until.saturating_duration_since(Instant::now()));
            let longest = [Some(left), due_in, overdue].into_iter().flatten().min();
            let wait = pause.min(longest.unwrap_or(pause)).max(SHORTEST_PAUSE);
            tokio::select! {
                () = freed => {}
                // What was enqueued is not committed yet.
                () = woken => {
                    pause = SHORTEST_PAUSE;
                    sleep(SHORTEST_PAUSE).await;
                }
                () = sleep(wait) => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    }
}

/// Another writer was in the way, for longer than the busy timeout.
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    const BUSY: i32 = 5;
    const LOCKED: i32 = 6;
    error
        .as_database_error()
        .and_then(|error| error.code()?.parse::<i32>().ok())
        .is_some_and(|code| matches!(code & 0xff, BUSY | LOCKED))
}
