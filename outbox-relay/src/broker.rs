//! The brokers that the configuration names, each behind its adapter.
//!
//! Opening one connects to nothing that must be there: an adapter connects when it publishes, or in the
//! background. So what is refused here is the configuration.

#[cfg(feature = "amqp")]
pub(crate) mod amqp;
#[cfg(feature = "kafka")]
pub(crate) mod kafka;
#[cfg(feature = "nats")]
pub(crate) mod nats;
#[cfg(feature = "redis")]
pub(crate) mod redis;

use outbox_core::{BrokerLimits, Publisher, Router};

use crate::settings::{Broker, InvalidSettings, Settings};

/// The publisher to all configured brokers: the only one itself, or a router over several.
pub(crate) async fn open_all(settings: &Settings) -> Result<Box<dyn Publisher>, InvalidSettings> {
    let mut opened = Vec::new();
    for (name, broker) in &settings.broker {
        opened.push((name, open(name, broker).await?));
    }
    if settings.route.is_empty() {
        let only = opened.pop();
        return match only {
            Some((_, publisher)) if opened.is_empty() => Ok(publisher),
            Some(_) => Err(InvalidSettings::new(
                "route",
                "missing: several brokers want routes, the last one perhaps with topic = \"*\"",
            )),
            None => Err(InvalidSettings::new(
                "broker",
                "missing: there must be one, such as [broker.main]",
            )),
        };
    }
    let relay = &settings.relay;
    let limits = BrokerLimits::new()
        // A broker that hangs leaves workers to the others.
        .calls((relay.workers / 2).max(1))
        .call_timeout(relay.call_timeout.0)
        .backoff_first(relay.backoff_first.0)
        .backoff_longest(relay.backoff_longest.0);
    let mut router = Router::builder();
    for (name, publisher) in opened {
        router = router.broker_with(name, publisher, limits.clone());
    }
    for route in &settings.route {
        router = router.route(&route.topic, &route.broker);
    }
    match router.build() {
        Ok(router) => Ok(Box::new(router)),
        Err(error) => Err(InvalidSettings::of_core(&error)),
    }
}

/// The publisher to the broker that is configured under `[broker.NAME]`.
pub(crate) async fn open(
    name: &str,
    settings: &Broker,
) -> Result<Box<dyn Publisher>, InvalidSettings> {
    let section = format!("broker.{name}");
    match settings {
        #[cfg(feature = "amqp")]
        Broker::Amqp(settings) => amqp::open(&section, settings),
        #[cfg(feature = "kafka")]
        Broker::Kafka(settings) => kafka::open(&section, settings),
        #[cfg(feature = "nats")]
        Broker::Nats(settings) => nats::open(&section, settings).await,
        #[cfg(feature = "redis")]
        Broker::Redis(settings) => redis::open(&section, settings),
        #[allow(unreachable_patterns, reason = "reached where a feature is off")]
        _ => Err(InvalidSettings::new(
            format!("{section}.kind"),
            "this program was built without it",
        )),
    }
}
