//! Apache Kafka.

use outbox_core::Publisher;
use outbox_kafka::{ClientConfig, KafkaPublisher};

use crate::settings::{InvalidSettings, Kafka};

/// The client's configuration, as it is written.
pub(crate) fn client_config(settings: &Kafka) -> ClientConfig {
    let mut config = ClientConfig::new();
    for (property, value) in settings.properties.expose() {
        config.set(property, value);
    }
    config
}

pub(super) fn open(section: &str, settings: &Kafka) -> Result<Box<dyn Publisher>, InvalidSettings> {
    match KafkaPublisher::new(client_config(settings)) {
        Ok(publisher) => Ok(Box::new(publisher)),
        Err(error) => Err(InvalidSettings::new(format!("{section}.properties"), error)),
    }
}
