//! The settings that the promise rests on: which are set, which may be changed, which are refused.
//!
//! Every setting is a librdkafka property under its own name; there is no second vocabulary. A
//! property that the application has set stays as it is, or is refused when the promise would not
//! hold with it. What librdkafka itself refuses is reported in its words.

use std::fmt;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;

/// `delivery.timeout.ms` unless it is configured: how long the client tries to deliver one message,
/// in milliseconds. It must stay at least 4 s below half of the relay's publish timeout (30 s unless
/// configured): a wave may begin that late, and an outage that is not explained in time passes for a
/// failure of the messages in it.
pub const DELIVERY_TIMEOUT_MS: u32 = 10_000;

/// The largest `delivery.timeout.ms`, in milliseconds. A message stays in the client's queue for as
/// long, also after the caller has gone.
pub const MAX_DELIVERY_TIMEOUT_MS: u32 = 300_000;

/// Set unless the application has set them.
const DEFAULTS: [(&str, &str); 8] = [
    // The same partition for a key as Java clients choose, and one for the empty key too.
    ("partitioner", "murmur2_random"),
    // To wait for more would only delay a wave; see `GATHERING_MS`.
    ("queue.buffering.max.ms", "0"),
    // A topic's max.message.bytes is for the whole record batch, which is refused as a whole: a small
    // one seldom is.
    ("batch.size", "65536"),
    // What a queue may take of the relay's memory, in KiB; the client's own default is 1 GiB.
    ("queue.buffering.max.kbytes", "65536"),
    // A missing topic is known before the delivery timeout; the client's own default is 30 s.
    ("topic.metadata.propagation.max.ms", "5000"),
    // The first message after an outage does not wait long for a reconnect; the client's own
    // default is 10 s.
    ("reconnect.backoff.max.ms", "1000"),
    // An idle broker ends the connection after ten minutes, which is no error.
    ("log.connection.close", "false"),
    ("client.id", "outbox"),
];

/// How long the client waits for fuller record batches while much is published, in milliseconds: its own
/// default.
const GATHERING_MS: &str = "5";

/// Properties with two names, as (one that is kept, alias).
const ALIASES: [(&str, &str); 7] = [
    ("bootstrap.servers", "metadata.broker.list"),
    ("acks", "request.required.acks"),
    ("message.timeout.ms", "delivery.timeout.ms"),
    ("queue.buffering.max.ms", "linger.ms"),
    ("message.send.max.retries", "retries"),
    ("max.in.flight.requests.per.connection", "max.in.flight"),
    ("compression.codec", "compression.type"),
];

/// Properties whose values `Debug` shows. Every other value may be a secret.
const SHOWN: [&str; 11] = [
    "acks",
    "batch.size",
    "bootstrap.servers",
    "client.id",
    "compression.codec",
    "enable.idempotence",
    "message.max.bytes",
    "message.timeout.ms",
    "partitioner",
    "queue.buffering.max.ms",
    "security.protocol",
];

/// Why a configuration is refused. It names the property, and never shows a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidConfig {
    /// A property that has to be given is not.
    #[error("`{property}` is missing")]
    Missing {
        /// The property.
        property: &'static str,
    },
    /// A property has a value with which delivered would not mean delivered.
    #[error("`{property}` is {given:?}, allowed: {allowed}")]
    NotAllowed {
        /// The property.
        property: &'static str,
        /// Its value.
        given: String,
        /// What it may be.
        allowed: String,
    },
    /// A property is given under two names.
    #[error("`{property}` and `{alias}` are one property, and both are given")]
    Twice {
        /// One name.
        property: &'static str,
        /// The other name.
        alias: &'static str,
    },
    /// The client refuses the configuration.
    #[error("the Kafka client refuses the configuration: {reason}")]
    Client {
        /// In its words.
        reason: String,
    },
}

impl From<KafkaError> for InvalidConfig {
    fn from(error: KafkaError) -> Self {
        let reason = match error {
            // Without the value, which may be a secret.
            KafkaError::ClientConfig(_, reason, property, _) => format!("`{property}`: {reason}"),
            error => error.to_string(),
        };
        Self::Client { reason }
    }
}

/// A configuration with which delivered means delivered.
#[derive(Clone)]
pub(crate) struct Config {
    client: ClientConfig,
    /// The application has said how long the client waits for fuller record batches.
    says_linger: bool,
    delivery_timeout: Duration,
}

impl Config {
    /// Completes what the application has set, and refuses what breaks the promise.
    pub(crate) fn new(mut config: ClientConfig) -> Result<Self, InvalidConfig> {
        let names = keep_one_name(&mut config)?;
        if config.get("bootstrap.servers").is_none_or(str::is_empty) {
            return Err(InvalidConfig::Missing {
                property: "bootstrap.servers",
            });
        }

        // Only then has every in-sync replica the message when it is confirmed.
        names.require(&config, "acks", &["all", "-1"])?;
        // Without it the client's own repeats may overtake each other.
        names.require(&config, "enable.idempotence", &["true"])?;
        // With it one refused message takes everything in the queue with it.
        names.require(&config, "enable.gapless.guarantee", &["false"])?;
        // With it no success is ever reported.
        names.require(&config, "delivery.report.only.error", &["false"])?;
        // The others give a key, or the empty key, no partition of its own.
        names.require(
            &config,
            "partitioner",
            &[
                "murmur2_random",
                "murmur2",
                "consistent",
                "fnv1a_random",
                "fnv1a",
            ],
        )?;
        if let Some(given) = config.get("transactional.id") {
            return Err(InvalidConfig::NotAllowed {
                property: "transactional.id",
                given: given.to_owned(),
                allowed: "none, the outbox uses no Kafka transactions".to_owned(),
            });
        }

        let says_linger = config.get("queue.buffering.max.ms").is_some();
        config.set("acks", "all").set("enable.idempotence", "true");
        for (property, value) in DEFAULTS {
            if config.get(property).is_none() {
                config.set(property, value);
            }
        }
        let timeout = names.number(
            &config,
            "message.timeout.ms",
            DELIVERY_TIMEOUT_MS.into(),
            1..=MAX_DELIVERY_TIMEOUT_MS.into(),
        )?;
        config.set("message.timeout.ms", timeout.to_string());

        // A message larger than the queue would wait for room for ever.
        let queue = names.number(
            &config,
            "queue.buffering.max.kbytes",
            0,
            1..=i32::MAX as u64,
        )? * 1024;
        names.number(
            &config,
            "message.max.bytes",
            CLIENT_MESSAGE_MAX_BYTES,
            1_000..=queue,
        )?;
        Ok(Self {
            client: config,
            says_linger,
            delivery_timeout: Duration::from_millis(timeout),
        })
    }

    /// The same with a client that waits a little for fuller record batches, unless the application has
    /// said how long it waits.
    pub(crate) fn gathering(&self) -> Option<Self> {
        let mut config = self.clone();
        config.client.set("queue.buffering.max.ms", GATHERING_MS);
        (!self.says_linger).then_some(config)
    }

    /// The same with every record in a record batch of its own, so that an answer is about one
    /// message alone.
    pub(crate) fn one_record_a_batch(&self) -> Self {
        let mut config = self.clone();
        config.client.set("batch.num.messages", "1");
        config
    }

    /// The same with a client that writes nothing of a partition before all that came before it is taken.
    ///
    /// One request at a time: a broker that has nothing of the client's session would take a second one though
    /// it had refused the first. Gapless: a refusal ends the client, which sends nothing more. That leaves
    /// messages whose time is over, so the client never finds that it is: who waits for them ends it instead.
    pub(crate) fn chaining(&self) -> Self {
        let mut config = self.clone();
        config
            .client
            .set("max.in.flight.requests.per.connection", "1")
            .set("enable.gapless.guarantee", "true")
            .set("message.timeout.ms", MAX_DELIVERY_TIMEOUT_MS.to_string());
        config
    }

    /// Whether every record has a record batch of its own.
    pub(crate) fn is_one_record_a_batch(&self) -> bool {
        self.client.get("batch.num.messages") == Some("1")
    }

    /// For creating a client.
    pub(crate) fn client(&self) -> &ClientConfig {
        &self.client
    }

    /// The largest record that the client takes, in bytes.
    pub(crate) fn message_max_bytes(&self) -> u64 {
        self.client
            .get("message.max.bytes")
            .and_then(|value| value.parse().ok())
            .unwrap_or(CLIENT_MESSAGE_MAX_BYTES)
    }

    /// How long the client tries to deliver one message.
    pub(crate) fn delivery_timeout(&self) -> Duration {
        self.delivery_timeout
    }
}

/// The client's own default of `message.max.bytes`.
const CLIENT_MESSAGE_MAX_BYTES: u64 = 1_000_000;

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (property, _) in self.client.config_map() {
            match self.client.get(property) {
                Some(value) if SHOWN.contains(&property) => map.entry(&property, &value),
                _ => map.entry(&property, &format_args!("…")),
            };
        }
        map.finish()
    }
}

/// The names under which properties were given, where that is not the one that is kept.
struct Names(Vec<(&'static str, &'static str)>);

/// Renames each alias, so that every check sees every property under one name. Gives back which were
/// renamed, so that an error names what the application has written.
fn keep_one_name(config: &mut ClientConfig) -> Result<Names, InvalidConfig> {
    let mut names = Names(Vec::new());
    for (property, alias) in ALIASES {
        let Some(value) = config.get(alias).map(str::to_owned) else {
            continue;
        };
        if config.get(property).is_some() {
            return Err(InvalidConfig::Twice { property, alias });
        }
        config.remove(alias).set(property, value);
        names.0.push((property, alias));
    }
    Ok(names)
}

impl Names {
    /// What the application calls the property.
    fn given(&self, property: &'static str) -> &'static str {
        let renamed = self.0.iter().find(|(kept, _)| *kept == property);
        renamed.map_or(property, |(_, alias)| alias)
    }

    /// Refuses a value that is given and is none of `allowed`.
    fn require(
        &self,
        config: &ClientConfig,
        property: &'static str,
        allowed: &[&str],
    ) -> Result<(), InvalidConfig> {
        match config.get(property) {
            Some(given) if !allowed.contains(&given) => Err(InvalidConfig::NotAllowed {
                property: self.given(property),
                given: given.to_owned(),
                allowed: allowed.join(", "),
            }),
            _ => Ok(()),
        }
    }

    /// The value of a number, `unset` when it is not given. Refuses what is not in `allowed`.
    fn number(
        &self,
        config: &ClientConfig,
        property: &'static str,
        unset: u64,
        allowed: std::ops::RangeInclusive<u64>,
    ) -> Result<u64, InvalidConfig> {
        let Some(given) = config.get(property) else {
            return Ok(unset);
        };
        match given.trim().parse() {
            Ok(value) if allowed.contains(&value) => Ok(value),
            _ => Err(InvalidConfig::NotAllowed {
                property: self.given(property),
                given: given.to_owned(),
                allowed: format!("{} to {}", allowed.start(), allowed.end()),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(properties: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", "127.0.0.1:1");
        for (property, value) in properties {
            config.set(*property, *value);
        }
        config
    }

    fn refused(properties: &[(&str, &str)]) -> String {
        Config::new(given(properties))
            .expect_err("it must be refused")
            .to_string()
    }

    #[test]
    fn the_promise_is_set_without_being_asked() {
        let config = Config::new(given(&[])).unwrap();
        for (property, value) in [
            ("acks", "all"),
            ("enable.idempotence", "true"),
            ("partitioner", "murmur2_random"),
            ("message.timeout.ms", "10000"),
        ] {
            assert_eq!(config.client().get(property), Some(value), "{property}");
        }
    }

    #[test]
    fn the_client_takes_every_default() {
        let config = Config::new(given(&[])).unwrap();
        config.client().create_native_config().unwrap();
    }

    #[test]
    fn what_the_application_has_set_stays() {
        let config = Config::new(given(&[
            ("linger.ms", "7"),
            ("delivery.timeout.ms", "9000"),
            ("partitioner", "fnv1a"),
            ("client.id", "orders"),
        ]))
        .unwrap();
        let client = config.client();
        assert_eq!(client.get("queue.buffering.max.ms"), Some("7"));
        assert_eq!(client.get("linger.ms"), None);
        assert_eq!(client.get("message.timeout.ms"), Some("9000"));
        assert_eq!(client.get("partitioner"), Some("fnv1a"));
        assert_eq!(client.get("client.id"), Some("orders"));
        assert_eq!(config.delivery_timeout(), Duration::from_secs(9));
    }

    #[test]
    fn the_client_waits_for_fuller_record_batches_only_where_nothing_else_is_said() {
        let config = Config::new(given(&[])).unwrap().gathering().unwrap();
        assert_eq!(config.client().get("queue.buffering.max.ms"), Some("5"));
        for property in ["linger.ms", "queue.buffering.max.ms"] {
            let config = Config::new(given(&[(property, "0")])).unwrap();
            assert!(config.gathering().is_none(), "{property}");
        }
    }

    #[test]
    fn what_breaks_the_promise_is_refused_by_name() {
        for (property, value, message) in [
            ("acks", "1", "`acks` is \"1\", allowed: all, -1"),
            (
                "request.required.acks",
                "0",
                "`request.required.acks` is \"0\", allowed: all, -1",
            ),
            (
                "enable.idempotence",
                "false",
                "`enable.idempotence` is \"false\", allowed: true",
            ),
            (
                "enable.gapless.guarantee",
                "true",
                "`enable.gapless.guarantee` is \"true\", allowed: false",
            ),
            (
                "delivery.report.only.error",
                "true",
                "`delivery.report.only.error` is \"true\", allowed: false",
            ),
            (
                "partitioner",
                "consistent_random",
                "`partitioner` is \"consistent_random\", allowed: murmur2_random, murmur2, \
                 consistent, fnv1a_random, fnv1a",
            ),
            (
                "transactional.id",
                "orders",
                "`transactional.id` is \"orders\", allowed: none, the outbox uses no Kafka \
                 transactions",
            ),
            (
                "message.timeout.ms",
                "0",
                "`message.timeout.ms` is \"0\", allowed: 1 to 300000",
            ),
            (
                "delivery.timeout.ms",
                "300001",
                "`delivery.timeout.ms` is \"300001\", allowed: 1 to 300000",
            ),
            (
                "message.max.bytes",
                "100000000",
                "`message.max.bytes` is \"100000000\", allowed: 1000 to 67108864",
            ),
            (
                "queue.buffering.max.kbytes",
                "-1",
                "`queue.buffering.max.kbytes` is \"-1\", allowed: 1 to 2147483647",
            ),
        ] {
            assert_eq!(refused(&[(property, value)]), message);
        }
    }

    #[test]
    fn both_names_of_a_property_are_refused() {
        assert_eq!(
            refused(&[("acks", "all"), ("request.required.acks", "1")]),
            "`acks` and `request.required.acks` are one property, and both are given"
        );
    }

    #[test]
    fn brokers_have_to_be_named() {
        for config in [ClientConfig::new(), given(&[("bootstrap.servers", "")])] {
            assert_eq!(
                Config::new(config).unwrap_err().to_string(),
                "`bootstrap.servers` is missing"
            );
        }
    }

    #[test]
    fn an_error_of_the_client_does_not_show_the_value() {
        let error = given(&[("sasl.password", "hunter2\0")])
            .create_native_config()
            .err()
            .expect("a NUL cannot be passed on");
        assert!(!InvalidConfig::from(error).to_string().contains("hunter2"));

        let error = given(&[("no.such.property", "hunter2")])
            .create_native_config()
            .err()
            .expect("there is no such property");
        let message = InvalidConfig::from(error).to_string();
        assert!(message.contains("no.such.property"), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }

    #[test]
    fn debug_shows_no_secret() {
        let config = Config::new(given(&[
            ("sasl.password", "hunter2"),
            ("ssl.key.pem", "hunter3"),
            ("sasl.oauthbearer.config", "hunter4"),
        ]))
        .unwrap();
        let shown = format!("{config:?}");
        assert!(!shown.contains("hunter"), "{shown}");
        assert!(
            shown.contains("\"bootstrap.servers\": \"127.0.0.1:1\""),
            "{shown}"
        );
        assert!(shown.contains("\"sasl.password\": …"), "{shown}");
    }
}
