//! Stores outbox messages in an embedded SQLite database, in the application's own transaction.
//!
//! An application calls [`Outbox::migrate`] at its start and [`Outbox::enqueue`] in the transaction that
//! writes what the message speaks of. When that commits, a relay delivers the message; when it rolls
//! back, there was never one. A relay runs on [`Outbox::store`], which gives a [`SqliteStore`]. No server
//! is needed; the database is a file, and one relay at a time works on it.
//!
//! # Why no commit is late
//!
//! Where transactions commit in another order than they drew their positions, a relay that has passed a
//! position may have to go back. Here they cannot. A database in SQLite has one writer at a time: a
//! transaction takes the right to write at its first write, or at its beginning with `BEGIN IMMEDIATE`,
//! and keeps it until it ends. A position is drawn by an insert, so it is drawn by the one writer there
//! is, and every earlier position is committed or rolled back by then. That holds whatever the
//! journal mode, for every connection and every process, also for an application that opens connections
//! of its own: SQLite does not let them write side by side.
//!
//! With `BEGIN` alone a transaction may read first and become the writer later. Where another one has
//! written in between, SQLite refuses that with `database is locked`, at once and whatever the busy
//! timeout: what it has read is no longer true. The relay is such another writer, so an application
//! should begin with `BEGIN IMMEDIATE` where it reads and then writes.
//!
//! # Why a claim is no transaction
//!
//! A claim lasts as long as its messages are published. A transaction that wrote would keep the whole
//! application from writing for that time. So claims are in memory, of the one process that has the relay;
//! reading takes no lock that a producer waits for in the journal mode WAL, and settling is one short
//! transaction. When the process ends, the claims are gone and their messages are delivered again.
//!
//! # What it does not do
//!
//! It does not let several relays share the work, and it takes no messages from other languages: the line
//! of a message (`line.rs`) is computed here. Both are what `outbox-postgres` is for.
//!
//! A consumer remembers in the [`Inbox`], in the transaction of its work, which messages it has processed.
//!
//! Where to read next: [`Outbox`] for producers, [`Inbox`] for consumers; `claim.rs` and `settle.rs` for how
//! messages are found, held and recorded; `lock.rs` for how a second relay is kept out;
//! `migrations/0001_outbox.sql` for the tables.

mod admin;
mod claim;
mod delays;
mod enqueue;
mod enqueued;
mod inbox;
mod lanes;
mod line;
mod lock;
mod migrate;
mod outbox;
mod prefix;
mod settle;
mod statements;
mod store;
mod wake;

pub use admin::{Counts, DeadSteps, KeySteps};
pub use inbox::Inbox;
pub use migrate::MigrateError;
pub use outbox::Outbox;
pub use prefix::{InvalidPrefix, MAX_PREFIX_BYTES};
pub use store::{OpenError, SqliteStore};
