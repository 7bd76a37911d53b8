//! Applications that write while everything around them breaks.
//!
//! A key belongs to one producer, which enqueues for it in one transaction after another, so the numbers
//! of a key are its enqueue order. What rolls back has used its numbers up.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use outbox_core::Message;
use outbox_postgres::Outbox;
use sqlx::{Connection as _, PgConnection, PgPool, Row as _};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep};
use uuid::Uuid;

use crate::Result;
use crate::record::{Attempt, Committed, Content};
use crate::timeline::Timeline;

/// Producers whose transactions stay open for long.
const LONG: usize = 4;
/// The keys of each producer.
const KEYS: usize = 15;
/// Messages that a transaction of one to four commits on the average: one of eight is rolled back.
const MESSAGES: f64 = 2.5 * 7.0 / 8.0;

/// What the producers remember, outside of the database.
pub(crate) struct Ledger {
    timeline: Arc<Timeline>,
    attempts: Mutex<HashMap<Uuid, Attempt>>,
}

impl Ledger {
    fn tried(&self, id: Uuid) {
        self.lock().insert(id, Attempt::default());
    }

    fn asks_for_commit(&self, ids: &[Uuid]) {
        let now = Some(self.timeline.now());
        let mut attempts = self.lock();
        for id in ids {
            attempts.entry(*id).or_default().commit_asked = now;
        }
    }

    fn committed(&self, ids: &[Uuid]) {
        let now = Some(self.timeline.now());
        let mut attempts = self.lock();
        for id in ids {
            attempts.entry(*id).or_default().commit_answered = now;
        }
    }

    /// Messages whose commit the database has confirmed.
    pub(crate) fn confirmed(&self) -> usize {
        self.lock()
            .values()
            .filter(|it| it.commit_answered.is_some())
            .count()
    }

    /// All attempts so far, and forgets them.
    pub(crate) fn take(&self) -> HashMap<Uuid, Attempt> {
        std::mem::take(&mut self.lock())
    }

    /// What is known of a message that has arrived.
    pub(crate) fn settle(&self, id: &Uuid) -> Settled {
        let mut attempts = self.lock();
        match attempts.get(id) {
            None => Settled::Before,
            Some(Attempt {
                commit_answered: None,
                ..
            }) => Settled::NotYet,
            Some(Attempt {
                commit_answered: Some(answered),
                ..
            }) => {
                let answered = *answered;
                attempts.remove(id);
                Settled::Committed(answered)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Attempt>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the producers know of a message that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// When its commit was confirmed. It is forgotten now.
    Committed(Duration),
    /// It is faster than the answer to its commit.
    NotYet,
    /// It was settled and forgotten before.
    Before,
}

/// Producers that run.
pub(crate) struct Producers {
    pub(crate) ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
    running: Vec<JoinHandle<()>>,
}

/// What they are to do.
pub(crate) struct Work<'a> {
    pub(crate) pool: &'a PgPool,
    pub(crate) topic: &'a str,
    /// Messages that commit in a second.
    pub(crate) rate: u32,
    pub(crate) seed: u64,
    /// Producers of short transactions, which share the rate.
    pub(crate) producers: usize,
    /// Whether there are also some whose transactions stay open for long.
    pub(crate) long: bool,
    /// Whether the business row is kept; without it there is no log of commits.
    pub(crate) log: bool,
}

impl Producers {
    pub(crate) fn start(work: &Work<'_>, timeline: &Arc<Timeline>) -> Self {
        let ledger = Arc::new(Ledger {
            timeline: Arc::clone(timeline),
            attempts: Mutex::default(),
        });
        let stop: Arc<AtomicBool> = Arc::default();
        let short = work.producers;
        let all = if work.long { short + LONG } else { short };
        let running = (0..all).map(|number| {
            let producer = Producer {
                pool: work.pool.clone(),
                topic: work.topic.to_owned(),
                log: work.log,
                ledger: Arc::clone(&ledger),
                stop: Arc::clone(&stop),
                random: Rng::with_seed(work.seed.wrapping_mul(1000).wrapping_add(number as u64)),
                keys: (0..KEYS)
                    .map(|key| Key {
                        name: format!("key-{number}-{key}"),
                        last: 0,
                    })
                    .collect(),
            };
            let each = Duration::from_secs_f64(MESSAGES * short as f64 / f64::from(work.rate));
            tokio::spawn(async move {
                match number < short {
                    true => producer.steadily(each).await,
                    false => producer.slowly().await,
                }
            })
        });
        Self {
            running: running.collect(),
            ledger,
            stop,
        }
    }

    /// Lets each end its transaction.
    pub(crate) async fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let mut ended = Ok(());
        for producer in self.running {
            if let Err(error) = producer.await {
                ended = Err(error.into());
            }
        }
        ended
    }
}

struct Producer {
    pool: PgPool,
    topic: String,
    log: bool,
    ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
    random: Rng,
    keys: Vec<Key>,
}

struct Key {
    name: String,
    /// Its highest number so far, whether that committed or not.
    last: i64,
}

impl Producer {
    async fn steadily(mut self, each: Duration) {
        let mut ticks = interval(each);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.stop.load(Ordering::Relaxed) {
            ticks.tick().await;
            let key = self.random.usize(..KEYS);
            self.try_transaction(key, Duration::ZERO).await;
        }
    }

    /// A transaction that stays open, and another of the same key as soon as it has ended.
    async fn slowly(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let key = self.random.usize(..KEYS);
            let open = Duration::from_millis(self.random.u64(500..10_000));
            self.try_transaction(key, open).await;
            self.try_transaction(key, Duration::ZERO).await;
        }
    }

    /// What fails, because the server is away, has used its numbers up.
    async fn try_transaction(&mut self, key: usize, open: Duration) {
        if self.transaction(key, open).await.is_err() {
            sleep(Duration::from_millis(100)).await; // wait: the pause before the next try
        }
    }

    /// Of eight, one is rolled back, and two roll back to a savepoint in the middle.
    async fn transaction(&mut self, key: usize, open: Duration) -> Result<(), sqlx::Error> {
        let count = self.random.usize(1..=4);
        let rolls_back = self.random.u8(..8);
        let mut ids = Vec::new();
        let mut tx = self.pool.begin().await?;
        for number in 0..count {
            if number == count / 2 && rolls_back < 2 {
                let mut savepoint = tx.begin().await?;
                self.write(&mut savepoint, key).await?;
                savepoint.rollback().await?;
            }
            ids.push(self.write(&mut tx, key).await?);
        }
        let patience = tokio::time::Instant::now() + open;
        while tokio::time::Instant::now() < patience && !self.stop.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(100)).await; // wait: a transaction that stays open
        }
        if rolls_back == 2 {
            return tx.rollback().await;
        }
        self.ledger.asks_for_commit(&ids);
        tx.commit().await?;
        self.ledger.committed(&ids);
        Ok(())
    }

    /// Enqueues a message, and writes what the audit will hold it against.
    async fn write(&mut self, conn: &mut PgConnection, key: usize) -> Result<Uuid, sqlx::Error> {
        let key = &mut self.keys[key];
        key.last += 1;
        let n = key.last;
        let message = message(&mut self.random, &self.topic, &key.name, n);
        let id = message.id();
        self.ledger.tried(id);
        if self.log {
            let (names, values): (Vec<&str>, Vec<&str>) = message.headers().iter().unzip();
            sqlx::query("INSERT INTO log.enqueued VALUES ($1, $2, $3, $4, $5, $6)")
                .bind(id)
                .bind(message.key())
                .bind(n)
                .bind(message.payload().map(|payload| payload.as_ref()))
                .bind(names)
                .bind(values)
                .execute(&mut *conn)
                .await?;
        }
        Outbox::new().enqueue(conn, &message).await?;
        Ok(id)
    }
}

/// Of all sorts: with and without a key, headers and a payload, which may be empty or no text.
fn message(random: &mut Rng, topic: &str, key: &str, n: i64) -> Message {
    let mut builder = Message::to(topic);
    if random.u8(..10) > 0 {
        builder = builder.key(key);
    }
    if random.u8(..3) == 0 {
        builder = builder
            .header("number", n.to_string())
            .header("kind", "größe: m², \u{1F980}");
    }
    let built = match random.u8(..20) {
        0 => builder.tombstone(),
        1 => builder.bytes(Vec::new()),
        2..10 => builder.bytes(
            std::iter::repeat_with(|| random.u8(..))
                .take(200)
                .collect::<Vec<_>>(),
        ),
        _ => builder.bytes(format!("{{\"key\": \"{key}\", \"number\": {n}}}")),
    };
    built.unwrap_or_else(|error| panic!("a message that is refused: {error}"))
}

/// The database's log of commits, all that there will ever be. The lock waits for every transaction that has
/// written to it: one whose client never got an answer may still be on its way.
pub(crate) async fn log(pool: &PgPool) -> Result<Vec<Committed>> {
    let mut tx = pool.begin().await?;
    sqlx::raw_sql("SET LOCAL lock_timeout = '60s'; LOCK TABLE log.enqueued IN SHARE MODE")
        .execute(&mut *tx)
        .await?;
    let rows =
        sqlx::query("SELECT id, key, n, payload, header_names, header_values FROM log.enqueued")
            .fetch_all(&mut *tx)
            .await?;
    let committed = rows.iter().map(|row| {
        let names: Vec<String> = row.try_get(4)?;
        let values: Vec<String> = row.try_get(5)?;
        Ok(Committed {
            id: row.try_get(0)?,
            n: row.try_get(2)?,
            content: Content {
                key: row.try_get(1)?,
                payload: row.try_get(3)?,
                headers: names.into_iter().zip(values).collect(),
            },
        })
    });
    committed.collect()
}

#[cfg(test)]
mod tests {
    use sqlx::postgres::PgPoolOptions;

    use super::*;
    use crate::folder::Folder;
    use crate::postgres::Postgres;

    #[tokio::test]
    async fn the_log_has_what_was_still_to_commit_when_it_was_asked_for() -> Result<()> {
        let mut folder = Folder::make()?;
        let postgres = Postgres::start(&mut folder, None).await?;
        let pool = PgPoolOptions::new().connect(&postgres.url()).await?;
        Outbox::new().migrate(&pool).await?;
        sqlx::raw_sql(include_str!("log.sql"))
            .execute(&pool)
            .await?;
        let mut open = pool.begin().await?;
        let id = Uuid::now_v7();
        sqlx::query("INSERT INTO log.enqueued VALUES ($1, NULL, 1, NULL, '{}', '{}')")
            .bind(id)
            .execute(&mut *open)
            .await?;
        let reading = tokio::spawn({
            let pool = pool.clone();
            async move { log(&pool).await }
        });
        let waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted";
        while !sqlx::query_scalar::<_, bool>(waits)
            .fetch_one(&pool)
            .await?
        {
            assert!(!reading.is_finished(), "it does not wait");
            sleep(Duration::from_millis(10)).await; // wait: the poll of a loop that ends either way
        }
        open.commit().await?;
        let committed = reading.await??;
        assert_eq!(committed.len(), 1);
        assert_eq!(committed[0].id, id);
        Ok(())
    }

    #[test]
    fn a_message_that_is_faster_than_the_answer_to_its_commit_is_settled_after_it() {
        let ledger = Ledger {
            timeline: Arc::new(Timeline::begin()),
            attempts: Mutex::default(),
        };
        let id = Uuid::now_v7();
        ledger.tried(id);
        ledger.asks_for_commit(&[id]);
        assert_eq!(ledger.settle(&id), Settled::NotYet);
        ledger.committed(&[id]);
        assert_eq!(ledger.confirmed(), 1);
        assert!(matches!(ledger.settle(&id), Settled::Committed(_)));
        assert_eq!(ledger.settle(&id), Settled::Before);
        assert_eq!(ledger.confirmed(), 0);
    }
}
