//! NATS JetStream: a stream in a file, of one subject, which takes atomic batches.

use std::sync::Arc;

use async_nats::Client;
use async_nats::jetstream::{self, stream};
use outbox_core::{Publisher, async_trait};
use outbox_nats::{NatsConfig, NatsPublisher};

use super::Broker;
use crate::Result;

pub(super) struct Nats {
    client: Client,
}

impl Nats {
    pub(super) async fn at(url: String) -> Result<Self> {
        let client = async_nats::connect(url).await?;
        Ok(Self { client })
    }

    fn jetstream(&self) -> jetstream::Context {
        jetstream::new(self.client.clone())
    }
}

#[async_trait]
impl Broker for Nats {
    async fn publisher(&self) -> Result<Arc<dyn Publisher>> {
        let config = NatsConfig::new().atomic_batches(true);
        let publisher = NatsPublisher::new(self.client.clone(), config)?;
        Ok(Arc::new(publisher))
    }

    async fn create(&self, topic: &str) -> Result<()> {
        let stream = stream::Config {
            name: topic.to_owned(),
            subjects: vec![topic.to_owned()],
            allow_atomic_publish: true,
            ..stream::Config::default()
        };
        self.jetstream().create_stream(stream).await?;
        Ok(())
    }

    async fn remove(&self, topic: &str) -> Result<()> {
        self.jetstream().delete_stream(topic).await?;
        Ok(())
    }

    async fn count(&self, topic: &str) -> Result<u64> {
        let stream = self.jetstream().get_stream(topic).await?;
        Ok(stream.cached_info().state.messages)
    }
}
