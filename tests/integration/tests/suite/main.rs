//! What needs several processes or services: relays that are processes, a real Postgres and a real
//! Kafka, and faults that are real too.
//!
//! Every test reads the topic back with Kafka's own client and compares it with business rows that were
//! committed together with the messages. Tests that break a server have it for themselves, and put it
//! back.
//!
//! Where to read next: `support/scene.rs` for what a test works with, `support/audit.rs` for what it
//! demands in the end.

#![allow(clippy::unwrap_used)]

mod support;

mod backlog;
mod commits;
mod content;
mod failures;
mod kafka_faults;
mod postgres_faults;
mod relay_faults;
mod relays;
