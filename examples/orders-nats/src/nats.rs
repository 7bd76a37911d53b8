//! NATS as the example needs it: a stream for the topic, and the publisher of the relay.

use async_nats::ServerAddr;
use async_nats::jetstream::{self, Context, stream};
use orders::{Broker, Error, PATIENCE, missing};
use outbox::async_trait;
use outbox::nats::{Client, ConnectOptions, NatsConfig, NatsPublisher};
use tokio::time::timeout;

use crate::reader::NatsReader;

/// NATS at an address.
pub(crate) struct Nats {
    url: String,
}

impl Nats {
    pub(crate) fn at(url: String) -> Self {
        Self { url }
    }

    async fn connect(&self) -> Result<Client, Error> {
        let server: ServerAddr = self.url.parse()?;
        // Without the password that an address may hold.
        let missing = |reason: &str| {
            let place = format!("{}:{}", server.host(), server.port());
            missing("NATS", place, reason)
        };
        let options = ConnectOptions::new().name("orders");
        match timeout(PATIENCE, options.connect(server.clone())).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(error)) => Err(missing(&error.to_string())),
            Err(_) => Err(missing("no answer")),
        }
    }

    async fn jetstream(&self) -> Result<Context, Error> {
        Ok(jetstream::new(self.connect().await?))
    }
}

#[async_trait]
impl Broker for Nats {
    type Publisher = NatsPublisher;
    type Reader = NatsReader;

    async fn create(&self, topic: &str) -> Result<(), Error> {
        let config = stream::Config {
            name: topic.to_owned(),
            subjects: vec![topic.to_owned()],
            ..stream::Config::default()
        };
        self.jetstream().await?.create_stream(config).await?;
        Ok(())
    }

    async fn publisher(&self) -> Result<NatsPublisher, Error> {
        Ok(NatsPublisher::new(
            self.connect().await?,
            NatsConfig::new(),
        )?)
    }

    async fn reader(&self, topic: &str) -> Result<NatsReader, Error> {
        NatsReader::new(&self.jetstream().await?, topic).await
    }

    async fn remove(&self, topic: &str) -> Result<(), Error> {
        self.jetstream().await?.delete_stream(topic).await?;
        Ok(())
    }
}
