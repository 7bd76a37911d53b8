//! How an outbox stands, in a bounded time whatever is in it.
//!
//! Really counting a large table is slow, and the first row of an index may lie behind millions that are
//! deleted. So a table is counted whole up to some pages, and from a sample of its pages beyond; and what
//! goes by index has a second.

use std::collections::HashMap;

use outbox_core::admin::{Count, Gauges, HeldLane, Lane, RelaySeen, Status, TopicCounts, Traffic};
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Row as _, SqlSafeStr as _};

use super::{micros, time, unsigned};
use crate::Outbox;
use crate::store::relay_name;

/// A look at the whole: the statements see the same, and the time of each is bounded by the server.
const BEGIN: &str = "\
    BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
    SELECT set_config('idle_in_transaction_session_timeout', '30s', true), \
           set_config('statement_timeout', '10s', true), set_config('jit', 'off', true)";
/// For what goes by index, and last, since the transaction is over when it fails.
const BY_INDEX: &str = "\
    SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), \
           set_config('statement_timeout', '1s', true)";
/// What the server says when a statement took too long.
const QUERY_CANCELED: &str = "57014";

/// A table of up to so many pages of 8 kB is read whole, and of a larger one about so many.
const PAGES: i64 = 4_096;
/// The same where a monitor asks every few seconds, and for larger ones no page is read.
const FEW_PAGES: i64 = 1_024;
/// So many keys that are held up are looked at.
const KEYS: i64 = 100_000;
/// The same where a monitor asks every few seconds.
const FEW_KEYS: i64 = 10_000;
/// So many halted ones are counted in each lane.
const HALTED_KEYS: i64 = 1_000;
/// So many topics are listed.
const TOPICS: usize = 1_000;

/// A table's size, and what the server's statistics say of it.
struct Table {
    pages: i64,
    rows: u64,
    inserted: u64,
    deleted: u64,
}

/// What is known of the keys that are held up.
struct HeldKeys {
    held: Count,
    halted: Count,
    /// Since when the oldest of those is that were looked at, in microseconds.
    since: Option<i64>,
}

/// When the oldest waiting message was enqueued, and when the next key and the next delayed message are due, in
/// microseconds.
type NextTimes = (Option<i64>, Option<i64>, Option<i64>);

impl Table {
    /// The part of its pages that is read, in percent.
    fn percent(&self) -> f32 {
        if self.pages <= PAGES {
            100.0
        } else {
            (PAGES as f64 / self.pages as f64 * 100.0) as f32
        }
    }

    fn is_whole(&self) -> bool {
        self.pages <= PAGES
    }

    /// Of a part of it, what the whole would have.
    fn scaled(&self, number: u64) -> u64 {
        if self.is_whole() {
            number
        } else {
            (number as f64 * 100.0 / f64::from(self.percent())) as u64
        }
    }

    /// The number of its rows, from those of the part. The statistics know better than a sample, but a
    /// crash of the server resets them.
    fn count(&self, number: u64) -> Count {
        if self.is_whole() {
            Count::Exact(number)
        } else {
            Count::About(self.rows.max(self.scaled(number)))
        }
    }
}

impl Outbox {
    /// How the outbox stands: one snapshot, in a bounded time whatever is in it. Meant for people and
    /// for a monitor every few seconds.
    ///
    /// Tables of up to 32 MiB are counted, and up to 100,000 held keys; more is estimated, and each [`Count`]
    /// says which it is. Of other roles' sessions a role sees more with `pg_monitor`.
    ///
    /// # Errors
    ///
    /// What the database answered.
    pub async fn status(&self, pool: &PgPool) -> Result<Status, sqlx::Error> {
        let mut tx = pool.begin_with(BEGIN).await?;
        let tables = self.tables(&mut tx).await?;
        let table = |name: &str| tables.get(name).ok_or_else(missing_tables);

        let mut counts = [Count::Exact(0); 3];
        let mut by_topic = [const { Vec::new() }; 3];
        for (place, name) in ["message", "parked", "dead"].into_iter().enumerate() {
            let table = table(name)?;
            let (total, topics) = self.topics(&mut tx, name, table).await?;
            counts[place] = table.count(total);
            by_topic[place] = topics;
        }
        let (topics, more_topics) = TopicCounts::list(by_topic, TOPICS);
        let delayed = table("delayed")?;
        let (number, _) = self.topics(&mut tx, "delayed", delayed).await?;
        let delayed = delayed.count(number);

        let keys = self.count_held(&mut tx, KEYS).await?;
        let lanes = self.lanes(&mut tx).await?;
        let relays = self.relays(&mut tx).await?;
        let paused = self.paused_on(&mut tx).await?;
        let now = now(&mut tx).await?;
        let next = self.next(&mut tx).await?;
        // Nothing was written; after a statement that took too long this is a rollback.
        tx.rollback().await?;

        let message = table("message")?;
        let (oldest_waiting, next_due, next_delayed) = next.unwrap_or_default();
        Ok(Status {
            now: time(now),
            waiting: counts[0],
            parked: counts[1],
            dead: counts[2],
            delayed,
            held_keys: keys.held,
            halted_keys: keys.halted,
            oldest_waiting: oldest_waiting.map(time),
            oldest_held: keys.since.map(time),
            next_due: next_due.map(time),
            next_delayed: next_delayed.map(time),
            complete: next.is_some(),
            topics,
            more_topics,
            paused,
            traffic: Some(Traffic {
                enqueued: message.inserted,
                removed: message.deleted,
            }),
            lanes,
            relays: Some(relays),
        })
    }

    /// The few numbers that a monitor watches, for every few seconds: tables of up to 8 MiB are counted, and up
    /// to 10,000 held keys; of more the server's statistics are asked. A crash of the server resets these until it
    /// has vacuumed; [`status`](Self::status) then knows better. Eight statements.
    ///
    /// # Errors
    ///
    /// What the database answered.
    pub async fn gauges(&self, pool: &PgPool) -> Result<Gauges, sqlx::Error> {
        let mut tx = pool.begin_with(BEGIN).await?;
        let rows = sqlx::query(self.sql(include_str!("../../sql/gauges.sql")))
            .bind(FEW_PAGES)
            .persistent(false)
            .fetch_all(&mut *tx)
            .await?;
        let mut counts = HashMap::new();
        for row in &rows {
            let number = unsigned(row.try_get(2)?);
            let count = if row.try_get(1)? {
                Count::Exact(number)
            } else {
                Count::About(number)
            };
            counts.insert(row.try_get::<String, _>(0)?, count);
        }
        let keys = self.count_held(&mut tx, FEW_KEYS).await?;
        let rest = sqlx::query(self.sql(include_str!("../../sql/gauges_rest.sql")))
            .persistent(false)
            .fetch_one(&mut *tx)
            .await?;
        let next = self.next(&mut tx).await?;
        tx.rollback().await?;
        let now: i64 = rest.try_get(3)?;
        let count = |name: &str| counts.get(name).copied().ok_or_else(missing_tables);
        Ok(Gauges {
            waiting: count("message")?,
            parked: count("parked")?,
            dead: count("dead")?,
            delayed: count("delayed")?,
            held_keys: keys.held,
            halted_keys: keys.halted,
            oldest_waiting: next
                .and_then(|(oldest, ..)| oldest)
                .map(|at| micros(now - at)),
            oldest_held: keys.since.map(|at| micros(now - at)),
            lanes_held: Some(unsigned(rest.try_get(0)?)),
            floor_lag: Some(unsigned(rest.try_get(1)?)),
            paused_topics: unsigned(rest.try_get(2)?),
            complete: next.is_some(),
        })
    }

    /// The keys that are held up; of more than `most` no more are looked at.
    async fn count_held(
        &self,
        conn: &mut PgConnection,
        most: i64,
    ) -> Result<HeldKeys, sqlx::Error> {
        let row = sqlx::query(self.sql(include_str!("../../sql/keys_held.sql")))
            .bind(most)
            .bind(HALTED_KEYS)
            .persistent(false)
            .fetch_one(conn)
            .await?;
        let (held, rows) = (row.try_get(0)?, row.try_get(1)?);
        let halted = unsigned(row.try_get(3)?);
        Ok(HeldKeys {
            held: if held < most {
                Count::Exact(unsigned(held))
            } else {
                Count::About(unsigned(held.max(rows)))
            },
            halted: if row.try_get(4)? {
                Count::AtLeast(halted)
            } else {
                Count::Exact(halted)
            },
            since: row.try_get(2)?,
        })
    }

    async fn tables(&self, conn: &mut PgConnection) -> Result<HashMap<String, Table>, sqlx::Error> {
        let rows = sqlx::query(self.sql(include_str!("../../sql/status_sizes.sql")))
            .persistent(false)
            .fetch_all(conn)
            .await?;
        rows.iter()
            .map(|row| {
                let table = Table {
                    pages: row.try_get(1)?,
                    rows: unsigned(row.try_get(2)?),
                    inserted: unsigned(row.try_get(3)?),
                    deleted: unsigned(row.try_get(4)?),
                };
                Ok((row.try_get(0)?, table))
            })
            .collect()
    }

    /// How many rows were found in a table, or a part of it, and how they spread over the topics.
    async fn topics(
        &self,
        conn: &mut PgConnection,
        name: &str,
        table: &Table,
    ) -> Result<(u64, Vec<(String, u64)>), sqlx::Error> {
        let statement = include_str!("../../sql/status_topics.sql").replace("{table}", name);
        let rows = sqlx::query(AssertSqlSafe(self.schema.sql(&statement)).into_sql_str())
            .bind(table.percent())
            .bind(TOPICS as i64)
            .persistent(false)
            .fetch_all(conn)
            .await?;
        let mut total = 0;
        let mut topics = Vec::with_capacity(rows.len());
        for row in &rows {
            total = unsigned(row.try_get(2)?);
            topics.push((row.try_get(0)?, table.scaled(unsigned(row.try_get(1)?))));
        }
        Ok((total, topics))
    }

    async fn lanes(&self, conn: &mut PgConnection) -> Result<Vec<Lane>, sqlx::Error> {
        let rows = sqlx::query(self.sql(include_str!("../../sql/status_lanes.sql")))
            .persistent(false)
            .fetch_all(conn)
            .await?;
        rows.iter()
            .map(|row| {
                let held = match row.try_get::<Option<i32>, _>(3)? {
                    Some(pid) => Some(HeldLane {
                        pid,
                        application: row.try_get(4)?,
                        address: row.try_get(5)?,
                        since: row.try_get::<Option<i64>, _>(6)?.map(time),
                    }),
                    None => None,
                };
                Ok(Lane {
                    lane: row.try_get::<i16, _>(0)?.unsigned_abs(),
                    floor: row.try_get(1)?,
                    floor_lag: unsigned(row.try_get(2)?),
                    held,
                })
            })
            .collect()
    }

    pub(super) async fn relays(
        &self,
        conn: &mut PgConnection,
    ) -> Result<Vec<RelaySeen>, sqlx::Error> {
        let rows = sqlx::query(include_str!("../../sql/status_relays.sql"))
            .bind(relay_name(self.schema()))
            .persistent(false)
            .fetch_all(conn)
            .await?;
        rows.iter()
            .map(|row| {
                Ok(RelaySeen {
                    application: row.try_get(0)?,
                    role: row.try_get(1)?,
                    address: row.try_get(2)?,
                    connections: u32::try_from(row.try_get::<i64, _>(3)?).unwrap_or(u32::MAX),
                    since: row.try_get::<Option<i64>, _>(4)?.map(time),
                })
            })
            .collect()
    }

    /// The oldest waiting message, the next due key and the next delayed message; `None`: not found in time.
    async fn next(&self, conn: &mut PgConnection) -> Result<Option<NextTimes>, sqlx::Error> {
        sqlx::raw_sql(BY_INDEX).execute(&mut *conn).await?;
        let next = sqlx::query_as(self.sql(include_str!("../../sql/status_next.sql")))
            .persistent(false)
            .fetch_one(conn)
            .await;
        match next {
            Err(sqlx::Error::Database(error))
                if error.code().as_deref() == Some(QUERY_CANCELED) =>
            {
                Ok(None)
            }
            next => next.map(Some),
        }
    }
}

fn missing_tables() -> sqlx::Error {
    sqlx::Error::Protocol("tables of the outbox are missing".to_owned())
}

/// The server's clock, in microseconds since the epoch.
async fn now(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(include_str!("../../sql/now.sql"))
        .persistent(false)
        .fetch_one(conn)
        .await
}
