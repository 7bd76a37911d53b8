//! What a test has in Postgres for itself: an outbox in a schema of its own, or a whole database. Both are
//! dropped however the test ends.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, resume_unwind};

use futures_util::FutureExt as _;
use outbox_conformance::address;
use sqlx::{AssertSqlSafe, PgPool};

use super::place::Place;
use super::{name, until};

/// An outbox that is not migrated yet, and a place with a configuration that names it.
pub(crate) struct Scene {
    /// The schema.
    pub(crate) name: String,
    pub(crate) pool: PgPool,
    place: Place,
}

/// What can be done with the program alone.
impl Deref for Scene {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

/// Runs a test with an outbox that no other test uses, and with these settings behind those of its store.
pub(crate) async fn with_scene(settings: &str, test: impl AsyncFnOnce(&Scene)) {
    let url = address("OUTBOX_TEST_POSTGRES_URL");
    let name = name("test");
    let store = format!("[store]\nkind = \"postgres\"\nurl = \"{url}\"\nschema = \"{name}\"\n\n");
    let scene = Scene {
        pool: PgPool::connect(&url).await.expect("Postgres"),
        place: Place::with(&(store + settings)),
        name,
    };
    let drop = "SET client_min_messages = warning; DROP SCHEMA IF EXISTS {schema} CASCADE";
    finally(test(&scene), scene.execute(drop)).await;
}

/// Runs a test with the URL of an empty database that no other test uses.
pub(crate) async fn with_database(test: impl AsyncFnOnce(&str)) {
    let server = address("OUTBOX_TEST_POSTGRES_URL");
    let name = name("test");
    let pool = PgPool::connect(&server).await.expect("Postgres");
    execute(&pool, &format!("CREATE DATABASE {name}")).await;
    let url = format!("{}/{name}", server.rsplit_once('/').expect("a name").0);
    let drop = format!("DROP DATABASE {name} WITH (FORCE)");
    finally(test(&url), execute(&pool, &drop)).await;
}

/// Clears up after a test, and only then panics if the test did.
async fn finally(test: impl Future<Output = ()>, clear: impl Future<Output = ()>) {
    let tested = AssertUnwindSafe(test).catch_unwind().await;
    let cleared = AssertUnwindSafe(clear).catch_unwind().await;
    if let Err(panic) = tested.and(cleared) {
        resume_unwind(panic);
    }
}

/// Runs statements.
pub(crate) async fn execute(pool: &PgPool, statements: &str) {
    let ran = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
    let ran = ran.execute(pool).await;
    ran.unwrap_or_else(|error| panic!("{statements}: {error}"));
}

impl Scene {
    /// A statement with the schema's name in place of `{schema}`.
    pub(crate) fn sql(&self, statement: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(statement.replace("{schema}", &self.name))
    }

    /// Runs statements, with the schema's name in place of `{schema}`.
    pub(crate) async fn execute(&self, statements: &str) {
        execute(&self.pool, &self.sql(statements).0).await;
    }

    /// The number that a statement gives, with the schema's name in place of `{schema}`.
    pub(crate) async fn number(&self, statement: &str) -> i64 {
        let number = sqlx::query_scalar(self.sql(statement)).fetch_one(&self.pool);
        number.await.expect("a number")
    }

    /// Messages that are not delivered, wherever they are.
    pub(crate) async fn left(&self) -> i64 {
        self.number(
            "SELECT (SELECT count(*) FROM {schema}.message) + (SELECT count(*) FROM {schema}.parked) \
             + (SELECT count(*) FROM {schema}.dead)",
        )
        .await
    }

    /// Waits until every message is delivered.
    pub(crate) async fn delivered(&self) {
        until("delivery", async || self.left().await == 0).await;
    }

    /// Waits until the status has a relay.
    pub(crate) async fn has_a_relay(&self) {
        until("a relay in the status", async || {
            let status = self.json(&["status"]).await;
            let relays = status["relays"].as_array();
            relays.is_some_and(|relays| !relays.is_empty())
        })
        .await;
    }

    /// Puts dead messages there as a relay would: their topic, key and error.
    pub(crate) async fn give_up(&self, messages: &[(&str, Option<&str>, &str)]) {
        for (topic, key, error) in messages {
            let statement = "
                INSERT INTO {schema}.dead (position, key_hash, id, topic, key, payload, headers, enqueued_at,
                                           parked, failures, error_kind, error, halted)
                SELECT position, hashtextextended(coalesce($2, position::text), 0), {schema}.new_message_id(),
                       $1, $2, '\\x7b7d', '{\"a\": \"b\"}', clock_timestamp(), 3, 2, 'rejected', $3, false
                  FROM nextval('{schema}.message_position') AS position";
            sqlx::query(self.sql(statement))
                .bind(topic)
                .bind(key)
                .bind(error)
                .execute(&self.pool)
                .await
                .unwrap();
        }
    }

    /// As [`give_up`](Self::give_up), so many of one topic and of 500 keys.
    pub(crate) async fn give_up_many(&self, topic: &str, messages: u32) {
        self.execute(&format!(
            "INSERT INTO {{schema}}.dead (position, key_hash, id, topic, key, enqueued_at, parked, failures,
                                          error_kind, error, halted)
             SELECT nextval('{{schema}}.message_position'), hashtextextended('k' || n % 500, 0),
                    {{schema}}.new_message_id(), '{topic}', 'k' || n % 500, clock_timestamp(), 1, 1,
                    'retryable', 'no', false
               FROM generate_series(1, {messages}) AS n"
        ))
        .await;
    }
}
