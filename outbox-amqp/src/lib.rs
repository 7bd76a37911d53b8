//! Publishes outbox messages to RabbitMQ, over AMQP 0-9-1.
//!
//! [`AmqpPublisher`] is a [`Publisher`](outbox_core::Publisher) over lapin with publisher confirms:
//! a message is delivered when every queue that it was routed to has taken responsibility for it, and
//! one that no queue wants is a failure. Persistent, mandatory, in slice order.
//!
//! ```
//! use outbox_amqp::{AmqpConfig, AmqpPublisher, Routing};
//!
//! // To the exchange `shop`, with the topic as routing key. Without it a topic is a queue's name.
//! let config = AmqpConfig::new("amqp://guest:guest@127.0.0.1:5672/%2f")
//!     .routing(Routing::Exchange("shop".to_owned()));
//! // The broker need not be there yet.
//! let publisher = AmqpPublisher::new(config)?;
//! # let _: &dyn outbox_core::Publisher = &publisher;
//! # Ok::<(), outbox_amqp::InvalidConfig>(())
//! ```
//!
//! It does not declare exchanges, queues or bindings. What a consumer finds in a message, what each
//! failure becomes and what is promised are tables in the crate's `README.md`.
//!
//! Where to read next: `config.rs` for the settings, `encode.rs` for what a message becomes on the
//! wire, `error.rs` for what an answer means, `publisher.rs` for the I/O.

mod config;
mod encode;
mod error;
mod publisher;

pub use config::{
    AmqpConfig, CONFIRM_TIMEOUT, CONNECT_TIMEOUT, InvalidConfig, MAX_TIMEOUT, Routing,
};
pub use encode::{CONTENT_TYPE_HEADER, KEY_HEADER, MAX_NAME_BYTES, TOMBSTONE_HEADER};
pub use publisher::AmqpPublisher;

/// The client's own way to authenticate other than by what the URI says, such as OAuth 2.
pub use lapin::auth::AuthProvider;
/// The client's own TLS settings: extra certificates to trust, and a client certificate.
pub use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
