//! What people see of an outbox and decide about it, as data: the same for every store, so that one
//! program serves all of them.
//!
//! Only words and selections are here. Each store's `Outbox` has the functions, under the same names:
//! `status`, `gauges`, `delayed`, `dead`, `dead_content`, `count_dead`, `replay`, `discard`, `held_keys`, `retry_now`,
//! `pause`, `resume`, `paused` and `doctor`. No relay needs any of them, and none of them needs a relay.

mod dead;
mod delayed;
mod doctor;
mod keys;
mod pause;
mod status;
pub mod steps;

pub use dead::{DeadContent, DeadFilter, DeadMessage, DeadPage, Decided};
pub use delayed::{DelayedMessage, DelayedPage, DelayedPlace, InvalidPlace};
pub use doctor::{Finding, Severity};
pub use keys::{Head, HeldKey, KeyFilter, KeyPage, Retried};
pub use pause::{PausedTopic, Resumed};
pub use status::{Count, Gauges, HeldLane, Lane, RelaySeen, Status, TopicCounts, Traffic};
