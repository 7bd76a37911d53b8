//! Apache Kafka.

use outbox_core::Publisher;
use outbox_kafka::{ClientConfig, KafkaPublisher};

use crate::settings::{InvalidSettings, Kafka};

pub(super) fn open(section: &str, settings: &Kafka) -> Result<Box<dyn Publisher>, InvalidSettings> {
    let mut config = ClientConfig::new();
    for (property, value) in settings.properties.expose() {
        config.set(property, value);
    }
    match KafkaPublisher::new(config) {
        Ok(publisher) => Ok(Box::new(publisher)),
        Err(error) => Err(InvalidSettings::new(format!("{section}.properties"), error)),
    }
}
