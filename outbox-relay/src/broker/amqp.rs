//! RabbitMQ.

use outbox_amqp::{AmqpConfig, AmqpPublisher, InvalidConfig, Routing};
use outbox_core::Publisher;

use crate::settings::{Amqp, AmqpRouting, InvalidSettings};

/// What a topic names.
pub(crate) fn routing(section: &str, settings: &Amqp) -> Result<Routing, InvalidSettings> {
    match (settings.routing, &settings.exchange) {
        (AmqpRouting::Queue, None) => Ok(Routing::Queue),
        (AmqpRouting::ExchangePerTopic, None) => Ok(Routing::ExchangePerTopic),
        (AmqpRouting::Exchange, Some(exchange)) => Ok(Routing::Exchange(exchange.clone())),
        (_, exchange) => {
            let reason = match exchange {
                Some(_) => "it is for routing = \"exchange\"",
                None => "missing, routing = \"exchange\" wants its name",
            };
            Err(InvalidSettings::new(format!("{section}.exchange"), reason))
        }
    }
}

pub(super) fn open(section: &str, settings: &Amqp) -> Result<Box<dyn Publisher>, InvalidSettings> {
    let routing = routing(section, settings)?;
    let mut config = AmqpConfig::new(settings.url.expose()).routing(routing);
    if let Some(timeout) = settings.connect_timeout {
        config = config.connect_timeout(timeout.0);
    }
    if let Some(timeout) = settings.confirm_timeout {
        config = config.confirm_timeout(timeout.0);
    }
    match AmqpPublisher::new(config) {
        Ok(publisher) => Ok(Box::new(publisher)),
        Err(InvalidConfig::Uri { reason }) => {
            Err(InvalidSettings::new(format!("{section}.url"), reason))
        }
        Err(error) => Err(InvalidSettings::new(section, error)),
    }
}
