//! A transactional outbox: one crate, one feature per store and broker.
//!
//! An application writes a [`Message`] in the transaction of its business rows. After the commit a
//! [`Relay`] delivers it to a broker: at least once, the messages of one key in their order, with a
//! message id by which a consumer tells a repeat. A transaction that rolls back sends nothing.
//!
//! This crate holds no code of its own. Everything of the core is here at the top; what a feature adds
//! is in a module of its name.
//!
//! | feature | gives |
//! | --- | --- |
//! | `postgres` | `outbox::postgres`: the store in Postgres, and enqueueing in its transactions |
//! | `sqlite` | `outbox::sqlite`: the store in an embedded SQLite database, for one relay process |
//! | `amqp` | `outbox::amqp`: the publisher to RabbitMQ |
//! | `kafka` | `outbox::kafka`: the publisher to Apache Kafka |
//! | `nats` | `outbox::nats`: the publisher to NATS JetStream |
//! | `redis` | `outbox::redis`: the publisher to Redis Streams |
//! | `otel` | trace context of OpenTelemetry in messages, and spans of the relay that link to it |
//! | `tls` | TLS for the stores and brokers that are chosen |
//!
//! Where to read next, by what you want to do:
//!
//! | to | see |
//! | --- | --- |
//! | make a message | [`Message::to`], and [`MessageBuilder`] for key, headers and payload |
//! | tie a type to its topic, key and schema; make it a CloudEvent | [`Event`], [`cloudevents`] |
//! | assert in a test what was enqueued | [`testing`] |
//! | enqueue it, make the tables | `postgres::Outbox`, `sqlite::Outbox` |
//! | consume it, with its effects once | `postgres::Inbox`, `sqlite::Inbox` |
//! | deliver, and stop cleanly | [`Relay::builder`], [`RelayBuilder`] for the settings, [`Relay::run_until`] |
//! | deliver to several brokers, by topic | [`Router`] |
//! | choose what order costs and gives | [`OrderMode`], [`OnDead`] |
//! | choose when a failed message is tried again | [`ExponentialBackoff`], [`RetryPolicy`] |
//! | see what is stuck, and decide about it | [`admin`], `postgres::Outbox`, `sqlite::Outbox` |
//! | test without a server | [`memory`] |
//! | add a broker or a store | [`Publisher`], [`Store`] |
//!
//! In short, with `postgres` and `kafka`:
//!
//! ```no_run
//! # #[cfg(all(feature = "postgres", feature = "kafka"))] mod example {
//! use outbox::kafka::{ClientConfig, KafkaPublisher};
//! use outbox::postgres::Outbox;
//! use outbox::{Message, Relay};
//!
//! static OUTBOX: Outbox = Outbox::new();
//!
//! # type Error = Box<dyn std::error::Error>;
//! async fn place_order(pool: &sqlx::PgPool, order: i64) -> Result<(), Error> {
//!     let message = Message::to("orders.placed").key(order).json(&order)?;
//!     let mut tx = pool.begin().await?;
//!     sqlx::query("INSERT INTO orders (id) VALUES ($1)").bind(order).execute(&mut *tx).await?;
//!     OUTBOX.enqueue(&mut tx, &message).await?;
//!     Ok(tx.commit().await?)
//! }
//!
//! async fn relay(pool: &sqlx::PgPool, stop: impl Future<Output = ()>) -> Result<(), Error> {
//!     OUTBOX.migrate(pool).await?;
//!     let mut kafka = ClientConfig::new();
//!     kafka.set("bootstrap.servers", "127.0.0.1:9092");
//!     let relay = Relay::builder(OUTBOX.store(pool), KafkaPublisher::new(kafka)?).build()?;
//!     relay.run_until(stop).await;
//!     Ok(())
//! }
//! # }
//! ```

pub use outbox_core::*;

/// The store in Postgres: [`Outbox`](postgres::Outbox) for applications, [`Inbox`](postgres::Inbox) for
/// consumers, [`PostgresStore`](postgres::PostgresStore) for the relay.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use outbox_postgres::*;
}

/// The publisher to RabbitMQ: [`AmqpPublisher`](amqp::AmqpPublisher).
#[cfg(feature = "amqp")]
pub mod amqp {
    pub use outbox_amqp::*;
}

/// The store in an embedded SQLite database: [`Outbox`](sqlite::Outbox) for applications,
/// [`Inbox`](sqlite::Inbox) for consumers, [`SqliteStore`](sqlite::SqliteStore) for the relay.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    pub use outbox_sqlite::*;
}

/// The publisher to Apache Kafka: [`KafkaPublisher`](kafka::KafkaPublisher).
#[cfg(feature = "kafka")]
pub mod kafka {
    pub use outbox_kafka::*;
}

/// The publisher to NATS JetStream: [`NatsPublisher`](nats::NatsPublisher).
#[cfg(feature = "nats")]
pub mod nats {
    pub use outbox_nats::*;
}

/// The publisher to Redis Streams: [`RedisPublisher`](redis::RedisPublisher).
#[cfg(feature = "redis")]
pub mod redis {
    pub use outbox_redis::*;
}
