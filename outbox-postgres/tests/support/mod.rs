//! A migrated outbox of its own for each test, on Postgres 15 and 18.

// Each test program uses a part of it.
#![allow(dead_code, unused_macros, unused_imports)]

pub(crate) mod store;

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use outbox_conformance::address;
use outbox_postgres::Outbox;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use uuid::Uuid;

/// What a test works with. Dropped with its schema when the test has ended, however it ends.
#[derive(Clone)]
pub(crate) struct Fixture {
    pub(crate) outbox: Outbox,
    pub(crate) pool: PgPool,
    /// For connections of another kind.
    pub(crate) url: String,
}

impl Fixture {
    /// The statement with the schema's name in place of `{schema}`.
    pub(crate) fn sql(&self, statement: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(statement.replace("{schema}", self.outbox.schema()))
    }

    /// Runs statements without parameters.
    pub(crate) async fn execute(&self, statements: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(self.sql(statements))
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// The name of a role that only this test makes.
    pub(crate) fn role(&self) -> String {
        self.outbox.schema().replace("test_", "role_")
    }

    /// How many messages wait.
    pub(crate) async fn waiting(&self) -> i64 {
        sqlx::query_scalar(self.sql("SELECT count(*) FROM {schema}.message"))
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

/// An outbox that no other test uses, before its migration.
pub(crate) async fn new_fixture(variable: &str) -> Fixture {
    let url = address(variable);
    Fixture {
        outbox: Outbox::in_schema(format!("test_{}", Uuid::now_v7().simple())).unwrap(),
        pool: PgPoolOptions::new()
            .max_connections(30)
            .connect(&url)
            .await
            .unwrap(),
        url,
    }
}

/// Drops what the test made.
pub(crate) async fn clean_up(fixture: &Fixture) -> Result<(), sqlx::Error> {
    fixture
        .execute(&format!(
            "SET client_min_messages = warning; DROP SCHEMA IF EXISTS {{schema}} CASCADE; \
             DROP ROLE IF EXISTS {}",
            fixture.role()
        ))
        .await
}

pub(crate) async fn with_empty_database<T: Future<Output = ()>>(
    variable: &str,
    test: impl FnOnce(Fixture) -> T,
) {
    let fixture = new_fixture(variable).await;
    let outcome = AssertUnwindSafe(test(fixture.clone())).catch_unwind().await;
    let dropped = clean_up(&fixture).await;
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
    dropped.unwrap();
}

pub(crate) async fn with_outbox<T: Future<Output = ()>>(
    variable: &str,
    test: impl FnOnce(Fixture) -> T,
) {
    with_empty_database(variable, |fixture| async move {
        fixture.outbox.migrate(&fixture.pool).await.unwrap();
        test(fixture).await;
    })
    .await;
}

/// Waits for a condition, and fails when it does not come true.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition().await {
        assert!(Instant::now() < deadline, "did not happen in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await; // wait: the poll
    }
}

/// What the database answered to a statement that must fail.
#[track_caller]
pub(crate) fn database_message<T: std::fmt::Debug>(answer: Result<T, sqlx::Error>) -> String {
    match answer.unwrap_err() {
        sqlx::Error::Database(error) => error.message().to_owned(),
        error => panic!("not an answer of the database: {error}"),
    }
}

/// Makes two tests of each async function that takes a [`Fixture`], one for each server.
macro_rules! on_each_server {
    ($with:ident: $($test:ident),+ $(,)?) => {
        mod postgres_15 {
            $(#[tokio::test]
            async fn $test() {
                crate::support::$with("OUTBOX_TEST_POSTGRES_URL", super::$test).await;
            })+
        }
        mod postgres_18 {
            $(#[tokio::test]
            async fn $test() {
                crate::support::$with("OUTBOX_TEST_POSTGRES_18_URL", super::$test).await;
            })+
        }
    };
}
pub(crate) use on_each_server;
