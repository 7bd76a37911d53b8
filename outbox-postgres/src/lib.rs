//! Stores outbox messages in Postgres, in the application's own transaction.
//!
//! An application calls [`Outbox::migrate`] at its start and [`Outbox::enqueue`] in the transaction that
//! writes what the message speaks of. When that commits, a relay delivers the message; when it rolls
//! back, there was never one. Applications in other languages call the function `enqueue` in SQL.
//!
//! All of the project's SQL for Postgres is in this crate: the tables in `migrations/`, each other
//! statement in a file of `sql/`. It works on Postgres 14 to 18.
//!
//! A relay runs on [`Outbox::store`], which gives a [`PostgresStore`].
//!
//! A consumer remembers in the [`Inbox`], in the transaction of its work, which messages it has processed.
//!
//! Where to read next: [`Outbox`] for producers, [`Inbox`] for consumers; `scan.rs` and `claim.rs` for how
//! messages are found and held; `README.md` of this crate for other languages, rights, poolers and two-phase
//! commit; `migrations/0001_outbox.sql` for the tables and the reasons for them.

mod admin;
mod claim;
mod delays;
mod enqueue;
mod enqueued;
mod grants;
mod inbox;
mod knowledge;
mod migrate;
mod outbox;
mod retention;
mod scan;
mod schema;
mod session;
mod settle;
mod statements;
mod store;
mod sweep;
mod tid;
mod trial;
mod wake;

pub use admin::{Counts, DeadSteps, KeySteps};
pub use grants::Access;
pub use inbox::Inbox;
pub use migrate::MigrateError;
pub use outbox::Outbox;
pub use retention::InvalidRetention;
pub use schema::{InvalidSchema, MAX_SCHEMA_BYTES};
pub use store::{InvalidLanes, PostgresStore};
