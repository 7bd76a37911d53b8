//! Redis Streams.

use outbox_core::Publisher;
use outbox_redis::{Client, InvalidConfig, RedisConfig, RedisPublisher, Trim};

use crate::settings::{InvalidSettings, Redis};

/// Where the server is, and how to log in.
pub(crate) fn client(section: &str, settings: &Redis) -> Result<Client, InvalidSettings> {
    Client::open(settings.url.expose()).map_err(|_| {
        // Its own words may quote the URL.
        InvalidSettings::new(
            format!("{section}.url"),
            "it is no URL such as redis://user:password@host:6379",
        )
    })
}

pub(super) fn open(section: &str, settings: &Redis) -> Result<Box<dyn Publisher>, InvalidSettings> {
    let mut config = RedisConfig::new(client(section, settings)?)
        .cluster(settings.cluster)
        .stream_prefix(&settings.stream_prefix)
        .create_streams(settings.create_streams);
    if let Some(timeout) = settings.response_timeout {
        config = config.response_timeout(timeout.0);
    }
    if let Some(timeout) = settings.connect_timeout {
        config = config.connect_timeout(timeout.0);
    }
    if let Some(bytes) = settings.max_message_bytes {
        config = config.max_message_bytes(bytes.0);
    }
    match (settings.trim_entries, settings.trim_age) {
        (Some(entries), None) => config = config.trim(Trim::Entries(entries)),
        (None, Some(age)) => config = config.trim(Trim::Age(age.0)),
        (None, None) => {}
        (Some(_), Some(_)) => {
            return Err(InvalidSettings::new(
                format!("{section}.trim_age"),
                "a stream is trimmed by trim_entries or by trim_age, not by both",
            ));
        }
    }
    if let Some(replicas) = settings.wait_for_replicas {
        config = config.wait_for_replicas(replicas, settings.wait_for_replicas_within.0);
    }
    match RedisPublisher::new(config) {
        Ok(publisher) => Ok(Box::new(publisher)),
        Err(InvalidConfig::Client { reason }) => {
            Err(InvalidSettings::new(format!("{section}.url"), reason))
        }
        Err(error) => Err(InvalidSettings::new(section, error)),
    }
}
