//! Migrations on real servers.

#![allow(clippy::unwrap_used)]

mod support;

use futures_util::future::join_all;
use outbox_core::Message;
use outbox_postgres::{MigrateError, Outbox};
use sqlx::postgres::PgPoolOptions;
use support::{Fixture, on_each_server, until};

on_each_server!(with_empty_database:
    twenty_at_once,
    printed_sql_is_what_runs,
    printed_sql_runs_inside_another_transaction,
    a_schema_made_by_an_administrator_is_used,
    a_lock_is_awaited_in_short_tries,
    a_repeat_writes_nothing,
    a_changed_migration_is_refused,
    a_newer_schema_says_whether_it_may_be_used,
    a_name_that_is_accepted_needs_no_quotes,
);

async fn twenty_at_once(f: Fixture) {
    let migrations = (0..20).map(|_| async {
        // A pool for each, as in processes of their own.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect(&f.url)
            .await
            .unwrap();
        f.outbox.migrate(&pool).await
    });
    for answer in join_all(migrations).await {
        answer.unwrap();
    }
    let lanes: i64 = sqlx::query_scalar(f.sql("SELECT count(*) FROM {schema}.lane"))
        .fetch_one(&f.pool)
        .await
        .unwrap();
    assert_eq!(lanes, 64);
}

async fn printed_sql_is_what_runs(f: Fixture) {
    let printed = f.outbox.migrations_sql();
    assert!(!printed.contains("{schema}"));
    f.execute(&printed).await.unwrap();
    // Once more changes nothing, and `migrate` finds nothing to do.
    f.execute(&printed).await.unwrap();
    f.outbox.migrate(&f.pool).await.unwrap();
    let applied: i64 = sqlx::query_scalar(f.sql("SELECT count(*) FROM {schema}.migration"))
        .fetch_one(&f.pool)
        .await
        .unwrap();
    assert_eq!(applied, 1);
}

async fn printed_sql_runs_inside_another_transaction(f: Fixture) {
    let mut tx = f.pool.begin().await.unwrap();
    sqlx::raw_sql(f.sql(&f.outbox.migrations_sql()))
        .execute(&mut *tx)
        .await
        .unwrap();
    f.outbox.enqueue(&mut tx, &message()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(f.waiting().await, 1);
}

async fn a_schema_made_by_an_administrator_is_used(f: Fixture) {
    f.execute("CREATE SCHEMA {schema}").await.unwrap();
    f.outbox.migrate(&f.pool).await.unwrap();
}

async fn a_lock_is_awaited_in_short_tries(f: Fixture) {
    let key: i64 = sqlx::query_scalar("SELECT hashtextextended('outbox migration:' || $1, 0)")
        .bind(f.outbox.schema())
        .fetch_one(&f.pool)
        .await
        .unwrap();
    let mut other = f.pool.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .bind(key)
        .execute(&mut *other)
        .await
        .unwrap();

    let migration = tokio::spawn({
        let f = f.clone();
        async move { f.outbox.migrate(&f.pool).await }
    });
    // It queues, gives its place up, and queues again: nobody waits behind it for long.
    for queued in [true, false, true] {
        until("the queue for the lock changes", async || {
            is_awaited(&f, key).await == queued
        })
        .await;
    }
    assert!(!migration.is_finished());
    other.commit().await.unwrap();
    migration.await.unwrap().unwrap();
}

async fn is_awaited(f: &Fixture, advisory_lock: i64) -> bool {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
         AND (classid::bigint << 32 | objid::bigint) = $1)",
    )
    .bind(advisory_lock)
    .fetch_one(&f.pool)
    .await
    .unwrap()
}

async fn a_repeat_writes_nothing(f: Fixture) {
    f.outbox.migrate(&f.pool).await.unwrap();
    // A server or role that is read-only shows every attempt to write.
    let pool = PgPoolOptions::new()
        .connect(&format!(
            "{}?options=-c%20default_transaction_read_only=on",
            f.url
        ))
        .await
        .unwrap();
    f.outbox.migrate(&pool).await.unwrap();
    let fresh = Outbox::in_schema(format!("{}_b", f.outbox.schema())).unwrap();
    let applying = sqlx::raw_sql(sqlx::AssertSqlSafe(fresh.migrations_sql()))
        .execute(&pool)
        .await;
    assert!(applying.unwrap_err().to_string().contains("read-only"));
}

async fn a_changed_migration_is_refused(f: Fixture) {
    f.outbox.migrate(&f.pool).await.unwrap();
    f.execute(r"UPDATE {schema}.migration SET checksum = '\x00'")
        .await
        .unwrap();
    let error = f.outbox.migrate(&f.pool).await.unwrap_err();
    assert!(
        matches!(error, MigrateError::Changed { version: 1 }),
        "{error}"
    );
}

async fn a_newer_schema_says_whether_it_may_be_used(f: Fixture) {
    f.outbox.migrate(&f.pool).await.unwrap();
    f.execute(r"INSERT INTO {schema}.migration VALUES (7, 'additive', '\x00', 1)")
        .await
        .unwrap();
    f.outbox.migrate(&f.pool).await.unwrap();
    f.execute(r"INSERT INTO {schema}.migration VALUES (8, 'breaking', '\x00', 8)")
        .await
        .unwrap();
    let error = f.outbox.migrate(&f.pool).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the outbox's schema is at migration 8, which this version cannot use: it knows 1"
    );
}

async fn a_name_that_is_accepted_needs_no_quotes(f: Fixture) {
    let words: Vec<String> = sqlx::query_scalar("SELECT word FROM pg_get_keywords()")
        .fetch_all(&f.pool)
        .await
        .unwrap();
    assert!(words.len() > 400);
    for word in words {
        // Alone in a transaction that is never committed.
        let mut tx = f.pool.begin().await.unwrap();
        let create = sqlx::raw_sql(sqlx::AssertSqlSafe(format!("CREATE SCHEMA {word}")))
            .execute(&mut *tx)
            .await;
        assert_eq!(
            create.is_ok(),
            Outbox::in_schema(word.as_str()).is_ok(),
            "{word}"
        );
        tx.rollback().await.unwrap();
    }
}

fn message() -> Message {
    Message::to("orders.placed").bytes("x").unwrap()
}
