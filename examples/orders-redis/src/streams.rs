//! Redis as the example needs it: a stream, and the publisher of the relay.

use orders::{Broker, Error, PATIENCE, missing};
use outbox::async_trait;
use outbox::redis::{Client, RedisConfig, RedisPublisher};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use crate::reader::StreamReader;

/// Redis at an address.
pub(crate) struct Redis {
    url: String,
}

impl Redis {
    pub(crate) fn at(url: String) -> Self {
        Self { url }
    }

    fn client(&self) -> Result<Client, Error> {
        Ok(Client::open(self.url.as_str())?)
    }

    async fn connection(&self) -> Result<MultiplexedConnection, Error> {
        connect(&self.client()?).await
    }
}

/// A connection that names the server when it is away.
pub(crate) async fn connect(client: &Client) -> Result<MultiplexedConnection, Error> {
    // A consumer lets the server wait for what it has not got yet, for less than this.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let place = client.get_connection_info().addr();
    connection
        .await
        .map_err(|error| missing("Redis", place, error))
}

#[async_trait]
impl Broker for Redis {
    type Publisher = RedisPublisher;
    type Reader = StreamReader;

    async fn create(&self, _topic: &str) -> Result<(), Error> {
        // The first message makes the stream; the server has to be there.
        let mut connection = self.connection().await?;
        Ok(redis::cmd("PING").exec_async(&mut connection).await?)
    }

    async fn publisher(&self) -> Result<RedisPublisher, Error> {
        Ok(RedisPublisher::new(RedisConfig::new(self.client()?))?)
    }

    async fn reader(&self, topic: &str) -> Result<StreamReader, Error> {
        StreamReader::new(self.client()?, topic).await
    }

    async fn remove(&self, topic: &str) -> Result<(), Error> {
        let mut connection = self.connection().await?;
        Ok(redis::cmd("DEL")
            .arg(topic)
            .exec_async(&mut connection)
            .await?)
    }
}
