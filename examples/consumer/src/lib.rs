//! What the consumer examples share: a service that bills orders, once each, however often their messages
//! come.
//!
//! An example adds its broker: a [`Source`] made with the broker's own client, and a `main` of a few lines.
//! It depends on that client and on the inbox, and on no adapter of the outbox: consumers need none.
//!
//! Where to read next: `billing.rs` for the work and its transaction, `run.rs` for the loop, which
//! acknowledges after the commit; `killed.rs` for the test that kills an example in mid-work.

mod billing;
pub mod killed;
mod run;

pub use billing::prepare;
pub use run::{BATCH, Received, Source, run, setting};

/// Any failure ends the program, and its text is all that is wanted of it.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
