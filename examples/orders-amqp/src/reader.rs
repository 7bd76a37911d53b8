//! The consumer: RabbitMQ's own client, and nothing of the outbox but the wire contract.

use std::collections::VecDeque;

use futures_util::{FutureExt as _, StreamExt as _};
use lapin::message::Delivery;
use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Consumer};
use orders::{Error, Event, Reader};
use outbox::async_trait;

/// Reads a queue in its order, which is that of every key.
pub(crate) struct QueueReader {
    channel: Channel,
    consumer: Consumer,
    queue: String,
    read: u64,
    /// Received while they were counted.
    ahead: VecDeque<Delivery>,
}

impl QueueReader {
    pub(crate) async fn new(channel: Channel, queue: &str) -> Result<Self, Error> {
        // The server need not keep what was sent, since it is read once and then audited. A consumer
        // that must not lose a message acknowledges it when it is done with it.
        let options = BasicConsumeOptions {
            no_ack: true,
            exclusive: true,
            ..BasicConsumeOptions::default()
        };
        let consumer = channel
            .basic_consume(
                queue.into(),
                "orders".into(),
                options,
                FieldTable::default(),
            )
            .await?;
        Ok(Self {
            channel,
            consumer,
            queue: queue.to_owned(),
            read: 0,
            ahead: VecDeque::new(),
        })
    }
}

#[async_trait]
impl Reader for QueueReader {
    async fn next(&mut self) -> Result<Event, Error> {
        let delivery = match self.ahead.pop_front() {
            Some(delivery) => delivery,
            None => {
                let next = self.consumer.next().await;
                next.ok_or("RabbitMQ has ended the consumer")??
            }
        };
        self.read += 1;
        decode(&delivery)
    }

    async fn count(&mut self) -> Result<u64, Error> {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let queue = self.queue.as_str().into();
        let waiting = self
            .channel
            .queue_declare(queue, options, FieldTable::default())
            .await?
            .message_count();
        // What the queue sent before it answered has arrived, since both came over one channel.
        while let Some(Some(delivery)) = self.consumer.next().now_or_never() {
            self.ahead.push_back(delivery?);
        }
        Ok(self.read + u64::try_from(self.ahead.len())? + u64::from(waiting))
    }
}

fn decode(delivery: &Delivery) -> Result<Event, Error> {
    let properties = &delivery.properties;
    let id = properties.message_id().as_ref().ok_or("no message id")?;
    let headers = properties.headers().as_ref().ok_or("no headers")?;
    let key = match headers.inner().get("outbox-key") {
        Some(AMQPValue::LongString(key)) => key.as_bytes(),
        _ => return Err("a message has no header `outbox-key`".into()),
    };
    Event::decode(id.as_str().as_bytes(), key, &delivery.data)
}
