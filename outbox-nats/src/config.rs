//! The settings of the publisher: defaults, limits, and where they are checked.
//!
//! The connection is no part of them: servers, TLS and authentication are those of the client that
//! the publisher is given.

use std::ops::RangeInclusive;
use std::time::Duration;

/// How many messages of one call may wait for their acknowledgement, unless it is configured.
pub const MAX_IN_FLIGHT: usize = 5_000;

/// The largest number that may be configured: the acknowledgements that the client's subscriptions hold
/// unless their capacity is set.
pub const MAX_MAX_IN_FLIGHT: usize = 65_536;

/// How long the server may say nothing before what is not acknowledged counts as failed, unless it is
/// configured. With the question whether the server is there at all it must stay below half of the
/// relay's publish timeout (30 s unless configured): a wave may begin that late, and an outage that is
/// not explained in time passes for a failure of the messages in it.
pub const ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest acknowledgement timeout that may be configured.
pub const MAX_ACK_TIMEOUT: Duration = Duration::from_secs(300);

/// The longest subject prefix and the longest stream name, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

const ACK_TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(100)..=MAX_ACK_TIMEOUT;

/// How messages are published. Every setting has a default; they are checked by
/// [`NatsPublisher::new`](crate::NatsPublisher::new).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a configuration is used by `NatsPublisher::new`"]
pub struct NatsConfig {
    pub(crate) subject_prefix: Option<String>,
    pub(crate) expected_stream: Option<String>,
    pub(crate) max_in_flight: usize,
    pub(crate) ack_timeout: Duration,
    pub(crate) atomic_batches: bool,
}

impl NatsConfig {
    /// The defaults.
    pub fn new() -> Self {
        Self {
            subject_prefix: None,
            expected_stream: None,
            max_in_flight: MAX_IN_FLIGHT,
            ack_timeout: ACK_TIMEOUT,
            atomic_batches: false,
        }
    }

    /// Puts tokens before every topic: with the prefix `shop` the topic `orders.placed` is the subject
    /// `shop.orders.placed`. Default: none, the subject is the topic. At most [`MAX_NAME_BYTES`].
    pub fn subject_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.subject_prefix = Some(prefix.into());
        self
    }

    /// The one stream that takes every message. The server refuses what another stream would take, and
    /// an acknowledgement of another stream counts for nothing. Default: none, any stream is right. At
    /// most [`MAX_NAME_BYTES`].
    pub fn expected_stream(mut self, stream: impl Into<String>) -> Self {
        self.expected_stream = Some(stream.into());
        self
    }

    /// How many messages of one call may wait for their acknowledgement. Default [`MAX_IN_FLIGHT`], 1
    /// to [`MAX_MAX_IN_FLIGHT`]. Not more than the client's `subscription_capacity`, where that is set.
    pub fn max_in_flight(mut self, messages: usize) -> Self {
        self.max_in_flight = messages;
        self
    }

    /// How long the server may say nothing to a call before what is not acknowledged counts as failed.
    /// Default [`ACK_TIMEOUT`], 100 ms to [`MAX_ACK_TIMEOUT`].
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.ack_timeout = timeout;
        self
    }

    /// Sends several messages of a key at once as an atomic batch, which the stream takes whole or not at all:
    /// in [`PerKey`](outbox_core::OrderMode::PerKey) a key then need not wait for one answer after the other.
    /// Default off. For streams with `allow_atomic`, on NATS 2.12.2 or later; what another stream takes goes one
    /// message of a key after the other, at the cost of a question for each call.
    ///
    /// No older server of a cluster may become a stream's leader meanwhile: in mid-batch that costs the order of
    /// the keys in it, though no message.
    pub fn atomic_batches(mut self, on: bool) -> Self {
        self.atomic_batches = on;
        self
    }

    pub(crate) fn check(&self) -> Result<(), InvalidConfig> {
        if let Some(prefix) = &self.subject_prefix {
            let empty_token = prefix.split('.').any(str::is_empty);
            if empty_token || prefix.starts_with('$') || !is_name(prefix, |c| !is_wildcard(c)) {
                return Err(InvalidConfig {
                    setting: "subject_prefix",
                    given: format!("{prefix:?}"),
                    allowed: format!(
                        "1 to {MAX_NAME_BYTES} bytes: tokens joined by dots, without white space, '*' \
                         or '>', and no '$' at the start"
                    ),
                });
            }
        }
        if let Some(stream) = &self.expected_stream
            && !is_name(stream, |c| !is_wildcard(c) && c != '.')
        {
            return Err(InvalidConfig {
                setting: "expected_stream",
                given: format!("{stream:?}"),
                allowed: format!(
                    "1 to {MAX_NAME_BYTES} bytes without white space, '.', '*' or '>'"
                ),
            });
        }
        if !(1..=MAX_MAX_IN_FLIGHT).contains(&self.max_in_flight) {
            return Err(InvalidConfig {
                setting: "max_in_flight",
                given: self.max_in_flight.to_string(),
                allowed: format!("1 to {MAX_MAX_IN_FLIGHT}"),
            });
        }
        if !ACK_TIMEOUTS.contains(&self.ack_timeout) {
            return Err(InvalidConfig {
                setting: "ack_timeout",
                given: format!("{:?}", self.ack_timeout),
                allowed: format!("{:?} to {:?}", ACK_TIMEOUTS.start(), ACK_TIMEOUTS.end()),
            });
        }
        Ok(())
    }
}

impl Default for NatsConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// What subscribers use to mean many subjects.
pub(crate) fn is_wildcard(c: char) -> bool {
    matches!(c, '*' | '>')
}

/// What ends a subject on the wire, or its line.
pub(crate) fn is_blank(c: char) -> bool {
    c.is_whitespace() || c.is_control()
}

fn is_name(name: &str, allowed: impl Fn(char) -> bool) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.chars().all(|c| !is_blank(c) && allowed(c))
}

/// A setting is outside its limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{setting}` is {given}, allowed: {allowed}")]
pub struct InvalidConfig {
    setting: &'static str,
    given: String,
    allowed: String,
}

impl InvalidConfig {
    /// The setting, by the name of its method.
    pub fn setting(&self) -> &'static str {
        self.setting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(config: NatsConfig) -> String {
        let error = config.check().expect_err("it must be refused");
        assert!(error.to_string().contains(error.setting()));
        error.to_string()
    }

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(NatsConfig::default().check(), Ok(()));
    }

    #[test]
    fn what_is_within_the_limits_is_taken() {
        for prefix in ["shop", "shop.eu-1", "größe", &"x".repeat(MAX_NAME_BYTES)] {
            assert_eq!(NatsConfig::new().subject_prefix(prefix).check(), Ok(()));
        }
        for stream in ["ORDERS", "größe", "$ORDERS"] {
            assert_eq!(NatsConfig::new().expected_stream(stream).check(), Ok(()));
        }
        for messages in [1, MAX_MAX_IN_FLIGHT] {
            assert_eq!(NatsConfig::new().max_in_flight(messages).check(), Ok(()));
        }
        for timeout in [Duration::from_millis(100), MAX_ACK_TIMEOUT] {
            assert_eq!(NatsConfig::new().ack_timeout(timeout).check(), Ok(()));
        }
    }

    #[test]
    fn a_prefix_is_a_subject_without_wildcards() {
        let too_long = "x".repeat(MAX_NAME_BYTES + 1);
        for prefix in [
            "", ".", "shop.", ".shop", "shop..eu", "sh op", "shop\n", "shop.*", "shop.>",
            "$JS.API", &too_long,
        ] {
            assert_eq!(
                refused(NatsConfig::new().subject_prefix(prefix)),
                format!(
                    "`subject_prefix` is {prefix:?}, allowed: 1 to 255 bytes: tokens joined by dots, \
                     without white space, '*' or '>', and no '$' at the start"
                )
            );
        }
    }

    #[test]
    fn a_stream_is_one_token() {
        for stream in ["", "a.b", "a b", "a\r\nNats-Rollup: all", "*", ">"] {
            assert_eq!(
                refused(NatsConfig::new().expected_stream(stream)),
                format!(
                    "`expected_stream` is {stream:?}, allowed: 1 to 255 bytes without white space, \
                     '.', '*' or '>'"
                )
            );
        }
    }

    #[test]
    fn numbers_outside_their_limits_are_named_with_them() {
        assert_eq!(
            refused(NatsConfig::new().max_in_flight(0)),
            "`max_in_flight` is 0, allowed: 1 to 65536"
        );
        assert_eq!(
            refused(NatsConfig::new().max_in_flight(65_537)),
            "`max_in_flight` is 65537, allowed: 1 to 65536"
        );
        assert_eq!(
            refused(NatsConfig::new().ack_timeout(Duration::ZERO)),
            "`ack_timeout` is 0ns, allowed: 100ms to 300s"
        );
        assert_eq!(
            refused(NatsConfig::new().ack_timeout(Duration::from_secs(301))),
            "`ack_timeout` is 301s, allowed: 100ms to 300s"
        );
    }
}
