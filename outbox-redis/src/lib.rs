//! Publishes outbox messages to Redis Streams.
//!
//! [`RedisPublisher`] is a [`Publisher`](outbox_core::Publisher) that adds one entry a message to the
//! stream of its topic, in pipelines, and believes only the answer to each `XADD`. It takes the
//! client's own [`Client`], so address, database, TLS and authentication are configured as for any
//! other Redis client.
//!
//! ```
//! use outbox_redis::{Client, RedisConfig, RedisPublisher};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::open("redis://127.0.0.1:6379/")?;
//! // The server need not be there yet.
//! let publisher = RedisPublisher::new(RedisConfig::new(client))?;
//! # let _: &dyn outbox_core::Publisher = &publisher;
//! # Ok(()) }
//! ```
//!
//! What a confirmed entry survives is decided by the server: its `appendfsync`, and its replicas. It
//! does not trim streams unless asked, repeat commands or ask Sentinels. What a
//! consumer finds in an entry, what each failure becomes and what is promised are tables in the
//! crate's `README.md`.
//!
//! Where to read next: `config.rs` for the settings, `encode.rs` for what a message becomes on the
//! wire, `error.rs` for what an answer means, `publisher.rs` for the I/O.

mod config;
mod encode;
mod error;
mod publisher;

pub use config::{
    CONNECT_TIMEOUT, InvalidConfig, MAX_MESSAGE_BYTES, MAX_TIMEOUT, RESPONSE_TIMEOUT, RedisConfig,
    Trim,
};
pub use encode::{HEADER_FIELD_PREFIX, ID_FIELD, KEY_FIELD, PAYLOAD_FIELD};
pub use publisher::RedisPublisher;

/// The client's own handle: where the server is, and how to log in to it.
pub use redis::Client;
/// The client's own TLS settings: certificates to trust, and one to show.
#[cfg(feature = "tls")]
pub use redis::{ClientTlsConfig, TlsCertificates};
