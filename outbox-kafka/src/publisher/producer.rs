//! The client, and how it is replaced: one that has lost its session answers nothing but errors from then on,
//! and one that does not reach the cluster may never again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use outbox_core::PublishErrorKind;
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Header, Message as _, OwnedHeaders};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer,
};
use tokio::sync::{mpsc, oneshot};

use crate::config::{Config, InvalidConfig};
use crate::encode::Record;
use crate::error::{classify, code};

/// How long the cluster has to answer the question whether it is there, after a message timed out.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the client's last connection error is worth mentioning.
const TROUBLE_AGE: Duration = Duration::from_secs(60);

/// Goes with a record through the client and comes back with its answer.
pub(super) struct Ticket {
    pub(super) number: usize,
    pub(super) answers: mpsc::UnboundedSender<(usize, Answer)>,
}

/// What the client says of a record.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// The broker has it, and said where.
    Taken,
    /// The client takes it for delivered, and no broker has said where it is.
    Presumed,
    Refused(RDKafkaErrorCode),
}

/// Receives what the client has to say.
pub(super) struct Context {
    /// The last connection error, with its time.
    trouble: Mutex<Option<(Instant, String)>>,
    /// The partition and the offset of the last record that was presumed to be delivered.
    presumed: Mutex<Option<(String, i32, i64)>>,
    /// Whether the client is one for chains, which ends at every refusal.
    chaining: bool,
}

impl Context {
    /// Adds to an error what went wrong with the connections of late.
    pub(super) fn with_trouble(&self, error: &str) -> String {
        match &*lock(&self.trouble) {
            Some((at, trouble)) if at.elapsed() < TROUBLE_AGE => format!("{error}; {trouble}"),
            _ => error.to_owned(),
        }
    }

    /// Whether a broker has said at which offset the record is. Of a record batch without an offset the client
    /// counts all the same, from -1 on; the records of a batch are reported one after the other.
    fn was_taken(&self, record: &BorrowedMessage<'_>) -> bool {
        let (partition, offset) = (record.partition(), record.offset());
        let mut presumed = lock(&self.presumed);
        let counted = presumed.as_ref().is_some_and(|(topic, of, last)| {
            (record.topic(), partition, offset) == (topic, *of, last + 1)
        });
        *presumed = (offset < 0 || counted).then(|| (record.topic().to_owned(), partition, offset));
        presumed.is_none()
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // An emergency for others.
        let level = match self.chaining && facility == "FATAL" {
            true => RDKafkaLogLevel::Info,
            false => level,
        };
        DefaultClientContext.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        if self.chaining && code == Some(RDKafkaErrorCode::Fatal) {
            return;
        }
        // That all brokers are down says less than what was said of one of them before.
        if code != Some(RDKafkaErrorCode::AllBrokersDown) {
            *lock(&self.trouble) = Some((Instant::now(), reason.to_owned()));
        }
        DefaultClientContext.error(error, reason);
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let answer = match result {
            Ok(record) if self.was_taken(record) => Answer::Taken,
            Ok(_) => Answer::Presumed,
            Err((error, _)) => Answer::Refused(code(error)),
        };
        // The call may have been dropped, and then nobody wants to know.
        let _ = ticket.answers.send((ticket.number, answer));
    }
}

/// A place for a producer that can be replaced.
pub(super) struct Slot {
    pub(super) config: Config,
    producer: Mutex<Option<Arc<Producer>>>,
    /// Held by who creates the next one.
    creating: tokio::sync::Mutex<()>,
}

impl Slot {
    pub(super) fn new(config: Config) -> Self {
        Self {
            config,
            producer: Mutex::default(),
            creating: tokio::sync::Mutex::default(),
        }
    }

    /// With a producer in it. Blocks, as [`Producer::new`] does.
    pub(super) fn filled(config: Config) -> Result<Self, InvalidConfig> {
        let producer = Producer::new(&config)?;
        let slot = Self::new(config);
        *lock(&slot.producer) = Some(Arc::new(producer));
        Ok(slot)
    }

    /// Has the next call begin with another client: this one did not reach the cluster.
    ///
    /// It may never again. A broker that shuts down may still answer and name no brokers at all, and then
    /// librdkafka drops every broker that it knows, also those that it was configured with
    /// (`rd_kafka_metadata_decommission_unavailable_brokers` in 2.12).
    pub(super) fn forget(&self, producer: &Arc<Producer>) {
        let mut slot = lock(&self.producer);
        if slot
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, producer))
        {
            *slot = None;
        }
    }

    /// The producer, created now if there is none or the last one has lost its session.
    pub(super) async fn producer(&self) -> Result<Arc<Producer>, InvalidConfig> {
        if let Some(producer) = self.current() {
            return Ok(producer);
        }
        let _creating = self.creating.lock().await;
        if let Some(producer) = self.current() {
            return Ok(producer);
        }
        let producer = Arc::new(Producer::create(&self.config).await?);
        *lock(&self.producer) = Some(Arc::clone(&producer));
        Ok(producer)
    }

    fn current(&self) -> Option<Arc<Producer>> {
        let producer = lock(&self.producer).clone();
        producer.filter(|producer| producer.fatal_error().is_none())
    }
}

/// The client's producer. It ends in the background.
pub(super) struct Producer {
    /// Until it is dropped.
    client: Option<ThreadedProducer<Context>>,
    pub(super) context: Arc<Context>,
    /// Whether every record has a record batch of its own.
    pub(super) alone: bool,
}

impl Producer {
    /// Blocks: the client reads certificates, and waits for its threads by the host's clock, so for long where
    /// that is set back meanwhile.
    pub(super) fn new(config: &Config) -> Result<Self, InvalidConfig> {
        let context = Context {
            trouble: Mutex::default(),
            presumed: Mutex::default(),
            chaining: config.is_chaining(),
        };
        let client: ThreadedProducer<Context> = config.client().create_with_context(context)?;
        Ok(Self {
            context: Arc::clone(client.context()),
            client: Some(client),
            alone: config.is_one_record_a_batch(),
        })
    }

    /// [`new`](Self::new) in the background, so that a caller who has waited for too long can go.
    pub(super) async fn create(config: &Config) -> Result<Self, InvalidConfig> {
        let (answer, answered) = oneshot::channel();
        let config = config.clone();
        // The call may have been dropped, and then nobody wants it.
        in_background(move || drop(answer.send(Self::new(&config))));
        answered.await.unwrap_or_else(|_| {
            Err(InvalidConfig::Client {
                reason: "it could not be started".to_owned(),
            })
        })
    }

    /// Copies a record into the client's queue.
    pub(super) fn send(&self, record: &Record<'_>, ticket: Ticket) -> Result<(), RDKafkaErrorCode> {
        let Some(client) = &self.client else {
            return Err(RDKafkaErrorCode::Fatal);
        };
        let mut headers = OwnedHeaders::new_with_capacity(record.header_count());
        for (key, value) in record.headers() {
            headers = headers.insert(Header {
                key,
                value: Some(value),
            });
        }
        client
            .send(BaseRecord {
                topic: record.topic,
                partition: None,
                payload: record.value,
                key: record.key,
                timestamp: None,
                headers: Some(headers),
                delivery_opaque: Box::new(ticket),
            })
            .map_err(|(error, _)| code(&error))
    }

    /// Why the client has given up its session; it answers nothing but errors from then on.
    pub(super) fn fatal_error(&self) -> Option<String> {
        let (code, reason) = self.client.as_ref()?.client().fatal_error()?;
        Some(format!("{code}: {reason}"))
    }

    /// What happened, for people.
    pub(super) fn describe(&self, code: RDKafkaErrorCode, size: usize) -> String {
        match code {
            RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::MessageBatchTooLarge => {
                format!(
                    "the broker refused the record of {size} bytes, alone in its record batch, as \
                     larger than the topic's max.message.bytes: {code}"
                )
            }
            RDKafkaErrorCode::InvalidTimestamp => format!(
                "this host's clock is outside of what the topic takes (message.timestamp.before.max.ms \
                 and message.timestamp.after.max.ms): {code}"
            ),
            code => match (classify(code), self.fatal_error()) {
                (PublishErrorKind::BrokerUnavailable, Some(fatal)) => {
                    format!("{code}, the producer starts anew after: {fatal}")
                }
                (PublishErrorKind::BrokerUnavailable, None) => {
                    self.context.with_trouble(&code.to_string())
                }
                _ => code.to_string(),
            },
        }
    }

    /// Asks any broker about a topic; an answer of any kind shows that the cluster is there, unless it
    /// names no broker at all.
    pub(super) async fn ask_cluster(self: Arc<Self>, topic: String) -> Result<(), String> {
        let (answer, answered) = oneshot::channel();
        in_background(move || {
            let asked = self.client.as_ref().map(|client| {
                client
                    .client()
                    .fetch_metadata(Some(&topic), PROBE_TIMEOUT)
                    .map(|metadata| metadata.brokers().len())
            });
            // The call may have been dropped, and then nobody wants to know.
            let _ = answer.send(asked);
        });
        match answered.await {
            Ok(Some(Ok(0))) => Err("a broker answers and names none".to_owned()),
            Ok(Some(Ok(_))) => Ok(()),
            Ok(Some(Err(error))) => Err(error.to_string()),
            Ok(None) | Err(_) => Err("it could not be asked".to_owned()),
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            // Nothing more is sent from here on.
            client.purge(PurgeConfig::default().queue().inflight().non_blocking());
            // Ending waits for the client's threads, too long for a thread of the runtime.
            in_background(move || drop(client));
        }
    }
}

/// Runs what blocks on a thread of its own, for which the end of a runtime does not wait.
fn in_background(work: impl FnOnce() + Send + 'static) {
    // Without a thread the work is dropped here and now, which ends a client all the same.
    let _ = thread::Builder::new()
        .name("outbox-kafka".to_owned())
        .spawn(work);
}

/// A panic elsewhere leaves nothing half done behind these locks.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
