//! The program `outbox` as people and other programs meet it: run as a process, against real servers.
//!
//! `program` has what a supervisor and a monitor see of the relay, `operator` what a person does with the
//! commands, `adopt` what a team does that begins, `documents` what the guides show, and `tracing` what a collector of
//! OpenTelemetry gets.
//!
//! Where to read next: `support/place.rs` for how the program is run, `support/scene.rs` for the outbox of
//! a test's own.

#![allow(clippy::unwrap_used)]

mod support;

mod adopt;
mod documents;
mod operator;
mod program;
#[cfg(feature = "otel")]
mod tracing;
