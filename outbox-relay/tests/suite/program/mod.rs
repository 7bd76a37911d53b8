//! The program `outbox` against real servers: what a person and a supervisor see of it.

#![allow(clippy::unwrap_used)]

mod brokers;
mod configuration;
mod delivery;
mod packaging;
mod proxy;
mod start;
mod stop;
mod support;
mod watching;
