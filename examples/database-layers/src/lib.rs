//! Enqueue from other database layers than sqlx: the SQL function, in the layer's own transaction.
//!
//! A [`Message`](outbox::Message) is made as everywhere, which checks its limits, and its parts are the
//! arguments. Each file has all that a service needs; it depends on `outbox` without a store. The tables come
//! from `outbox migrate`, or from `Outbox::migrations_sql`.
//!
//! SeaORM is built on sqlx but keeps the connection of a transaction to itself, so `Outbox::enqueue` does not get at
//! it. Its pool is sqlx's all the same: `Outbox::migrate` and `Outbox::store` take what
//! `DatabaseConnection::get_postgres_connection_pool` gives.

pub mod diesel;
pub mod sea_orm;
pub mod tokio_postgres;
