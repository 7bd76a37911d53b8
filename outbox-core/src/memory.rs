//! A store and a publisher in memory, for tests and trials.
//!
//! Both keep the contracts of their traits and pass the same suites as the real ones. Clones share
//! what they hold, so that a test keeps one and gives the other to the relay. Times are tokio's: under
//! paused time they wait without waiting.
//!
//! Not for production: nothing outlives the process, and nothing bounds what they hold.
//!
//! Where to read next: [`MemoryStore`] for what can be asked of it, [`MemoryPublisher`] for scripted
//! failures.

mod publisher;
mod store;

pub use publisher::MemoryPublisher;
pub use store::{MemoryCounts, MemoryDead, MemoryStore, MemoryTransaction};
