//! What the tests of the store do with an outbox.

use std::time::{Duration, Instant};

use outbox_core::{Claim, ClaimLimits, Message, Outcome, Store};
use outbox_postgres::Outbox;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, PgPool, Row};

use super::{Fixture, until};

/// Long enough for a busy machine; a test that reaches it has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Makes each test run on Postgres 15 and 18.
macro_rules! on_both_servers {
    ($($(#[$doc:meta])* async fn $name:ident($db:ident: Db) $body:block)+) => {
        $($(#[$doc])* async fn $name($db: Db) $body)+

        mod postgres_15 {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let test = |fixture| super::$name(super::Db::new(fixture));
                crate::support::with_outbox("OUTBOX_TEST_POSTGRES_URL", test).await;
            })+
        }

        mod postgres_18 {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let test = |fixture| super::$name(super::Db::new(fixture));
                crate::support::with_outbox("OUTBOX_TEST_POSTGRES_18_URL", test).await;
            })+
        }
    };
}
pub(crate) use on_both_servers;

/// A fresh outbox, and a way to say things to its database.
#[derive(Clone)]
pub(crate) struct Db {
    pub(crate) pool: PgPool,
    pub(crate) schema: String,
    pub(crate) outbox: Outbox,
}

impl Db {
    pub(crate) fn new(fixture: Fixture) -> Self {
        Self {
            schema: fixture.outbox.schema().to_owned(),
            outbox: fixture.outbox,
            pool: fixture.pool,
        }
    }

    /// A pool whose sessions start with these settings.
    pub(crate) async fn pool_with(&self, settings: &[(&str, &str)]) -> PgPool {
        let options = (*self.pool.connect_options())
            .clone()
            .options(settings.iter().copied());
        PgPoolOptions::new()
            .max_connections(4)
            .connect_with(options)
            .await
            .unwrap()
    }

    pub(crate) async fn connection(&self) -> PgConnection {
        self.pool.connect_options().connect().await.unwrap()
    }

    /// Waits until the server has ended a session, by a timeout of its own.
    pub(crate) async fn is_ended(&self, mut session: PgConnection) {
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
            .fetch_one(&mut session)
            .await
            .unwrap();
        let there = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
        until("the server ends the session", async || {
            self.number(&there).await == 0
        })
        .await;
    }

    /// Runs statements, with the schema's name in place of `{schema}`.
    pub(crate) async fn sql(&self, sql: &str) {
        self.try_sql(sql).await.unwrap();
    }

    pub(crate) async fn try_sql(&self, sql: &str) -> Result<(), sqlx::Error> {
        let sql = sql.replace("{schema}", &self.schema);
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&self.pool)
            .await
            .map(drop)
    }

    pub(crate) async fn sql_on(&self, connection: &mut PgConnection, sql: &str) {
        let sql = sql.replace("{schema}", &self.schema);
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(connection)
            .await
            .unwrap();
    }

    /// One number.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let sql = sql.replace("{schema}", &self.schema);
        sqlx::query(AssertSqlSafe(sql))
            .fetch_one(&self.pool)
            .await
            .unwrap()
            .get(0)
    }

    /// Messages waiting, parked and dead, and keys blocked.
    pub(crate) async fn places(&self) -> [i64; 4] {
        let mut places = [0; 4];
        for (place, table) in places
            .iter_mut()
            .zip(["message", "parked", "dead", "blocked"])
        {
            *place = self
                .number(&format!("SELECT count(*) FROM {{schema}}.{table}"))
                .await;
        }
        places
    }

    /// Enqueues one message of a key in a transaction of its own.
    pub(crate) async fn enqueue(&self, key: &str, text: &str) {
        let mut tx = self.pool.begin().await.unwrap();
        self.outbox
            .enqueue(&mut tx, &message(key, text))
            .await
            .unwrap();
        tx.commit().await.unwrap();
    }
}

pub(crate) fn message(key: &str, text: &str) -> Message {
    Message::to("test").key(key).bytes(text.to_owned()).unwrap()
}

pub(crate) fn limits(messages: usize) -> ClaimLimits {
    ClaimLimits {
        messages,
        bytes: 16 * 1024 * 1024,
        wait: Duration::ZERO,
        hold: Duration::from_secs(30),
    }
}

/// What a claim holds, as key and text.
pub(crate) fn contents(claim: &dyn Claim) -> Vec<(String, String)> {
    claim
        .messages()
        .iter()
        .map(|claimed| {
            let message = &claimed.message;
            let payload = message
                .payload()
                .map(|bytes| bytes.to_vec())
                .unwrap_or_default();
            (
                message.key().unwrap_or("-").to_owned(),
                String::from_utf8(payload).unwrap(),
            )
        })
        .collect()
}

/// Claims once and delivers everything; what was delivered.
pub(crate) async fn deliver_some(
    store: &impl Store,
    limits: &ClaimLimits,
) -> Vec<(String, String)> {
    match store.claim(limits).await.unwrap() {
        None => Vec::new(),
        Some(claim) => {
            let contents = contents(&*claim);
            claim
                .settle(vec![Outcome::Delivered; contents.len()])
                .await
                .unwrap();
            contents
        }
    }
}

/// Delivers until `count` messages were.
pub(crate) async fn deliver(store: &impl Store, count: usize) -> Vec<(String, String)> {
    let started = Instant::now();
    let mut delivered = Vec::new();
    while delivered.len() < count {
        delivered.extend(deliver_some(store, &limits(1000)).await);
        assert!(
            started.elapsed() < DEADLINE,
            "{} of {count} messages after {DEADLINE:?}",
            delivered.len()
        );
    }
    assert_eq!(
        delivered.len(),
        count,
        "more was delivered than was expected"
    );
    delivered
}

/// The texts of one key, in the order of delivery.
pub(crate) fn of_key(delivered: &[(String, String)], key: &str) -> Vec<String> {
    delivered
        .iter()
        .filter(|(k, _)| k == key)
        .map(|(_, text)| text.clone())
        .collect()
}
