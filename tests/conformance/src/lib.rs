//! The suites that every Store and every Publisher must pass.
//!
//! Behaviour is defined once, here; an implementation joins with a harness of a few lines and one
//! call, and every case becomes a test of its own. The suites are tested too: in `tests/`,
//! deliberately wrong implementations must each fail the case that was written for them.
//!
//! Where to read next: [`store`] for what a store must do, [`publisher`] for what a publisher must do;
//! [`messages`] for any of them, [`proxy`] for a bad network, [`process`] for signals and [`secured`] for
//! TLS and passwords in an adapter's own tests, which find the real servers by [`address`].

pub mod messages;
pub mod process;
pub mod proxy;
pub mod publisher;
mod runner;
pub mod secured;
mod servers;
pub mod store;

pub use servers::address;
