//! The publishers that the relay can have, and their settings.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use outbox_amqp::{AmqpConfig, AmqpPublisher};
use outbox_core::{BrokerLimits, Publisher, Router};
use outbox_kafka::{ClientConfig, KafkaPublisher};
use outbox_nats::{ConnectOptions, NatsConfig, NatsPublisher};
use outbox_redis::{Client, RedisConfig, RedisPublisher};

type Settings = BTreeMap<String, String>;
type Opened = Result<Box<dyn Publisher>, Box<dyn Error>>;

/// With the setting `beside`, two brokers behind a router: the one that it names takes the topics that
/// `beside.route` matches. Its own settings have the prefix `beside.` too, and `call_timeout_ms` is for
/// both.
pub(crate) async fn open(broker: &str, mut settings: Settings) -> Opened {
    let Some(beside) = settings.remove("beside") else {
        return one(broker, settings).await;
    };
    let call_timeout = settings.remove("call_timeout_ms");
    let call_timeout = call_timeout.ok_or("`call_timeout_ms` is missing")?;
    let limits = BrokerLimits::new().call_timeout(Duration::from_millis(call_timeout.parse()?));
    let route = settings.remove("beside.route");
    let route = route.ok_or("`beside.route` is missing")?;
    let (mut own, mut others) = (Settings::new(), Settings::new());
    for (name, value) in settings {
        match name.strip_prefix("beside.") {
            Some(name) => others.insert(name.to_owned(), value),
            None => own.insert(name, value),
        };
    }
    let router = Router::builder()
        .broker_with(broker, one(broker, own).await?, limits.clone())
        .broker_with(&beside, one(&beside, others).await?, limits)
        .route(route, &beside)
        .otherwise(broker)
        .build()?;
    Ok(Box::new(router))
}

async fn one(broker: &str, settings: Settings) -> Opened {
    match broker {
        "amqp" => amqp(settings),
        "kafka" => kafka(settings),
        "nats" => nats(settings).await,
        "redis" => redis(settings),
        _ => Err(format!("there is no broker {broker:?}").into()),
    }
}

fn amqp(mut settings: Settings) -> Opened {
    let mut config = AmqpConfig::new(settings.remove("uri").ok_or("uri is missing")?);
    if let Some(timeout) = settings.remove("connect_timeout_ms") {
        config = config.connect_timeout(Duration::from_millis(timeout.parse()?));
    }
    if let Some(timeout) = settings.remove("confirm_timeout_ms") {
        config = config.confirm_timeout(Duration::from_millis(timeout.parse()?));
    }
    if let Some(name) = settings.keys().next() {
        return Err(format!("there is no setting {name:?}").into());
    }
    Ok(Box::new(AmqpPublisher::new(config)?))
}

/// The settings are the client's.
fn kafka(settings: Settings) -> Opened {
    let mut config = ClientConfig::new();
    config.extend(settings);
    Ok(Box::new(KafkaPublisher::new(config)?))
}

/// The settings are `url`, and `ack_timeout_ms` if it is given.
async fn nats(settings: Settings) -> Opened {
    let mut config = NatsConfig::new();
    if let Some(milliseconds) = settings.get("ack_timeout_ms") {
        config = config.ack_timeout(Duration::from_millis(milliseconds.parse()?));
    }
    let url = settings.get("url").ok_or("`url` is missing")?;
    let options = ConnectOptions::new().retry_on_initial_connect();
    let client = options.connect(url).await?;
    Ok(Box::new(NatsPublisher::new(client, config)?))
}

/// The settings are `url`, how long the server has for an answer, and the largest message.
fn redis(mut settings: Settings) -> Opened {
    let url = settings.remove("url").ok_or("there is no url")?;
    let mut config = RedisConfig::new(Client::open(url)?);
    for (name, value) in settings {
        let number = value.parse()?;
        let timeout = Duration::from_millis(number);
        config = match name.as_str() {
            "response_timeout_ms" => config.response_timeout(timeout),
            "connect_timeout_ms" => config.connect_timeout(timeout),
            "max_message_bytes" => config.max_message_bytes(usize::try_from(number)?),
            _ => return Err(format!("there is no setting {name:?}").into()),
        };
    }
    Ok(Box::new(RedisPublisher::new(config)?))
}
