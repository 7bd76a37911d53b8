//! Messages from a queue of RabbitMQ, through the client of AMQP.

use std::time::Duration;

use consumer::{BATCH, Error, Received, Source};
use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Connection, Consumer};
use outbox::{Uuid, async_trait};
use tokio::time::timeout;

/// How long a batch that is not full waits for another message.
const LINGER: Duration = Duration::from_millis(20);

pub(crate) struct QueueSource {
    consumer: Consumer,
    /// Taken by a call of `next` that was dropped, or by the last one.
    batch: Vec<Delivery>,
}

impl QueueSource {
    pub(crate) async fn new(connection: &Connection, queue: &str) -> Result<Self, Error> {
        let channel = connection.create_channel().await?;
        // The queue sends no more than that without an acknowledgement; the default is all it has.
        let batch = u16::try_from(BATCH)?;
        channel.basic_qos(batch, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default(); // with acknowledgements
        let consumer = channel
            .basic_consume(queue.into(), "".into(), options, FieldTable::default())
            .await?;
        Ok(Self {
            consumer,
            batch: Vec::new(),
        })
    }
}

#[async_trait]
impl Source for QueueSource {
    async fn next(&mut self) -> Result<Vec<Received>, Error> {
        while self.batch.len() < BATCH {
            let delivery = if self.batch.is_empty() {
                self.consumer.next().await
            } else {
                match timeout(LINGER, self.consumer.next()).await {
                    Ok(delivery) => delivery,
                    Err(_) => break,
                }
            };
            let delivery = delivery.ok_or("RabbitMQ has ended the consumer")??;
            self.batch.push(delivery);
        }
        Ok(self.batch.iter().map(decode).collect())
    }

    async fn acknowledge(&mut self) -> Result<(), Error> {
        // Of the last one, and with it of all before it.
        if let Some(last) = self.batch.last() {
            last.ack(BasicAckOptions { multiple: true }).await?;
        }
        self.batch.clear();
        Ok(())
    }
}

fn decode(delivery: &Delivery) -> Received {
    Received {
        id: id(delivery),
        payload: delivery.data.clone(),
    }
}

fn id(delivery: &Delivery) -> Result<Uuid, Error> {
    let id = delivery.properties.message_id().as_ref();
    let id = id.ok_or("a message has no property `message_id`")?;
    Ok(Uuid::try_parse(id.as_str())?)
}
