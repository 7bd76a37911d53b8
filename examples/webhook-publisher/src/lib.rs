//! Publishes outbox messages to an HTTP endpoint, one `POST` a message: an example of a small adapter.
//!
//! ```
//! use webhook_publisher::{WebhookConfig, WebhookPublisher};
//!
//! // The receiver need not be there yet.
//! let publisher = WebhookPublisher::new(WebhookConfig::new("http://127.0.0.1:8080/events"))?;
//! # let _: &dyn outbox_core::Publisher = &publisher;
//! # Ok::<(), webhook_publisher::InvalidConfig>(())
//! ```
//!
//! It has the files of every adapter here and passes the suite of every adapter. What a receiver finds
//! in a request, what each status becomes and what is promised are tables in the crate's `README.md`.
//!
//! It does not speak TLS, sign requests, follow redirects or repeat a request: the relay repeats.
//!
//! Where to read next: `docs/write-a-publisher.md` for how it was written; `config.rs` for the
//! settings, `encode.rs` for what a message becomes on the wire, `error.rs` for what an answer means,
//! `publisher.rs` for the I/O.

mod config;
mod encode;
mod error;
mod publisher;

pub use config::{InvalidConfig, WebhookConfig};
pub use encode::{HEADER_PREFIX, ID_HEADER, KEY_HEADER, TOMBSTONE_HEADER, TOPIC_HEADER};
pub use publisher::WebhookPublisher;
