//! The store: a stock of sessions, and the wait for something to claim.
//!
//! What one look does is in `claim.rs`; how a claim ends in `settle.rs`.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Claim, ClaimLimits, Store, StoreError};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgPool};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::Outbox;
use crate::claim::{self, Look};
use crate::delays::Delays;
use crate::knowledge::Knowledge;
use crate::retention::{InvalidRetention, Turn, check};
use crate::scan::LANES;
use crate::schema::Schema;
use crate::session::{Session, SessionError};
use crate::statements::Statements;
use crate::trial::Trials;
use crate::wake::{Lock, Seen, Wake};

/// A store stays awake for so many short polls, 1 ms and then twice as long each time, before it
/// sleeps, so that steady traffic does not make it toggle: 127 ms in all.
const AWAKE_POLLS: u32 = 7;
/// How often a sleeper that would be woken polls all the same.
const ASLEEP_POLL: Duration = Duration::from_secs(10);
/// How often one polls that nothing would wake.
const UNARMED_POLL: Duration = Duration::from_secs(1);
/// How often one polls that sees work in lanes that others hold: they may have died.
const CONTENDED_POLL: Duration = Duration::from_millis(100);
/// However short its wait, a claim that finds nothing but rows to move, or lanes to look at, goes on
/// with that for so long.
const MOVING: Duration = Duration::from_secs(1);
/// A session that was not used for so long is closed.
const SESSION_IDLE: Duration = Duration::from_secs(300);
/// A server that is told to end idle sessions leaves ours alone for so long.
const SERVER_PATIENCE: Duration = Duration::from_secs(600);

/// The relay's side of an outbox in Postgres.
///
/// Made by [`Outbox::store`]. Every claim has a connection of its own, never one of the application's
/// pool: as many as there are claims at a time, and one that listens.
///
/// Through the `metrics` crate it counts `outbox_postgres_missing_rows_total`: rows that a claim held
/// and that were gone when it was settled. Anything but zero wants a person, and is logged as an error.
pub struct PostgresStore {
    shared: Arc<Shared>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the connection's options, which hold a password.
        f.debug_struct("PostgresStore")
            .field("schema", &self.shared.schema.name())
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

/// A number of lanes that no claim can take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lanes_per_claim is {lanes}, allowed is 1 to {LANES}")]
pub struct InvalidLanes {
    lanes: usize,
}

/// What all claims of one store share.
pub(crate) struct Shared {
    pub(crate) statements: Statements,
    pub(crate) options: Options,
    knowledge: Mutex<Knowledge>,
    delays: Mutex<Delays>,
    schema: Schema,
    pub(crate) connect: PgConnectOptions,
    /// Where to listen, if not where claims connect.
    listen: Option<PgConnectOptions>,
    sessions: Mutex<Vec<(Session, Instant)>>,
    /// When the partitions of what is kept are looked after.
    pub(crate) retention: Mutex<Turn>,
    /// They were looked after once.
    pub(crate) first_days: OnceCell<()>,
    pub(crate) trials: Arc<Trials>,
    wake: OnceLock<Wake>,
    /// Polls in a row that found nothing.
    idle: AtomicU32,
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) lanes_per_claim: usize,
    pub(crate) wait_until_flushed: bool,
    pub(crate) keep_delivered_for: Option<Duration>,
    asynchronous_settle: bool,
    pooled: bool,
}

impl Outbox {
    /// The relay's side of this outbox. Takes the pool's connection options, never its connections. The
    /// name of its sessions is `outbox relay`, the schema, and the application name of the options, so
    /// that people see whose they are. For an outbox
    /// [without prepared statements](Self::without_prepared_statements) it is one
    /// [through a pooler](PostgresStore::through_pooler).
    pub fn store(&self, pool: &PgPool) -> PostgresStore {
        let connect = relay_options(pool, self.schema());
        let options = Options {
            lanes_per_claim: PostgresStore::LANES_PER_CLAIM,
            wait_until_flushed: false,
            keep_delivered_for: None,
            asynchronous_settle: true,
            pooled: !self.prepared,
        };
        PostgresStore::new(self.schema.clone(), connect, None, options)
    }
}

impl PostgresStore {
    /// How many of the 64 lanes one claim takes under load, unless set.
    pub const LANES_PER_CLAIM: usize = 8;

    fn new(
        schema: Schema,
        connect: PgConnectOptions,
        listen: Option<PgConnectOptions>,
        options: Options,
    ) -> Self {
        let shared = Shared {
            statements: Statements::new(&schema, options.pooled, options.asynchronous_settle),
            options,
            knowledge: Mutex::new(Knowledge::new()),
            delays: Mutex::new(Delays::new(std::time::Instant::now())),
            schema,
            connect,
            listen,
            sessions: Mutex::default(),
            retention: Mutex::default(),
            first_days: OnceCell::new(),
            trials: Trials::new(),
            wake: OnceLock::new(),
            idle: AtomicU32::new(0),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    fn with(self, change: impl FnOnce(&mut Options)) -> Self {
        let mut options = self.shared.options.clone();
        change(&mut options);
        Self::new(
            self.shared.schema.clone(),
            self.shared.connect.clone(),
            self.shared.listen.clone(),
            options,
        )
    }

    /// How many lanes one claim takes under load, 1 to 64. Fewer let more workers claim side by side;
    /// more give each claim more keys, and so shorter waves. A claim takes more by itself while
    /// traffic is thin.
    ///
    /// # Errors
    ///
    /// [`InvalidLanes`]: a number that no claim can take.
    pub fn lanes_per_claim(self, lanes: usize) -> Result<Self, InvalidLanes> {
        if (1..=LANES).contains(&lanes) {
            Ok(self.with(|options| options.lanes_per_claim = lanes))
        } else {
            Err(InvalidLanes { lanes })
        }
    }

    /// For connections through a transaction pooler such as PgBouncer: nothing outlives a transaction,
    /// no prepared statement, no `LISTEN`, no lock. Polling finds messages, within a second at the
    /// latest when there was nothing to do.
    #[must_use]
    pub fn through_pooler(self) -> Self {
        self.with(|options| options.pooled = true)
    }

    /// Waits to be woken on a connection of another pool's options: one past the pooler, to the same
    /// database. So a relay [through a pooler](Self::through_pooler) needs not poll every second. Takes
    /// the pool's connection options, never its connections.
    #[must_use]
    pub fn listening_on(self, pool: &PgPool) -> Self {
        let listen = relay_options(pool, self.shared.schema.name());
        Self::new(
            self.shared.schema.clone(),
            self.shared.connect.clone(),
            Some(listen),
            self.shared.options.clone(),
        )
    }

    /// Has each settle wait until it is on the server's disk. By default it does not
    /// (`synchronous_commit = off`), since a settle that a crash of the server forgets only repeats
    /// messages.
    #[must_use]
    pub fn synchronous_settle(self) -> Self {
        self.with(|options| options.asynchronous_settle = false)
    }

    /// Has each claim wait until what it read is on the server's disk. Needed where applications commit
    /// with `synchronous_commit = off`: a crash could take their transactions back after their messages
    /// were delivered.
    #[must_use]
    pub fn wait_until_flushed(self) -> Self {
        self.with(|options| options.wait_until_flushed = true)
    }

    /// Keeps what was delivered for this long, in the table `delivered`, in the transaction that settles it. By
    /// default nothing is kept. It costs the relay about another insert of each message
    /// (`docs/performance.md`).
    ///
    /// The table has a partition for each day (UTC), and a day is dropped as a whole when all of it is older, so
    /// what is kept is up to a day older. The relay makes and drops them when it starts and then every hour.
    /// While somebody reads a day for longer, as a dump does, it stays. The first claims wait until the days are
    /// made. Set the same for all relays of an outbox: each keeps only what it delivers itself, and the shortest
    /// time drops days for all. Once the time is no longer set, nothing is added, and nothing dropped.
    ///
    /// # Errors
    ///
    /// [`InvalidRetention`]: less than a day, or more than 3650.
    pub fn keep_delivered_for(self, time: Duration) -> Result<Self, InvalidRetention> {
        check(time)?;
        Ok(self.with(|options| options.keep_delivered_for = Some(time)))
    }
}

/// How a relay connects: as the pool does, under a name that says what it is.
fn relay_options(pool: &PgPool, schema: &str) -> PgConnectOptions {
    let options = (*pool.connect_options())
        .clone()
        .disable_statement_logging();
    let name = match options.get_application_name() {
        Some(given) => cut_off(format!("{} {given}", relay_name(schema))),
        None => relay_name(schema),
    };
    options.application_name(&name)
}

/// What the names of a relay's sessions begin with.
pub(crate) fn relay_name(schema: &str) -> String {
    cut_off(format!("outbox relay {schema}"))
}

/// A name as the server keeps it. One that it has to cut off by itself is a notice in the log, at every
/// connection.
fn cut_off(mut name: String) -> String {
    name.truncate(name.floor_char_boundary(63));
    name
}

impl Shared {
    /// A session of the stock, the one used last, or a new one.
    pub(crate) async fn session(&self) -> Result<Session, SessionError> {
        let idle = self.stock().pop();
        if let Some((session, _)) = idle {
            return Ok(session);
        }
        let width = self.options.lanes_per_claim;
        // A pooler takes no settings at the start of a session.
        let connect = match self.options.pooled {
            true => self.connect.clone(),
            false => {
                let idle = SERVER_PATIENCE.as_millis();
                self.connect
                    .clone()
                    .options([("idle_session_timeout", idle)])
            }
        };
        let (session, start) = Session::open(&connect, &self.statements, width).await?;
        self.knowledge().begin(start);
        Ok(session)
    }

    pub(crate) fn knowledge(&self) -> MutexGuard<'_, Knowledge> {
        self.knowledge
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn delays(&self) -> MutexGuard<'_, Delays> {
        self.delays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session has failed. What ended it has likely ended the others.
    pub(crate) fn forget(&self) {
        self.knowledge().forget();
        self.stock().clear();
    }

    pub(crate) fn put_back(&self, session: Session) {
        let mut stock = self.stock();
        stock.retain(|(_, since)| since.elapsed() < SESSION_IDLE);
        stock.push((session, Instant::now()));
    }

    fn stock(&self) -> MutexGuard<'_, Vec<(Session, Instant)>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) -> Option<&Wake> {
        let direct = (!self.options.pooled).then_some(&self.connect);
        let listen = self.listen.as_ref().or(direct)?;
        Some(
            self.wake
                .get_or_init(|| Wake::spawn(listen, self.schema.name())),
        )
    }

    /// How long to wait after a look that found nothing.
    fn pause(&self, contended: bool, due_in: Option<i64>, lock: Lock) -> Duration {
        let polls = self.idle.load(Ordering::Relaxed);
        let doubled = Duration::from_millis(1u64 << polls.min(16));
        let longest = match lock {
            _ if contended => CONTENDED_POLL,
            Lock::Ours | Lock::Anothers if polls >= AWAKE_POLLS => {
                return due(due_in).min(ASLEEP_POLL);
            }
            _ => UNARMED_POLL,
        };
        doubled.min(longest).min(due(due_in))
    }
}

/// A look under way, given up when it is dropped: its session did not answer in time. What silenced that
/// one has likely silenced the others, and each would cost its user the same time.
struct Looking<'a> {
    shared: &'a Shared,
}

impl Looking<'_> {
    fn answered(self) {
        std::mem::forget(self);
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.shared.forget();
    }
}

/// The time until a key is due, but never so short that polling becomes a loop.
fn due(micros: Option<i64>) -> Duration {
    micros.map_or(Duration::MAX, |micros| {
        Duration::from_micros(micros.unsigned_abs()).max(Duration::from_millis(1))
    })
}

#[async_trait]
impl Store for PostgresStore {
    async fn claim(&self, limits: &ClaimLimits) -> Result<Option<Box<dyn Claim>>, StoreError> {
        let shared = &self.shared;
        let started = Instant::now();
        loop {
            // Seen before the look, so that what is committed after it ends the sleep.
            let wake = (!limits.wait.is_zero()).then(|| shared.wake()).flatten();
            let seen = wake.map_or(Seen::default(), Wake::seen);
            let looking = Looking { shared };
            shared.look_after_kept().await;
            let look = claim::look(shared, limits).await;
            looking.answered();
            let (contended, due_in) = match look {
                Ok(Look::Claimed(claim)) => {
                    shared.idle.store(0, Ordering::Relaxed);
                    return Ok(Some(claim));
                }
                Ok(Look::Again) if started.elapsed() < limits.wait.max(MOVING) => continue,
                Ok(Look::Again) => return Ok(None),
                Ok(Look::Nothing { contended, due_in }) => (contended, due_in),
                Err(error) => {
                    shared.forget();
                    return Err(StoreError::new("claim", error));
                }
            };
            let left = limits.wait.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            let pause = shared.pause(contended, due_in, seen.lock).min(left);
            let polls = shared.idle.load(Ordering::Relaxed).saturating_add(1);
            shared.idle.store(polls, Ordering::Relaxed);
            match wake {
                Some(wake) if polls > AWAKE_POLLS => {
                    if seen.lock == Lock::Nobodys {
                        wake.ask();
                    }
                    wake.sleep(seen, pause).await;
                }
                _ => tokio::time::sleep(pause).await,
            }
            // The next call begins with a look; one more here would only be asked of the server twice.
            if started.elapsed() >= limits.wait {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sqlx::postgres::PgPoolOptions;

    use super::*;

    #[tokio::test]
    async fn debug_shows_the_options_and_no_password() {
        let pool = PgPoolOptions::new().connect_lazy("postgres://user:hunter2@127.0.0.1:1/shop");
        let pool = pool.unwrap();
        let store = Outbox::new().store(&pool).through_pooler();
        let store = store.listening_on(&pool);
        let shown = format!("{store:?}");
        assert!(shown.contains("\"outbox\""), "{shown}");
        assert!(shown.contains("pooled: true"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
