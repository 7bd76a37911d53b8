//! The traits of a transactional outbox, and the relay that joins them.
//!
//! An application writes a [`Message`] in the same database transaction as its business rows. A
//! [`Relay`] claims committed messages from a [`Store`], hands them to a [`Publisher`] and settles
//! what became of each. Nothing that committed is lost, nothing that rolled back is sent, messages
//! of one key arrive in order, and a consumer tells a repeat by the message id.
//!
//! This crate knows no SQL, no broker and no TLS. Stores and brokers are crates of their own;
//! [`memory`] has a store and a publisher for tests and trials.
//!
//! Where to read next: [`Message`] for what travels, [`Store`] and [`Publisher`] for the contracts
//! that adapters keep, [`Relay`] for running it, [`OrderMode`] for what order costs and gives,
//! [`Router`] for several brokers behind one relay, [`admin`] for what people see and decide, [`inbox`] for
//! consumers, [`Event`] for typed messages, [`testing`] for tests of applications.

pub mod admin;
mod chain;
pub mod cloudevents;
mod event;
pub mod inbox;
pub mod memory;
mod message;
mod order;
mod pattern;
mod publisher;
mod relay;
mod retry;
mod router;
mod store;
pub mod testing;
#[cfg(feature = "otel")]
mod trace;

pub use chain::{Chains, StoppedKeys};
pub use event::{Event, SCHEMA_VERSION_HEADER};
pub use message::{
    Headers, InvalidMessage, MAX_DELAY, MAX_HEADER_NAME_BYTES, MAX_HEADERS, MAX_HEADERS_BYTES,
    MAX_KEY_BYTES, MAX_PAYLOAD_BYTES, MAX_TOPIC_BYTES, Message, MessageBuilder,
    RESERVED_HEADER_PREFIX,
};
pub use order::{OnDead, OrderMode};
pub use pattern::{InvalidPattern, TopicPattern};
pub use publisher::{Answer, Delivery, PublishError, PublishErrorKind, Publisher, PublisherExt};
pub use relay::{InvalidConfig, Relay, RelayBuilder, RelayMonitor};
pub use retry::{ExponentialBackoff, RetryPolicy};
pub use router::{BrokerLimits, Router, RouterBuilder};
pub use store::{Claim, ClaimLimits, Claimed, Outcome, Store, StoreError};

/// For implementing [`Store`], [`Claim`] and [`Publisher`].
pub use async_trait::async_trait;
/// The message id.
pub use uuid::Uuid;
