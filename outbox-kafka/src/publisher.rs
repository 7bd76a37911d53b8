//! The I/O: records go to the client in batch order, and each answer is reported when it comes.
//!
//! The client owns queueing, record batches, repeats and reconnects. What is added here is what the
//! contract asks: every answer is awaited and reported one by one, a full queue is waited for, a
//! refusal that was about a neighbour in the record batch is not believed, nor a delivery that only the
//! client speaks for, and a client that has lost its session, or does not reach the cluster, is replaced.

mod chains;
mod producer;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_core::{
    Chains, Delivery, Message, PublishError, PublishErrorKind, Publisher, async_trait,
};
use rdkafka::ClientConfig;
use rdkafka::error::RDKafkaErrorCode;
use tokio::sync::mpsc;

use crate::config::{Config, InvalidConfig};
use crate::encode::{Record, encode};
use crate::error::{classify, is_silence, may_be_about_a_neighbour};
use chains::Chaining;
use producer::{Answer, Producer, Slot, Ticket};

/// How long to wait before a full queue is tried again when no answer comes first.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(10);

/// While so many messages are being published, fuller record batches are worth waiting for.
const GATHER: usize = 256;

/// Publishes to Kafka; see the [crate](crate) for an example.
///
/// # Answers
///
/// A message is confirmed when every in-sync replica of its partition has it. One that gets no
/// answer within `delivery.timeout.ms` is reported then, plus at most three seconds in which the
/// cluster is asked whether it is there at all. A failed message is tried again by the relay, not
/// here, with two exceptions. Brokers refuse a whole record batch for its size or for one record in it. And
/// the client takes a record batch for delivered, without an offset, when a later one of its partition was
/// taken or the broker calls it a duplicate; but a broker that knows nothing of the client's session, as
/// after a start, takes a later one first. What was refused in company, or has no offset, is sent once
/// more, each in a record batch of its own, and after it what was taken of its key meanwhile.
///
/// # Cancellation
///
/// What was reported stays. What was not may still be in the client's queue, and be delivered, until
/// its delivery timeout has passed: a repeat, if it is published again. The queue keeps its order per
/// partition, so a repeat stays behind it, unless it goes through another client: one that replaces this
/// one, whose queue is thrown away then, or the one that waits for fuller record batches. Of chains nothing
/// more is sent then but what is on its way.
///
/// # Drop
///
/// What is still in the client's queue is thrown away. The client's threads end in the background,
/// within about a second.
pub struct KafkaPublisher {
    config: Config,
    /// Sends at once, and so fills record batches with what comes while others are on their way.
    shared: Slot,
    /// Waits a little for more to send; only created when it is needed. `None`: the application has said
    /// how long the client waits.
    gathering: Option<Slot>,
    /// Gives every record a record batch of its own; only created when it is needed.
    alone: Slot,
    /// For chains.
    chaining: Chaining,
    /// How many messages are being published.
    under_way: AtomicUsize,
}

impl KafkaPublisher {
    /// Completes the configuration and starts the client.
    ///
    /// The brokers need not be there: connections are made, and made again, in the background.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`] names the property that is missing, or with which delivered would not mean
    /// delivered, or that the client refuses.
    pub fn new(config: ClientConfig) -> Result<Self, InvalidConfig> {
        let config = Config::new(config)?;
        Ok(Self {
            shared: Slot::filled(config.clone())?,
            gathering: config.gathering().map(Slot::new),
            alone: Slot::new(config.one_record_a_batch()),
            chaining: Chaining::new(&config),
            under_way: AtomicUsize::new(0),
            config,
        })
    }

    /// Where messages go when so many are under way with them.
    ///
    /// While a record batch is on its way and more of its partition waits, a client that is to send at once
    /// asks its socket for the answer without a pause (librdkafka 2.12): with a thousand messages at a time
    /// that took more of the processor than everything else about them. A few messages do not wait for each
    /// other, so they are better off with it all the same.
    ///
    /// A key is in one client at a time, since no two calls have messages of it, unless a call was dropped.
    fn slot(&self, under_way: usize) -> &Slot {
        match &self.gathering {
            Some(gathering) if under_way >= GATHER => gathering,
            _ => &self.shared,
        }
    }

    /// Sends messages through the producer in `slot`, in order, and reports every answer that says
    /// something certain about its message. Gives back the others.
    async fn send<'a>(&self, slot: &Slot, batch: &[Delivery<'a>]) -> Open<'a> {
        let producer = match slot.producer().await {
            Ok(producer) => producer,
            Err(error) => {
                report_all(batch, &PublishError::broker_unavailable(error.to_string()));
                return Open::default();
            }
        };
        let mut call = Call::new(&self.config, &producer);
        for delivery in batch {
            call.send(*delivery).await;
        }
        call.finish().await;
        let mut open = call.open;
        open.producer = Some(producer);
        open
    }

    /// Publishes messages of which none waits for another.
    async fn publish_plain(&self, batch: &[Delivery<'_>]) {
        let under_way = UnderWay::begin(&self.under_way, batch.len());
        let slot = self.slot(under_way.with_others);
        let open = self.send(slot, batch).await;
        match self.explain_silence(slot, &open).await {
            None if open.again.is_empty() => {}
            None => {
                let open = self.send(&self.alone, &open.again).await;
                self.explain_silence(&self.alone, &open).await;
            }
            // Sent again they would be silent too, for longer than the caller waits.
            Some(outage) => report_all(&open.again, &outage),
        }
    }

    /// Reports for messages that nobody answered for what that means. Gives back the outage, if it is one.
    async fn explain_silence(&self, slot: &Slot, open: &Open<'_>) -> Option<PublishError> {
        let (first, producer) = (open.silent.first()?, open.producer.as_ref()?);
        let error = self.silence(producer, first.message().topic()).await;
        report_all(&open.silent, &error);
        if error.kind() != PublishErrorKind::BrokerUnavailable {
            return None;
        }
        slot.forget(producer);
        Some(error)
    }

    /// What it means that nobody has answered in time: whether the cluster or only the topic is away.
    async fn silence(&self, producer: &Arc<Producer>, topic: &str) -> PublishError {
        let timeout = self.config.delivery_timeout().as_millis();
        match Arc::clone(producer).ask_cluster(topic.to_owned()).await {
            Ok(()) => PublishError::topic_unavailable(format!(
                "not confirmed within {timeout} ms, though the cluster answers: the partition has no \
                 leader or too few replicas, or is overloaded"
            )),
            Err(error) => PublishError::broker_unavailable(format!(
                "not confirmed within {timeout} ms, and the cluster does not answer: {}",
                producer.context.with_trouble(&error)
            )),
        }
    }
}

fn report_all(deliveries: &[Delivery<'_>], error: &PublishError) {
    for delivery in deliveries {
        delivery.report(Err(error.clone()));
    }
}

#[async_trait]
impl Publisher for KafkaPublisher {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        let (chains, unchained) = Chains::part(batch);
        if chains.is_empty() {
            return self.publish_plain(batch).await;
        }
        tokio::join!(self.publish_plain(&unchained), self.publish_chains(chains));
    }

    fn chains_keys(&self) -> bool {
        true
    }
}

impl fmt::Debug for KafkaPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaPublisher")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Counts the messages of a call until it ends.
struct UnderWay<'a> {
    count: &'a AtomicUsize,
    messages: usize,
    /// How many there are with those of other calls.
    with_others: usize,
}

impl<'a> UnderWay<'a> {
    fn begin(count: &'a AtomicUsize, messages: usize) -> Self {
        let others = count.fetch_add(messages, Ordering::Relaxed);
        Self {
            count,
            messages,
            with_others: others + messages,
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(self.messages, Ordering::Relaxed);
    }
}

/// Messages whose answers do not say what to report.
#[derive(Default)]
struct Open<'a> {
    /// Through which they were sent; `None` where there is none.
    producer: Option<Arc<Producer>>,
    /// Nobody answered in time.
    silent: Vec<Delivery<'a>>,
    /// To be sent once more, in this order: what was refused in company or only presumed to be delivered, and
    /// what came after it in its key, whether that was taken or not.
    again: Vec<Delivery<'a>>,
    /// The topics and keys of what is sent again.
    keys: HashSet<(&'a str, &'a str)>,
}

/// One pass of messages through one producer.
struct Call<'a, 'b> {
    config: &'b Config,
    producer: &'b Producer,
    /// The messages that were sent, by the number of their ticket.
    sent: Vec<Delivery<'a>>,
    answered: usize,
    answers: mpsc::UnboundedReceiver<(usize, Answer)>,
    /// Cloned into every ticket.
    sender: mpsc::UnboundedSender<(usize, Answer)>,
    open: Open<'a>,
}

impl<'a, 'b> Call<'a, 'b> {
    fn new(config: &'b Config, producer: &'b Producer) -> Self {
        let (sender, answers) = mpsc::unbounded_channel();
        Self {
            config,
            producer,
            sent: Vec::new(),
            answered: 0,
            answers,
            sender,
            open: Open::default(),
        }
    }

    /// Hands one message to the client, waiting while its queue is full.
    async fn send(&mut self, delivery: Delivery<'a>) {
        let record = match encode(delivery.message()) {
            Ok(record) => record,
            Err(error) => return delivery.report(Err(error)),
        };
        loop {
            let ticket = Ticket {
                number: self.sent.len(),
                answers: self.sender.clone(),
            };
            match self.producer.send(&record, ticket) {
                Ok(()) => {
                    self.sent.push(delivery);
                    break;
                }
                Err(RDKafkaErrorCode::QueueFull) => {
                    // An answer is what makes room; it may be to another call.
                    tokio::select! {
                        Some((number, answer)) = self.answers.recv() => self.take(number, answer),
                        () = tokio::time::sleep(QUEUE_FULL_PAUSE) => {}
                    }
                }
                Err(code) => {
                    let error = self.refused_by_client(&record, code);
                    return delivery.report(Err(error));
                }
            }
        }
        while let Ok((number, answer)) = self.answers.try_recv() {
            self.take(number, answer);
        }
        // A long batch is no reason to hold up the other tasks of this thread.
        tokio::task::coop::consume_budget().await;
    }

    /// Waits for every answer that is not there yet. The client gives one for each record.
    async fn finish(&mut self) {
        while self.answered < self.sent.len() {
            match self.answers.recv().await {
                Some((number, answer)) => self.take(number, answer),
                None => break,
            }
        }
    }

    fn take(&mut self, number: usize, answer: Answer) {
        self.answered += 1;
        let Some(delivery) = self.sent.get(number).copied() else {
            return;
        };
        match answer {
            // The client gives the answers of a partition in its order, so an earlier one of the key
            // that is sent again is known by now.
            Answer::Taken if self.open.is_behind(delivery.message()) => {
                self.open.again.push(delivery);
            }
            Answer::Taken => delivery.report(Ok(())),
            Answer::Presumed if !self.producer.alone => self.open.send_again(delivery),
            Answer::Presumed => delivery.report(Err(PublishError::topic_unavailable(
                "the client takes it for delivered, but no broker has said at which offset",
            ))),
            Answer::Refused(code) if is_silence(code) => self.open.silent.push(delivery),
            Answer::Refused(code) if may_be_about_a_neighbour(code) && !self.producer.alone => {
                self.open.send_again(delivery);
            }
            Answer::Refused(code) => {
                let size = encode(delivery.message()).map_or(0, |record| record.size());
                delivery.report(Err(PublishError::new(
                    classify(code),
                    self.producer.describe(code, size),
                )));
            }
        }
    }

    fn refused_by_client(&self, record: &Record<'_>, code: RDKafkaErrorCode) -> PublishError {
        let reason = match code {
            RDKafkaErrorCode::MessageSizeTooLarge => format!(
                "the record has {} bytes, the client's message.max.bytes is {} with its framing",
                record.size(),
                self.config.message_max_bytes()
            ),
            code => self.producer.describe(code, record.size()),
        };
        PublishError::new(classify(code), reason)
    }
}

impl<'a> Open<'a> {
    /// And what comes after it in its key.
    fn send_again(&mut self, delivery: Delivery<'a>) {
        let message = delivery.message();
        self.keys
            .extend(message.key().map(|key| (message.topic(), key)));
        self.again.push(delivery);
    }

    /// Whether an earlier message of its topic and key is sent again, so that it must be too.
    fn is_behind(&self, message: &Message) -> bool {
        !self.keys.is_empty()
            && message
                .key()
                .is_some_and(|key| self.keys.contains(&(message.topic(), key)))
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::{Message, PublisherExt as _, RelayBuilder};

    use super::producer::PROBE_TIMEOUT;
    use super::*;
    use crate::DELIVERY_TIMEOUT_MS;

    #[tokio::test]
    async fn a_client_that_does_not_reach_the_cluster_is_replaced() {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", "127.0.0.1:1")
            .set("delivery.timeout.ms", "200");
        let publisher = KafkaPublisher::new(config).unwrap();
        let first = publisher.shared.producer().await.unwrap();
        let message = Message::to("topic").bytes("x").unwrap();
        let within = Duration::from_secs(30);
        let answers = publisher.publish_all(&[message], within).await;
        let Some(Err(error)) = &answers[0] else {
            panic!("{answers:?}");
        };
        assert_eq!(error.kind(), PublishErrorKind::BrokerUnavailable);
        let second = publisher.shared.producer().await.unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
    }

    #[test]
    fn only_much_at_a_time_waits_for_fuller_record_batches() {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", "127.0.0.1:1");
        let publisher = KafkaPublisher::new(config.clone()).unwrap();
        let linger = |slot: &Slot| slot.config.client().get("queue.buffering.max.ms") != Some("0");
        let one = UnderWay::begin(&publisher.under_way, 1);
        assert!(!linger(publisher.slot(one.with_others)));
        let many = UnderWay::begin(&publisher.under_way, GATHER - 1);
        assert!(linger(publisher.slot(many.with_others)));
        drop(one);
        assert!(!linger(
            publisher.slot(publisher.under_way.load(Ordering::Relaxed))
        ));

        config.set("linger.ms", "0");
        let publisher = KafkaPublisher::new(config).unwrap();
        assert!(!linger(publisher.slot(GATHER)));
    }

    /// The relay counts a failure of what stayed without an answer beside confirmed messages, and a
    /// wave may have no more than the second half of the publish timeout.
    #[test]
    fn an_outage_in_mid_batch_is_explained_before_it_looks_like_a_failure_of_messages() {
        // The client looks for messages whose time is over once a second.
        let timed_out = Duration::from_millis(DELIVERY_TIMEOUT_MS.into()) + Duration::from_secs(1);
        assert!(timed_out + PROBE_TIMEOUT < RelayBuilder::PUBLISH_TIMEOUT / 2);
    }
}
