//! What can be configured, with every default. `README.md` has the same as a table, and
//! `tests/suite/program/packaging.rs` compares them.
//!
//! `settings/load.rs` reads and checks them; `settings/units.rs` has durations, sizes and what is secret.
//! Limits are not here but where the value is used: the relay, the stores and the adapters check their
//! own, and their refusal becomes an [`InvalidSettings`] that names the setting.

mod load;
#[cfg(test)]
mod properties;
mod show;
mod units;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use outbox_core::{BrokerLimits, ExponentialBackoff, OnDead, OrderMode, RelayBuilder};
use serde::{Deserialize, Serialize};

pub(crate) use load::{InvalidSettings, Loaded, load};
pub(crate) use show::lines;
pub(crate) use units::{Address, Properties, Secret, Size, Span};

/// Reads a setting that is one of a few words, and says which there are.
macro_rules! words {
    ($type:ident { $($variant:ident = $word:literal,)* }) => {
        impl TryFrom<String> for $type {
            type Error = String;

            fn try_from(given: String) -> Result<Self, String> {
                match given.as_str() {
                    $($word => Ok(Self::$variant),)*
                    _ => Err(format!("{given:?} is none of {}", [$($word),*].join(", "))),
                }
            }
        }
    };
}

/// The whole configuration.
#[derive(Debug, Serialize)]
pub(crate) struct Settings {
    pub(crate) store: Store,
    pub(crate) broker: BTreeMap<String, Broker>,
    pub(crate) route: Vec<Route>,
    pub(crate) relay: Relay,
    pub(crate) log: Log,
    pub(crate) http: Http,
}

/// `[store]`: where messages are.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Store {
    Postgres(Postgres),
    Sqlite(Sqlite),
}

/// `[store]` with `kind = "postgres"`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Postgres {
    pub(crate) url: Address,
    #[serde(default = "postgres_schema")]
    pub(crate) schema: String,
    /// Whether `url` leads through a transaction pooler.
    #[serde(default)]
    pub(crate) pooler: bool,
    /// Past the pooler, for what needs a connection of its own: waiting to be woken.
    pub(crate) listen_url: Option<Address>,
    #[serde(default = "lanes_per_claim")]
    pub(crate) lanes_per_claim: usize,
    #[serde(default)]
    pub(crate) synchronous_settle: bool,
    #[serde(default)]
    pub(crate) wait_until_flushed: bool,
    pub(crate) keep_delivered_for: Option<Span>,
}

/// `[store]` with `kind = "sqlite"`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sqlite {
    pub(crate) path: PathBuf,
    #[serde(default = "sqlite_prefix")]
    pub(crate) prefix: String,
}

/// `[broker.NAME]`: where messages go.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Broker {
    Amqp(Amqp),
    Kafka(Kafka),
    Nats(Nats),
    Redis(Redis),
}

/// `[broker.NAME]` with `kind = "amqp"`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Amqp {
    pub(crate) url: Address,
    #[serde(default)]
    pub(crate) routing: AmqpRouting,
    /// The exchange that takes every topic, with `routing = "exchange"`.
    pub(crate) exchange: Option<String>,
    pub(crate) connect_timeout: Option<Span>,
    pub(crate) confirm_timeout: Option<Span>,
}

/// What a topic names at RabbitMQ.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(try_from = "String", rename_all = "snake_case")]
pub(crate) enum AmqpRouting {
    #[default]
    Queue,
    Exchange,
    ExchangePerTopic,
}

words!(AmqpRouting {
    Queue = "queue",
    Exchange = "exchange",
    ExchangePerTopic = "exchange_per_topic",
});

/// `[broker.NAME]` with `kind = "kafka"`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kafka {
    /// librdkafka's own, by their names.
    pub(crate) properties: Properties,
}

/// `[broker.NAME]` with `kind = "nats"`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nats {
    /// One or several servers, separated by commas.
    pub(crate) url: Address,
    pub(crate) credentials_file: Option<PathBuf>,
    pub(crate) token: Option<Secret>,
    pub(crate) subject_prefix: Option<String>,
    pub(crate) expected_stream: Option<String>,
    pub(crate) max_in_flight: Option<usize>,
    pub(crate) ack_timeout: Option<Span>,
    #[serde(default)]
    pub(crate) atomic_batches: bool,
}

/// `[broker.NAME]` with `kind = "redis"`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Redis {
    pub(crate) url: Address,
    #[serde(default)]
    pub(crate) cluster: bool,
    #[serde(default)]
    pub(crate) stream_prefix: String,
    #[serde(default = "yes")]
    pub(crate) create_streams: bool,
    pub(crate) response_timeout: Option<Span>,
    pub(crate) connect_timeout: Option<Span>,
    pub(crate) max_message_bytes: Option<Size>,
    /// Keeps about so many entries in each stream.
    pub(crate) trim_entries: Option<u64>,
    /// Drops entries that are older.
    pub(crate) trim_age: Option<Span>,
    pub(crate) wait_for_replicas: Option<u32>,
    #[serde(default = "wait_for_replicas_within")]
    pub(crate) wait_for_replicas_within: Span,
}

/// `[[route]]`: which broker takes a topic. The first that fits counts.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Route {
    pub(crate) topic: String,
    pub(crate) broker: String,
}

/// `[relay]`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Relay {
    pub(crate) workers: usize,
    pub(crate) batch_messages: usize,
    pub(crate) batch_bytes: Size,
    pub(crate) order: Order,
    pub(crate) on_dead: AfterDead,
    pub(crate) crash_limit: u32,
    pub(crate) claim_wait: Span,
    pub(crate) publish_timeout: Span,
    /// Of one call of one of several brokers.
    pub(crate) call_timeout: Span,
    pub(crate) settle_timeout: Span,
    pub(crate) store_timeout: Span,
    pub(crate) backoff_first: Span,
    pub(crate) backoff_longest: Span,
    pub(crate) retry_first: Span,
    pub(crate) retry_longest: Span,
    pub(crate) max_failures: u32,
    pub(crate) shutdown_grace: Span,
}

impl Default for Relay {
    fn default() -> Self {
        Self {
            workers: RelayBuilder::WORKERS,
            batch_messages: RelayBuilder::BATCH_MESSAGES,
            batch_bytes: Size(RelayBuilder::BATCH_BYTES),
            order: Order::PerKey,
            on_dead: AfterDead::Continue,
            crash_limit: RelayBuilder::CRASH_LIMIT,
            claim_wait: Span(RelayBuilder::CLAIM_WAIT),
            publish_timeout: Span(RelayBuilder::PUBLISH_TIMEOUT),
            call_timeout: Span(BrokerLimits::CALL_TIMEOUT),
            settle_timeout: Span(RelayBuilder::SETTLE_TIMEOUT),
            store_timeout: Span(RelayBuilder::STORE_TIMEOUT),
            backoff_first: Span(RelayBuilder::BACKOFF_FIRST),
            backoff_longest: Span(RelayBuilder::BACKOFF_LONGEST),
            retry_first: Span(ExponentialBackoff::FIRST),
            retry_longest: Span(ExponentialBackoff::LONGEST),
            max_failures: ExponentialBackoff::MAX_FAILURES,
            shutdown_grace: Span(RelayBuilder::STOP_GRACE + RelayBuilder::SETTLE_TIMEOUT),
        }
    }
}

/// `relay.order`.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(try_from = "String", rename_all = "snake_case")]
pub(crate) enum Order {
    PerKey,
    PerKeyPipelined,
    Unordered,
}

words!(Order {
    PerKey = "per_key",
    PerKeyPipelined = "per_key_pipelined",
    Unordered = "unordered",
});

impl From<Order> for OrderMode {
    fn from(order: Order) -> Self {
        match order {
            Order::PerKey => Self::PerKey,
            Order::PerKeyPipelined => Self::PerKeyPipelined,
            Order::Unordered => Self::Unordered,
        }
    }
}

/// `relay.on_dead`.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(try_from = "String", rename_all = "snake_case")]
pub(crate) enum AfterDead {
    Continue,
    HaltKey,
}

words!(AfterDead {
    Continue = "continue",
    HaltKey = "halt_key",
});

impl From<AfterDead> for OnDead {
    fn from(after: AfterDead) -> Self {
        match after {
            AfterDead::Continue => Self::Continue,
            AfterDead::HaltKey => Self::HaltKey,
        }
    }
}

/// `[log]`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Log {
    /// A level, or directives such as `info,outbox_core=debug`.
    pub(crate) level: String,
    pub(crate) format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: LogFormat::Auto,
        }
    }
}

/// `log.format`.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(try_from = "String", rename_all = "snake_case")]
pub(crate) enum LogFormat {
    /// Text where standard error is a terminal, JSON where it is not.
    Auto,
    Text,
    Json,
}

words!(LogFormat {
    Auto = "auto",
    Text = "text",
    Json = "json",
});

/// `[http]`: metrics and health.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Http {
    /// Nothing listens unless it is set.
    pub(crate) listen: Option<SocketAddr>,
}

fn postgres_schema() -> String {
    "outbox".to_owned()
}

fn sqlite_prefix() -> String {
    "outbox_".to_owned()
}

/// `PostgresStore::LANES_PER_CLAIM`, which is not there in a program without Postgres.
fn lanes_per_claim() -> usize {
    8
}

fn yes() -> bool {
    true
}

fn wait_for_replicas_within() -> Span {
    Span::seconds(1)
}
