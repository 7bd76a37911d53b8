//! The I/O: messages go to the client in batch order, and each answer is reported when it comes.
//!
//! The client owns the connection, its queue and the reconnects. What is added here is what the
//! contract asks and the client's own JetStream publishing does not give: that one keeps an entry for
//! ever for each acknowledgement that does not come, starts a timer for each message, and does not tell a
//! lost connection from a slow stream. So a call has a subscription of its own, an inbox, to which every
//! answer comes under the number of its message. An inbox is used again, by one call at a time.
//!
//! What is in the client's queue is sent also after a reconnect, however late, and nothing can be taken
//! out of it. So nothing is put into it while the client is not connected, nor while it is known to be
//! stuck: after a call that ended without all its answers, the next one waits until it has emptied.
//!
//! Not here: what is chained, `chains.rs`.

mod chains;

use std::fmt::{self, Write as _};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::client::traits::Publisher as _;
use async_nats::connection::State;
use async_nats::message::OutboundMessage;
use async_nats::{Client, PublishErrorKind, Statistics, Subject, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use outbox_core::{Chains, Delivery, PublishError, Publisher, async_trait};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep, timeout, timeout_at};

use crate::config::{InvalidConfig, NatsConfig};
use crate::encode::encode;
use crate::error::{self, Answer};
use chains::Asked;

/// How often the connection is looked at while answers are awaited.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long the client has to take a subscription, and its queue to empty when it may be stuck.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the server has to answer the question whether it is there, after it said nothing.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// How often it is looked whether it has answered.
const PROBE_LOOK_EVERY: Duration = Duration::from_millis(20);

const CLOSED: &str = "the client is closed";
const STUCK: &str = "the connection takes nothing";

/// Publishes to NATS JetStream; see the [crate](crate) for an example.
///
/// # Answers
///
/// A message is confirmed when the stream that takes its subject has acknowledged it. While the client
/// is not connected every message is reported as [`BrokerUnavailable`] at once, and when the connection
/// is lost, what is not acknowledged, within about a tenth of a second. When the server says nothing for
/// the acknowledgement timeout it is asked, for at most two seconds, whether it is there; if it is, only
/// the messages without an answer have failed. A failed message is tried again by the relay, not here.
///
/// # Cancellation
///
/// What was reported stays. What was not may still be in the client's queue, and be delivered when the
/// connection takes it or is made anew: a repeat, if it is published again, which the stream drops within
/// its duplicate window. The queue keeps its order, so a repeat by the same client stays behind it.
///
/// # Drop
///
/// The client lives on in its other clones, and what is in its queue is still sent.
///
/// [`BrokerUnavailable`]: outbox_core::PublishErrorKind::BrokerUnavailable
pub struct NatsPublisher {
    client: Client,
    config: NatsConfig,
    statistics: Arc<Statistics>,
    /// For the next calls. As many as there were calls at the same time.
    inboxes: Mutex<Vec<Inbox>>,
    /// How many calls have ended without all their answers.
    unanswered_calls: AtomicU64,
    /// How many of them had ended when the client's queue last emptied.
    flushed_calls: AtomicU64,
    duplicates: AtomicU64,
}

impl NatsPublisher {
    /// Checks the configuration. Nothing is sent, and the client need not be connected.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`] names the first setting that breaks its limits.
    pub fn new(client: Client, config: NatsConfig) -> Result<Self, InvalidConfig> {
        config.check()?;
        Ok(Self {
            statistics: client.statistics(),
            client,
            config,
            inboxes: Mutex::new(Vec::new()),
            unanswered_calls: AtomicU64::new(0),
            flushed_calls: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
        })
    }

    /// How many messages were acknowledged as repeats, which the stream had and dropped.
    pub fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }

    /// Begins a call, when the client takes messages now.
    async fn begin<'a>(&self, messages: usize) -> Result<Call<'a, '_>, &'static str> {
        let connection = self.connection()?;
        self.wait_for_queue().await?;
        let idle = lock(&self.inboxes).pop();
        let inbox = match idle {
            Some(inbox) => inbox,
            None => Inbox::open(&self.client).await?,
        };
        let now = Instant::now();
        let mut look = interval_at(now + LOOK_EVERY, LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Call {
            publisher: self,
            connection,
            awaited: Awaited {
                first: inbox.next,
                sent: Vec::with_capacity(messages),
                open: 0,
                unanswered_calls: &self.unanswered_calls,
            },
            inbox,
            asked: None,
            progress: now,
            look,
            foreign: false,
        })
    }

    /// Publishes messages of which no earlier one of their key matters.
    async fn publish_plain(&self, batch: &[Delivery<'_>]) {
        if batch.is_empty() {
            return;
        }
        let mut call = match self.begin(batch.len()).await {
            Ok(call) => call,
            Err(reason) => return fail(batch, &PublishError::broker_unavailable(reason)),
        };
        let mut unsent = batch;
        while let Err(trouble) = call.go_on(&mut unsent).await {
            match call.explain(trouble).await {
                Explained::Unanswered(error) => call.awaited.give_up(&error),
                Explained::Away(error) => {
                    call.awaited.report(&error);
                    return fail(unsent, &error);
                }
            }
        }
        self.end(call);
    }

    /// Maps a message, or rejects it when the server cannot take it.
    fn encode(&self, delivery: Delivery<'_>) -> Result<OutboundMessage, PublishError> {
        encode(delivery.message(), &self.config, self.client.max_payload())
    }

    /// What an answer says of its message; `None`: nothing. Counts the repeats.
    fn settle(&self, answer: Answer) -> Option<Result<(), PublishError>> {
        match answer {
            Answer::Stored { duplicate } => {
                let repeats = u64::from(duplicate);
                self.duplicates.fetch_add(repeats, Ordering::Relaxed);
                Some(Ok(()))
            }
            Answer::Failed(error) => Some(Err(error)),
            Answer::Foreign => None,
        }
    }

    /// The number of the connection that is up, or why there is none.
    fn connection(&self) -> Result<u64, &'static str> {
        match self.client.connection_state() {
            State::Connected => Ok(self.statistics.connects.load(Ordering::Relaxed)),
            State::Disconnected => Err("the connection to the server is lost"),
            State::Pending => Err("there is no connection to the server yet"),
        }
    }

    /// Waits until the client's queue has emptied, when a call may have left something in it.
    async fn wait_for_queue(&self) -> Result<(), &'static str> {
        let unanswered = self.unanswered_calls.load(Ordering::Acquire);
        if self.flushed_calls.load(Ordering::Acquire) >= unanswered {
            return Ok(());
        }
        match timeout(QUEUE_TIMEOUT, self.client.flush()).await {
            Ok(Ok(())) => {
                self.flushed_calls.fetch_max(unanswered, Ordering::AcqRel);
                Ok(())
            }
            Ok(Err(_)) => Err(CLOSED),
            Err(_) => Err(STUCK),
        }
    }

    /// Takes back the inbox of a call that has all its answers, or waits for them no longer.
    fn end(&self, call: Call<'_, '_>) {
        let mut inbox = call.inbox;
        inbox.next = call.awaited.next();
        lock(&self.inboxes).push(inbox);
    }
}

#[async_trait]
impl Publisher for NatsPublisher {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        let (chains, unchained) = Chains::part(batch);
        if chains.is_empty() {
            return self.publish_plain(batch).await;
        }
        tokio::join!(self.publish_plain(&unchained), self.publish_chains(chains));
    }

    /// While the client is connected to a server that knows atomic batches, where they are
    /// [configured](NatsConfig::atomic_batches).
    fn chains_keys(&self) -> bool {
        let (major, minor, patch) = chains::SINCE;
        self.config.atomic_batches && self.client.is_server_compatible(major, minor, patch)
    }
}

impl fmt::Debug for NatsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsPublisher")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

fn fail(batch: &[Delivery<'_>], error: &PublishError) {
    for delivery in batch {
        delivery.report(Err(error.clone()));
    }
}

/// Why a call cannot simply go on.
enum Trouble {
    /// The connection on which the answers were to come is gone.
    Away(&'static str),
    /// Nothing was sent or answered for the acknowledgement timeout.
    Silence,
}

/// What a trouble means.
enum Explained {
    /// The server is there: it is about the messages without an answer alone.
    Unanswered(PublishError),
    /// The server is away: there is no use in sending more.
    Away(PublishError),
}

/// One call of `publish`.
struct Call<'a, 'p> {
    publisher: &'p NatsPublisher,
    /// The number of the connection that it began with. Answers to what it sends come on no other.
    connection: u64,
    inbox: Inbox,
    awaited: Awaited<'a, 'p>,
    /// A message of a batch that awaits an answer of its own.
    asked: Option<Asked>,
    /// When something was last sent or answered.
    progress: Instant,
    look: Interval,
    /// Somebody who is not JetStream has answered.
    foreign: bool,
}

impl<'a> Call<'a, '_> {
    /// Sends what is unsent, in order, and takes answers until there are none to come.
    async fn go_on(&mut self, unsent: &mut &[Delivery<'a>]) -> Result<(), Trouble> {
        while let Some((delivery, rest)) = unsent.split_first() {
            while self.awaited.open >= self.publisher.config.max_in_flight {
                self.wait().await?;
            }
            self.send(*delivery).await?;
            *unsent = rest;
            self.take_arrived();
        }
        while self.awaited.open > 0 {
            self.wait().await?;
        }
        Ok(())
    }

    /// Puts one message into the client's queue, unless NATS cannot carry it.
    async fn send(&mut self, delivery: Delivery<'a>) -> Result<(), Trouble> {
        let mut message = match self.publisher.encode(delivery) {
            Ok(message) => message,
            Err(error) => {
                delivery.report(Err(error));
                return Ok(());
            }
        };
        message.reply = Some(self.inbox.reply(self.awaited.next()));
        match self.put(message).await? {
            Ok(()) => self.awaited.push(delivery),
            Err(error) => delivery.report(Err(error)),
        }
        Ok(())
    }

    /// Puts a message into the client's queue, unless the client refuses it.
    async fn put(&mut self, message: OutboundMessage) -> Result<Result<(), PublishError>, Trouble> {
        self.look_at_connection()?;
        let mut sending = pin!(self.publisher.client.publish_message(message));
        let sent = loop {
            tokio::select! {
                biased;
                sent = &mut sending => break sent,
                // The queue is full, and answers come all the same.
                waited = self.wait() => waited?,
            }
        };
        self.progress = Instant::now();
        match sent {
            Ok(()) => Ok(Ok(())),
            Err(error) if error.kind() == PublishErrorKind::Send => Err(Trouble::Away(CLOSED)),
            // The server's limit has changed since it was asked for.
            Err(error) => Ok(Err(PublishError::retryable(error.to_string()))),
        }
    }

    /// Waits until answers have come or it is time to look at the connection.
    async fn wait(&mut self) -> Result<(), Trouble> {
        tokio::select! {
            biased;
            answer = self.inbox.answers.next() => {
                self.take(&answer.ok_or(Trouble::Away(CLOSED))?);
                self.take_arrived();
                self.progress = Instant::now();
                Ok(())
            }
            _ = self.look.tick() => {
                self.look_at_connection()?;
                if self.progress.elapsed() < self.publisher.config.ack_timeout {
                    return Ok(());
                }
                Err(Trouble::Silence)
            }
        }
    }

    fn take_arrived(&mut self) {
        while let Some(Some(answer)) = self.inbox.answers.next().now_or_never() {
            self.take(&answer);
        }
    }

    /// Reports one answer. One that comes late, or is not the first, finds nobody who waits for it.
    fn take(&mut self, answer: &async_nats::Message) {
        let Some(number) = self.inbox.number(&answer.subject) else {
            return;
        };
        let expected = self.publisher.config.expected_stream.as_deref();
        if let Some(asked) = &mut self.asked
            && asked.is_open(number)
        {
            self.foreign |= !asked.take(answer, expected);
            return;
        }
        let Some(slot) = self.awaited.slot(number) else {
            return;
        };
        let Some(delivery) = *slot else {
            return;
        };
        let answer = error::read(answer.status, &answer.payload, expected);
        let Some(answer) = self.publisher.settle(answer) else {
            self.foreign = true;
            return;
        };
        delivery.report(answer);
        *slot = None;
        self.awaited.open -= 1;
    }

    fn look_at_connection(&self) -> Result<(), Trouble> {
        match self.publisher.connection() {
            Ok(connection) if connection == self.connection => Ok(()),
            Ok(_) => Err(Trouble::Away("the connection to the server was lost")),
            Err(reason) => Err(Trouble::Away(reason)),
        }
    }

    async fn explain(&mut self, trouble: Trouble) -> Explained {
        let reason = match trouble {
            Trouble::Away(reason) => reason.to_owned(),
            Trouble::Silence => {
                let within = format!("within {:?}", self.publisher.config.ack_timeout);
                match self.ask_server().await {
                    Err(reason) => format!("nothing was acknowledged {within}, and {reason}"),
                    Ok(()) => {
                        self.progress = Instant::now();
                        return Explained::Unanswered(self.unanswered(&within));
                    }
                }
            }
        };
        Explained::Away(PublishError::broker_unavailable(reason))
    }

    /// What is known of a message that is not answered by a server that is there.
    fn unanswered(&self, within: &str) -> PublishError {
        let foreign = match self.foreign {
            true => "; a subscriber that is not JetStream has answered",
            false => "",
        };
        PublishError::topic_unavailable(format!(
            "not acknowledged {within}, though the server is there: no right to publish to the subject \
             or to subscribe to the inbox, a stream that does not acknowledge or has no leader, or \
             overload{foreign}"
        ))
    }

    /// Asks the server whether it is there. What is answered to messages meanwhile is taken.
    ///
    /// The question is a message to a subject to which nobody listens. The server says so, or that we
    /// have no right to send it: either comes over the connection, and is all that it takes.
    async fn ask_server(&mut self) -> Result<(), &'static str> {
        let NatsPublisher {
            client, statistics, ..
        } = self.publisher;
        let received = || statistics.in_bytes.load(Ordering::Relaxed);
        let before = received();
        let question = OutboundMessage {
            subject: client.new_inbox().into(),
            reply: Some(self.inbox.reply("probe")),
            payload: Bytes::new(),
            headers: None,
        };
        let deadline = Instant::now() + PROBE_TIMEOUT;
        match timeout_at(deadline, client.publish_message(question)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(CLOSED),
            Err(_) => return Err(STUCK),
        }
        while received() == before {
            if let Err(Trouble::Away(reason)) = self.look_at_connection() {
                return Err(reason);
            }
            if Instant::now() >= deadline {
                return Err("the server does not answer");
            }
            tokio::select! {
                answer = self.inbox.answers.next() => self.take(&answer.ok_or(CLOSED)?),
                () = sleep(PROBE_LOOK_EVERY) => {}
            }
        }
        Ok(())
    }
}

/// The messages of a call, and which of them are not answered.
struct Awaited<'a, 'p> {
    /// The number of the first one.
    first: u64,
    /// What was sent, in the order of the numbers; `None` when it is answered.
    sent: Vec<Option<Delivery<'a>>>,
    /// How many of them are not answered. A batch is one, from before its first message until its end.
    open: usize,
    unanswered_calls: &'p AtomicU64,
}

impl<'a> Awaited<'a, '_> {
    /// The number of the next message.
    fn next(&self) -> u64 {
        self.first + self.sent.len() as u64
    }

    fn push(&mut self, delivery: Delivery<'a>) {
        self.sent.push(Some(delivery));
        self.open += 1;
    }

    /// A number for what awaits an answer and is no message of the call.
    fn push_question(&mut self) -> u64 {
        let number = self.next();
        self.sent.push(None);
        number
    }

    fn slot(&mut self, number: u64) -> Option<&mut Option<Delivery<'a>>> {
        let place = number.checked_sub(self.first)?;
        self.sent.get_mut(usize::try_from(place).ok()?)
    }

    /// Reports what is not answered as failed.
    fn report(&self, error: &PublishError) {
        for delivery in self.sent.iter().flatten() {
            delivery.report(Err(error.clone()));
        }
    }

    /// Reports what is not answered as failed, and waits for it no longer.
    fn give_up(&mut self, error: &PublishError) {
        self.report(error);
        self.sent.fill(None);
        self.open = 0;
    }
}

impl Drop for Awaited<'_, '_> {
    fn drop(&mut self) {
        if self.open > 0 {
            self.unanswered_calls.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// A subscription to which the answers of one call at a time come.
struct Inbox {
    /// What the reply subjects begin with.
    prefix: String,
    answers: Subscriber,
    /// The number of the next call's first message. None is used twice, so that an answer that comes
    /// late is not taken for one to another message.
    next: u64,
}

impl Inbox {
    async fn open(client: &Client) -> Result<Self, &'static str> {
        let prefix = format!("{}.", client.new_inbox());
        match timeout(QUEUE_TIMEOUT, client.subscribe(format!("{prefix}*"))).await {
            Ok(Ok(answers)) => Ok(Self {
                prefix,
                answers,
                next: 0,
            }),
            Ok(Err(_)) => Err("the client is closed, or its inbox prefix is no subject"),
            Err(_) => Err(STUCK),
        }
    }

    fn reply(&self, token: impl fmt::Display) -> Subject {
        let mut reply = String::with_capacity(self.prefix.len() + 20);
        // Writing to a string does not fail.
        let _ = write!(reply, "{}{token}", self.prefix);
        reply.into()
    }

    fn number(&self, reply: &str) -> Option<u64> {
        reply.strip_prefix(&self.prefix)?.parse().ok()
    }
}

/// A panic elsewhere leaves nothing half done behind this lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use outbox_core::RelayBuilder;

    use super::*;
    use crate::ACK_TIMEOUT;

    /// The relay counts a failure of what stayed without an answer beside confirmed messages, and a
    /// wave may have no more than the second half of the publish timeout.
    #[test]
    fn an_outage_in_mid_batch_is_explained_before_it_looks_like_a_failure_of_messages() {
        let explained = QUEUE_TIMEOUT * 2 + ACK_TIMEOUT + LOOK_EVERY + PROBE_TIMEOUT;
        assert!(explained < RelayBuilder::PUBLISH_TIMEOUT / 2);
    }
}
