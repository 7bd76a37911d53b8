//! A migrated outbox in a file of its own for each test.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs};

use outbox_core::{Claim, ClaimLimits, Message, Outcome, Store, Uuid};
use outbox_sqlite::Outbox;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Row as _, SqlitePool};

/// Long enough for a busy machine; a test that reaches it has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// A folder that is removed when the test has ended, however it ends.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let folder = env::temp_dir().join(format!("outbox-sqlite-{}", Uuid::now_v7().simple()));
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.0.join("app.db")
    }

    /// The names of the files in it.
    pub(crate) fn files(&self) -> Vec<OsString> {
        let mut files: Vec<OsString> = fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A test that has failed already says more than what this would say.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a test works with.
pub(crate) struct Fixture {
    pub(crate) outbox: Outbox,
    pub(crate) pool: SqlitePool,
    pub(crate) folder: Folder,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with_options(|options| options).await
    }

    pub(crate) async fn with_options(
        change: impl FnOnce(SqliteConnectOptions) -> SqliteConnectOptions,
    ) -> Self {
        let folder = Folder::new();
        let pool = pool(change(options(&folder.database()))).await;
        let outbox = Outbox::new();
        outbox.migrate(&pool).await.unwrap();
        Self {
            outbox,
            pool,
            folder,
        }
    }

    /// Runs statements without parameters.
    pub(crate) async fn execute(&self, statements: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// One number.
    pub(crate) async fn number(&self, statement: &str) -> i64 {
        sqlx::query(AssertSqlSafe(statement.to_owned()))
            .fetch_one(&self.pool)
            .await
            .unwrap()
            .get(0)
    }

    /// Messages waiting, parked and dead, and keys blocked.
    pub(crate) async fn places(&self) -> [u64; 4] {
        let counts = self.outbox.counts(&self.pool).await.unwrap();
        [
            counts.waiting,
            counts.parked,
            counts.dead,
            counts.blocked_keys,
        ]
    }

    /// Enqueues in one transaction.
    pub(crate) async fn enqueue(&self, messages: &[Message]) {
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
        self.outbox.enqueue_all(&mut tx, messages).await.unwrap();
        tx.commit().await.unwrap();
    }
}

/// The usual way to open a database of an application.
pub(crate) fn options(database: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(database)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(DEADLINE)
}

pub(crate) async fn pool(options: SqliteConnectOptions) -> SqlitePool {
    SqlitePoolOptions::new()
        .max_connections(8)
        .connect_with(options)
        .await
        .unwrap()
}

/// A database that the pool's one connection has to itself.
pub(crate) async fn pool_in_memory() -> SqlitePool {
    let pool = SqlitePoolOptions::new().max_connections(1);
    pool.connect("sqlite::memory:").await.unwrap()
}

pub(crate) fn message(key: &str, text: &str) -> Message {
    Message::to("test").key(key).bytes(text.to_owned()).unwrap()
}

pub(crate) fn limits(messages: usize) -> ClaimLimits {
    ClaimLimits {
        messages,
        bytes: 16 * 1024 * 1024,
        wait: Duration::ZERO,
        hold: Duration::from_secs(30),
    }
}

/// What a claim holds, by its payloads.
pub(crate) fn texts(claim: &dyn Claim) -> Vec<String> {
    let payload = |message: &Message| message.payload().map_or(Vec::new(), |bytes| bytes.to_vec());
    claim
        .messages()
        .iter()
        .map(|claimed| String::from_utf8(payload(&claimed.message)).unwrap())
        .collect()
}

/// Claims and delivers until `count` messages were delivered, and gives their payloads.
pub(crate) async fn deliver(store: &impl Store, count: usize) -> Vec<String> {
    let deadline = Instant::now() + DEADLINE;
    let mut delivered = Vec::new();
    while delivered.len() < count {
        if let Some(claim) = store.claim(&limits(1_000)).await.unwrap() {
            let texts = texts(&*claim);
            let outcomes = vec![Outcome::Delivered; texts.len()];
            claim.settle(outcomes).await.unwrap();
            delivered.extend(texts);
        }
        assert!(
            Instant::now() < deadline,
            "{} of {count} messages in time",
            delivered.len()
        );
    }
    assert_eq!(delivered.len(), count, "more was delivered than expected");
    delivered
}

/// Waits for a condition, and fails when it does not come true.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition().await {
        assert!(Instant::now() < deadline, "did not happen in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await; // wait: the poll
    }
}
