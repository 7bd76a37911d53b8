//! What needs several processes or services: relays that are processes, a real Postgres, real brokers,
//! and faults that are real too.
//!
//! Every test reads the topic back with the broker's own client and compares it with business rows that
//! were committed together with the messages. Tests that break a server have it for themselves, and put
//! it back.
//!
//! What is about the broker is tested with each, in `every_broker`; what is about Postgres or the relay
//! alone with one of them.
//!
//! Where to read next: `support/scene.rs` for what a test works with, `support/audit.rs` for what it
//! demands in the end.

#![allow(clippy::unwrap_used)]

mod support;

mod backlog;
mod commits;
#[macro_use]
mod every_broker;
mod clocks;
mod failures;
mod pooler;
mod postgres_faults;
mod relay_crashes;
mod relay_faults;
mod relays;
mod routed;

tests_with!(amqp);
tests_with!(kafka);
tests_with!(nats);
tests_with!(redis);
