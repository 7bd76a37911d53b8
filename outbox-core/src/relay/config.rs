//! The settings of a relay: defaults, limits, and the builder that checks them.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::health::Health;
use super::monitor::{RelayMonitor, Steps};
use crate::{ExponentialBackoff, OnDead, OrderMode, Publisher, Relay, RetryPolicy, Store};

const WORKERS: RangeInclusive<usize> = 1..=1024;
const BATCH_MESSAGES: RangeInclusive<usize> = 1..=100_000;
const BATCH_BYTES: RangeInclusive<usize> = 1..=1024 * 1024 * 1024;
const LONGEST: Duration = Duration::from_secs(3600);
const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(1)..=LONGEST;
const STOP_GRACE: RangeInclusive<Duration> = Duration::ZERO..=LONGEST;
/// A shorter wait would make an idle relay poll hotly.
const CLAIM_WAIT: RangeInclusive<Duration> = Duration::from_millis(10)..=LONGEST;
const CRASH_LIMIT: RangeInclusive<u32> = 1..=u32::MAX;
const BACKOFF: RangeInclusive<Duration> = Duration::from_millis(1)..=LONGEST;

/// A relay in the making, from [`Relay::builder`]. Every setting has a default.
#[must_use = "a relay is made by `build`"]
pub struct RelayBuilder {
    store: Arc<dyn Store>,
    publisher: Arc<dyn Publisher>,
    settings: Settings,
}

/// What a relay was told.
pub(super) struct Settings {
    pub(super) workers: usize,
    pub(super) batch_messages: usize,
    pub(super) batch_bytes: usize,
    pub(super) order: OrderMode,
    pub(super) on_dead: OnDead,
    pub(super) crash_limit: u32,
    pub(super) retry: Box<dyn RetryPolicy>,
    pub(super) claim_wait: Duration,
    pub(super) publish_timeout: Duration,
    pub(super) settle_timeout: Duration,
    pub(super) store_timeout: Duration,
    pub(super) stop_grace: Duration,
    pub(super) backoff_first: Duration,
    pub(super) backoff_longest: Duration,
    pub(super) seed: Option<u64>,
}

impl RelayBuilder {
    /// [`workers`](Self::workers) unless set.
    pub const WORKERS: usize = 4;
    /// [`batch_messages`](Self::batch_messages) unless set.
    pub const BATCH_MESSAGES: usize = 1000;
    /// [`batch_bytes`](Self::batch_bytes) unless set.
    pub const BATCH_BYTES: usize = 16 * 1024 * 1024;
    /// [`crash_limit`](Self::crash_limit) unless set.
    pub const CRASH_LIMIT: u32 = 3;
    /// [`claim_wait`](Self::claim_wait) unless set.
    pub const CLAIM_WAIT: Duration = Duration::from_secs(10);
    /// [`publish_timeout`](Self::publish_timeout) unless set. An adapter explains an outage in less than half
    /// of it.
    pub const PUBLISH_TIMEOUT: Duration = Duration::from_secs(30);
    /// [`settle_timeout`](Self::settle_timeout) unless set.
    pub const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
    /// [`store_timeout`](Self::store_timeout) unless set.
    pub const STORE_TIMEOUT: Duration = Duration::from_secs(10);
    /// [`stop_grace`](Self::stop_grace) unless set.
    pub const STOP_GRACE: Duration = Duration::from_secs(5);
    /// [`backoff_first`](Self::backoff_first) unless set.
    pub const BACKOFF_FIRST: Duration = Duration::from_millis(200);
    /// [`backoff_longest`](Self::backoff_longest) unless set.
    pub const BACKOFF_LONGEST: Duration = Duration::from_secs(10);

    pub(super) fn new(store: Arc<dyn Store>, publisher: Arc<dyn Publisher>) -> Self {
        Self {
            store,
            publisher,
            settings: Settings {
                workers: Self::WORKERS,
                batch_messages: Self::BATCH_MESSAGES,
                batch_bytes: Self::BATCH_BYTES,
                order: OrderMode::default(),
                on_dead: OnDead::default(),
                crash_limit: Self::CRASH_LIMIT,
                retry: Box::new(ExponentialBackoff::default()),
                claim_wait: Self::CLAIM_WAIT,
                publish_timeout: Self::PUBLISH_TIMEOUT,
                settle_timeout: Self::SETTLE_TIMEOUT,
                store_timeout: Self::STORE_TIMEOUT,
                stop_grace: Self::STOP_GRACE,
                backoff_first: Self::BACKOFF_FIRST,
                backoff_longest: Self::BACKOFF_LONGEST,
                seed: None,
            },
        }
    }

    /// How many claims are published at the same time. Default 4, 1 to 1024.
    pub fn workers(mut self, workers: usize) -> Self {
        self.settings.workers = workers;
        self
    }

    /// The most messages of one claim. Default 1000, 1 to 100,000.
    pub fn batch_messages(mut self, messages: usize) -> Self {
        self.settings.batch_messages = messages;
        self
    }

    /// The most bytes of one claim, as [`Message::size`](crate::Message::size) counts them; a larger
    /// message goes alone. Default 16 MiB, 1 byte to 1 GiB.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.settings.batch_bytes = bytes;
        self
    }

    /// What order the messages of one key keep. Default [`OrderMode::PerKey`]. Relays of one outbox
    /// should agree.
    pub fn order(mut self, order: OrderMode) -> Self {
        self.settings.order = order;
        self
    }

    /// Whether a key goes on after one of its messages is dead. Default [`OnDead::Continue`].
    pub fn on_dead(mut self, on_dead: OnDead) -> Self {
        self.settings.on_dead = on_dead;
        self
    }

    /// A message that has ended so many processes in a row, each while it was the only one that the
    /// process held, is given up and not sent again. A store that outlives the process counts them
    /// ([`Claimed::crashes`](crate::Claimed::crashes)), after a few unclean ends more in which it finds
    /// the message. Default 3, at least 1; `u32::MAX` gives none up.
    pub fn crash_limit(mut self, crashes: u32) -> Self {
        self.settings.crash_limit = crashes;
        self
    }

    /// When a message is tried again, and when it is given up. Default: [`ExponentialBackoff`] with
    /// its own defaults.
    pub fn retry(mut self, retry: impl RetryPolicy) -> Self {
        self.settings.retry = Box::new(retry);
        self
    }

    /// How long one claim waits for messages when there are none. Default 10 s, 10 ms to 1 h.
    pub fn claim_wait(mut self, wait: Duration) -> Self {
        self.settings.claim_wait = wait;
        self
    }

    /// How long publishing may take, for all waves of one claim together. No wave starts in the second
    /// half of it, so that the broker has at least that long to answer each. A publisher's own
    /// timeouts should be shorter than half of it. Default 30 s, 1 ms to 1 h.
    pub fn publish_timeout(mut self, timeout: Duration) -> Self {
        self.settings.publish_timeout = timeout;
        self
    }

    /// How long the settling of one claim may take. Default 10 s, 1 ms to 1 h.
    pub fn settle_timeout(mut self, timeout: Duration) -> Self {
        self.settings.settle_timeout = timeout;
        self
    }

    /// How long the store may take to answer a claim, beyond the wait that was asked of it. Default
    /// 10 s, 1 ms to 1 h.
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.settings.store_timeout = timeout;
        self
    }

    /// How long a wave that is in flight may go on after the signal to stop. Default 5 s, 0 to 1 h.
    pub fn stop_grace(mut self, grace: Duration) -> Self {
        self.settings.stop_grace = grace;
        self
    }

    /// The first pause in an outage and after a store error, before jitter takes up to half away; it
    /// doubles with each further failure. Default 200 ms, 1 ms to 1 h.
    pub fn backoff_first(mut self, pause: Duration) -> Self {
        self.settings.backoff_first = pause;
        self
    }

    /// The longest pause in an outage and after store errors. Default 10 s, `backoff_first` to 1 h.
    pub fn backoff_longest(mut self, pause: Duration) -> Self {
        self.settings.backoff_longest = pause;
        self
    }

    /// Makes the relay's jitter repeatable, for simulations. Default: different in every run.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = Some(seed);
        self
    }

    /// Checks the settings and makes the relay. Nothing runs before
    /// [`run_until`](Relay::run_until).
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`] names the first setting that breaks its limits.
    pub fn build(self) -> Result<Relay, InvalidConfig> {
        let settings = &self.settings;
        check("workers", settings.workers, WORKERS)?;
        check("batch_messages", settings.batch_messages, BATCH_MESSAGES)?;
        check("batch_bytes", settings.batch_bytes, BATCH_BYTES)?;
        check("crash_limit", settings.crash_limit, CRASH_LIMIT)?;
        check("claim_wait", settings.claim_wait, CLAIM_WAIT)?;
        check("publish_timeout", settings.publish_timeout, TIMEOUT)?;
        check("settle_timeout", settings.settle_timeout, TIMEOUT)?;
        check("store_timeout", settings.store_timeout, TIMEOUT)?;
        check("stop_grace", settings.stop_grace, STOP_GRACE)?;
        check("backoff_first", settings.backoff_first, BACKOFF)?;
        let longest = settings.backoff_first..=LONGEST;
        check("backoff_longest", settings.backoff_longest, longest)?;
        let monitor = RelayMonitor {
            health: Arc::new(Health::new(settings)),
            steps: Arc::new(Steps::new(settings)),
        };
        Ok(Relay {
            monitor,
            store: self.store,
            publisher: self.publisher,
            settings: self.settings,
        })
    }
}

impl fmt::Debug for RelayBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayBuilder").finish_non_exhaustive()
    }
}

pub(crate) fn check<T: PartialOrd + fmt::Debug>(
    field: &'static str,
    value: T,
    limits: RangeInclusive<T>,
) -> Result<(), InvalidConfig> {
    if limits.contains(&value) {
        return Ok(());
    }
    let limits = format!("{:?} to {:?}", limits.start(), limits.end());
    Err(InvalidConfig::new(field, format!("{value:?}"), limits))
}

/// A setting of a relay, of its retry policy or of a router is outside its limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, allowed is {limits}")]
pub struct InvalidConfig {
    field: &'static str,
    value: String,
    limits: String,
}

impl InvalidConfig {
    pub(crate) fn new(
        field: &'static str,
        value: impl Into<String>,
        limits: impl Into<String>,
    ) -> Self {
        Self {
            field,
            value: value.into(),
            limits: limits.into(),
        }
    }

    /// The setting, by the name of its builder method or, of other types, the type and its argument.
    pub fn field(&self) -> &'static str {
        self.field
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryPublisher, MemoryStore};

    fn build(set: impl FnOnce(RelayBuilder) -> RelayBuilder) -> Result<Relay, InvalidConfig> {
        set(Relay::builder(MemoryStore::new(), MemoryPublisher::new())).build()
    }

    #[test]
    fn the_defaults_are_valid() {
        build(|relay| relay).unwrap();
    }

    #[test]
    fn every_setting_outside_its_limits_is_named_with_them() {
        const TOO_LONG: Duration = Duration::from_secs(3601);
        type Set = fn(RelayBuilder) -> RelayBuilder;
        let cases: [(Set, &str); 19] = [
            (|r| r.workers(0), "workers is 0, allowed is 1 to 1024"),
            (|r| r.workers(1025), "workers is 1025, allowed is 1 to 1024"),
            (
                |r| r.batch_messages(0),
                "batch_messages is 0, allowed is 1 to 100000",
            ),
            (
                |r| r.batch_messages(100_001),
                "batch_messages is 100001, allowed is 1 to 100000",
            ),
            (
                |r| r.batch_bytes(0),
                "batch_bytes is 0, allowed is 1 to 1073741824",
            ),
            (
                |r| r.batch_bytes(usize::MAX),
                "batch_bytes is 18446744073709551615, allowed is 1 to 1073741824",
            ),
            (
                |r| r.crash_limit(0),
                "crash_limit is 0, allowed is 1 to 4294967295",
            ),
            (
                |r| r.claim_wait(Duration::ZERO),
                "claim_wait is 0ns, allowed is 10ms to 3600s",
            ),
            (
                |r| r.claim_wait(TOO_LONG),
                "claim_wait is 3601s, allowed is 10ms to 3600s",
            ),
            (
                |r| r.publish_timeout(Duration::ZERO),
                "publish_timeout is 0ns, allowed is 1ms to 3600s",
            ),
            (
                |r| r.publish_timeout(TOO_LONG),
                "publish_timeout is 3601s, allowed is 1ms to 3600s",
            ),
            (
                |r| r.settle_timeout(Duration::ZERO),
                "settle_timeout is 0ns, allowed is 1ms to 3600s",
            ),
            (
                |r| r.settle_timeout(TOO_LONG),
                "settle_timeout is 3601s, allowed is 1ms to 3600s",
            ),
            (
                |r| r.store_timeout(Duration::ZERO),
                "store_timeout is 0ns, allowed is 1ms to 3600s",
            ),
            (
                |r| r.store_timeout(Duration::MAX),
                "store_timeout is 18446744073709551615.999999999s, allowed is 1ms to 3600s",
            ),
            (
                |r| r.stop_grace(TOO_LONG),
                "stop_grace is 3601s, allowed is 0ns to 3600s",
            ),
            (
                |r| r.backoff_first(Duration::ZERO),
                "backoff_first is 0ns, allowed is 1ms to 3600s",
            ),
            (
                |r| r.backoff_longest(Duration::from_millis(199)),
                "backoff_longest is 199ms, allowed is 200ms to 3600s",
            ),
            (
                |r| r.backoff_longest(TOO_LONG),
                "backoff_longest is 3601s, allowed is 200ms to 3600s",
            ),
        ];
        for (set, expected) in cases {
            let error = build(set).unwrap_err();
            assert_eq!(error.to_string(), expected);
            assert!(expected.starts_with(error.field()));
        }
    }
}
