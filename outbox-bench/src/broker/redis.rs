//! Redis: a stream, which its first entry makes.

use std::sync::Arc;

use outbox_core::{Publisher, async_trait};
use outbox_redis::{RedisConfig, RedisPublisher};
use redis::{AsyncConnectionConfig, Client, Cmd};

use super::Broker;
use crate::Result;
use crate::setup::PATIENCE;

pub(super) struct Redis {
    client: Client,
}

impl Redis {
    pub(super) async fn at(url: String) -> Result<Self> {
        let redis = Self {
            client: Client::open(url)?,
        };
        redis.ask(&redis::cmd("DBSIZE")).await?;
        Ok(redis)
    }

    async fn ask(&self, command: &Cmd) -> Result<u64> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let mut connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        Ok(command.query_async(&mut connection).await?)
    }
}

#[async_trait]
impl Broker for Redis {
    async fn publisher(&self) -> Result<Arc<dyn Publisher>> {
        let config = RedisConfig::new(self.client.clone());
        Ok(Arc::new(RedisPublisher::new(config)?))
    }

    async fn create(&self, _topic: &str) -> Result<()> {
        Ok(())
    }

    async fn remove(&self, topic: &str) -> Result<()> {
        self.ask(redis::cmd("DEL").arg(topic)).await?;
        Ok(())
    }

    async fn count(&self, topic: &str) -> Result<u64> {
        self.ask(redis::cmd("XLEN").arg(topic)).await
    }
}
