//! The brokers that the configuration names, each behind its adapter.
//!
//! Opening one connects to nothing that must be there: an adapter connects when it publishes, or in the
//! background. So what is refused here is the configuration.

#[cfg(feature = "amqp")]
mod amqp;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "redis")]
mod redis;

use outbox_core::Publisher;

use crate::settings::{Broker, InvalidSettings, Settings};

/// The publisher to all configured brokers.
pub(crate) async fn open_all(settings: &Settings) -> Result<Box<dyn Publisher>, InvalidSettings> {
    let mut brokers = settings.broker.iter();
    match (brokers.next(), brokers.next()) {
        (Some((name, broker)), None) => open(name, broker).await,
        (None, _) => Err(InvalidSettings::new(
            "broker",
            "missing: there must be one, such as [broker.main]",
        )),
        (Some(_), Some(_)) => Err(InvalidSettings::new("route", "several brokers want routes")),
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
