//! What the order examples share: an order service, what it writes, how a run goes, and the audit of
//! what arrived.
//!
//! An example adds its broker: a [`Broker`] and a [`Reader`] made with the broker's own client, and a
//! `main` of a few lines. It depends on one adapter, and this crate depends on none.
//!
//! Where to read next: `plan.rs` for the orders and their messages, `shop.rs` for what an application
//! does, `run.rs` for the relay beside it, `work.rs` for what every run does, `broker.rs` for what an
//! example brings, `audit.rs` for what is checked. `ground.rs` gives each run a topic and schemas of its own,
//! which an application does not need. With the feature `postgres` off, what is left needs neither a database
//! nor a broker.

pub mod audit;
#[cfg(feature = "postgres")]
mod broker;
pub mod command_test;
mod event;
#[cfg(feature = "postgres")]
mod ground;
pub mod plan;
mod progress;
#[cfg(feature = "postgres")]
mod run;
#[cfg(feature = "postgres")]
mod shop;
pub mod work;

#[cfg(feature = "postgres")]
pub use broker::{Broker, PATIENCE, Reader, address, missing};
pub use event::{Event, Payload};
pub use progress::Progress;
#[cfg(feature = "postgres")]
pub use run::{Args, run};

/// Any failure ends a run, and its text is all that is wanted of it.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
