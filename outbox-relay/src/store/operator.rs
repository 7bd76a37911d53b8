//! What an operator sees and decides, whichever store holds the outbox: the same functions, with the pool
//! put in, errors in words, and a bound.

use std::time::Duration;

use outbox_core::admin::{
    DeadContent, DeadFilter, DeadPage, Decided, DelayedPage, DelayedPlace, Finding, Gauges,
    KeyFilter, KeyPage, PausedTopic, Resumed, Retried, Status,
};
use outbox_core::{TopicPattern, Uuid};
use tokio::time::timeout;

#[cfg(feature = "postgres")]
use super::Opened;
use super::{Store, away};
use crate::failure::Failure;
use crate::settings;
use crate::text::span;

/// How long a look may take. The stores bound their statements below it; a server that has vanished in the
/// middle of one says nothing at all.
const LOOK_TIMEOUT: Duration = Duration::from_secs(45);

/// How long a step of a decision may take. A step waits for claims that hold its lanes, and the stores bound
/// each of its statements to 5 minutes.
const STEP_TIMEOUT: Duration = Duration::from_secs(10 * 60);

const NOT_MIGRATED: &str =
    "the tables are not there, or not those of this version: `outbox migrate` makes them";

const NO_FILE: &str = "the database file cannot be opened: `outbox migrate` makes one that is not there, and this \
                       user must have the right to read and write it and its folder";

/// Replaying, discarding or counting dead messages, step by step.
pub(crate) enum DeadSteps {
    #[cfg(feature = "postgres")]
    Postgres(outbox_postgres::DeadSteps),
    #[cfg(feature = "sqlite")]
    Sqlite(outbox_sqlite::DeadSteps),
}

/// Having keys tried now, step by step.
pub(crate) enum KeySteps {
    #[cfg(feature = "postgres")]
    Postgres(outbox_postgres::KeySteps),
    #[cfg(feature = "sqlite")]
    Sqlite(outbox_sqlite::KeySteps),
}

impl Store {
    /// Opens the outbox, and makes sure that its database answers.
    pub(crate) async fn reach(settings: &settings::Store) -> Result<Self, Failure> {
        let store = Self::open(settings)?;
        match &store {
            #[cfg(feature = "postgres")]
            Self::Postgres(postgres) => postgres.reach().await?,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => {}
        }
        Ok(store)
    }

    /// Opens the outbox, and makes sure that its database answers and has the tables.
    pub(crate) async fn ready(settings: &settings::Store) -> Result<Self, Failure> {
        let store = Self::open(settings)?;
        match &store {
            #[cfg(feature = "postgres")]
            Self::Postgres(postgres) => match postgres.relay().await? {
                Opened::Store(_) => {}
                Opened::NotMigrated => return Err(Failure::new(NOT_MIGRATED)),
                Opened::NotYet(reason) => return Err(Failure::new(reason)),
            },
            // Its relay's side is a lock that others may hold; what is missing is said by the first look.
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => {}
        }
        Ok(store)
    }

    pub(crate) async fn status(&self) -> Result<Status, Failure> {
        each!(Store, self, store => look(store.outbox.status(&store.pool)).await)
    }

    pub(crate) async fn gauges(&self) -> Result<Gauges, Failure> {
        each!(Store, self, store => look(store.outbox.gauges(&store.pool)).await)
    }

    /// A page of them that is full where there is more: a look gives back what it finds within its bound.
    pub(crate) async fn held_keys(
        &self,
        filter: &KeyFilter,
        after: Option<i64>,
        limit: u32,
    ) -> Result<KeyPage, Failure> {
        let part = async |after, limit| each!(Store, self, store => look(store.outbox.held_keys(&store.pool, filter, after, limit)).await);
        let mut page = part(after, limit).await?;
        while let Some(next) = page.next
            && page.keys.len() < limit as usize
        {
            let more = part(Some(next), limit - page.keys.len() as u32).await?;
            page.keys.extend(more.keys);
            page.next = more.next;
        }
        Ok(page)
    }

    pub(crate) fn retry_now(&self, filter: KeyFilter) -> KeySteps {
        each!(Store, self, store => KeySteps of store.outbox.retry_now(&store.pool, filter))
    }

    /// A page of them, as of [`held_keys`](Self::held_keys).
    pub(crate) async fn dead(
        &self,
        filter: &DeadFilter,
        after: Option<i64>,
        limit: u32,
    ) -> Result<DeadPage, Failure> {
        let part = async |after, limit| each!(Store, self, store => look(store.outbox.dead(&store.pool, filter, after, limit)).await);
        let mut page = part(after, limit).await?;
        while let Some(next) = page.next
            && page.messages.len() < limit as usize
        {
            let more = part(Some(next), limit - page.messages.len() as u32).await?;
            page.messages.extend(more.messages);
            page.next = more.next;
        }
        Ok(page)
    }

    pub(crate) async fn dead_content(&self, id: Uuid) -> Result<Option<DeadContent>, Failure> {
        each!(Store, self, store => look(store.outbox.dead_content(&store.pool, id)).await)
    }

    pub(crate) fn count_dead(&self, filter: DeadFilter) -> DeadSteps {
        each!(Store, self, store => DeadSteps of store.outbox.count_dead(&store.pool, filter))
    }

    /// How many messages consumers have forgotten.
    pub(crate) async fn forget(&self, age: Duration) -> Result<u64, Failure> {
        // In steps; what they have done stays done.
        each!(Store, self, store => within(STEP_TIMEOUT, store.inbox.forget(&store.pool, age)).await)
    }

    /// Whether it was not paused before.
    pub(crate) async fn pause(&self, topic: &TopicPattern, by: &str) -> Result<bool, Failure> {
        each!(Store, self, store => look(store.outbox.pause(&store.pool, topic, by)).await)
    }

    pub(crate) async fn resume(&self, topic: &TopicPattern) -> Result<Resumed, Failure> {
        // It has held keys tried, in steps.
        each!(Store, self, store => within(STEP_TIMEOUT, store.outbox.resume(&store.pool, topic)).await)
    }

    pub(crate) async fn paused(&self) -> Result<Vec<PausedTopic>, Failure> {
        each!(Store, self, store => look(store.outbox.paused(&store.pool)).await)
    }

    pub(crate) async fn delayed(
        &self,
        after: Option<DelayedPlace>,
        limit: u32,
    ) -> Result<DelayedPage, Failure> {
        each!(Store, self, store => look(store.outbox.delayed(&store.pool, after, limit)).await)
    }

    /// Drops a delayed message; whether there was one.
    pub(crate) async fn cancel(&self, id: Uuid) -> Result<bool, Failure> {
        each!(Store, self, store => look(async {
            let mut conn = store.pool.acquire().await?;
            store.outbox.cancel(&mut conn, id).await
        }).await)
    }

    pub(crate) async fn doctor(&self) -> Result<Vec<Finding>, Failure> {
        each!(Store, self, store => look(store.outbox.doctor(&store.pool)).await)
    }
}

impl DeadSteps {
    pub(crate) fn limit(self, messages: u64) -> Self {
        each!(DeadSteps, self, steps => DeadSteps of steps.limit(messages))
    }

    /// What was counted, to be put back.
    pub(crate) fn replay(self) -> Self {
        each!(DeadSteps, self, steps => DeadSteps of steps.replay())
    }

    /// What was counted, to be dropped.
    pub(crate) fn discard(self) -> Self {
        each!(DeadSteps, self, steps => DeadSteps of steps.discard())
    }

    pub(crate) fn done(&self) -> Decided {
        each!(DeadSteps, self, steps => steps.done())
    }

    /// Whether there may be more.
    pub(crate) async fn step(&mut self) -> Result<bool, Failure> {
        each!(DeadSteps, self, steps => within(STEP_TIMEOUT, steps.step()).await)
    }
}

impl KeySteps {
    pub(crate) fn done(&self) -> Retried {
        each!(KeySteps, self, steps => steps.done())
    }

    /// Whether there may be more.
    pub(crate) async fn step(&mut self) -> Result<bool, Failure> {
        each!(KeySteps, self, steps => within(STEP_TIMEOUT, steps.step()).await)
    }
}

/// Bounds a look, and puts its error in words.
async fn look<T>(answer: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Failure> {
    within(LOOK_TIMEOUT, answer).await
}

async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Failure> {
    match timeout(limit, answer).await {
        Ok(answer) => answer.map_err(explain),
        Err(_) => Err(Failure::new(format!(
            "the database is away: no answer within {}",
            span(limit)
        ))),
    }
}

fn explain(error: sqlx::Error) -> Failure {
    match &error {
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut => {
            Failure::new(away(&error))
        }
        // SQLite's own words.
        sqlx::Error::Database(answer) if answer.message().starts_with("no such table") => {
            Failure::new(NOT_MIGRATED)
        }
        sqlx::Error::Database(answer) if answer.message().starts_with("unable to open") => {
            Failure::new(NO_FILE)
        }
        _ => Failure::of(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_silent_is_not_waited_for_for_ever() {
        let silent = std::future::pending::<Result<(), sqlx::Error>>();
        let failure = within(Duration::from_millis(1), silent).await.unwrap_err();
        assert_eq!(
            failure.to_string(),
            "the database is away: no answer within 1 ms"
        );
    }
}
