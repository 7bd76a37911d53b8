//! The quiet wake-up: sleeping until a producer commits, without making producers notify while awake.
//!
//! While relays sleep, the task of one of them holds an advisory lock exclusively on its listening connection,
//! and only then do producers notify all that listen (see `wake_relay` in the schema). The order is what loses no
//! wake-up: `LISTEN`, then the lock, then one more poll by the caller, then the wait. A producer that
//! had the lock shared before is seen by that poll or, if it commits later, kept the lock from us.
//!
//! The connection is direct and the task's own. It has a heartbeat and an `idle_session_timeout`, so
//! that the lock of a dead or frozen host is freed. When anything fails, the lock counts as lost and the
//! caller polls; polling finds everything that a wake-up would.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// The server ends the listening session when it hears nothing for so long; a third of it is the beat.
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How often one tries for the lock that another sleeper has: nothing tells when that one is gone, and then no
/// producer wakes anybody.
const SUCCESSION: Duration = Duration::from_secs(3);
/// Bounds every statement on the listening connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long until a connection that could not be made is tried again.
const RECONNECT: Duration = Duration::from_secs(5);

/// What a caller sees before it polls, and gives back when it sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) lock: Lock,
    /// How often a producer's commit woke us.
    woken: u64,
}

/// Who holds the sleeper's lock: while somebody does, a producer's commit wakes all who listen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Lock {
    /// Nobody, as far as we know: a producer's commit would not wake us.
    #[default]
    Nobodys,
    Ours,
    /// Another sleeper's.
    Anothers,
}

/// The handle of the task; dropping it ends the task and frees the lock.
pub(crate) struct Wake {
    seen: watch::Receiver<Seen>,
    asked: watch::Sender<u64>,
    task: AbortHandle,
}

impl Drop for Wake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Wake {
    /// Starts the task. It connects when somebody first asks to sleep.
    pub(crate) fn spawn(options: &PgConnectOptions, schema: &str) -> Self {
        let (seen_out, seen) = watch::channel(Seen::default());
        let (asked, asked_in) = watch::channel(0);
        let timeout = SESSION_TIMEOUT.as_millis().to_string();
        let task = Task {
            options: options.clone().options([("idle_session_timeout", timeout)]),
            lock_name: format!("outbox:{schema}"),
            seen: seen_out,
            asked: asked_in,
        };
        let task = tokio::spawn(task.run()).abort_handle();
        Self { seen, asked, task }
    }

    /// What there is to see now. Taken before a poll, it makes the sleep after it safe.
    pub(crate) fn seen(&self) -> Seen {
        *self.seen.borrow()
    }

    /// Asks for the lock, once: after a wake-up it has to be asked for again.
    pub(crate) fn ask(&self) {
        self.asked.send_modify(|times| *times += 1);
    }

    /// Sleeps until something is not as `seen` any more (a producer committed, the lock was got or
    /// lost), or `longest` has passed. Cancel safe.
    pub(crate) async fn sleep(&self, seen: Seen, longest: Duration) {
        let mut now = self.seen.clone();
        let changed = async { now.wait_for(|now| *now != seen).await.is_ok() };
        // A change and the end of the time are alike: the caller polls. Without the task there is
        // nothing to wait for but the time.
        if timeout(longest, changed).await == Ok(false) {
            sleep(longest).await;
        }
    }
}

struct Task {
    options: PgConnectOptions,
    lock_name: String,
    seen: watch::Sender<Seen>,
    asked: watch::Receiver<u64>,
}

/// The store is gone, and the task with it.
struct Gone;

impl Task {
    async fn run(mut self) {
        while self.asked.changed().await.is_ok() {
            match timeout(PATIENCE, self.connect()).await {
                Ok(Ok(listener)) => match self.serve(listener).await {
                    Err(Gone) => return,
                    Ok(()) => self.lost(),
                },
                failed => {
                    let reason = match failed {
                        Ok(Err(error)) => error.to_string(),
                        _ => "timed out".to_owned(),
                    };
                    tracing::debug!(reason, "cannot listen for wake-ups, polling instead");
                    sleep(RECONNECT).await;
                }
            }
        }
    }

    async fn connect(&self) -> Result<PgListener, sqlx::Error> {
        // A pool of one, since that is how sqlx makes a listener; it ends with the listener.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(PATIENCE)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(self.options.clone());
        let mut listener = PgListener::connect_with(&pool).await?;
        // A connection that was made anew behind our back would be without the lock.
        listener.eager_reconnect(false);
        let channel: String = sqlx::query_scalar(include_str!("../sql/sleeper_channel.sql"))
            .bind(&self.lock_name)
            .fetch_one(&mut listener)
            .await?;
        listener.listen(&channel).await?;
        Ok(listener)
    }

    /// Takes the lock when asked and waits for notifications, until the connection is lost.
    async fn serve(&mut self, mut listener: PgListener) -> Result<(), Gone> {
        loop {
            if self.seen.borrow().lock != Lock::Ours {
                match self.try_lock(&mut listener).await {
                    Some(lock) => self.seen.send_modify(|seen| seen.lock = lock),
                    None => return Ok(()),
                }
            }
            let beat = match self.seen.borrow().lock {
                Lock::Anothers => SUCCESSION,
                Lock::Ours | Lock::Nobodys => HEARTBEAT,
            };
            tokio::select! {
                // A notification that is for another sleeper wakes this one as well.
                notified = timeout(beat, listener.try_recv()) => match notified {
                    Ok(Ok(Some(_))) => {
                        let was_ours = self.seen.borrow().lock == Lock::Ours;
                        self.seen.send_modify(|seen| {
                            *seen = Seen { lock: Lock::Nobodys, woken: seen.woken + 1 };
                        });
                        if was_ours && self.unlock(&mut listener).await.is_none() {
                            return Ok(());
                        }
                        while listener.next_buffered().is_some() {}
                        if self.wait_until_asked(&mut listener).await? {
                            continue;
                        }
                        return Ok(());
                    }
                    Ok(_) => return Ok(()),
                    Err(_) if self.seen.borrow().lock == Lock::Anothers => {}
                    Err(_) => {
                        if self.beat(&mut listener).await.is_none() {
                            return Ok(());
                        }
                    }
                },
                asked = self.asked.changed() => if asked.is_err() {
                    return Err(Gone);
                },
            }
        }
    }

    /// Awake: keeps the connection until somebody asks to sleep. `false`: the connection is lost.
    async fn wait_until_asked(&mut self, listener: &mut PgListener) -> Result<bool, Gone> {
        loop {
            match timeout(HEARTBEAT, self.asked.changed()).await {
                Ok(Ok(())) => return Ok(true),
                Ok(Err(_)) => return Err(Gone),
                Err(_) if self.beat(listener).await.is_none() => return Ok(false),
                Err(_) => {}
            }
        }
    }

    fn lost(&self) {
        self.seen.send_modify(|seen| seen.lock = Lock::Nobodys);
    }

    async fn try_lock(&self, listener: &mut PgListener) -> Option<Lock> {
        let lock = sqlx::query_as(include_str!("../sql/sleeper_lock.sql"))
            .bind(&self.lock_name)
            .fetch_one(listener);
        Some(match timeout(PATIENCE, lock).await.ok()?.ok()? {
            (true, _) => Lock::Ours,
            (false, true) => Lock::Anothers,
            // Producers are at work.
            (false, false) => Lock::Nobodys,
        })
    }

    async fn unlock(&self, listener: &mut PgListener) -> Option<bool> {
        let unlock = sqlx::query_scalar(include_str!("../sql/sleeper_unlock.sql"))
            .bind(&self.lock_name)
            .fetch_one(listener);
        timeout(PATIENCE, unlock).await.ok()?.ok()
    }

    async fn beat(&self, listener: &mut PgListener) -> Option<i32> {
        let beat = sqlx::query_scalar(include_str!("../sql/sleeper_beat.sql")).fetch_one(listener);
        timeout(PATIENCE, beat).await.ok()?.ok()
    }
}
