//! The I/O: entries go to the server in batch order, in pipelines, and each answer is reported when
//! its pipeline is answered.
//!
//! A call has a connection to itself, so that the order of a batch is the order of its commands, and
//! so that what was not yet written can be thrown away with the connection: when the caller drops the
//! call, when the server is silent, when an answer is lost. Nothing is sent a second time.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use outbox_core::{Delivery, PublishError, PublishErrorKind, Publisher, async_trait};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Pipeline, RedisError, RedisResult, Value};
use tokio::time::timeout;

use crate::config::{InvalidConfig, RedisConfig, Replicas, Trim};
use crate::encode::{Limit, encode};
use crate::error::{explain, is_answer};

/// A pipeline ends with this many messages, or with [`PIPELINE_BYTES`]. Its answers come together.
const PIPELINE_MESSAGES: usize = 256;

/// The bytes of entries in a pipeline. A larger message travels alone, and nothing beside it.
const PIPELINE_BYTES: usize = 256 * 1024;

/// How many pipelines of a call may be on their way.
const PIPELINES: usize = 4;

/// A connection that was not used for so long is asked whether it still works before it is trusted
/// with messages: servers and what is on the way to them close idle connections.
const FRESH: Duration = Duration::from_secs(1);

/// Publishes to Redis Streams; see the [crate](crate) for an example.
///
/// # Answers
///
/// A message is confirmed when the server has answered its `XADD` with the id of the entry, and the
/// replicas that were asked for have it too. What gets no answer within the response timeout, or is
/// under way when a connection is cut, is reported as an outage: it may have been added or not. A
/// failed message is tried again by the relay, not here.
///
/// # Cancellation
///
/// What was reported stays. The connection of a dropped call is closed, and what was not yet on its
/// way is never sent; the server may still add what had left this host.
///
/// # Connections
///
/// Each call that runs has one, and they are kept for later calls. They are made when they are
/// needed, so an outage ends with the first call after it.
pub struct RedisPublisher {
    config: RedisConfig,
    connecting: AsyncConnectionConfig,
    idle: Mutex<Vec<Connection>>,
}

impl RedisPublisher {
    /// Checks the configuration. It does not connect: the server need not be there.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`] names the setting.
    pub fn new(mut config: RedisConfig) -> Result<Self, InvalidConfig> {
        config.check()?;
        config.client = unbuffered(&config.client)?;
        let connecting = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(Some(config.pipeline_timeout()));
        Ok(Self {
            config,
            connecting,
            idle: Mutex::default(),
        })
    }

    /// A connection that works, as far as can be known.
    async fn connection(&self) -> Result<Connection, PublishError> {
        loop {
            let Some(mut connection) = lock(&self.idle).pop() else {
                return self.connect().await;
            };
            if connection.used.elapsed() < FRESH {
                return Ok(connection);
            }
            match self.ping(&mut connection.client).await {
                Ok(()) => return Ok(connection),
                // It was closed while nobody used it, and that is no news about the server.
                Err(error) if !error.is_timeout() => {}
                Err(error) => {
                    self.forget_idle();
                    return Err(explain(&error));
                }
            }
        }
    }

    async fn connect(&self) -> Result<Connection, PublishError> {
        self.try_connect().await.map_err(|error| {
            PublishError::broker_unavailable(format!("connecting: {}", explain(&error).reason()))
        })
    }

    async fn try_connect(&self) -> RedisResult<Connection> {
        let connecting = self
            .config
            .client
            .get_multiplexed_async_connection_with_config(&self.connecting);
        let mut client = self.in_time(connecting).await?;
        let clock = match self.config.trim {
            Some(Trim::Age(_)) => Some(self.clock(&mut client).await?),
            Some(Trim::Entries(_)) | None => None,
        };
        Ok(Connection {
            client,
            used: Instant::now(),
            clock,
        })
    }

    /// Asks the server what time it is.
    async fn clock(&self, client: &mut MultiplexedConnection) -> RedisResult<Clock> {
        let command = redis::cmd("TIME");
        let (seconds, microseconds): (u64, u64) = self.in_time(command.query_async(client)).await?;
        Ok(Clock {
            asked: Instant::now(),
            answered: Duration::from_secs(seconds) + Duration::from_micros(microseconds),
        })
    }

    /// A connection over which the server has answered something.
    async fn connect_and_ask(&self) -> RedisResult<Connection> {
        let mut connection = self.try_connect().await?;
        self.ping(&mut connection.client).await?;
        Ok(connection)
    }

    /// Whether the server answers. A refusal is an answer.
    async fn ping(&self, client: &mut MultiplexedConnection) -> RedisResult<()> {
        let command = redis::cmd("PING");
        let ping = self.in_time(command.query_async::<Value>(client));
        match ping.await {
            Err(error) if !is_answer(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// What connecting has time for.
    async fn in_time<T>(&self, asking: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        match timeout(self.config.connect_timeout, asking).await {
            Ok(answer) => answer,
            Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }

    /// Closes what is idle: what one connection has met the others will meet.
    fn forget_idle(&self) {
        let idle = std::mem::take(&mut *lock(&self.idle));
        drop(idle);
    }
}

#[async_trait]
impl Publisher for RedisPublisher {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        if batch.is_empty() {
            return;
        }
        let connection = match self.connection().await {
            Ok(connection) => connection,
            Err(error) => return report_all(batch, &error),
        };
        let mut call = Call {
            publisher: self,
            rest: batch,
            connection,
            flights: VecDeque::with_capacity(PIPELINES),
            outage: None,
        };
        call.run().await;
        match &call.outage {
            None => lock(&self.idle).push(Connection {
                used: Instant::now(),
                ..call.connection
            }),
            Some(error) => {
                report_all(call.rest, error);
                self.forget_idle();
            }
        }
    }
}

impl fmt::Debug for RedisPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisPublisher")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// The client, told to send at once what it is given, and to throw away at once what it has not sent
/// when a connection is closed.
fn unbuffered(client: &Client) -> Result<Client, InvalidConfig> {
    let info = client.get_connection_info().clone();
    let tcp = info.tcp_settings().clone();
    let tcp = tcp.set_nodelay(true).set_linger_time(Duration::ZERO);
    Client::open(info.set_tcp_settings(tcp)).map_err(|error| InvalidConfig::Client {
        reason: error.to_string(),
    })
}

fn report_all(deliveries: &[Delivery<'_>], error: &PublishError) {
    for delivery in deliveries {
        delivery.report(Err(error.clone()));
    }
}

/// A connection that no one else uses. Dropping it closes it, whatever is under way.
struct Connection {
    client: MultiplexedConnection,
    used: Instant,
    /// Only where entries are trimmed by age.
    clock: Option<Clock>,
}

impl Connection {
    /// What an entry that is added now may remove.
    fn limit(&self, trim: Option<Trim>) -> Limit {
        match (trim, self.clock) {
            (Some(Trim::Entries(entries)), _) => Limit::MaxLen(entries),
            (Some(Trim::Age(age)), Some(clock)) => {
                let oldest = clock.now().saturating_sub(age).as_millis();
                Limit::MinId(u64::try_from(oldest).unwrap_or(u64::MAX))
            }
            (Some(Trim::Age(_)) | None, _) => Limit::None,
        }
    }
}

/// The server's time, from its answer and what has passed since.
#[derive(Clone, Copy)]
struct Clock {
    asked: Instant,
    answered: Duration,
}

impl Clock {
    fn now(&self) -> Duration {
        self.answered + self.asked.elapsed()
    }
}

/// One batch on its way.
struct Call<'a, 'b> {
    publisher: &'b RedisPublisher,
    connection: Connection,
    /// What is in no pipeline yet.
    rest: &'b [Delivery<'a>],
    flights: VecDeque<Flight<'a>>,
    /// Why nothing more is sent.
    outage: Option<PublishError>,
}

/// A pipeline on its way.
struct Flight<'a> {
    deliveries: Vec<Delivery<'a>>,
    /// One message that is larger than a pipeline may be.
    is_large: bool,
    asking: Pin<Box<dyn Future<Output = Answers> + Send>>,
    answers: Option<Answers>,
}

/// One for each command, or none at all.
type Answers = RedisResult<Vec<RedisResult<Value>>>;

impl<'a> Call<'a, '_> {
    /// Sends everything and reports what is answered. In an outage it ends with what is under way;
    /// what is in no pipeline is left.
    async fn run(&mut self) {
        loop {
            while self.take_off() {}
            let Some((flight, answers)) = poll_fn(|context| self.poll_land(context)).await else {
                return;
            };
            match answers {
                Ok(answers) => self.answered(flight, answers).await,
                Err(error) => self.unanswered(flight, &error).await,
            }
        }
    }

    /// Sends the next pipeline. `false`: nothing is left to send, or it has to wait.
    fn take_off(&mut self) -> bool {
        let config = &self.publisher.config;
        let is_behind_large = self.flights.back().is_some_and(|flight| flight.is_large);
        if self.outage.is_some() || self.flights.len() == PIPELINES || is_behind_large {
            return false;
        }
        let limit = self.connection.limit(config.trim);
        let room = self.rest.len().min(PIPELINE_MESSAGES);
        let mut pipeline = Pipeline::with_capacity(room + 1);
        let mut deliveries = Vec::with_capacity(room);
        let mut bytes = 0;
        while let Some((delivery, rest)) = self.rest.split_first() {
            match encode(config, delivery.message()) {
                Ok(entry) => {
                    let is_full = deliveries.len() == PIPELINE_MESSAGES
                        || bytes + entry.size() > PIPELINE_BYTES;
                    if is_full && !deliveries.is_empty() {
                        break;
                    }
                    if is_full && !self.flights.is_empty() {
                        return false;
                    }
                    bytes += entry.size();
                    pipeline.add_command(entry.command(config, limit));
                    deliveries.push(*delivery);
                }
                Err(error) => delivery.report(Err(error)),
            }
            self.rest = rest;
        }
        if deliveries.is_empty() {
            return false;
        }
        if let Some(replicas) = config.replicas {
            let within = u64::try_from(replicas.within.as_millis()).unwrap_or(u64::MAX);
            pipeline.cmd("WAIT").arg(replicas.count).arg(within);
        }
        // One refused command says nothing about the others.
        pipeline.ignore_errors();
        let mut client = self.connection.client.clone();
        self.flights.push_back(Flight {
            is_large: bytes > PIPELINE_BYTES,
            deliveries,
            asking: Box::pin(async move { pipeline.query_async(&mut client).await }),
            answers: None,
        });
        true
    }

    /// The first pipeline, when it is answered; `None`: none is under way.
    fn poll_land(&mut self, context: &mut Context<'_>) -> Poll<Option<(Flight<'a>, Answers)>> {
        // All of them and from the front: a pipeline enters the client's queue when it is polled for
        // the first time.
        for flight in &mut self.flights {
            if flight.answers.is_none()
                && let Poll::Ready(answers) = flight.asking.as_mut().poll(context)
            {
                flight.answers = Some(answers);
            }
        }
        match self.flights.pop_front() {
            None => Poll::Ready(None),
            Some(mut flight) => match flight.answers.take() {
                Some(answers) => Poll::Ready(Some((flight, answers))),
                None => {
                    self.flights.push_front(flight);
                    Poll::Pending
                }
            },
        }
    }

    /// Reports what the server has answered to each command of a pipeline.
    async fn answered(&mut self, flight: Flight<'a>, mut answers: Vec<RedisResult<Value>>) {
        let missing = match self.publisher.config.replicas {
            Some(replicas) => answers
                .pop()
                .and_then(|answer| missing_replicas(&answer, replicas)),
            None => None,
        };
        let mut is_refused = false;
        let is_large = flight.is_large;
        for (delivery, answer) in flight.deliveries.into_iter().zip(answers) {
            let failed = match answer {
                Ok(Value::Nil) => Some(PublishError::topic_unavailable(
                    "the stream does not exist, and streams are not created",
                )),
                Ok(_) => missing.clone(),
                Err(error) => Some(explain(&error)),
            };
            let Some(error) = failed else {
                delivery.report(Ok(()));
                continue;
            };
            is_refused = true;
            if error.kind() == PublishErrorKind::BrokerUnavailable {
                self.outage.get_or_insert_with(|| error.clone());
            }
            delivery.report(Err(error));
        }
        // After a value that is longer than it takes, the server closes the connection.
        if is_large && is_refused && self.outage.is_none() {
            match self.publisher.connect().await {
                Ok(connection) => self.connection = connection,
                Err(error) => self.outage = Some(error),
            }
        }
    }

    /// Reports on a pipeline whose answers never came.
    async fn unanswered(&mut self, flight: Flight<'a>, error: &RedisError) {
        let explained = explain(error);
        let Flight {
            deliveries,
            is_large,
            ..
        } = flight;
        // A server that closes the connection over a message that it finds too large must not pass
        // for one that is away, or the message would be an outage for ever.
        if is_large
            && !error.is_timeout()
            && self.outage.is_none()
            && let Ok(connection) = self.publisher.connect_and_ask().await
        {
            self.connection = connection;
            let error = PublishError::retryable(format!(
                "the connection was closed over this message, which the server may find too large, \
                 and the server answers: {}",
                explained.reason()
            ));
            return report_all(&deliveries, &error);
        }
        report_all(&deliveries, &explained);
        self.outage.get_or_insert(explained);
    }
}

/// Why entries that the server has added do not count as delivered.
fn missing_replicas(answer: &RedisResult<Value>, replicas: Replicas) -> Option<PublishError> {
    match answer {
        Ok(Value::Int(count)) if *count >= i64::from(replicas.count) => None,
        Ok(Value::Int(count)) => Some(PublishError::broker_unavailable(format!(
            "added, and not confirmed by {} replicas within {:?}: {count} have it",
            replicas.count, replicas.within
        ))),
        Ok(other) => Some(PublishError::broker_unavailable(format!(
            "added, and WAIT was answered with {other:?}"
        ))),
        Err(error) => Some(PublishError::broker_unavailable(format!(
            "added, and the replicas cannot be waited for: {}",
            explain(error).reason()
        ))),
    }
}

/// No step under the lock can panic half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
