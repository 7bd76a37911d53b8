//! Publishes outbox messages to NATS JetStream.
//!
//! [`NatsPublisher`] is a [`Publisher`](outbox_core::Publisher) over the official asynchronous client:
//! a message is delivered when the stream that takes its subject has acknowledged it. It takes the
//! client's own [`Client`], so servers, TLS and authentication are configured as for any other use of
//! it, and its connection may be shared with the rest of an application.
//!
//! ```no_run
//! use outbox_nats::{ConnectOptions, NatsConfig, NatsPublisher};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! // The server need not be there yet.
//! let options = ConnectOptions::new().retry_on_initial_connect();
//! let client = options.connect("nats://127.0.0.1:4222").await?;
//! let publisher = NatsPublisher::new(client, NatsConfig::new().expected_stream("ORDERS"))?;
//! # let _: &dyn outbox_core::Publisher = &publisher;
//! # Ok(())
//! # }
//! ```
//!
//! It does not create streams, and uses none of the headers with which a publisher steers the server,
//! except the message id and the name of the stream. What a consumer finds in a message, what each
//! failure becomes and what is promised are tables in the crate's `README.md`.
//!
//! Where to read next: `config.rs` for the settings, `encode.rs` for what a message becomes on the
//! wire, `error.rs` for what an answer means, `publisher.rs` for the I/O.

mod config;
mod encode;
mod error;
mod publisher;

pub use config::{
    ACK_TIMEOUT, InvalidConfig, MAX_ACK_TIMEOUT, MAX_IN_FLIGHT, MAX_MAX_IN_FLIGHT, MAX_NAME_BYTES,
    NatsConfig,
};
pub use encode::{ID_HEADER, KEY_HEADER, MAX_HEADER_BLOCK_BYTES, TOMBSTONE_HEADER};
pub use publisher::NatsPublisher;

/// The client, and the options that it connects with.
pub use async_nats::{Client, ConnectOptions};
