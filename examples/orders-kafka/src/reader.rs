//! The consumer: Kafka's own client, and nothing of the outbox but the wire contract.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use outbox::Uuid;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{Offset, TopicPartitionList};
use tokio::time::timeout;

use crate::Error;
use crate::audit::Event;
use crate::ground::{Ground, PARTITIONS};
use crate::progress::Progress;
use crate::shop::Payload;

/// How long the broker has to give what is known to be there.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reads one topic from its beginning to its end.
pub(crate) struct Reader {
    consumer: StreamConsumer,
    topic: String,
    /// The next offset of each partition.
    next: Vec<i64>,
    events: Vec<Event>,
    progress: Arc<Progress>,
}

impl Reader {
    /// Begins to read all partitions.
    pub(crate) fn new(ground: &Ground, progress: Arc<Progress>) -> Result<Self, Error> {
        let topic = ground.topic.as_str();
        let mut assignment = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            assignment.add_partition_offset(topic, partition, Offset::Beginning)?;
        }
        // The client wants the name of a group, even where it joins none.
        let consumer: StreamConsumer = ground
            .kafka
            .clone()
            .set("group.id", topic)
            .set("enable.auto.commit", "false")
            .create()?;
        consumer.assign(&assignment)?;
        Ok(Self {
            consumer,
            topic: topic.to_owned(),
            next: vec![0; PARTITIONS as usize],
            events: Vec::new(),
            progress,
        })
    }

    /// Reads until `complete` ends, which says that nothing more will be written, and then up to the
    /// end of the topic. The messages of a partition, and so of a key, are in its order.
    pub(crate) async fn read_all(
        mut self,
        complete: impl Future<Output = ()>,
    ) -> Result<Vec<Event>, Error> {
        let mut complete = std::pin::pin!(complete);
        loop {
            tokio::select! {
                record = self.record() => self.take(record?),
                () = &mut complete => break,
            }
        }
        let ends = self.ends()?;
        while self.next.iter().zip(&ends).any(|(next, end)| next < end) {
            let record = timeout(PATIENCE, self.record()).await.map_err(|_| {
                let seconds = PATIENCE.as_secs();
                format!(
                    "Kafka has more in {} and gives nothing for {seconds} s",
                    self.topic
                )
            })??;
            self.take(record);
        }
        Ok(self.events)
    }

    /// Waits for the next record. Cancel safe.
    async fn record(&self) -> Result<Record, Error> {
        loop {
            match self.consumer.recv().await {
                Ok(message) => return Record::decode(&message),
                Err(error) if self.consumer.client().fatal_error().is_some() => {
                    return Err(error.into());
                }
                // A connection was lost: the client makes a new one.
                Err(_) => {}
            }
        }
    }

    fn take(&mut self, record: Record) {
        if let Some(next) = self.next.get_mut(record.partition) {
            *next = record.offset + 1;
        }
        self.events.push(record.event);
        self.progress.read.fetch_add(1, Relaxed);
    }

    /// The offset behind the last record of each partition.
    fn ends(&self) -> Result<Vec<i64>, Error> {
        let end = |partition| -> Result<i64, Error> {
            let partition = i32::try_from(partition)?;
            // It blocks its thread for as long as the broker needs to answer.
            let (_, end) = tokio::task::block_in_place(|| {
                self.consumer
                    .fetch_watermarks(&self.topic, partition, PATIENCE)
            })?;
            Ok(end)
        };
        (0..self.next.len()).map(end).collect()
    }
}

/// What the audit needs of a record, and where it was.
struct Record {
    partition: usize,
    offset: i64,
    event: Event,
}

impl Record {
    fn decode(message: &BorrowedMessage<'_>) -> Result<Self, Error> {
        let id = message
            .headers()
            .and_then(|headers| headers.iter().find(|header| header.key == "outbox-id"))
            .and_then(|header| header.value)
            .ok_or("a record has no header `outbox-id`")?;
        let payload: Payload = serde_json::from_slice(message.payload().unwrap_or_default())?;
        Ok(Self {
            partition: message.partition().try_into()?,
            offset: message.offset(),
            event: Event {
                id: Uuid::try_parse_ascii(id)?,
                order: payload.order,
                key: String::from_utf8(message.key().unwrap_or_default().to_vec())?,
                sequence: payload.sequence,
            },
        })
    }
}
