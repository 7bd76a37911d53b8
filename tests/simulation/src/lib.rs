//! The relay under seeded faults and paused time.
//!
//! One run is a small world: producers write transactions whose messages become visible late or never, some of
//! them with a delay, two relays of three workers deliver them and are killed, stopped and started again, a person
//! replays and discards what is dead and cancels what is delayed, and the store and the broker between them misbehave in every way that their
//! contracts allow, at every place where a call waits. In half of the runs there are two or three brokers,
//! with outages of their own, behind a router. Then the faults end, everything has to be delivered, and
//! `check.rs` looks at what the brokers took, in which order, and at what the store recorded.
//!
//! The relay and the router are the real ones. The store is the one in memory behind faults; a broker is a
//! model of connections that may outlive the call that opened them. Everything random comes from the seed,
//! and nothing takes real time: a seed that fails, fails again.
//!
//! Not here: real stores and brokers (`tests/integration`), and what one adapter alone must do
//! (`tests/conformance`).
//!
//! Where to read next: `world.rs` for what a run knows, `point.rs` for where a call can meet a fault,
//! `run.rs` for its course, `check.rs` for what is promised. `tests/seeds.rs` runs thousands of seeds,
//! `tests/every_await.rs` a fault at each place in turn, and `tests/mutants.rs` shows that a broken promise
//! is noticed. Fresh seeds: `cargo run -p outbox-simulation -- --seeds N`.
#![allow(
    clippy::unwrap_used,
    reason = "a lock that is poisoned or a relay that cannot be built ends the run"
)]

mod broker;
mod check;
mod person;
mod point;
mod producer;
mod run;
mod seeds;
mod store;
mod world;

pub use check::Violation;
pub use point::{Fault, Point, Script};
pub use run::{Report, Setup, run};
pub use seeds::{replay, run_all};
pub use world::{Mutant, Stats};
