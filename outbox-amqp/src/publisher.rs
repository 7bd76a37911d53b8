//! The I/O: messages go over one channel in batch order, and each answer is reported when it comes.
//!
//! The client owns frames, heartbeats and the bookkeeping of confirms. What is added here is what the
//! contract asks, and four things that the client leaves to its user:
//!
//! * The client attaches a returned message to whichever confirm it resolves next. So a confirm is
//!   believed only when every confirm before it was looked at; [`Passage::drain`] has the argument.
//! * A channel exception ends every message of its channel and is about one. [`Call`] finds out which,
//!   and sends the others again.
//! * What is written after a channel was closed takes the whole connection down, and the client
//!   writes what it has queued. So the first message to an exchange goes alone, and a channel is not
//!   given up before what it was given is written.
//! * Nothing in the client has a bound in time, and a handshake that was given up goes on for ever. So
//!   every wait is bounded here, and a connection that was given up has its socket shut down.

use std::collections::HashSet;
use std::net::Shutdown;
#[cfg(unix)]
use std::os::fd::AsFd as _;
#[cfg(windows)]
use std::os::windows::io::AsSocket as _;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use std::{fmt, io, mem};

use futures_util::future::{BoxFuture, poll_fn};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use futures_util::task::AtomicWaker;
use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::tcp::{AMQPUriTcpExt as _, AsyncTcpStream};
use lapin::types::ShortString;
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Channel, Confirmation, Connection, ErrorKind, Event};
use outbox_core::{Delivery, PublishError, Publisher, async_trait};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::config::{AmqpConfig, Config, InvalidConfig};
use crate::encode::{Limits, Record, encode, message_id, route};
use crate::error::{Exception, Fault, describe, nacked, returned};

/// How much of a call may be without an answer before it sends more, in bytes: what the client's
/// queue takes of the relay's memory beside the batch itself.
const WINDOW_BYTES: usize = 8 * 1024 * 1024;

/// How long the first message to an exchange travels alone. The server closes the channel over it at once
/// or not at all; its confirm may take longer.
const ALONE_PATIENCE: Duration = Duration::from_millis(500);

/// How long answers to what was sent before may still come from a broker that has blocked us.
const BLOCKED_PATIENCE: Duration = Duration::from_millis(500);

/// How long the broker has to answer the question whether it is there, after a silence.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Publishes to RabbitMQ; see the [crate](crate) for an example.
///
/// # Answers
///
/// A message is confirmed when every queue that it was routed to has it. While nothing at all is
/// answered for the confirm timeout, the broker is asked for two seconds whether it is there, and what
/// is open is reported. A failed message is tried again by the relay, not here, with two exceptions:
/// what shared a channel with a message that made the broker close it is sent again on another one,
/// and what was under way when the connection was lost is sent again once, if the broker can be
/// connected to at once.
///
/// # Cancellation
///
/// What was reported stays. What was not may still be in the client's queue, and be delivered: a
/// repeat, if it is published again.
///
/// # Drop
///
/// Nothing waits. What is still in the client's queue is thrown away, and the connection is closed.
pub struct AmqpPublisher {
    config: Config,
    /// The connection that all calls share; made when it is needed.
    link: tokio::sync::Mutex<Option<Arc<Link>>>,
}

impl AmqpPublisher {
    /// Checks the configuration. Connects when the first message is published.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`] names the setting that cannot be used.
    pub fn new(config: AmqpConfig) -> Result<Self, InvalidConfig> {
        Ok(Self {
            config: Config::new(config)?,
            link: tokio::sync::Mutex::new(None),
        })
    }

    /// A channel for one call, on the connection that there is or on a new one.
    async fn passage(&self) -> Result<Passage<'_>, PublishError> {
        let deadline = Instant::now() + self.config.connect_timeout;
        loop {
            let (link, is_new) = self.link(deadline).await?;
            if let Some(reason) = link.blocked() {
                return Err(blocked(&reason));
            }
            match timeout_at(deadline, link.channel()).await {
                Ok(Ok(channel)) => return Ok(Passage::new(&self.config, link, channel)),
                Ok(Err(error)) if matches!(error.kind(), ErrorKind::ChannelsLimitReached) => {
                    return Err(unavailable(&describe(&error)));
                }
                Ok(Err(error)) => {
                    link.lose();
                    if is_new {
                        return Err(unavailable(&describe(&error)));
                    }
                }
                Err(_) => {
                    link.lose();
                    return Err(self.no_connection());
                }
            }
        }
    }

    /// The connection, made now if there is none; whether it was.
    async fn link(&self, deadline: Instant) -> Result<(Arc<Link>, bool), PublishError> {
        let connecting = async {
            // One call connects, the others wait for what comes of it.
            let mut slot = self.link.lock().await;
            if let Some(link) = &*slot
                && link.is_usable()
            {
                return Ok((Arc::clone(link), false));
            }
            *slot = None;
            let link = Arc::new(Link::connect(&self.config).await?);
            *slot = Some(Arc::clone(&link));
            Ok::<_, lapin::Error>((link, true))
        };
        match timeout_at(deadline, connecting).await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(error)) => Err(unavailable(&describe(&error))),
            Err(_) => Err(self.no_connection()),
        }
    }

    fn no_connection(&self) -> PublishError {
        unavailable(&format!(
            "no channel within {:?}",
            self.config.connect_timeout
        ))
    }
}

#[async_trait]
impl Publisher for AmqpPublisher {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        let call = Call {
            publisher: self,
            open: batch.to_vec(),
            group: usize::MAX,
            has_started_over: false,
        };
        call.run().await;
    }
}

impl Drop for AmqpPublisher {
    fn drop(&mut self) {
        // A channel that lingers would keep the connection, and deliver what it was given.
        if let Some(link) = self.link.get_mut().take()
            && Arc::strong_count(&link) > 1
        {
            link.lose();
        }
    }
}

impl fmt::Debug for AmqpPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpPublisher")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

fn unavailable(reason: &str) -> PublishError {
    PublishError::broker_unavailable(reason)
}

fn blocked(reason: &str) -> PublishError {
    unavailable(&format!("the broker has blocked publishers: {reason}"))
}

/// One call: what is open of its batch, and what was learned about sending it.
struct Call<'a> {
    publisher: &'a AmqpPublisher,
    /// The messages without an answer, in batch order.
    open: Vec<Delivery<'a>>,
    /// How many of them travel together. Fewer, while a message is searched that the broker refuses
    /// without naming it.
    group: usize,
    /// Whether a connection was lost in this call.
    has_started_over: bool,
}

impl Call<'_> {
    async fn run(mut self) {
        while !self.open.is_empty() {
            let mut passage = match self.publisher.passage().await {
                Ok(passage) => passage,
                Err(error) => return self.give_up(&error),
            };
            let group = self.group.min(self.open.len());
            let sending = passage.send(&self.open[..group]).await;
            // What was sent and not answered comes first, then what was not sent.
            let mut open = passage.unanswered();
            let sent = open.len();
            open.extend_from_slice(&self.open[passage.taken..]);
            self.open = open;

            match sending {
                Ok(()) => self.group = self.group.saturating_mul(2),
                Err(Stop::Blocked(reason)) => return self.give_up(&blocked(&reason)),
                Err(Stop::Silence) => {
                    if let Err(error) = self.explain_silence(&passage.link, sent).await {
                        return self.give_up(&error);
                    }
                }
                Err(Stop::Fault(Fault::Exception(exception))) if sent > 0 => {
                    self.blame(&passage.link, &exception, sent);
                }
                Err(Stop::Fault(fault)) => {
                    let reason = match fault {
                        Fault::Exception(exception) => exception.error().reason().to_owned(),
                        Fault::Closed(reason) => reason,
                        Fault::Lost(reason) => {
                            passage.link.lose();
                            reason
                        }
                    };
                    if self.has_started_over {
                        return self.give_up(&unavailable(&reason));
                    }
                    self.has_started_over = true;
                }
            }
        }
    }

    /// Reports the same about everything that is open.
    fn give_up(&mut self, error: &PublishError) {
        for delivery in self.open.drain(..) {
            delivery.report(Err(error.clone()));
        }
    }

    /// Reports the first `sent` of the open messages, about which nothing was heard; fails when the
    /// broker does not answer at all.
    async fn explain_silence(&mut self, link: &Link, sent: usize) -> Result<(), PublishError> {
        let waited = self.publisher.config.confirm_timeout;
        match timeout(PROBE_TIMEOUT, link.connection.create_channel()).await {
            Ok(Ok(_)) => {
                for delivery in self.open.drain(..sent) {
                    delivery.report(Err(PublishError::topic_unavailable(format!(
                        "not confirmed within {waited:?}, though the broker answers: a queue has no \
                         majority of its replicas, or is overloaded"
                    ))));
                }
                Ok(())
            }
            _ => {
                link.lose();
                Err(unavailable(&format!(
                    "not confirmed within {waited:?}, and the broker does not answer"
                )))
            }
        }
    }

    /// Answers what a channel exception is about. The first `sent` of the open messages were on the
    /// channel, and it is about one of them: the one that its words name, or the only one. Where
    /// neither is so the next group is half as large, until there is only one.
    ///
    /// What was sent before the culprit makes the next group, so that it is not sent a third time
    /// should the culprit have a brother.
    fn blame(&mut self, link: &Link, exception: &Exception, sent: usize) {
        let publisher = self.publisher;
        let routing = &publisher.config.routing;
        let is_named = |delivery: &Delivery<'_>| {
            let (exchange, routing_key) = route(delivery.message(), routing);
            exception.names(exchange, routing_key)
        };

        if let Some((size, limit)) = exception.too_large() {
            link.learn_payload_limit(limit);
            // An earlier one of the same size would have been refused before.
            let culprit = self.open[..sent].iter().position(|delivery| {
                let payload = delivery.message().payload();
                payload.is_some_and(|payload| payload.len() == size)
            });
            if let Some(culprit) = culprit {
                self.open.remove(culprit).report(Err(exception.error()));
                return self.resume_before(culprit);
            }
        } else if let Some(culprit) = self.open[..sent].iter().position(is_named) {
            let (exchange, _) = route(self.open[culprit].message(), routing);
            link.forget_exchange(exchange);
            self.open.retain(|delivery| {
                let is_named = is_named(delivery);
                if is_named {
                    delivery.report(Err(exception.error()));
                }
                !is_named
            });
            return self.resume_before(culprit);
        }

        if sent == 1 {
            self.open.remove(0).report(Err(exception.error()));
            self.group = usize::MAX;
        } else {
            self.group = sent / 2;
        }
    }

    fn resume_before(&mut self, culprit: usize) {
        self.group = if culprit == 0 { usize::MAX } else { culprit };
    }
}

/// Why a passage stopped before everything was answered.
enum Stop {
    Fault(Fault),
    /// Nothing was answered for the confirm timeout.
    Silence,
    /// The broker takes nothing for now, for this reason.
    Blocked(String),
}

/// What became of one message: its number, and what the client says.
type Done = (usize, lapin::Result<Confirmation>);

/// A channel and the messages that one call has sent over it.
struct Passage<'a> {
    config: &'a Config,
    link: Arc<Link>,
    channel: Arc<Channel>,
    /// How many of the messages of [`Passage::send`] are sent or answered.
    taken: usize,
    sent: Vec<Sent<'a>>,
    in_flight: FuturesUnordered<BoxFuture<'static, Done>>,
    bytes_in_flight: usize,
    alarm: Arc<Alarm>,
    /// Confirmed, but perhaps returned as well: the client has not handed out every return that it
    /// had when they were confirmed.
    doubtful: Vec<usize>,
    fault: Option<Fault>,
    /// The last exchange that was found to be proven.
    exchange: Option<ShortString>,
}

struct Sent<'a> {
    delivery: Delivery<'a>,
    size: usize,
    is_answered: bool,
}

impl<'a> Passage<'a> {
    fn new(config: &'a Config, link: Arc<Link>, channel: Arc<Channel>) -> Self {
        Self {
            config,
            link,
            channel,
            taken: 0,
            sent: Vec::new(),
            in_flight: FuturesUnordered::new(),
            bytes_in_flight: 0,
            alarm: Arc::default(),
            doubtful: Vec::new(),
            fault: None,
            exchange: None,
        }
    }

    /// Sends messages in order and waits until each is answered.
    async fn send(&mut self, batch: &[Delivery<'a>]) -> Result<(), Stop> {
        self.sent.reserve(batch.len());
        for delivery in batch {
            match encode(delivery.message(), &self.config.routing, self.link.limits()) {
                Ok(record) => self.send_one(*delivery, record).await?,
                Err(error) => {
                    delivery.report(Err(error));
                    self.taken += 1;
                }
            }
            // A long batch is no reason to hold up the other tasks of this thread.
            tokio::task::coop::consume_budget().await;
        }
        self.wait(Self::is_quiet, self.config.confirm_timeout).await
    }

    async fn send_one(&mut self, delivery: Delivery<'a>, record: Record) -> Result<(), Stop> {
        if self.exchange.as_ref() != Some(&record.exchange) {
            let exchange = record.exchange.clone();
            if !self.link.has_proven(exchange.as_str()) {
                self.quiet_down().await?;
                self.push(delivery, record).await;
                self.quiet_down().await?;
                self.link.prove(exchange.as_str());
                self.exchange = Some(exchange);
                return Ok(());
            }
            self.exchange = Some(exchange);
        }

        let size = record.size();
        let has_room =
            |passage: &Self| passage.is_quiet() || passage.bytes_in_flight + size <= WINDOW_BYTES;
        if self.fault.is_some() || !has_room(self) {
            self.wait(has_room, self.config.confirm_timeout).await?;
        }
        self.push(delivery, record).await;
        Ok(())
    }

    /// Waits until everything is answered, but not for what does not come soon.
    async fn quiet_down(&mut self) -> Result<(), Stop> {
        match self.wait(Self::is_quiet, ALONE_PATIENCE).await {
            Err(Stop::Silence) => Ok(()),
            waited => waited,
        }
    }

    /// Hands a message to the client's queue.
    async fn push(&mut self, delivery: Delivery<'a>, record: Record) {
        let (number, size) = (self.sent.len(), record.size());
        self.in_flight.push(Box::pin(hand_over(
            Arc::clone(&self.channel),
            number,
            record,
        )));
        self.bytes_in_flight += size;
        self.taken += 1;
        self.sent.push(Sent {
            delivery,
            size,
            is_answered: false,
        });
        // It is in the queue when it was polled once, and must be before the next one is.
        poll_fn(|context| {
            self.drain(context);
            Poll::Ready(())
        })
        .await;
    }

    /// Waits until it is enough, reporting answers as they come; gives up when none came for so long.
    async fn wait(
        &mut self,
        enough: impl Fn(&Self) -> bool,
        patience: Duration,
    ) -> Result<(), Stop> {
        let mut health = self.link.health.clone();
        let mut silence = pin!(sleep_until(Instant::now()));
        loop {
            match &self.fault {
                // The messages that were there when the channel was closed know why.
                Some(Fault::Closed(_)) if !self.is_quiet() => {}
                Some(fault) => return Err(Stop::Fault(fault.clone())),
                None if enough(self) => return Ok(()),
                None => {}
            }
            let blocked = health.borrow_and_update().clone();
            let patience = match blocked {
                Some(_) => BLOCKED_PATIENCE,
                None => patience,
            };
            silence.as_mut().reset(Instant::now() + patience);
            tokio::select! {
                biased;
                () = poll_fn(|context| self.poll_answers(context)) => {}
                () = changed(&mut health) => {}
                () = silence.as_mut() => return Err(match blocked {
                    Some(reason) => Stop::Blocked(reason),
                    None => Stop::Silence,
                }),
            }
        }
    }

    /// Whether nothing is without an answer of the server.
    fn is_quiet(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// The messages that were sent and not answered, in order.
    fn unanswered(&self) -> Vec<Delivery<'a>> {
        let open = self.sent.iter().filter(|sent| !sent.is_answered);
        open.map(|sent| sent.delivery).collect()
    }

    /// Ready when there was an answer.
    fn poll_answers(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let before = self.in_flight.len();
        self.drain(context);
        if self.in_flight.len() < before {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Takes every answer that is there, and reports those that can be believed.
    ///
    /// The server returns a message before it confirms it. The client keeps returned messages in a
    /// queue and attaches the first one to whichever confirm it resolves next. So a message whose own
    /// confirm came without a returned one was not returned itself, unless its return went with a
    /// confirm that was resolved before: the queue was empty then. Its confirm is believed when all
    /// that were resolved before it have been looked at, and so they have at the end of a pass in
    /// which nothing woke us: a confirm wakes us before the next one is resolved.
    ///
    /// A confirm that came with somebody else's return says nothing about the rest of the queue. Its
    /// message waits until a later one came without, or until there is none left: there are never
    /// more returns in the queue than returned messages without a confirm.
    fn drain(&mut self, context: &mut Context<'_>) {
        self.alarm.task.register(context.waker());
        let waker = Waker::from(Arc::clone(&self.alarm));
        let mut inner = Context::from_waker(&waker);
        let mut clear = Vec::new();
        let doubtful_before = self.doubtful.len();
        loop {
            self.alarm.rang.store(false, Ordering::SeqCst);
            while let Poll::Ready(Some(done)) = self.in_flight.poll_next_unpin(&mut inner) {
                self.take(done, &mut clear);
            }
            if !self.alarm.rang.load(Ordering::SeqCst) {
                break;
            }
        }

        if !clear.is_empty() {
            clear.extend(self.doubtful.drain(..doubtful_before));
        }
        if self.is_quiet() && self.fault.is_none() {
            clear.append(&mut self.doubtful);
        }
        for number in clear {
            self.answer(number, Ok(()));
        }
    }

    fn take(&mut self, (number, result): Done, clear: &mut Vec<usize>) {
        if let Some(sent) = self.sent.get(number) {
            self.bytes_in_flight = self.bytes_in_flight.saturating_sub(sent.size);
        }
        match result {
            Ok(Confirmation::Ack(None)) => clear.push(number),
            Ok(Confirmation::Ack(Some(message))) => {
                self.take_back(&message);
                self.doubtful.push(number);
            }
            Ok(Confirmation::Nack(message)) => {
                if let Some(message) = message {
                    self.take_back(&message);
                }
                self.answer(number, Err(nacked()));
            }
            // Every channel here was asked for confirms when it was opened.
            Ok(Confirmation::NotRequested) => self.answer(
                number,
                Err(PublishError::retryable("the channel gives no confirms")),
            ),
            Err(error) => {
                let fault = Fault::of(&error);
                if self
                    .fault
                    .as_ref()
                    .is_none_or(|known| fault.explains(known))
                {
                    self.fault = Some(fault);
                }
            }
        }
    }

    /// Reports a message that came back, whichever confirm it came with.
    fn take_back(&mut self, message: &BasicReturnMessage) {
        let delivery = &message.delivery;
        let (exchange, routing_key) = (delivery.exchange.as_str(), delivery.routing_key.as_str());
        let id = message_id(&delivery.properties);
        let number = self.sent.iter().position(|sent| {
            let message = sent.delivery.message();
            !sent.is_answered
                && Some(message.id()) == id
                && route(message, &self.config.routing) == (exchange, routing_key)
        });
        if let Some(number) = number {
            let text = message.reply_text.as_str();
            let error = returned(message.reply_code, text, exchange, routing_key);
            self.answer(number, Err(error));
        }
    }

    fn answer(&mut self, number: usize, answer: Result<(), PublishError>) {
        if let Some(sent) = self.sent.get_mut(number)
            && !sent.is_answered
        {
            sent.is_answered = true;
            sent.delivery.report(answer);
        }
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        if self.fault.is_some() {
            return;
        }
        if self.is_quiet() {
            return self.link.put_back(Arc::clone(&self.channel));
        }
        // The close of a channel would overtake what is in the client's queue.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(linger(
                Arc::clone(&self.link),
                Arc::clone(&self.channel),
                mem::take(&mut self.in_flight),
                self.config.confirm_timeout,
            ));
        }
    }
}

/// Hands a message to the client when it is first polled, and waits for the server's answer.
async fn hand_over(channel: Arc<Channel>, number: usize, record: Record) -> Done {
    let options = BasicPublishOptions {
        mandatory: true,
        ..BasicPublishOptions::default()
    };
    let handed_over = channel
        .basic_publish(
            record.exchange,
            record.routing_key,
            options,
            &record.body,
            record.properties,
        )
        .await;
    let result = match handed_over {
        Ok(confirm) => confirm.await,
        Err(error) => Err(error),
    };
    (number, result)
}

/// Keeps a channel until all that it was given is answered, or nothing was for the confirm timeout
/// while the broker was taking messages.
async fn linger(
    link: Arc<Link>,
    channel: Arc<Channel>,
    mut in_flight: FuturesUnordered<BoxFuture<'static, Done>>,
    patience: Duration,
) {
    let mut health = link.health.clone();
    loop {
        let is_blocked = health.borrow_and_update().is_some();
        tokio::select! {
            done = in_flight.next() => if done.is_none() { break },
            () = changed(&mut health) => {}
            () = tokio::time::sleep(patience), if !is_blocked => break,
        }
    }
    drop(channel);
}

/// Waits until the connection is blocked or is so no longer.
async fn changed(health: &mut watch::Receiver<Option<String>>) {
    if health.changed().await.is_err() {
        // The connection is gone, which its messages are told by the client.
        std::future::pending::<()>().await;
    }
}

/// Remembers that something became ready, and wakes the task.
#[derive(Default)]
struct Alarm {
    rang: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rang.store(true, Ordering::SeqCst);
        self.task.wake();
    }
}

/// A connection, with the channels that no call uses and what was learned about the server.
struct Link {
    connection: Connection,
    socket: Arc<Socket>,
    is_lost: AtomicBool,
    /// Why the broker takes nothing for now, while it does not.
    health: watch::Receiver<Option<String>>,
    /// Channels on which nothing is without an answer.
    idle: Mutex<Vec<Arc<Channel>>>,
    /// Exchanges over which the server has not closed a channel. The default exchange is always there.
    proven: Mutex<HashSet<String>>,
    /// The server's `max_message_size`; `usize::MAX` until it has named it.
    payload_limit: AtomicUsize,
}

impl Link {
    async fn connect(config: &Config) -> lapin::Result<Self> {
        let socket = CutOnDrop::default();
        let held = Arc::clone(&socket.0);
        let tls = config.tls.clone();
        let patience = config.connect_timeout;
        let connection = Connection::connector(
            config.uri.clone(),
            lapin::runtime::default_runtime()?,
            // On a thread of the client's, which must not stay in here for ever either.
            async move |uri, runtime| {
                let mut plain: AMQPUri = uri.clone();
                plain.scheme = AMQPScheme::AMQP;
                let stream = within(patience, plain.connect_async(&runtime)).await?;
                if let AsyncTcpStream::Plain(stream) = &stream {
                    held.hold(stream.get_ref())?;
                }
                match uri.scheme {
                    AMQPScheme::AMQP => Ok(stream),
                    AMQPScheme::AMQPS => {
                        let encrypted = stream.into_tls(&uri.authority.host, tls.as_ref());
                        Ok(within(patience, encrypted).await?)
                    }
                }
            },
            config.properties.clone(),
        )
        .await?;
        Ok(Self {
            health: watch_health(&connection),
            connection,
            socket: socket.keep(),
            is_lost: AtomicBool::new(false),
            idle: Mutex::default(),
            proven: Mutex::default(),
            payload_limit: AtomicUsize::new(usize::MAX),
        })
    }

    fn is_usable(&self) -> bool {
        !self.is_lost.load(Ordering::Relaxed) && self.connection.status().connected()
    }

    /// Gives the connection up, with all that is under way on it.
    fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
        self.socket.cut();
    }

    fn blocked(&self) -> Option<String> {
        self.health.borrow().clone()
    }

    /// An open channel with confirms on which nothing is under way.
    async fn channel(&self) -> lapin::Result<Arc<Channel>> {
        loop {
            let idle = lock(&self.idle).pop();
            match idle {
                Some(channel) if channel.status().connected() => return Ok(channel),
                Some(_) => {}
                None => break,
            }
        }
        let channel = self.connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        Ok(Arc::new(channel))
    }

    fn put_back(&self, channel: Arc<Channel>) {
        lock(&self.idle).push(channel);
    }

    fn limits(&self) -> Limits {
        let payload = self.payload_limit.load(Ordering::Relaxed);
        Limits {
            frame_max: self.connection.configuration().frame_max() as usize,
            payload: (payload < usize::MAX).then_some(payload),
        }
    }

    fn learn_payload_limit(&self, limit: usize) {
        self.payload_limit.store(limit, Ordering::Relaxed);
    }

    fn has_proven(&self, exchange: &str) -> bool {
        exchange.is_empty() || lock(&self.proven).contains(exchange)
    }

    fn prove(&self, exchange: &str) {
        lock(&self.proven).insert(exchange.to_owned());
    }

    fn forget_exchange(&self, exchange: &str) {
        lock(&self.proven).remove(exchange);
    }
}

/// Follows whether the broker has blocked the connection, for as long as somebody wants to know.
fn watch_health(connection: &Connection) -> watch::Receiver<Option<String>> {
    let (health, watched) = watch::channel(None);
    let events = connection.events_listener();
    tokio::spawn(async move {
        let mut events = pin!(events);
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Event::ConnectionBlocked(reason)) => {
                        health.send_replace(Some(reason));
                    }
                    Some(Event::ConnectionUnblocked) => {
                        health.send_replace(None);
                    }
                    Some(_) => {}
                    None => break,
                },
                () = health.closed() => break,
            }
        }
    });
    watched
}

async fn within<T>(patience: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(patience, work)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Our hand on the socket that the client owns: the only way to end a handshake, or a connection whose
/// peer says nothing more.
#[derive(Default)]
struct Socket(Mutex<Hold>);

#[derive(Default)]
enum Hold {
    #[default]
    Nothing,
    Open(std::net::TcpStream),
    Cut,
}

impl Socket {
    fn hold(&self, stream: &TcpStream) -> io::Result<()> {
        #[cfg(unix)]
        let handle = stream.as_fd().try_clone_to_owned()?;
        #[cfg(windows)]
        let handle = stream.as_socket().try_clone_to_owned()?;
        let mut hold = lock(&self.0);
        if matches!(*hold, Hold::Cut) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        *hold = Hold::Open(handle.into());
        Ok(())
    }

    fn cut(&self) {
        if let Hold::Open(stream) = mem::replace(&mut *lock(&self.0), Hold::Cut) {
            // What is closed already needs no end.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Cuts the socket of a connection that is given up before it is there.
#[derive(Default)]
struct CutOnDrop(Arc<Socket>, bool);

impl CutOnDrop {
    fn keep(mut self) -> Arc<Socket> {
        self.1 = true;
        Arc::clone(&self.0)
    }
}

impl Drop for CutOnDrop {
    fn drop(&mut self) {
        if !self.1 {
            self.0.cut();
        }
    }
}

/// A panic elsewhere leaves nothing half done behind these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use outbox_core::RelayBuilder;

    use super::*;
    use crate::{CONFIRM_TIMEOUT, CONNECT_TIMEOUT};

    /// The relay counts a failure of what stayed without an answer beside confirmed messages, and a
    /// wave may have no more than the second half of the publish timeout.
    #[test]
    fn an_outage_in_mid_batch_is_explained_before_it_looks_like_a_failure_of_messages() {
        assert!(
            CONNECT_TIMEOUT + CONFIRM_TIMEOUT + PROBE_TIMEOUT < RelayBuilder::PUBLISH_TIMEOUT / 2
        );
    }
}
