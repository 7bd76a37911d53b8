//! The settings of a publisher, each with its default and its limits.
//!
//! Where the server is, TLS and authentication are the [`Client`]'s and not looked at here.

use std::fmt;
use std::time::Duration;

use redis::Client;

/// How long a pipeline may wait for its answers unless configured.
///
/// It and twice [`CONNECT_TIMEOUT`] together must stay below half of the relay's publish timeout (30 s
/// unless configured): a wave may begin that late, and an outage that is not explained in time passes
/// for a failure of the messages in it.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(8);

/// How long a call may look for a connection unless configured: asking an idle one whether it still
/// works, connecting, logging in, and asking a cluster for its slots, all together.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The longest of any timeout here.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(300);

/// The largest message unless configured, in bytes of all fields and values of its entry: what a
/// server takes in one value unless its `proto-max-bulk-len` says otherwise.
pub const MAX_MESSAGE_BYTES: usize = 512 * 1024 * 1024;

/// What a publisher needs to know: a [`Client`], and how to use the server.
///
/// ```
/// use std::time::Duration;
/// use outbox_redis::{Client, RedisConfig, Trim};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = RedisConfig::new(Client::open("redis://127.0.0.1:6379/")?)
///     .stream_prefix("shop:")
///     .trim(Trim::Entries(1_000_000));
/// # let _ = config;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct RedisConfig {
    pub(crate) client: Client,
    pub(crate) cluster: bool,
    pub(crate) stream_prefix: String,
    pub(crate) create_streams: bool,
    pub(crate) response_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_message_bytes: usize,
    pub(crate) trim: Option<Trim>,
    pub(crate) replicas: Option<Replicas>,
}

/// What may be removed from a stream when an entry is added, whether a consumer has read it or not.
/// The server removes whole nodes of the stream (`~`), so a little more stays than asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trim {
    /// Keep at least so many of the newest entries (`MAXLEN ~`).
    Entries(u64),
    /// Keep at least the entries of the last so long, by the server's clock (`MINID ~`). The clock is
    /// asked with `TIME` on every new connection.
    Age(Duration),
}

/// How many replicas have to have an entry, and how long they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) within: Duration,
}

impl RedisConfig {
    /// The defaults, for the server of `client`.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            cluster: false,
            stream_prefix: String::new(),
            create_streams: true,
            response_timeout: RESPONSE_TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            max_message_bytes: MAX_MESSAGE_BYTES,
            trim: None,
            replicas: None,
        }
    }

    /// Whether the client's server is one of a cluster, which then tells where the streams of all topics
    /// are. Default: `false`, one server has them all.
    pub fn cluster(mut self, cluster: bool) -> Self {
        self.cluster = cluster;
        self
    }

    /// Put in front of the topic to make the stream's key. Default: nothing.
    pub fn stream_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.stream_prefix = prefix.into();
        self
    }

    /// Whether the first message to a topic makes its stream. Default: `true`, as Redis does. With
    /// `false` a stream that does not exist is a topic that is missing (`NOMKSTREAM`, Redis 6.2).
    pub fn create_streams(mut self, create: bool) -> Self {
        self.create_streams = create;
        self
    }

    /// How long a pipeline may wait for its answers, at most [`MAX_TIMEOUT`]. Default:
    /// [`RESPONSE_TIMEOUT`], which says what it has to stay below. What was not answered in it is an
    /// outage.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// How long a call may look for a connection, at most [`MAX_TIMEOUT`]. Default:
    /// [`CONNECT_TIMEOUT`].
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The largest message that is sent, in bytes of all fields and values of its entry, at most and
    /// by default [`MAX_MESSAGE_BYTES`]. Lower it where the server's `proto-max-bulk-len` or
    /// `client-query-buffer-limit` is lower: larger messages are then rejected with their size,
    /// instead of costing a connection each time.
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Removes old entries while adding new ones. Default: nothing is removed. What is removed is
    /// lost to every consumer that has not read it.
    pub fn trim(mut self, trim: Trim) -> Self {
        self.trim = Some(trim);
        self
    }

    /// Counts a message as delivered only when `count` replicas have it too (`WAIT`), and as an outage
    /// when they do not within `within`, at most [`MAX_TIMEOUT`]. Default: no replica is asked. Each
    /// pipeline then takes a round trip to the replicas longer.
    pub fn wait_for_replicas(mut self, count: u32, within: Duration) -> Self {
        self.replicas = Some(Replicas { count, within });
        self
    }

    /// Refuses what cannot work.
    pub(crate) fn check(&self) -> Result<(), InvalidConfig> {
        timeout("response_timeout", self.response_timeout)?;
        timeout("connect_timeout", self.connect_timeout)?;
        range(
            "max_message_bytes",
            self.max_message_bytes as u64,
            1,
            MAX_MESSAGE_BYTES as u64,
        )?;
        match self.trim {
            Some(Trim::Entries(entries)) => range("trim", entries, 1, i64::MAX as u64)?,
            Some(Trim::Age(age)) if age < Duration::from_millis(1) => {
                return Err(InvalidConfig::NotAllowed {
                    setting: "trim",
                    given: format!("{age:?}"),
                    allowed: "1ms or more".to_owned(),
                });
            }
            Some(Trim::Age(_)) | None => {}
        }
        if let Some(replicas) = self.replicas {
            range(
                "wait_for_replicas",
                replicas.count.into(),
                1,
                i32::MAX as u64,
            )?;
            timeout("wait_for_replicas", replicas.within)?;
        }
        Ok(())
    }

    /// How long a pipeline may take with everything that it has to wait for.
    pub(crate) fn pipeline_timeout(&self) -> Duration {
        let replicas = self.replicas.map_or(Duration::ZERO, |it| it.within);
        self.response_timeout + replicas
    }
}

impl fmt::Debug for RedisConfig {
    /// Shows where the server is, and nothing else of the client.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.client.get_connection_info().addr();
        f.debug_struct("RedisConfig")
            .field("address", &format_args!("{address}"))
            .field("cluster", &self.cluster)
            .field("stream_prefix", &self.stream_prefix)
            .field("create_streams", &self.create_streams)
            .field("response_timeout", &self.response_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("max_message_bytes", &self.max_message_bytes)
            .field("trim", &self.trim)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}

/// Why a configuration is refused. It never shows a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidConfig {
    /// A setting has a value that it may not have.
    #[error("`{setting}` is {given}, allowed: {allowed}")]
    NotAllowed {
        /// The setting.
        setting: &'static str,
        /// Its value.
        given: String,
        /// What it may be.
        allowed: String,
    },
    /// The client refuses the configuration.
    #[error("the Redis client refuses the configuration: {reason}")]
    Client {
        /// In its words.
        reason: String,
    },
}

fn timeout(setting: &'static str, given: Duration) -> Result<(), InvalidConfig> {
    if (Duration::from_millis(1)..=MAX_TIMEOUT).contains(&given) {
        return Ok(());
    }
    Err(InvalidConfig::NotAllowed {
        setting,
        given: format!("{given:?}"),
        allowed: format!("1ms to {MAX_TIMEOUT:?}"),
    })
}

fn range(setting: &'static str, given: u64, least: u64, most: u64) -> Result<(), InvalidConfig> {
    if (least..=most).contains(&given) {
        return Ok(());
    }
    Err(InvalidConfig::NotAllowed {
        setting,
        given: given.to_string(),
        allowed: format!("{least} to {most}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> RedisConfig {
        RedisConfig::new(Client::open("redis://user:hunter2@127.0.0.1:1/").unwrap())
    }

    fn refused(config: RedisConfig) -> String {
        config.check().expect_err("it must be refused").to_string()
    }

    #[test]
    fn the_defaults_are_accepted_and_trim_nothing() {
        let config = config();
        config.check().unwrap();
        assert_eq!((config.trim, config.replicas), (None, None));
        assert_eq!(config.pipeline_timeout(), RESPONSE_TIMEOUT);
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        let second = Duration::from_secs(1);
        for (config, message) in [
            (
                config().response_timeout(Duration::ZERO),
                "`response_timeout` is 0ns, allowed: 1ms to 300s",
            ),
            (
                config().connect_timeout(second * 301),
                "`connect_timeout` is 301s, allowed: 1ms to 300s",
            ),
            (
                config().max_message_bytes(0),
                "`max_message_bytes` is 0, allowed: 1 to 536870912",
            ),
            (
                config().trim(Trim::Entries(0)),
                "`trim` is 0, allowed: 1 to 9223372036854775807",
            ),
            (
                config().trim(Trim::Age(Duration::ZERO)),
                "`trim` is 0ns, allowed: 1ms or more",
            ),
            (
                config().wait_for_replicas(0, second),
                "`wait_for_replicas` is 0, allowed: 1 to 2147483647",
            ),
            (
                config().wait_for_replicas(1, Duration::ZERO),
                "`wait_for_replicas` is 0ns, allowed: 1ms to 300s",
            ),
        ] {
            assert_eq!(refused(config), message);
        }
    }

    #[test]
    fn a_pipeline_has_the_time_of_the_replicas_too() {
        let second = Duration::from_secs(1);
        let config = config()
            .response_timeout(second * 2)
            .wait_for_replicas(1, second);
        config.check().unwrap();
        assert_eq!(config.pipeline_timeout(), second * 3);
    }

    #[test]
    fn debug_shows_the_address_and_no_secret() {
        let shown = format!("{:?}", config());
        assert!(shown.contains("address: 127.0.0.1:1"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
