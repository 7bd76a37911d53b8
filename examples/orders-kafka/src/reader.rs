//! The consumer: Kafka's own client, and nothing of the outbox but the wire contract.

use orders::{Error, Event, PATIENCE, Reader};
use outbox::async_trait;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::kafka::PARTITIONS;

/// Reads all partitions of a topic from their beginning. The messages of a partition, and so of a key,
/// are in its order.
pub(crate) struct KafkaReader {
    consumer: StreamConsumer,
    topic: String,
}

impl KafkaReader {
    pub(crate) fn new(mut config: ClientConfig, topic: &str) -> Result<Self, Error> {
        let mut assignment = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            assignment.add_partition_offset(topic, partition, Offset::Beginning)?;
        }
        // The client wants the name of a group, even where it joins none.
        let consumer: StreamConsumer = config
            .set("group.id", topic)
            .set("enable.auto.commit", "false")
            .create()?;
        consumer.assign(&assignment)?;
        Ok(Self {
            consumer,
            topic: topic.to_owned(),
        })
    }
}

#[async_trait]
impl Reader for KafkaReader {
    async fn next(&mut self) -> Result<Event, Error> {
        loop {
            match self.consumer.recv().await {
                Ok(record) => return decode(&record),
                Err(error) if self.consumer.client().fatal_error().is_some() => {
                    return Err(error.into());
                }
                // A connection was lost: the client makes a new one.
                Err(_) => {}
            }
        }
    }

    async fn count(&mut self) -> Result<u64, Error> {
        let count = |partition| -> Result<u64, Error> {
            let (first, end) = self
                .consumer
                .fetch_watermarks(&self.topic, partition, PATIENCE)?;
            Ok(u64::try_from(end - first)?)
        };
        // It blocks its thread for as long as the broker needs to answer.
        tokio::task::block_in_place(|| (0..PARTITIONS).map(count).sum())
    }
}

fn decode(record: &BorrowedMessage<'_>) -> Result<Event, Error> {
    let id = record
        .headers()
        .and_then(|headers| headers.iter().find(|header| header.key == "outbox-id"))
        .and_then(|header| header.value)
        .ok_or("a record has no header `outbox-id`")?;
    let key = record.key().unwrap_or_default();
    Event::decode(id, key, record.payload().unwrap_or_default())
}
