//! How an outbox stands, in a bounded time whatever is in it: rows are counted up to a bound.

use outbox_core::admin::{Count, Gauges, Status, TopicCounts};
use sqlx::{AssertSqlSafe, Row as _, SqlSafeStr as _, SqliteConnection, SqlitePool};

use super::{millis, text, time, unsigned};
use crate::Outbox;

/// So many rows of each table are counted.
const COUNTED: u64 = 100_000;
/// The same where a monitor asks every few seconds.
const COUNTED_OFTEN: u64 = 10_000;
/// So many topics are listed.
const TOPICS: usize = 1_000;

/// How many keys are halted, as far as the held ones were counted.
fn halted_of(held: Count, halted: u64) -> Count {
    match held {
        Count::AtLeast(bound) => Count::AtLeast(halted.min(bound)),
        _ => Count::Exact(halted),
    }
}

impl Outbox {
    /// How the outbox stands, in a bounded time whatever is in it. Of each table 100,000 rows are
    /// counted at most; each [`Count`] says whether that was all, and where it was not, `topics` speaks
    /// of the first of them.
    ///
    /// A relay shows in the file that keeps others out, not in the database, and lanes are held in its
    /// memory: both are left out.
    ///
    /// # Errors
    ///
    /// What the database answered.
    pub async fn status(&self, pool: &SqlitePool) -> Result<Status, sqlx::Error> {
        let paused = self.paused(pool).await?;
        // The statements see the same.
        let mut tx = pool.begin().await?;
        let mut counts = [Count::Exact(0); 3];
        let mut by_topic = [const { Vec::new() }; 3];
        for (place, table) in ["message", "parked", "dead"].into_iter().enumerate() {
            let (total, topics) = self.topics(&mut tx, table).await?;
            counts[place] = Count::up_to(COUNTED, total);
            by_topic[place] = topics;
        }
        let (topics, more) = TopicCounts::list(by_topic, TOPICS);
        let more_topics = more || counts.iter().any(|it| matches!(it, Count::AtLeast(_)));
        let keys = sqlx::query(self.sql(include_str!("../../sql/status_keys.sql")))
            .bind((COUNTED + 1) as i64)
            .fetch_one(&mut *tx)
            .await?;
        tx.commit().await?;

        let held = Count::up_to(COUNTED, unsigned(keys.try_get(0)?));
        Ok(Status {
            now: time(keys.try_get(5)?),
            waiting: counts[0],
            parked: counts[1],
            dead: counts[2],
            delayed: Count::up_to(COUNTED, unsigned(keys.try_get(6)?)),
            held_keys: held,
            halted_keys: halted_of(held, unsigned(keys.try_get(1)?)),
            oldest_waiting: keys.try_get::<Option<i64>, _>(4)?.map(time),
            oldest_held: keys.try_get::<Option<i64>, _>(2)?.map(time),
            next_due: keys.try_get::<Option<i64>, _>(3)?.map(time),
            next_delayed: keys.try_get::<Option<i64>, _>(7)?.map(time),
            complete: true,
            topics,
            more_topics,
            paused,
            traffic: None,
            lanes: Vec::new(),
            relays: None,
        })
    }

    /// The few numbers that a monitor watches, for every few seconds: of each table 10,000 rows are counted
    /// at most.
    ///
    /// # Errors
    ///
    /// What the database answered.
    pub async fn gauges(&self, pool: &SqlitePool) -> Result<Gauges, sqlx::Error> {
        let row = sqlx::query(self.sql(include_str!("../../sql/gauges.sql")))
            .bind((COUNTED_OFTEN + 1) as i64)
            .fetch_one(pool)
            .await?;
        let count = |column: usize| {
            Ok::<_, sqlx::Error>(Count::up_to(COUNTED_OFTEN, unsigned(row.try_get(column)?)))
        };
        let held = count(3)?;
        Ok(Gauges {
            waiting: count(0)?,
            parked: count(1)?,
            dead: count(2)?,
            delayed: count(8)?,
            held_keys: held,
            halted_keys: halted_of(held, unsigned(row.try_get(5)?)),
            oldest_waiting: row.try_get::<Option<i64>, _>(4)?.map(millis),
            oldest_held: row.try_get::<Option<i64>, _>(6)?.map(millis),
            lanes_held: None,
            floor_lag: None,
            paused_topics: unsigned(row.try_get(7)?),
            complete: true,
        })
    }

    /// How many rows of a table were found, and how they spread over the topics.
    async fn topics(
        &self,
        conn: &mut SqliteConnection,
        table: &str,
    ) -> Result<(u64, Vec<(String, u64)>), sqlx::Error> {
        let statement = include_str!("../../sql/status_topics.sql").replace("{table}", table);
        let rows = sqlx::query(AssertSqlSafe(self.prefix.sql(&statement)).into_sql_str())
            .bind((COUNTED + 1) as i64)
            .bind(TOPICS as i64)
            .fetch_all(conn)
            .await?;
        let mut total = 0;
        let mut topics = Vec::with_capacity(rows.len());
        for row in &rows {
            total = unsigned(row.try_get(2)?);
            topics.push((text(row.try_get(0)?), unsigned(row.try_get(1)?)));
        }
        Ok((total, topics))
    }
}
