//! A publisher to a broker in memory, right but for one fault.

use std::collections::HashSet;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_conformance::publisher::{OpenBroker, PublisherHarness, Received};
use outbox_core::memory::MemoryPublisher;
use outbox_core::{
    Answer, Delivery, Headers, Message, PublishError, Publisher, StoppedKeys, Uuid, async_trait,
};

use crate::Fault;

const LARGE: usize = 128 * 1024;

/// Opens publishers with a fault.
pub(crate) struct Wrong {
    pub(crate) fault: Option<Fault>,
    pub(crate) patience: Duration,
}

#[async_trait]
impl PublisherHarness for Wrong {
    async fn open(&self) -> Box<dyn OpenBroker> {
        let topics = Arc::new(Mutex::new(HashSet::<String>::new()));
        let broker = MemoryPublisher::new();
        broker.answer_with({
            let topics = Arc::clone(&topics);
            move |message| answer(message, &lock(&topics))
        });
        Box::new(Open {
            publisher: Arc::new(WrongPublisher {
                fault: self.fault,
                broker: broker.clone(),
                seen: Mutex::default(),
                held: Mutex::default(),
                calls: AtomicUsize::new(0),
                busy: AtomicBool::new(false),
                broken: AtomicBool::new(false),
            }),
            broker,
            topics,
            fault: self.fault,
            patience: self.patience,
        })
    }
}

/// The broker: topics have to be made, payloads have a limit, and names are a little strict.
fn answer(message: &Message, topics: &HashSet<String>) -> Result<(), PublishError> {
    if !possible(message.topic()) {
        return Err(PublishError::rejected("no topic can have this name"));
    }
    if !topics.contains(message.topic()) {
        return Err(PublishError::topic_unavailable("no such topic"));
    }
    if message.payload().map_or(0, |payload| payload.len()) > LARGE {
        return Err(PublishError::rejected("the payload is too large"));
    }
    for (name, _) in message.headers() {
        if name.contains('\n') {
            return Err(PublishError::rejected(format!(
                "header {name:?} breaks a line"
            )));
        }
    }
    Ok(())
}

fn possible(topic: &str) -> bool {
    !topic.contains('\n')
}

struct Open {
    publisher: Arc<WrongPublisher>,
    broker: MemoryPublisher,
    topics: Arc<Mutex<HashSet<String>>>,
    fault: Option<Fault>,
    patience: Duration,
}

#[async_trait]
impl OpenBroker for Open {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.publisher) as Arc<dyn Publisher>
    }

    async fn create_topic(&self, name: &str) -> bool {
        if possible(name) {
            lock(&self.topics).insert(name.to_owned());
        }
        possible(name)
    }

    async fn received(&self, topic: &str) -> Vec<Received> {
        let published = self.broker.published();
        let mut there: Vec<(usize, Received)> = published
            .iter()
            .filter(|message| message.topic() == topic)
            .enumerate()
            .map(|(number, message)| {
                let anywhere = self.fault == Some(Fault::EmptyKeyGoesAnywhere);
                let partition = match message.key() {
                    Some("") if anywhere => number % 2,
                    _ => 0,
                };
                (partition, Received::of(message))
            })
            .collect();
        // Read one partition after the other.
        there.sort_by_key(|(partition, _)| *partition);
        there.into_iter().map(|(_, received)| received).collect()
    }

    fn has_missing_topics(&self) -> bool {
        true
    }

    fn large_payload(&self) -> usize {
        LARGE
    }

    fn too_large_payload(&self) -> Option<usize> {
        Some(LARGE + 1)
    }

    fn chains_keys(&self) -> bool {
        true
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}

/// What became of one message.
#[derive(PartialEq, Eq)]
enum Sent {
    Confirmed,
    Failed,
    /// It failed, and the batch stops here.
    Stop,
}

struct WrongPublisher {
    fault: Option<Fault>,
    broker: MemoryPublisher,
    /// Ids or topics that were met before.
    seen: Mutex<HashSet<String>>,
    /// Messages that are sent with the next call.
    held: Mutex<Vec<Message>>,
    calls: AtomicUsize,
    busy: AtomicBool,
    broken: AtomicBool,
}

#[async_trait]
impl Publisher for WrongPublisher {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        if self.is(Fault::HangsOnNothing) && batch.is_empty() {
            pending().await
        }
        if self.broken.load(Ordering::Relaxed) {
            return;
        }
        if self.is(Fault::OneCallAtATime) && self.busy.swap(true, Ordering::Relaxed) {
            return;
        }
        if self.is(Fault::BreaksWhenDropped) {
            self.broken.store(true, Ordering::Relaxed);
        }
        self.take(batch).await;
        self.busy.store(false, Ordering::Relaxed);
        if self.is(Fault::BreaksWhenDropped) {
            self.broken.store(false, Ordering::Relaxed);
        }
    }

    fn chains_keys(&self) -> bool {
        !self.is(Fault::HidesThatItChains)
    }
}

impl WrongPublisher {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Faults of a whole batch.
    async fn take(&self, batch: &[Delivery<'_>]) {
        let bytes: usize = batch.iter().map(|d| d.message().size()).sum();
        match self.fault {
            Some(Fault::RefusesLargeBatches) if bytes > 8 * LARGE && batch.len() < 100 => {
                for delivery in batch {
                    delivery.report(Err(PublishError::retryable("the request is too large")));
                }
            }
            Some(Fault::FailsWhenItsQueueIsFull) => {
                let (taken, refused) = batch.split_at(batch.len().min(5_000));
                self.send(taken).await;
                for delivery in refused {
                    delivery.report(Err(PublishError::retryable("the queue is full")));
                }
            }
            Some(Fault::NeverReportsOne) => {
                let Some((last, others)) = batch.split_last() else {
                    return;
                };
                self.send(others).await;
                self.send(&[Delivery::new(last.message(), &Answer::new())])
                    .await;
            }
            Some(Fault::ReordersABatch) => {
                let (late, early): (Vec<_>, Vec<_>) =
                    (0..batch.len()).partition(|number| number % 10 == 3);
                let order: Vec<_> = early.into_iter().chain(late).map(|n| batch[n]).collect();
                self.send(&order).await;
            }
            Some(Fault::ConfirmsBeforeTheBroker) => {
                let held: Vec<Message> = lock(&self.held).drain(..).collect();
                self.hand_over(&held).await;
                lock(&self.held).extend(batch.iter().map(|delivery| delivery.message().clone()));
                batch.iter().for_each(|delivery| delivery.report(Ok(())));
            }
            Some(Fault::SwapsBatches) => {
                if self.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                    lock(&self.held).extend(batch.iter().map(|d| d.message().clone()));
                    batch.iter().for_each(|delivery| delivery.report(Ok(())));
                } else {
                    self.send(batch).await;
                    let held: Vec<Message> = lock(&self.held).drain(..).collect();
                    self.hand_over(&held).await;
                }
            }
            Some(Fault::ReportsAtTheEnd) => {
                let answers = self.answers(batch).await;
                for (delivery, answer) in batch.iter().zip(answers) {
                    delivery.report(answer);
                }
            }
            Some(Fault::FailsTheBatch) => {
                let answers = self.answers(batch).await;
                let all = answers.into_iter().find(Result::is_err).unwrap_or(Ok(()));
                batch
                    .iter()
                    .for_each(|delivery| delivery.report(all.clone()));
            }
            Some(Fault::ValidatesTheBatch)
                if !batch.iter().all(|d| possible(d.message().topic())) =>
            {
                for delivery in batch {
                    delivery.report(Err(PublishError::rejected("a topic is invalid")));
                }
            }
            Some(Fault::AnswersForTheNeighbour) => {
                let mut answers = self.answers(batch).await;
                answers.rotate_left(1.min(batch.len()));
                for (delivery, answer) in batch.iter().zip(answers) {
                    delivery.report(answer);
                }
            }
            Some(Fault::PartsAChain) if batch.iter().any(Delivery::is_chained) => {
                let (first, second) = batch.split_at(batch.len() / 2);
                let (ahead, behind) = first.split_at(first.len() / 2);
                for part in [ahead, second, behind] {
                    self.send(part).await;
                }
            }
            Some(Fault::BreaksAfterFailures) => {
                let answers = self.answers(batch).await;
                self.broken
                    .store(answers.iter().all(Result::is_err), Ordering::Relaxed);
                for (delivery, answer) in batch.iter().zip(answers) {
                    delivery.report(answer);
                }
            }
            _ => self.send(batch).await,
        }
    }

    /// Sends messages whose answers nobody waits for.
    async fn hand_over(&self, messages: &[Message]) {
        let answer = Answer::new();
        let batch: Vec<_> = messages.iter().map(|m| Delivery::new(m, &answer)).collect();
        self.broker.publish(&batch).await;
    }

    /// Sends a batch and gives the answers back instead of reporting them.
    async fn answers(&self, batch: &[Delivery<'_>]) -> Vec<Result<(), PublishError>> {
        let answers: Vec<Answer> = batch.iter().map(|_| Answer::new()).collect();
        let own: Vec<_> = batch
            .iter()
            .zip(&answers)
            .map(|(delivery, answer)| Delivery::new(delivery.message(), answer))
            .collect();
        self.send(&own).await;
        drop(own);
        answers
            .into_iter()
            .map(|answer| answer.into_inner().expect("the broker answers"))
            .collect()
    }

    /// Sends a batch, with pauses in which other calls go on, as there are on a network.
    async fn send(&self, batch: &[Delivery<'_>]) {
        let mut stopped = StoppedKeys::new();
        for part in batch.chunks(20) {
            for delivery in part {
                let key = delivery.message().key().unwrap_or_default();
                let held = stopped.has(delivery)
                    || (delivery.is_chained() && lock(&self.seen).contains(key));
                if held {
                    if self.is(Fault::ConfirmsBehindAFailure) {
                        delivery.report(Ok(()));
                    }
                    continue;
                }
                let sent = self.send_one(*delivery).await;
                if sent == Sent::Stop {
                    return;
                }
                if sent == Sent::Failed && !self.is(Fault::IgnoresChains) {
                    stopped.stop(delivery);
                    if self.is(Fault::StopsEveryKey) {
                        batch.iter().for_each(|other| stopped.stop(other));
                    }
                    if self.is(Fault::NeverGoesOn) {
                        lock(&self.seen).insert(key.to_owned());
                    }
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Faults of one message.
    async fn send_one(&self, delivery: Delivery<'_>) -> Sent {
        let message = delivery.message();
        match self.fault {
            Some(Fault::LosesOne) if message.id().as_u128().is_multiple_of(10) => {
                delivery.report(Ok(()));
                return Sent::Confirmed;
            }
            Some(Fault::ReportsWhenWritten) => {
                delivery.report(Ok(()));
                tokio::task::yield_now().await;
            }
            Some(Fault::RemembersMissingTopics) if lock(&self.seen).contains(message.topic()) => {
                delivery.report(Err(PublishError::topic_unavailable(
                    "it was missing before",
                )));
                return Sent::Failed;
            }
            _ => {}
        }
        let altered = self.alter(message);
        let answer = Answer::new();
        self.broker
            .publish(&[Delivery::new(&altered, &answer)])
            .await;
        let answer = answer.into_inner().expect("the broker answers");
        if self.is(Fault::RemembersMissingTopics) && answer.is_err() {
            lock(&self.seen).insert(message.topic().to_owned());
        }
        let sent = match answer.is_err() {
            true if self.is(Fault::StopsAtTheFirstFailure) => Sent::Stop,
            true => Sent::Failed,
            false => Sent::Confirmed,
        };
        delivery.report(self.translate(message, answer));
        sent
    }

    /// Faults of an answer.
    fn translate(
        &self,
        message: &Message,
        answer: Result<(), PublishError>,
    ) -> Result<(), PublishError> {
        let reason = match &answer {
            Ok(()) => return Ok(()),
            Err(error) => error.reason(),
        };
        match self.fault {
            Some(Fault::DropsUnroutable) if reason == "no such topic" => Ok(()),
            Some(Fault::TakesTooLargeForTransient) if reason.contains("too large") => {
                Err(PublishError::retryable(reason))
            }
            Some(Fault::TakesImpossibleTopicsForMissing) if !possible(message.topic()) => {
                Err(PublishError::topic_unavailable(reason))
            }
            Some(Fault::DoesNotNameTheHeader) if reason.starts_with("header") => {
                Err(PublishError::rejected("a header is invalid"))
            }
            _ => answer,
        }
    }

    /// Faults of the content.
    fn alter(&self, message: &Message) -> Message {
        let mut id = message.id();
        let mut topic = message.topic().to_owned();
        let mut key = message.key().map(str::to_owned);
        let mut payload = message.payload().map(|payload| payload.to_vec());
        let mut headers: Vec<(String, String)> = message
            .headers()
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let odd = |text: &str| text.contains(|c: char| c.is_control());
        match self.fault {
            Some(Fault::DropsAHeader) => headers.truncate(headers.len().saturating_sub(1)),
            Some(Fault::DropsTheKey) => key = None,
            Some(Fault::ReplacesTheId) => id = Uuid::now_v7(),
            Some(Fault::PayloadIsText) => {
                payload = payload.map(|bytes| String::from_utf8_lossy(&bytes).into_owned().into());
            }
            Some(Fault::EndsPayloadsAtNul) => {
                payload = payload.map(|bytes| {
                    let text = bytes.split(|byte| *byte == 0).next();
                    text.unwrap_or_default().to_vec()
                });
            }
            Some(Fault::EmptyPayloadIsAbsent) => payload = payload.filter(|p| !p.is_empty()),
            Some(Fault::AbsentPayloadIsEmpty) => payload = Some(payload.unwrap_or_default()),
            Some(Fault::EmptyKeyIsAbsent) => key = key.filter(|key| !key.is_empty()),
            Some(Fault::KeysAreAscii) => {
                key = key.map(|key| key.replace(|c| !char::is_ascii(&c), "?"))
            }
            Some(Fault::NewIdForARepeat) if !lock(&self.seen).insert(id.to_string()) => {
                id = Uuid::now_v7();
            }
            Some(Fault::PanicsOnOddHeaders) => {
                for (name, value) in &headers {
                    assert!(
                        !odd(name) && !odd(value),
                        "a header with a control character"
                    );
                }
            }
            Some(Fault::DropsOddHeaders) => headers.retain(|(n, v)| !odd(n) && !odd(v)),
            Some(Fault::TrimsHeaders) => {
                for (_, value) in &mut headers {
                    *value = value.trim().to_owned();
                }
            }
            Some(Fault::HeaderNamesIgnoreCase) => {
                let mut met = HashSet::new();
                headers.retain(|(name, _)| met.insert(name.to_lowercase()));
            }
            Some(Fault::CutsHeaders) => headers.truncate(64),
            Some(Fault::ReplacesOddCharactersInTopics) => topic = topic.replace('\n', "_"),
            Some(Fault::CutsLongKeys) => {
                if let Some(key) = &mut key {
                    key.truncate(key.floor_char_boundary(1_000));
                }
            }
            _ => {}
        }
        let mut kept = Headers::default();
        for (name, value) in headers {
            kept.insert(name, value)
                .expect("a header of a valid message");
        }
        Message::from_parts(id, topic, key, payload.map(Into::into), kept)
            .expect("parts of a valid message")
    }
}

/// A fault that panics must not take the others with it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
