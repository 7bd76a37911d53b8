//! What an operator does with the program alone, against a real Postgres, a real SQLite
//! and real brokers.

#![allow(clippy::unwrap_used)]

mod decisions;
mod embedded;
mod incident;
mod looks;
mod scene;
mod surroundings;
