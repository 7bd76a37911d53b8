//! The I/O: requests side by side, but those of one key one after the other.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use outbox_core::{Delivery, Message, PublishError, PublishErrorKind, Publisher, async_trait};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::config::{Config, InvalidConfig, WebhookConfig};
use crate::encode::encode;
use crate::error::{classify, retry_after, unanswered};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long an unused connection is kept: less than servers do. A request on a connection that the
/// server is just closing would look like a failure of its message.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Publishes to an HTTP endpoint; see the [crate](crate) for an example.
///
/// # Answers
///
/// A message is confirmed when the receiver answers with a status of 200 to 299. Once one message of a
/// call shows that the receiver is away, the rest of the call is reported so without being sent, as
/// is every call while the receiver has asked by `Retry-After` to be left alone, for at most a minute.
///
/// A request that gets no answer is not reported. Only the caller knows whether others were confirmed
/// meanwhile, which tells a message that the receiver hangs at from a receiver that hangs.
///
/// # Cancellation
///
/// What was reported stays. A request that is open is cut off, and its message may have arrived: a
/// repeat, when it is published again.
pub struct WebhookPublisher {
    config: Config,
    client: Client<HttpConnector, Full<Bytes>>,
    /// Until when the receiver has asked to be left alone.
    leave_alone: Mutex<Option<Instant>>,
}

impl WebhookPublisher {
    /// Checks the configuration. No connection is made before something is published.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`] names the field.
    pub fn new(config: WebhookConfig) -> Result<Self, InvalidConfig> {
        let config = config.check()?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(config.requests)
            .build(connector);
        Ok(Self {
            config,
            client,
            leave_alone: Mutex::new(None),
        })
    }
}

#[async_trait]
impl Publisher for WebhookPublisher {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        let call = &Call::new(self);
        let parts = by_key(batch).into_iter().map(|part| async move {
            for delivery in part {
                delivery.report(call.post(delivery.message()).await);
            }
        });
        join_all(parts).await;
    }
}

/// The batch in parts that may travel side by side: the messages of a key stay together in their
/// order, and one without a key is a part by itself.
fn by_key<'a>(batch: &[Delivery<'a>]) -> Vec<Vec<Delivery<'a>>> {
    let mut parts: Vec<Vec<Delivery<'a>>> = Vec::new();
    let mut part_of: HashMap<&str, usize> = HashMap::new();
    for delivery in batch {
        let next = parts.len();
        let part = match delivery.message().key() {
            Some(key) => *part_of.entry(key).or_insert(next),
            None => next,
        };
        if part == next {
            parts.push(Vec::new());
        }
        parts[part].push(*delivery);
    }
    parts
}

/// One call of `publish`.
struct Call<'a> {
    publisher: &'a WebhookPublisher,
    /// One for each request that may be open.
    slots: Semaphore,
    /// From when on nothing more is sent.
    deadline: Instant,
    /// Why nothing more is sent.
    away: OnceLock<PublishError>,
}

impl<'a> Call<'a> {
    fn new(publisher: &'a WebhookPublisher) -> Self {
        let now = Instant::now();
        let call = Self {
            publisher,
            slots: Semaphore::new(publisher.config.requests),
            deadline: now + publisher.config.send_within,
            away: OnceLock::new(),
        };
        let left_alone = lock(&publisher.leave_alone).map(|until| until.duration_since(now));
        if let Some(left) = left_alone.filter(|left| !left.is_zero()) {
            call.give_up(PublishError::broker_unavailable(format!(
                "the receiver has asked to be left alone for another {left:.1?}"
            )));
        }
        call
    }

    /// Sends one message when it is its turn, and says what became of it.
    async fn post(&self, message: &Message) -> Result<(), PublishError> {
        let config = &self.publisher.config;
        let Some(_slot) = self.slot().await else {
            // Said of every message that is not sent: left out, it would be counted as a failure of
            // the message where others were confirmed.
            return Err(PublishError::broker_unavailable(format!(
                "not sent: the receiver did not take the batch within {:?}",
                config.send_within
            )));
        };
        if let Some(error) = self.away.get() {
            return Err(error.clone());
        }
        let request = encode(&config.url, message)?;
        let answer = match self.publisher.client.request(request).await {
            Ok(response) => self.understand(message, &response),
            Err(error) => Err(unanswered(&error)),
        };
        if let Err(error) = &answer
            && error.kind() == PublishErrorKind::BrokerUnavailable
        {
            self.give_up(error.clone());
        }
        answer
    }

    /// The right to open a request; `None`: the time for sending is over.
    async fn slot(&self) -> Option<SemaphorePermit<'_>> {
        let slot = timeout_at(self.deadline, self.slots.acquire()).await;
        let slot = slot.ok()?.ok()?;
        // A slot that is free is given also when the time is over.
        (Instant::now() < self.deadline).then_some(slot)
    }

    fn give_up(&self, error: PublishError) {
        // The first one says why; others that were open at the same time say the same.
        let _ = self.away.set(error);
    }

    /// The status is the answer. The body is not read, since nobody bounds what is in it.
    fn understand<B>(
        &self,
        message: &Message,
        response: &hyper::Response<B>,
    ) -> Result<(), PublishError> {
        let status = response.status();
        let Some(kind) = classify(status) else {
            return Ok(());
        };
        if kind == PublishErrorKind::BrokerUnavailable
            && let Some(time) = retry_after(response.headers())
        {
            *lock(&self.publisher.leave_alone) = Some(Instant::now() + time);
        }
        Err(PublishError::new(
            kind,
            format!(
                "the receiver answered {status} to a message of {} bytes to topic {:?}",
                message.size(),
                message.topic()
            ),
        ))
    }
}

impl fmt::Debug for WebhookPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookPublisher")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// A panic elsewhere leaves nothing half done behind this lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use outbox_core::Answer;

    use super::*;

    #[test]
    fn a_key_stays_together_and_in_order() {
        let keys = [
            Some("a"),
            None,
            Some("b"),
            Some("a"),
            None,
            Some(""),
            Some("a"),
        ];
        let messages: Vec<Message> = keys
            .iter()
            .enumerate()
            .map(|(number, key)| {
                let message = Message::to("t");
                match key {
                    Some(key) => message.key(key),
                    None => message,
                }
                .bytes(number.to_string())
                .unwrap()
            })
            .collect();
        let answer = Answer::new();
        let batch: Vec<_> = messages
            .iter()
            .map(|message| Delivery::new(message, &answer))
            .collect();
        let parts: Vec<Vec<&[u8]>> = by_key(&batch)
            .iter()
            .map(|part| part.iter().map(|it| &**it.message().payload().unwrap()))
            .map(Iterator::collect)
            .collect();
        let expected: [&[&[u8]]; 5] = [&[b"0", b"3", b"6"], &[b"1"], &[b"2"], &[b"4"], &[b"5"]];
        assert_eq!(parts, expected);
    }
}
