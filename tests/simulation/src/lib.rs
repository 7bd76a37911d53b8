//! The relay under seeded faults and paused time.
//!
//! One run is a small world: producers write transactions whose messages become visible late or never,
//! two relays of three workers deliver them, an operator kills, stops and restarts the relays, and the
//! store and the broker between them misbehave in every way that their contracts allow. In half of the runs
//! there are two brokers, with outages of their own, behind a router. Then the faults end, everything has
//! to be delivered, and `check.rs` looks at what the brokers took, in which order, and at what the store
//! recorded.
//!
//! The relay and the router are the real ones. The store is the one in memory behind faults; a broker is a
//! model of connections that may outlive the call that opened them. Everything random comes from the seed,
//! and nothing takes real time: a seed that fails, fails again.
//!
//! Not here: real stores and brokers (`tests/integration`), and what one adapter alone must do
//! (`tests/conformance`).
//!
//! Where to read next: `world.rs` for what a run knows, `run.rs` for its course, `check.rs` for what is
//! promised. `tests/seeds.rs` runs a thousand seeds, `tests/mutants.rs` shows that a broken promise is
//! noticed.
#![allow(
    clippy::unwrap_used,
    reason = "a lock that is poisoned or a relay that cannot be built ends the run"
)]

mod broker;
mod check;
mod producer;
mod run;
mod store;
mod world;

pub use check::Violation;
pub use run::{Report, Setup, run};
pub use world::{Mutant, Stats};
