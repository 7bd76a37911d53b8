//! The publishers that the relay can have, and their settings.

use std::collections::BTreeMap;
use std::error::Error;

use outbox_core::Publisher;
use outbox_kafka::{ClientConfig, KafkaPublisher};

type Settings = BTreeMap<String, String>;
type Opened = Result<Box<dyn Publisher>, Box<dyn Error>>;

pub(crate) async fn open(broker: &str, settings: Settings) -> Opened {
    match broker {
        "kafka" => kafka(settings),
        _ => Err(format!("there is no broker {broker:?}").into()),
    }
}

/// The settings are the client's.
fn kafka(settings: Settings) -> Opened {
    let mut config = ClientConfig::new();
    config.extend(settings);
    Ok(Box::new(KafkaPublisher::new(config)?))
}
