//! The I/O: entries go to the server in batch order, in pipelines, and each answer is reported when
//! its pipeline is answered.
//!
//! A call has a connection to itself, so that the order of a batch is the order of its commands, and
//! so that what was not yet written can be thrown away with the connection: when the caller drops the
//! call, when the server is silent, when an answer is lost. Nothing is sent a second time.
//!
//! What is chained goes as a script for each key, which the server runs as one and which ends at the first
//! entry that is not added. The next messages of that key wait for its answer.
//!
//! From the outside in: [`RedisPublisher`], the servers of a [`Cluster`], one [`Server`] with its
//! connections, one [`Call`] with the pipelines that are under way.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::{join_all, select_ok};
use outbox_core::{Delivery, PublishError, PublishErrorKind, Publisher, StoppedKeys, async_trait};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, Pipeline, RedisError,
    RedisResult, Value,
};
use tokio::time::{Instant as Deadline, timeout_at};

use crate::config::{InvalidConfig, RedisConfig, Replicas, Trim};
use crate::encode::{Entry, Limit, chain, encode, slot};
use crate::error::{explain, explain_in_script, is_answer, refuses_scripts};

/// A pipeline ends with this many messages, or with [`PIPELINE_BYTES`]. Its answers come together.
const PIPELINE_MESSAGES: usize = 256;

/// The bytes of entries in a pipeline. A larger message travels alone, and nothing beside it.
const PIPELINE_BYTES: usize = 256 * 1024;

// A script holds up everything else at the server: with these limits for about a millisecond.

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
/// Each call that runs has one to itself, in a cluster one to each server, and they are kept for later
/// calls. They are made when they are needed, so an outage ends with the first call after it.
pub struct RedisPublisher {
    /// The one that the configuration names.
    server: Arc<Server>,
    /// Only where that is one of many.
    cluster: Option<Cluster>,
}

impl RedisPublisher {
    /// Checks the configuration. It does not connect: the server need not be there.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`] names the setting.
    pub fn new(config: RedisConfig) -> Result<Self, InvalidConfig> {
        config.check()?;
        let cluster = config.cluster.then(Cluster::default);
        let info = config.client.get_connection_info().clone();
        let server = Server::new(config, info).map_err(|error| InvalidConfig::Client {
            reason: error.to_string(),
        })?;
        Ok(Self {
            server: Arc::new(server),
            cluster,
        })
    }
}

#[async_trait]
impl Publisher for RedisPublisher {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        let connected_by = self.server.connected_by();
        match &self.cluster {
            // What fails is reported, and nothing follows from it here.
            None => _ = self.server.publish(batch, connected_by).await,
            Some(cluster) => cluster.publish(&self.server, batch, connected_by).await,
        }
    }

    /// From the first connection on, where the server lets this user run scripts. Never in a cluster, where
    /// the streams of a key are on several servers.
    fn chains_keys(&self) -> bool {
        self.cluster.is_none() && *lock(&self.server.runs_scripts) == Some(true)
    }
}

impl fmt::Debug for RedisPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisPublisher")
            .field("config", &self.server.config)
            .finish_non_exhaustive()
    }
}

/// A cluster: which of its servers has which slots, as one of them said.
#[derive(Default)]
struct Cluster {
    /// `None`: nobody was asked yet, or it may not be true any more.
    slots: Mutex<Option<Arc<Slots>>>,
    /// By their addresses: they keep their connections when slots move.
    servers: Mutex<HashMap<String, Arc<Server>>>,
}

type Slots = Vec<(RangeInclusive<u16>, Arc<Server>)>;

impl Cluster {
    /// Publishes to each server what is in its slots, to all of them at the same time.
    async fn publish(&self, seed: &Arc<Server>, batch: &[Delivery<'_>], connected_by: Deadline) {
        let slots = match self.slots(seed, connected_by).await {
            Ok(slots) => slots,
            Err(error) => return report_all(batch, &error),
        };
        let mut parts: Vec<(&Server, Vec<Delivery<'_>>)> = Vec::new();
        let mut is_true = true;
        for delivery in batch {
            // A server that is away is not the cluster: only what is in its slots has to wait.
            let delivery = delivery.one_of_many();
            let slot = slot(&seed.config, delivery.message().topic());
            let Some((_, server)) = slots.iter().find(|(range, _)| range.contains(&slot)) else {
                is_true = false;
                delivery.report(Err(PublishError::topic_unavailable(format!(
                    "no server of the cluster has slot {slot}"
                ))));
                continue;
            };
            match parts.iter_mut().find(|(it, _)| ptr::eq(*it, &**server)) {
                Some((_, part)) => part.push(delivery),
                None => parts.push((server, vec![delivery])),
            }
        }
        let calls = parts
            .iter()
            .map(|(server, part)| server.publish(part, connected_by));
        is_true &= join_all(calls).await.into_iter().all(|it| it);
        if !is_true {
            // Asked again by the next call, whatever it was that failed: it costs one round trip.
            *lock(&self.slots) = None;
        }
    }

    /// Who has which slots. All that are known are asked: the first answer is taken.
    async fn slots(
        &self,
        seed: &Arc<Server>,
        connected_by: Deadline,
    ) -> Result<Arc<Slots>, PublishError> {
        if let Some(slots) = &*lock(&self.slots) {
            return Ok(Arc::clone(slots));
        }
        let mut known: Vec<Arc<Server>> = lock(&self.servers).values().cloned().collect();
        known.push(Arc::clone(seed));
        let asking = known
            .iter()
            .map(|server| Box::pin(server.slots(connected_by)));
        let (said, _) = select_ok(asking).await?;
        let mut servers = lock(&self.servers);
        let mut still = HashMap::new();
        let mut slots = Vec::with_capacity(said.len());
        for (range, host, port) in said {
            let address = format!("{host}:{port}");
            let server = match (still.get(&address), servers.get(&address)) {
                (Some(server), _) | (None, Some(server)) => Arc::clone(server),
                (None, None) => Arc::new(seed.beside(host, port).map_err(|error| explain(&error))?),
            };
            still.insert(address, Arc::clone(&server));
            slots.push((range, server));
        }
        *servers = still;
        let slots = Arc::new(slots);
        *lock(&self.slots) = Some(Arc::clone(&slots));
        Ok(slots)
    }
}

/// Slots, and where the server is that has them.
type Place = (RangeInclusive<u16>, String, u16);

/// What `CLUSTER SLOTS` says; `asked` is the host that was asked, and a server's where it names none.
fn places(answer: &Value, asked: &str) -> Option<Vec<Place>> {
    let number = |value: &Value| match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    };
    let place = |range: &Value| {
        let [first, last, primary, ..] = range.as_sequence()? else {
            return None;
        };
        let [host, port, ..] = primary.as_sequence()? else {
            return None;
        };
        let host = match host {
            Value::BulkString(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
            _ => asked.to_owned(),
        };
        Some((number(first)?..=number(last)?, host, number(port)?))
    };
    answer.as_sequence()?.iter().map(place).collect()
}

/// One server and the connections to it.
struct Server {
    config: RedisConfig,
    client: Client,
    connecting: AsyncConnectionConfig,
    idle: Mutex<Vec<Connection>>,
    /// Whether the server lets this user run scripts; `None` until that is known. Once refused they are
    /// not tried again.
    runs_scripts: Mutex<Option<bool>>,
}

impl Server {
    fn new(config: RedisConfig, info: ConnectionInfo) -> RedisResult<Self> {
        // Sent at once is what is given to a connection, and thrown away at once what it has not sent
        // when it is closed.
        let tcp = info.tcp_settings().clone();
        let tcp = tcp.set_nodelay(true).set_linger_time(Duration::ZERO);
        let connecting = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(Some(config.pipeline_timeout()));
        Ok(Self {
            client: Client::open(info.set_tcp_settings(tcp))?,
            config,
            connecting,
            idle: Mutex::default(),
            runs_scripts: Mutex::default(),
        })
    }

    /// Another server of the cluster, reached in the same way.
    fn beside(&self, host: String, port: u16) -> RedisResult<Self> {
        let info = self.client.get_connection_info().clone();
        let address = match info.addr().clone() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure,
                tls_params,
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        Self::new(self.config.clone(), info.set_addr(address))
    }

    /// When who begins now to look for a connection must have one.
    fn connected_by(&self) -> Deadline {
        Deadline::now() + self.config.connect_timeout
    }

    /// Publishes and reports. Whether nothing failed that speaks of the server or of its topics.
    async fn publish(&self, batch: &[Delivery<'_>], connected_by: Deadline) -> bool {
        if batch.is_empty() {
            return true;
        }
        let connection = match self.connection(connected_by).await {
            Ok(connection) => connection,
            Err(error) => {
                report_all(batch, &error);
                return false;
            }
        };
        let mut call = Call {
            server: self,
            rest: batch,
            again: Vec::new(),
            stopped: StoppedKeys::new(),
            connection,
            flights: VecDeque::with_capacity(PIPELINES),
            is_refused: false,
            outage: None,
        };
        call.run().await;
        match &call.outage {
            None => {
                self.keep(call.connection);
                !call.is_refused
            }
            Some(error) => {
                report_all(call.rest, error);
                report_all(&call.again, error);
                self.forget_idle();
                false
            }
        }
    }

    /// Asks which servers have which slots.
    async fn slots(&self, connected_by: Deadline) -> Result<Vec<Place>, PublishError> {
        let mut connection = self.connection(connected_by).await?;
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let asking = command.query_async::<Value>(&mut connection.client);
        let answer = match by(connected_by, asking).await {
            Ok(answer) => answer,
            Err(error) => {
                return Err(PublishError::broker_unavailable(format!(
                    "asking for the cluster's slots: {}",
                    explain(&error).reason()
                )));
            }
        };
        self.keep(connection);
        let asked = match self.client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
            _ => "127.0.0.1",
        };
        places(&answer, asked).ok_or_else(|| {
            PublishError::broker_unavailable("the cluster's slots are told in an unknown form")
        })
    }

    /// Keeps a connection for later calls.
    fn keep(&self, connection: Connection) {
        lock(&self.idle).push(Connection {
            used: Instant::now(),
            ..connection
        });
    }

    /// A connection that works, as far as can be known.
    async fn connection(&self, connected_by: Deadline) -> Result<Connection, PublishError> {
        loop {
            let Some(mut connection) = lock(&self.idle).pop() else {
                return self.connect(connected_by).await;
            };
            if connection.used.elapsed() < FRESH {
                return Ok(connection);
            }
            match ping(&mut connection.client, connected_by).await {
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

    async fn connect(&self, connected_by: Deadline) -> Result<Connection, PublishError> {
        self.try_connect(connected_by).await.map_err(|error| {
            PublishError::broker_unavailable(format!("connecting: {}", explain(&error).reason()))
        })
    }

    async fn try_connect(&self, connected_by: Deadline) -> RedisResult<Connection> {
        let connecting = self
            .client
            .get_multiplexed_async_connection_with_config(&self.connecting);
        let mut client = by(connected_by, connecting).await?;
        let clock = match self.config.trim {
            Some(Trim::Age(_)) => Some(clock(&mut client, connected_by).await?),
            Some(Trim::Entries(_)) | None => None,
        };
        self.try_scripts(&mut client, connected_by).await?;
        Ok(Connection {
            client,
            used: Instant::now(),
            clock,
        })
    }

    /// Asks, until it is known, whether scripts do here.
    async fn try_scripts(
        &self,
        client: &mut MultiplexedConnection,
        deadline: Deadline,
    ) -> RedisResult<()> {
        if self.config.cluster || lock(&self.runs_scripts).is_some() {
            return Ok(());
        }
        let trial = chain(&self.config, Limit::None, &[]);
        let runs = match by(deadline, trial.query_async::<Value>(client)).await {
            Ok(_) => Some(true),
            Err(error) if refuses_scripts(&error) => Some(false),
            // It is busy, say, and asked again over the next connection.
            Err(error) if is_answer(&error) => None,
            Err(error) => return Err(error),
        };
        let mut known = lock(&self.runs_scripts);
        *known = known.or(runs);
        Ok(())
    }

    /// A connection over which the server has answered something.
    async fn connect_and_ask(&self) -> RedisResult<Connection> {
        let connected_by = self.connected_by();
        let mut connection = self.try_connect(connected_by).await?;
        ping(&mut connection.client, connected_by).await?;
        Ok(connection)
    }

    /// Closes what is idle: what one connection has met the others will meet.
    fn forget_idle(&self) {
        let idle = std::mem::take(&mut *lock(&self.idle));
        drop(idle);
    }
}

/// Asks the server what time it is.
async fn clock(client: &mut MultiplexedConnection, deadline: Deadline) -> RedisResult<Clock> {
    let command = redis::cmd("TIME");
    let (seconds, microseconds): (u64, u64) = by(deadline, command.query_async(client)).await?;
    Ok(Clock {
        asked: Instant::now(),
        answered: Duration::from_secs(seconds) + Duration::from_micros(microseconds),
    })
}

/// Whether the server answers. A refusal is an answer.
async fn ping(client: &mut MultiplexedConnection, deadline: Deadline) -> RedisResult<()> {
    let command = redis::cmd("PING");
    match by(deadline, command.query_async::<Value>(client)).await {
        Err(error) if !is_answer(&error) => Err(error),
        _ => Ok(()),
    }
}

/// What is answered until then.
async fn by<T>(deadline: Deadline, asking: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    match timeout_at(deadline, asking).await {
        Ok(answer) => answer,
        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
    }
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
    server: &'b Server,
    connection: Connection,
    /// What is in no pipeline yet.
    rest: &'b [Delivery<'a>],
    /// The first of each chain whose script was refused: it is asked by itself, for its own answer.
    again: Vec<Delivery<'a>>,
    stopped: StoppedKeys<'a>,
    flights: VecDeque<Flight<'a>>,
    /// Whether something was refused that is not the message's fault.
    is_refused: bool,
    /// Why nothing more is sent.
    outage: Option<PublishError>,
}

/// A pipeline on its way.
struct Flight<'a> {
    parts: Vec<Part<'a>>,
    /// The keys of what is chained in it.
    keys: HashSet<&'a str>,
    /// One message that is larger than a pipeline may be.
    is_large: bool,
    asking: Pin<Box<dyn Future<Output = Answers> + Send>>,
    answers: Option<Answers>,
}

/// What one command of a pipeline adds.
enum Part<'a> {
    Single(Delivery<'a>),
    /// Some of one key, in a script.
    Chain(Vec<Delivery<'a>>),
}

/// A pipeline that is being filled.
#[derive(Default)]
struct Filling<'a> {
    singles: Vec<(Delivery<'a>, Entry<'a>)>,
    /// What is chained, by key.
    chains: HashMap<&'a str, Vec<(Delivery<'a>, Entry<'a>)>>,
    messages: usize,
    bytes: usize,
}

impl<'a> Filling<'a> {
    fn is_full_for(&self, entry: &Entry<'_>) -> bool {
        self.messages == PIPELINE_MESSAGES || self.bytes + entry.size() > PIPELINE_BYTES
    }

    fn add(&mut self, delivery: Delivery<'a>, entry: Entry<'a>) {
        self.messages += 1;
        self.bytes += entry.size();
        match chained_key(&delivery) {
            Some(key) => self.chains.entry(key).or_default().push((delivery, entry)),
            None => self.singles.push((delivery, entry)),
        }
    }

    fn into_flight(self, server: &Server, connection: &Connection) -> Flight<'a> {
        let config = &server.config;
        let limit = connection.limit(config.trim);
        let commands = self.singles.len() + self.chains.len();
        let mut pipeline = Pipeline::with_capacity(commands + 1);
        let mut parts = Vec::with_capacity(commands);
        let mut keys = HashSet::with_capacity(self.chains.len());
        let mut singles = self.singles;
        for (key, linked) in self.chains {
            keys.insert(key);
            // One alone needs no script: nothing can be behind it.
            if linked.len() == 1 {
                singles.extend(linked);
                continue;
            }
            let (deliveries, entries): (Vec<_>, Vec<_>) = linked.into_iter().unzip();
            pipeline.add_command(chain(config, limit, &entries));
            parts.push(Part::Chain(deliveries));
        }
        for (delivery, entry) in singles {
            pipeline.add_command(entry.command(config, limit));
            parts.push(Part::Single(delivery));
        }
        if let Some(replicas) = config.replicas {
            let within = u64::try_from(replicas.within.as_millis()).unwrap_or(u64::MAX);
            pipeline.cmd("WAIT").arg(replicas.count).arg(within);
        }
        // One refused command says nothing about the others.
        pipeline.ignore_errors();
        let mut client = connection.client.clone();
        Flight {
            parts,
            keys,
            is_large: self.bytes > PIPELINE_BYTES,
            asking: Box::pin(async move { pipeline.query_async(&mut client).await }),
            answers: None,
        }
    }
}

fn chained_key<'a>(delivery: &Delivery<'a>) -> Option<&'a str> {
    delivery.message().key().filter(|_| delivery.is_chained())
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
        let config = &self.server.config;
        let is_behind_large = self.flights.back().is_some_and(|flight| flight.is_large);
        if self.outage.is_some() || self.flights.len() == PIPELINES || is_behind_large {
            return false;
        }
        let mut filling = Filling::default();
        while let Some(delivery) = self.next() {
            match encode(config, delivery.message()) {
                Ok(entry) => {
                    let is_full = filling.is_full_for(&entry);
                    if is_full && filling.messages > 0 {
                        break;
                    }
                    if is_full && !self.flights.is_empty() {
                        return false;
                    }
                    // What is before it in its key may fail yet.
                    if chained_key(&delivery).is_some_and(|key| self.is_under_way(key)) {
                        break;
                    }
                    filling.add(delivery, entry);
                }
                Err(error) => {
                    delivery.report(Err(error));
                    self.stopped.stop(&delivery);
                }
            }
            self.pass();
        }
        if filling.messages == 0 {
            return false;
        }
        let flight = filling.into_flight(self.server, &self.connection);
        self.flights.push_back(flight);
        true
    }

    /// What is sent next. What is behind a failure of its key is left out.
    fn next(&mut self) -> Option<Delivery<'a>> {
        if let Some(delivery) = self.again.last() {
            return Some(*delivery);
        }
        while let Some(delivery) = self.rest.first() {
            if !self.stopped.has(delivery) {
                return Some(*delivery);
            }
            self.rest = &self.rest[1..];
        }
        None
    }

    /// It is in a pipeline, or answered.
    fn pass(&mut self) {
        if self.again.pop().is_none() {
            self.rest = &self.rest[1..];
        }
    }

    fn is_under_way(&self, key: &str) -> bool {
        self.flights.iter().any(|flight| flight.keys.contains(key))
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
        let missing = match self.server.config.replicas {
            Some(replicas) => answers
                .pop()
                .and_then(|answer| missing_replicas(&answer, replicas)),
            None => None,
        };
        let added = || missing.clone().map_or(Ok(()), Err);
        let mut closes = false;
        for (part, answer) in flight.parts.into_iter().zip(answers) {
            match part {
                Part::Single(delivery) => {
                    let answer = match answer {
                        Ok(Value::Nil) => Err(no_stream()),
                        Ok(_) => added(),
                        Err(error) => Err(explain(&error)),
                    };
                    closes = flight.is_large && answer.is_err();
                    self.report(&delivery, answer);
                }
                Part::Chain(deliveries) => match answer.map(|answer| Ended::read(&answer)) {
                    Ok(Some(ended)) => {
                        let (there, rest) = deliveries.split_at(ended.added.min(deliveries.len()));
                        for delivery in there {
                            self.report(delivery, added());
                        }
                        if let Some(delivery) = rest.first() {
                            let error = ended.failure.as_deref();
                            let error = error.map_or_else(no_stream, explain_in_script);
                            self.report(delivery, Err(error));
                        }
                    }
                    Ok(None) => {
                        let reason = "a script is answered in an unknown form";
                        let error = PublishError::broker_unavailable(reason);
                        self.report(&deliveries[0], Err(error));
                    }
                    // Then nothing of it was added, for a reason that may be one message's or that of
                    // all scripts.
                    Err(error) => {
                        if refuses_scripts(&error) {
                            *lock(&self.server.runs_scripts) = Some(false);
                        }
                        self.stopped.stop(&deliveries[0]);
                        self.again.push(deliveries[0]);
                    }
                },
            }
        }
        // After a value that is longer than it takes, the server closes the connection.
        if closes && self.outage.is_none() {
            match self.server.connect(self.server.connected_by()).await {
                Ok(connection) => self.connection = connection,
                Err(error) => self.outage = Some(error),
            }
        }
    }

    fn report(&mut self, delivery: &Delivery<'a>, answer: Result<(), PublishError>) {
        if let Err(error) = &answer {
            self.stopped.stop(delivery);
            self.is_refused |= error.kind() == PublishErrorKind::TopicUnavailable;
            if error.kind() == PublishErrorKind::BrokerUnavailable {
                self.outage.get_or_insert_with(|| error.clone());
            }
        }
        delivery.report(answer);
    }

    /// Reports on a pipeline whose answers never came.
    async fn unanswered(&mut self, flight: Flight<'a>, error: &RedisError) {
        let explained = explain(error);
        let Flight {
            parts, is_large, ..
        } = flight;
        let deliveries: Vec<Delivery<'a>> = parts
            .into_iter()
            .flat_map(|part| match part {
                Part::Single(delivery) => vec![delivery],
                Part::Chain(deliveries) => deliveries,
            })
            .collect();
        // A server that closes the connection over a message that it finds too large must not pass
        // for one that is away, or the message would be an outage for ever.
        if is_large
            && !error.is_timeout()
            && self.outage.is_none()
            && let Ok(connection) = self.server.connect_and_ask().await
        {
            self.connection = connection;
            let error = PublishError::retryable(format!(
                "the connection was closed over this message, which the server may find too large, \
                 and the server answers: {}",
                explained.reason()
            ));
            for delivery in &deliveries {
                self.stopped.stop(delivery);
            }
            return report_all(&deliveries, &error);
        }
        report_all(&deliveries, &explained);
        self.outage.get_or_insert(explained);
    }
}

/// How far a script came.
struct Ended {
    /// So many entries are in their streams.
    added: usize,
    /// What the server said of the next one.
    failure: Option<String>,
}

impl Ended {
    fn read(answer: &Value) -> Option<Self> {
        let (added, said) = answer.as_sequence()?.split_first()?;
        let Value::Int(added) = added else {
            return None;
        };
        let failure = match said {
            [Value::BulkString(said), ..] => Some(String::from_utf8_lossy(said).into_owned()),
            _ => None,
        };
        Some(Self {
            added: usize::try_from(*added).ok()?,
            failure,
        })
    }
}

fn no_stream() -> PublishError {
    PublishError::topic_unavailable("the stream does not exist, and streams are not created")
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

#[cfg(test)]
mod tests {
    use outbox_core::RelayBuilder;
    use redis::parse_redis_value;

    use super::*;
    use crate::{CONNECT_TIMEOUT, RESPONSE_TIMEOUT};

    /// The relay counts a failure of what stayed without an answer beside confirmed messages, and a
    /// wave may have no more than the second half of the publish timeout.
    #[test]
    fn an_outage_in_mid_batch_is_explained_before_it_looks_like_a_failure_of_messages() {
        // The second time after a connection was closed over a large message.
        let explained = CONNECT_TIMEOUT + RESPONSE_TIMEOUT + CONNECT_TIMEOUT;
        assert!(explained < RelayBuilder::PUBLISH_TIMEOUT / 2);
    }

    fn said(answer: &str) -> Option<Vec<Place>> {
        let answer = answer.replace(' ', "\r\n") + "\r\n";
        places(&parse_redis_value(answer.as_bytes()).unwrap(), "asked")
    }

    #[test]
    fn slots_are_read_with_the_primary_of_each() {
        let answer = "*2 \
             *4 :0 :8191 *3 $9 127.0.0.1 :6379 $1 a *3 $9 127.0.0.1 :6380 $1 b \
             *3 :8192 :16383 *4 $1 h :6381 $1 c *0";
        assert_eq!(
            said(answer).unwrap(),
            [
                (0..=8191, "127.0.0.1".to_owned(), 6379),
                (8192..=16383, "h".to_owned(), 6381),
            ]
        );
        assert_eq!(said("*0").unwrap(), []);
    }

    #[test]
    fn a_server_without_a_name_is_where_the_answer_came_from() {
        for host in ["$0 ", "$-1"] {
            let answer = format!("*1 *3 :0 :1 *3 {host} :6379 $1 a");
            assert_eq!(said(&answer).unwrap(), [(0..=1, "asked".to_owned(), 6379)]);
        }
    }

    #[test]
    fn what_is_no_list_of_slots_is_refused() {
        for answer in [
            "+OK",
            "*1 :1",
            "*1 *3 :0 :1 *0",
            "*1 *3 :0 :70000 *2 $1 h :1",
        ] {
            assert_eq!(said(answer), None, "{answer}");
        }
    }
}
