//! What an operator does with the program alone, on an outbox in Postgres and on one in SQLite.

mod decisions;
mod embedded;
mod incident;
mod looks;
mod surroundings;
