//! Publishes outbox messages to Apache Kafka.
//!
//! [`KafkaPublisher`] is a [`Publisher`](outbox_core::Publisher) over librdkafka's idempotent
//! producer with `acks=all`: a message is delivered when every in-sync replica of its partition has
//! it. It takes the client's own [`ClientConfig`], so brokers, TLS and authentication are configured
//! as for any other librdkafka client.
//!
//! ```
//! use outbox_kafka::{ClientConfig, KafkaPublisher};
//!
//! let mut config = ClientConfig::new();
//! config.set("bootstrap.servers", "127.0.0.1:9092");
//! // The brokers need not be there yet.
//! let publisher = KafkaPublisher::new(config)?;
//! # let _: &dyn outbox_core::Publisher = &publisher;
//! # Ok::<(), outbox_kafka::InvalidConfig>(())
//! ```
//!
//! It does not create topics, use transactions or compress unless the configuration says so. What a
//! consumer finds in a record, what each failure becomes and what is promised are tables in the
//! crate's `README.md`.
//!
//! Where to read next: `config.rs` for the settings that the promise rests on, `encode.rs` for what
//! a message becomes on the wire, `error.rs` for what an answer means, `publisher.rs` for the I/O.

mod config;
mod encode;
mod error;
mod publisher;

pub use config::{DELIVERY_TIMEOUT_MS, InvalidConfig, MAX_DELIVERY_TIMEOUT_MS};
pub use encode::{ID_HEADER, MAX_TOPIC_CHARACTERS};
pub use publisher::KafkaPublisher;

/// The client's own configuration, by librdkafka's property names.
pub use rdkafka::ClientConfig;
