//! The consumer: NATS's own client, and nothing of the outbox but the wire contract.

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use async_nats::jetstream::{Context, Message, stream};
use futures_util::StreamExt;
use orders::{Error, Event, Reader};
use outbox::async_trait;

/// Reads a stream from its beginning, in its order, and makes its consumer anew where a message is
/// missing.
pub(crate) struct NatsReader {
    stream: stream::Stream,
    messages: Ordered,
}

impl NatsReader {
    pub(crate) async fn new(context: &Context, topic: &str) -> Result<Self, Error> {
        let stream = context.get_stream(topic).await?;
        let consumer = stream.create_consumer(OrderedConfig::default()).await?;
        let messages = consumer.messages().await?;
        Ok(Self { stream, messages })
    }
}

#[async_trait]
impl Reader for NatsReader {
    async fn next(&mut self) -> Result<Event, Error> {
        let message = self.messages.next().await.ok_or("the consumer has ended")?;
        decode(&message?)
    }

    async fn count(&mut self) -> Result<u64, Error> {
        Ok(self.stream.get_info().await?.state.messages)
    }
}

fn decode(message: &Message) -> Result<Event, Error> {
    let headers = message.headers.as_ref();
    let header = |name: &str| -> Option<&[u8]> {
        let value = headers.and_then(|headers: &HeaderMap| headers.get(name))?;
        Some(value.as_ref())
    };
    let id = header("Nats-Msg-Id").ok_or("a message has no header `Nats-Msg-Id`")?;
    let key = header("Outbox-Key").unwrap_or_default();
    Event::decode(id, key, &message.payload)
}
