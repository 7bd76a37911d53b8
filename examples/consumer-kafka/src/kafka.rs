//! Messages from Kafka, through its own client: a group, and offsets that are committed by hand.

use std::time::Duration;

use consumer::{BATCH, Error, Received, Source};
use outbox::{Uuid, async_trait};
use rdkafka::consumer::{CommitMode, Consumer as _, StreamConsumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::task::block_in_place;
use tokio::time::timeout;

/// How long a batch that is not full waits for another message.
const LINGER: Duration = Duration::from_millis(20);

pub(crate) struct KafkaSource {
    consumer: StreamConsumer,
    /// Taken by a call of `next` that was dropped, or by the last one.
    batch: Vec<Received>,
    /// Behind the last message of each partition that was taken.
    offsets: TopicPartitionList,
}

impl KafkaSource {
    pub(crate) fn new(
        brokers: &str,
        topic: &str,
        group: &str,
        instance: Option<String>,
    ) -> Result<Self, Error> {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", brokers)
            .set("group.id", group)
            // By default the client commits every few seconds what it has handed out, done or not.
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest");
        if let Some(instance) = instance {
            config.set("group.instance.id", instance);
        }
        let consumer: StreamConsumer = config.create()?;
        consumer.subscribe(&[topic])?;
        Ok(Self {
            consumer,
            batch: Vec::new(),
            offsets: TopicPartitionList::new(),
        })
    }

    fn take(&mut self, taken: (i32, i64, String, Received)) -> Result<(), Error> {
        let (partition, offset, topic, received) = taken;
        let next = Offset::Offset(offset + 1);
        match self.offsets.find_partition(&topic, partition) {
            Some(_) => self.offsets.set_partition_offset(&topic, partition, next)?,
            None => self.offsets.add_partition_offset(&topic, partition, next)?,
        }
        self.batch.push(received);
        Ok(())
    }
}

#[async_trait]
impl Source for KafkaSource {
    async fn next(&mut self) -> Result<Vec<Received>, Error> {
        while self.batch.len() < BATCH {
            let record = if self.batch.is_empty() {
                self.consumer.recv().await
            } else {
                match timeout(LINGER, self.consumer.recv()).await {
                    Ok(record) => record,
                    Err(_) => break,
                }
            };
            match record.map(|record| decode(&record)) {
                Ok(taken) => self.take(taken)?,
                Err(error) if is_fatal(&self.consumer) => return Err(error.into()),
                // A connection was lost: the client makes a new one.
                Err(KafkaError::MessageConsumption(error)) => eprintln!("{error}"),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(std::mem::take(&mut self.batch))
    }

    async fn acknowledge(&mut self) -> Result<(), Error> {
        let offsets = std::mem::take(&mut self.offsets);
        // It blocks its thread for as long as the broker needs to answer.
        let committed = block_in_place(|| self.consumer.commit(&offsets, CommitMode::Sync));
        if let Err(error) = committed {
            // The partitions are another instance's by now, which has all of this again from the broker.
            eprintln!("offsets are not committed: {error}");
        }
        Ok(())
    }
}

fn is_fatal(consumer: &StreamConsumer) -> bool {
    consumer.client().fatal_error().is_some()
}

fn decode(record: &BorrowedMessage<'_>) -> (i32, i64, String, Received) {
    let received = Received {
        id: id(record),
        payload: record.payload().unwrap_or_default().to_vec(),
    };
    (
        record.partition(),
        record.offset(),
        record.topic().to_owned(),
        received,
    )
}

fn id(record: &BorrowedMessage<'_>) -> Result<Uuid, Error> {
    let id = record
        .headers()
        .and_then(|headers| headers.iter().find(|header| header.key == "outbox-id"))
        .and_then(|header| header.value)
        .ok_or("a record has no header `outbox-id`")?;
    Ok(Uuid::try_parse_ascii(id)?)
}
