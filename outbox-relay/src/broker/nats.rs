//! NATS JetStream.

use outbox_core::Publisher;
use outbox_nats::{ConnectOptions, NatsConfig, NatsPublisher};

use crate::settings::{InvalidSettings, Nats};

/// How to connect, without to where.
pub(crate) async fn options(
    section: &str,
    settings: &Nats,
) -> Result<ConnectOptions, InvalidSettings> {
    let mut options = ConnectOptions::new().name("outbox");
    if let Some(file) = &settings.credentials_file {
        options = options.credentials_file(file).await.map_err(|error| {
            let file = file.display();
            InvalidSettings::new(
                format!("{section}.credentials_file"),
                format!("{file}: {error}"),
            )
        })?;
    }
    if let Some(token) = &settings.token {
        options = options.token(token.expose().to_owned());
    }
    Ok(options)
}

/// The servers to connect to.
pub(crate) fn servers(settings: &Nats) -> Vec<&str> {
    settings.url.expose().split(',').map(str::trim).collect()
}

pub(super) async fn open(
    section: &str,
    settings: &Nats,
) -> Result<Box<dyn Publisher>, InvalidSettings> {
    let options = options(section, settings).await?.retry_on_initial_connect();
    let client = options.connect(servers(settings)).await.map_err(|_| {
        // Its own words may quote the URL.
        InvalidSettings::new(
            format!("{section}.url"),
            "it is no URL such as nats://host:4222",
        )
    })?;

    let mut config = NatsConfig::new().atomic_batches(settings.atomic_batches);
    if let Some(prefix) = &settings.subject_prefix {
        config = config.subject_prefix(prefix);
    }
    if let Some(stream) = &settings.expected_stream {
        config = config.expected_stream(stream);
    }
    if let Some(messages) = settings.max_in_flight {
        config = config.max_in_flight(messages);
    }
    if let Some(timeout) = settings.ack_timeout {
        config = config.ack_timeout(timeout.0);
    }
    match NatsPublisher::new(client, config) {
        Ok(publisher) => Ok(Box::new(publisher)),
        Err(error) => Err(InvalidSettings::new(
            format!("{section}.{}", error.setting()),
            error,
        )),
    }
}
