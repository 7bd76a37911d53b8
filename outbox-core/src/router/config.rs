//! The settings of a router: defaults, limits, and the builder that checks them.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::broker::Broker;
use super::{Route, Router};
use crate::relay::{check, telemetry};
use crate::{InvalidConfig, MAX_TOPIC_BYTES, Publisher, RelayBuilder, TopicPattern};

const MAX_NAME_BYTES: usize = 64;
const LONGEST: Duration = Duration::from_secs(3600);
const CALL_TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(10)..=LONGEST;
const CALLS: RangeInclusive<usize> = 1..=1024;
/// A shorter pause would try in a loop.
const BACKOFF: RangeInclusive<Duration> = Duration::from_millis(1)..=LONGEST;

/// What one broker behind a [`Router`] may take from the others. Every limit has a default; they are
/// checked by [`RouterBuilder::build`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "limits are used by `RouterBuilder::broker_with`"]
pub struct BrokerLimits {
    pub(super) call_timeout: Duration,
    pub(super) calls: usize,
    pub(super) backoff_first: Duration,
    pub(super) backoff_longest: Duration,
}

impl BrokerLimits {
    /// The [call timeout](Self::call_timeout) unless it is set: below half of the relay's publish timeout,
    /// which a late wave may have, and longer than the adapters need to explain an outage.
    pub const CALL_TIMEOUT: Duration = Duration::from_secs(14);

    /// The defaults.
    pub fn new() -> Self {
        Self {
            call_timeout: Self::CALL_TIMEOUT,
            calls: 2,
            backoff_first: RelayBuilder::BACKOFF_FIRST,
            backoff_longest: RelayBuilder::BACKOFF_LONGEST,
        }
    }

    /// How long one call of the publisher may take, with the wait for its place, until the broker counts as
    /// one that hangs. It should be longer than the publisher's own timeouts, which know more to say; where
    /// the relay's [publish timeout](crate::RelayBuilder::publish_timeout) leaves less, a call ends a little
    /// before that. Default [`CALL_TIMEOUT`](Self::CALL_TIMEOUT), 10 ms to 1 h.
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// How many calls of the publisher may be in flight. With fewer than the relay has
    /// [workers](crate::RelayBuilder::workers), a broker that hangs leaves some to the others; about half of
    /// them is a good choice. Default 2, 1 to 1024.
    pub fn calls(mut self, calls: usize) -> Self {
        self.calls = calls;
        self
    }

    /// The first pause after the broker was away, before jitter takes up to half away; it doubles with
    /// each try that fails. Default 200 ms, 1 ms to 1 h.
    pub fn backoff_first(mut self, pause: Duration) -> Self {
        self.backoff_first = pause;
        self
    }

    /// The longest pause between two tries. Default 10 s, `backoff_first` to 1 h.
    pub fn backoff_longest(mut self, pause: Duration) -> Self {
        self.backoff_longest = pause;
        self
    }

    fn check(&self) -> Result<(), InvalidConfig> {
        let first = self.backoff_first;
        check(
            "BrokerLimits::call_timeout",
            self.call_timeout,
            CALL_TIMEOUTS,
        )?;
        check("BrokerLimits::calls", self.calls, CALLS)?;
        check("BrokerLimits::backoff_first", first, BACKOFF)?;
        let longest = first..=LONGEST;
        check(
            "BrokerLimits::backoff_longest",
            self.backoff_longest,
            longest,
        )
    }
}

impl Default for BrokerLimits {
    fn default() -> Self {
        Self::new()
    }
}

/// A router in the making, from [`Router::builder`].
#[derive(Default)]
#[must_use = "a router is made by `build`"]
pub struct RouterBuilder {
    brokers: Vec<Added>,
    /// Pattern and name of the broker, as they were given.
    routes: Vec<(String, String)>,
    otherwise: Option<String>,
    seed: Option<u64>,
}

struct Added {
    name: String,
    publisher: Box<dyn Publisher>,
    limits: BrokerLimits,
}

impl RouterBuilder {
    /// Adds a broker with the default [limits](BrokerLimits). The name, of up to 64 bytes, is what
    /// routes, the log and the metrics call it.
    pub fn broker(self, name: impl Into<String>, publisher: impl Publisher) -> Self {
        self.broker_with(name, publisher, BrokerLimits::new())
    }

    /// Adds a broker with limits of its own.
    pub fn broker_with(
        mut self,
        name: impl Into<String>,
        publisher: impl Publisher,
        limits: BrokerLimits,
    ) -> Self {
        self.brokers.push(Added {
            name: name.into(),
            publisher: Box::new(publisher),
            limits,
        });
        self
    }

    /// Sends the topics that `pattern` matches to a broker, unless a route that was added before
    /// matches them. Several routes may lead to one broker.
    ///
    /// The pattern is a [`TopicPattern`]: `orders.*` matches `orders.placed` and `orders.eu.placed`, and
    /// neither `orders` nor `Orders.placed`.
    pub fn route(mut self, pattern: impl Into<String>, broker: impl Into<String>) -> Self {
        self.routes.push((pattern.into(), broker.into()));
        self
    }

    /// Sends the topics that no route matches to a broker. Without it they are
    /// [`TopicUnavailable`](crate::PublishErrorKind::TopicUnavailable).
    pub fn otherwise(mut self, broker: impl Into<String>) -> Self {
        self.otherwise = Some(broker.into());
        self
    }

    /// Makes the jitter repeatable, for simulations. Default: different in every run.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Checks everything and makes the router.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`] names the first of these: a broker's name that is empty, too long or given
    /// twice; limits outside theirs; a pattern that is empty, too long or given twice, or whose topics an
    /// earlier one all matches; a broker that was not added; no route at all; a broker to which nothing
    /// leads.
    pub fn build(self) -> Result<Router, InvalidConfig> {
        for (number, added) in self.brokers.iter().enumerate() {
            check_name(&added.name, &self.brokers[..number])?;
            added.limits.check()?;
        }
        let mut used = BTreeSet::new();
        let mut routes: Vec<Route> = Vec::with_capacity(self.routes.len());
        for (text, name) in &self.routes {
            let pattern = check_pattern(text, &routes)?;
            let broker = self.find("route", name)?;
            used.insert(broker);
            routes.push(Route { pattern, broker });
        }
        let mut otherwise = None;
        if let Some(name) = &self.otherwise {
            check_otherwise(name, &routes)?;
            let broker = self.find("otherwise", name)?;
            used.insert(broker);
            otherwise = Some(broker);
        }
        if used.is_empty() {
            let limits = "at least one, or `otherwise`";
            return Err(InvalidConfig::new("route", "missing", limits));
        }
        if let Some(unused) = (0..self.brokers.len()).find(|broker| !used.contains(broker)) {
            let name = format!("{:?}", self.brokers[unused].name);
            let limits = "one to which a route leads";
            return Err(InvalidConfig::new("broker", name, limits));
        }
        let mut rng = self
            .seed
            .map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let several = self.brokers.len() > 1;
        let brokers = self.brokers.into_iter().map(|added| {
            if several {
                telemetry::broker_outage(&added.name, false);
            }
            Broker::new(added.name, added.publisher, added.limits, rng.fork())
        });
        Ok(Router {
            brokers: brokers.collect(),
            routes,
            otherwise,
        })
    }

    /// The place of a broker among those that were added.
    fn find(&self, field: &'static str, name: &str) -> Result<usize, InvalidConfig> {
        let place = self.brokers.iter().position(|added| added.name == name);
        place.ok_or_else(|| {
            let added = self.brokers.iter().map(|added| format!("{:?}", added.name));
            let added: Vec<String> = added.collect();
            let limits = match &added[..] {
                [] => "a broker that was added, and none was".to_owned(),
                added => format!("a broker that was added: {}", added.join(", ")),
            };
            InvalidConfig::new(field, format!("to {name:?}"), limits)
        })
    }
}

fn check_name(name: &str, before: &[Added]) -> Result<(), InvalidConfig> {
    let invalid = |limits: String| InvalidConfig::new("broker", format!("{name:?}"), limits);
    if !(1..=MAX_NAME_BYTES).contains(&name.len()) {
        return Err(invalid(format!("a name of 1 to {MAX_NAME_BYTES} bytes")));
    }
    if before.iter().any(|other| other.name == name) {
        return Err(invalid("a name that was not given before".to_owned()));
    }
    Ok(())
}

fn check_pattern(text: &str, before: &[Route]) -> Result<TopicPattern, InvalidConfig> {
    let invalid = |limits: String| InvalidConfig::new("route", format!("{text:?}"), limits);
    let pattern: TopicPattern = text.parse().map_err(|_| {
        invalid(format!(
            "a pattern of 1 to {MAX_TOPIC_BYTES} bytes without NUL"
        ))
    })?;
    let earlier = || before.iter().map(|route| &route.pattern);
    if earlier().any(|earlier| *earlier == pattern) {
        return Err(invalid("a pattern that was not given before".to_owned()));
    }
    if let Some(wide) = earlier().find(|earlier| earlier.covers(&pattern)) {
        let wide = wide.as_str();
        return Err(invalid(format!(
            "a pattern to which the earlier ones leave a topic, and {wide:?} takes all of its"
        )));
    }
    Ok(pattern)
}

fn check_otherwise(name: &str, routes: &[Route]) -> Result<(), InvalidConfig> {
    let all = routes.iter().find(|route| route.pattern.matches("*"));
    all.map_or(Ok(()), |route| {
        let limits = format!(
            "none, since {:?} leaves nothing over",
            route.pattern.as_str()
        );
        Err(InvalidConfig::new(
            "otherwise",
            format!("to {name:?}"),
            limits,
        ))
    })
}

impl fmt::Debug for RouterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouterBuilder")
            .field("routes", &self.routes)
            .field("otherwise", &self.otherwise)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryPublisher;

    fn two() -> RouterBuilder {
        Router::builder()
            .broker("a", MemoryPublisher::new())
            .broker("b", MemoryPublisher::new())
    }

    fn with(limits: BrokerLimits) -> RouterBuilder {
        Router::builder()
            .broker_with("a", MemoryPublisher::new(), limits)
            .otherwise("a")
    }

    #[test]
    fn the_defaults_are_valid_and_fit_the_relay() {
        with(BrokerLimits::default()).build().unwrap();
        assert!(BrokerLimits::CALL_TIMEOUT < RelayBuilder::PUBLISH_TIMEOUT / 2);
    }

    #[test]
    fn what_is_not_right_is_named() {
        let long = "x".repeat(256);
        let limits = BrokerLimits::new;
        #[rustfmt::skip]
        let cases: Vec<(RouterBuilder, String)> = vec![
            (Router::builder(), "route is missing, allowed is at least one, or `otherwise`".into()),
            (two(), "route is missing, allowed is at least one, or `otherwise`".into()),
            (two().broker("", MemoryPublisher::new()), r#"broker is "", allowed is a name of 1 to 64 bytes"#.into()),
            (two().broker("x".repeat(65), MemoryPublisher::new()), format!("broker is {:?}, allowed is a name of 1 to 64 bytes", "x".repeat(65))),
            (two().broker("a", MemoryPublisher::new()), r#"broker is "a", allowed is a name that was not given before"#.into()),
            (two().route("*", "a"), r#"broker is "b", allowed is one to which a route leads"#.into()),
            (two().route("", "a"), r#"route is "", allowed is a pattern of 1 to 255 bytes without NUL"#.into()),
            (two().route(long.clone(), "a"), format!("route is {long:?}, allowed is a pattern of 1 to 255 bytes without NUL")),
            (two().route("a\0", "a"), r#"route is "a\0", allowed is a pattern of 1 to 255 bytes without NUL"#.into()),
            (two().route("x.*", "a").route("x.*", "b"), r#"route is "x.*", allowed is a pattern that was not given before"#.into()),
            (two().route("x.*", "a").route("x.y", "b"), r#"route is "x.y", allowed is a pattern to which the earlier ones leave a topic, and "x.*" takes all of its"#.into()),
            (two().route("x", "c"), r#"route is to "c", allowed is a broker that was added: "a", "b""#.into()),
            (Router::builder().route("x", "c"), r#"route is to "c", allowed is a broker that was added, and none was"#.into()),
            (two().otherwise("c"), r#"otherwise is to "c", allowed is a broker that was added: "a", "b""#.into()),
            (two().route("**", "a").otherwise("b"), r#"otherwise is to "b", allowed is none, since "**" leaves nothing over"#.into()),
            (with(limits().call_timeout(Duration::ZERO)), "BrokerLimits::call_timeout is 0ns, allowed is 10ms to 3600s".into()),
            (with(limits().call_timeout(Duration::MAX)), "BrokerLimits::call_timeout is 18446744073709551615.999999999s, allowed is 10ms to 3600s".into()),
            (with(limits().calls(0)), "BrokerLimits::calls is 0, allowed is 1 to 1024".into()),
            (with(limits().calls(1025)), "BrokerLimits::calls is 1025, allowed is 1 to 1024".into()),
            (with(limits().backoff_first(Duration::ZERO)), "BrokerLimits::backoff_first is 0ns, allowed is 1ms to 3600s".into()),
            (with(limits().backoff_longest(Duration::from_millis(199))), "BrokerLimits::backoff_longest is 199ms, allowed is 200ms to 3600s".into()),
        ];
        for (builder, expected) in cases {
            let error = builder.build().unwrap_err();
            assert_eq!(error.to_string(), expected);
            assert!(expected.starts_with(error.field()));
        }
    }

    #[test]
    fn the_first_route_that_matches_counts() {
        let router = two()
            .route("orders.audit", "b")
            .route("orders.*", "a")
            .route("*.audit", "b")
            .build()
            .unwrap();
        for (topic, broker) in [
            ("orders.audit", Some("b")),
            ("orders.eu.audit", Some("a")),
            ("payments.audit", Some("b")),
            ("payments", None),
        ] {
            assert_eq!(router.broker_of(topic), broker, "{topic}");
        }
        let router = two().route("x", "a").otherwise("b").build().unwrap();
        assert_eq!(router.broker_of("y"), Some("b"));
    }
}
