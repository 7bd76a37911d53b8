//! A transactional outbox: one crate, one feature per store and broker.
//!
//! It holds no code of its own. Everything of the core is here at the top; what a feature adds is in
//! a module of its name.
//!
//! | feature | gives |
//! | --- | --- |
//! | `postgres` | `outbox::postgres`: enqueue in the application's transaction, and the store |
//! | `kafka` | `outbox::kafka`: the publisher to Apache Kafka |
//! | `tls` | TLS for the stores and brokers that are chosen |

pub use outbox_core::*;

/// The Postgres store, and enqueue in the application's transaction.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use outbox_postgres::*;
}

/// The publisher to Apache Kafka.
#[cfg(feature = "kafka")]
pub mod kafka {
    pub use outbox_kafka::*;
}
