//! What the cases are written with: publish with a deadline, read back, and short names.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use outbox_core::{
    Answer, Delivery, Message, MessageBuilder, PublishError, PublishErrorKind, Publisher,
    PublisherExt, Uuid,
};

use super::{OpenBroker, Received};

/// What was reported about a message: nothing, or an answer.
pub(super) type Reported = Option<Result<(), PublishError>>;

/// A publisher and its broker, as the cases use them.
pub struct Broker {
    open: Box<dyn OpenBroker>,
    publisher: Arc<dyn Publisher>,
}

impl Broker {
    pub(super) fn new(open: Box<dyn OpenBroker>) -> Self {
        let publisher = open.publisher();
        Self { open, publisher }
    }

    pub(super) async fn close(self) {
        drop(self.publisher);
        self.open.close().await;
    }

    pub(super) fn open(&self) -> &dyn OpenBroker {
        self.open.as_ref()
    }

    pub(super) fn chains_keys(&self) -> bool {
        self.publisher.chains_keys()
    }

    pub(super) fn patience(&self) -> Duration {
        self.open.patience()
    }

    /// A new topic that takes messages.
    pub(super) async fn topic(&self) -> String {
        let topic = new_topic();
        assert!(
            self.open.create_topic(&topic).await,
            "the broker cannot have a topic of the plainest name"
        );
        topic
    }

    /// One call, which must come back in time, and what it reported about each message.
    pub(super) async fn publish(&self, batch: &[Message]) -> Vec<Reported> {
        let start = std::time::Instant::now();
        let answers = self.publisher.publish_all(batch, self.patience()).await;
        assert!(
            start.elapsed() < self.patience(),
            "publishing {} messages did not come back within {:?}",
            batch.len(),
            self.patience(),
        );
        assert_eq!(answers.len(), batch.len());
        answers
    }

    /// One call, as [`publish`](Self::publish), of messages that the relay has chained.
    pub(super) async fn publish_chained(&self, batch: &[Message]) -> Vec<Reported> {
        let (ended, answers) = self.publish_chained_until(batch, |_| false).await;
        assert!(ended);
        answers
    }

    /// One call after which every message is confirmed.
    pub(super) async fn confirm(&self, batch: &[Message]) {
        let answers = self.publish(batch).await;
        for (number, answer) in answers.iter().enumerate() {
            confirmed(answer, format_args!("message {number} of {}", batch.len()));
        }
    }

    /// One call, watched: `until` is asked with what was reported so far, each time the call waits. The
    /// call is dropped when it says yes. Gives back whether the call came to its end, and the answers.
    pub(super) async fn publish_until(
        &self,
        batch: &[Message],
        until: impl FnMut(&[Answer]) -> bool,
    ) -> (bool, Vec<Reported>) {
        self.watched(batch, until, |delivery| delivery).await
    }

    /// The same for messages that the relay has chained: those that share their key.
    pub(super) async fn publish_chained_until(
        &self,
        batch: &[Message],
        until: impl FnMut(&[Answer]) -> bool,
    ) -> (bool, Vec<Reported>) {
        let shared = shared_keys(batch);
        self.watched(batch, until, |delivery| chained(delivery, &shared))
            .await
    }

    async fn watched(
        &self,
        batch: &[Message],
        mut until: impl FnMut(&[Answer]) -> bool,
        marked: impl Fn(Delivery<'_>) -> Delivery<'_>,
    ) -> (bool, Vec<Reported>) {
        let answers: Vec<Answer> = batch.iter().map(|_| Answer::new()).collect();
        let deliveries: Vec<Delivery<'_>> = batch
            .iter()
            .zip(&answers)
            .map(|(message, answer)| marked(Delivery::new(message, answer)))
            .collect();
        let mut call = self.publisher.publish(&deliveries);
        let watched = poll_fn(|context| {
            if call.as_mut().poll(context).is_ready() {
                return Poll::Ready(true);
            }
            if until(&answers) {
                return Poll::Ready(false);
            }
            Poll::Pending
        });
        let ended = tokio::time::timeout(self.patience(), watched)
            .await
            .unwrap_or_else(|_| {
                panic!("publishing did not come back within {:?}", self.patience())
            });
        drop(call);
        drop(deliveries);
        (ended, answers.into_iter().map(Answer::into_inner).collect())
    }

    /// Everything that has arrived at a topic.
    pub(super) async fn received(&self, topic: &str) -> Vec<Received> {
        let reading = self.open.received(topic);
        match tokio::time::timeout(self.patience(), reading).await {
            Ok(received) => received,
            Err(_) => panic!("{topic} could not be read within {:?}", self.patience()),
        }
    }

    /// Exactly these messages are at the topic, each once, each as it was sent.
    pub(super) async fn holds(&self, topic: &str, expected: &[Message]) {
        let received = self.received(topic).await;
        let ids = |received: &[Received]| -> Vec<String> { received.iter().map(name).collect() };
        assert_eq!(
            received.len(),
            expected.len(),
            "how many messages arrived at {topic}: {:?}",
            ids(&received),
        );
        let mut by_id: HashMap<Option<String>, Received> = received
            .into_iter()
            .map(|received| (received.id.clone(), received))
            .collect();
        for (number, message) in expected.iter().enumerate() {
            let expected = Received::of(message);
            let received = by_id.remove(&expected.id).unwrap_or_else(|| {
                panic!(
                    "message {number}, {}, did not arrive at {topic}; what arrived and was not \
                     expected: {:?}",
                    name(&expected),
                    ids(&by_id.values().cloned().collect::<Vec<_>>()),
                )
            });
            same(&received, &expected);
        }
    }

    /// What is at the topic of a key is a prefix of these messages; gives back its length. A repeat is
    /// left out.
    pub(super) async fn holds_a_prefix(
        &self,
        topic: &str,
        key: &str,
        expected: &[Message],
    ) -> usize {
        let mut there: Vec<String> = Vec::new();
        for received in self.received(topic).await {
            let name = name(&received);
            if received.key.as_deref() == Some(key) && !there.contains(&name) {
                there.push(name);
            }
        }
        let expected: Vec<String> = expected
            .iter()
            .filter(|message| message.key() == Some(key))
            .map(|message| name(&Received::of(message)))
            .collect();
        assert!(
            expected.starts_with(&there),
            "of key {key:?} arrived {there:?}, which is no prefix of {expected:?}"
        );
        there.len()
    }

    /// The messages of one key are at the topic in this order, each once.
    pub(super) async fn holds_in_order(&self, topic: &str, key: &str, expected: &[Message]) {
        let received: Vec<String> = self
            .received(topic)
            .await
            .iter()
            .filter(|received| received.key.as_deref() == Some(key))
            .map(name)
            .collect();
        let expected: Vec<String> = expected
            .iter()
            .filter(|message| message.key() == Some(key))
            .map(|message| name(&Received::of(message)))
            .collect();
        assert!(
            received == expected,
            "key {key:?} arrived in this order: {received:?}; expected: {expected:?}"
        );
    }
}

/// The keys that several messages have.
pub(super) fn shared_keys(batch: &[Message]) -> HashSet<&str> {
    let mut met = HashSet::new();
    let keys = batch.iter().filter_map(Message::key);
    keys.filter(|key| !met.insert(*key)).collect()
}

/// Marks a delivery as the relay does.
pub(super) fn chained<'a>(delivery: Delivery<'a>, shared: &HashSet<&str>) -> Delivery<'a> {
    match delivery
        .message()
        .key()
        .is_some_and(|key| shared.contains(key))
    {
        true => delivery.chained(),
        false => delivery,
    }
}

/// A topic name that every broker can have, and nobody else uses.
pub(super) fn new_topic() -> String {
    format!("conformance-{}", Uuid::now_v7().simple())
}

/// A message in the making, with a header.
pub(super) fn to(topic: &str) -> MessageBuilder {
    Message::to(topic).header("kind", "conformance")
}

/// A message of a key whose payload says which it is.
pub(super) fn message(topic: &str, key: &str, name: &str) -> Message {
    to(topic)
        .key(key)
        .bytes(name.to_owned())
        .expect("a valid message")
}

/// So many messages to a topic, each of its own key.
pub(super) fn messages(topic: &str, count: usize) -> Vec<Message> {
    (0..count)
        .map(|n| message(topic, &format!("key-{n}"), &format!("message {n}")))
        .collect()
}

/// What was reported is that the broker has the message.
pub(super) fn confirmed(reported: &Reported, what: impl Debug) {
    match reported {
        Some(Ok(())) => {}
        Some(Err(error)) => panic!(
            "{what:?} was not confirmed: {}, {}",
            error.kind(),
            error.reason()
        ),
        None => panic!("nothing was reported about {what:?}"),
    }
}

/// What was reported is a failure of this kind; gives back its reason.
pub(super) fn failed(reported: &Reported, kind: PublishErrorKind, what: impl Debug) -> &str {
    match reported {
        Some(Err(error)) => {
            assert_eq!(
                error.kind(),
                kind,
                "kind of the failure of {what:?}, with the reason {:?}",
                error.reason()
            );
            assert!(
                !error.reason().is_empty(),
                "{what:?} failed without a reason"
            );
            error.reason()
        }
        Some(Ok(())) => panic!("{what:?} was confirmed"),
        None => panic!("nothing was reported about {what:?}"),
    }
}

/// Field by field, so that what differs is named, and a large payload is not printed.
pub(super) fn same(received: &Received, expected: &Received) {
    let what = name(expected);
    assert_eq!(received.id, expected.id, "id of {what}");
    assert_eq!(received.key, expected.key, "key of {what}");
    assert_eq!(received.headers, expected.headers, "headers of {what}");
    match (&received.payload, &expected.payload) {
        (Some(received), Some(expected)) if received.len() > 1_000 => assert!(
            received == expected,
            "the payload of {what} has {} bytes and was sent with {} others",
            received.len(),
            expected.len(),
        ),
        (received, expected) => assert_eq!(received, expected, "payload of {what}"),
    }
}

/// The start of the payload, which says which message it is, or the id.
fn name(received: &Received) -> String {
    match &received.payload {
        Some(payload) if !payload.is_empty() => {
            String::from_utf8_lossy(&payload[..payload.len().min(40)]).into_owned()
        }
        _ => received.id.clone().unwrap_or_else(|| "no id".to_owned()),
    }
}
