//! The tables come to a database at every start, whatever is there.

#![allow(clippy::unwrap_used)]

mod support;

use outbox_sqlite::{MigrateError, Outbox};
use support::{Fixture, Folder, options, pool};

#[tokio::test]
async fn it_may_run_again_and_in_many_places_at_once() {
    let folder = Folder::new();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let pool = pool(options(&folder.database())).await;
        tasks.spawn(async move { Outbox::new().migrate(&pool).await });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap().unwrap();
    }
}

#[tokio::test]
async fn when_nothing_is_missing_it_writes_nothing() {
    let fixture = Fixture::new().await;
    let read_only = options(&fixture.folder.database())
        .create_if_missing(false)
        .read_only(true);
    let pool = pool(read_only).await;
    fixture.outbox.migrate(&pool).await.unwrap();
    let missing = Outbox::with_prefix("billing_").unwrap();
    let error = missing.migrate(&pool).await.unwrap_err();
    assert!(error.to_string().contains("readonly database"), "{error}");
}

#[tokio::test]
async fn a_failure_leaves_nothing_behind() {
    let folder = Folder::new();
    let pool = pool(options(&folder.database())).await;
    // In the way of the third statement.
    sqlx::raw_sql("CREATE TABLE outbox_parked (a)")
        .execute(&pool)
        .await
        .unwrap();
    let error = Outbox::new().migrate(&pool).await.unwrap_err();
    assert!(
        error.to_string().contains("outbox_parked already exists"),
        "{error}"
    );
    sqlx::raw_sql("DROP TABLE outbox_parked")
        .execute(&pool)
        .await
        .unwrap();
    Outbox::new().migrate(&pool).await.unwrap();
}

#[tokio::test]
async fn tables_of_a_newer_or_another_version_are_told() {
    let fixture = Fixture::new().await;
    fixture
        .execute(
            "INSERT INTO outbox_migration (version, name, checksum, compatible_from) \
             VALUES (1000, 'later', '00', 1)",
        )
        .await
        .unwrap();
    fixture.outbox.migrate(&fixture.pool).await.unwrap();
    fixture
        .execute("UPDATE outbox_migration SET compatible_from = 1000")
        .await
        .unwrap();
    let newer = fixture.outbox.migrate(&fixture.pool).await;
    assert!(
        matches!(newer, Err(MigrateError::Newer { found: 1000, .. })),
        "{newer:?}"
    );
    fixture
        .execute("UPDATE outbox_migration SET checksum = '00'")
        .await
        .unwrap();
    let changed = fixture.outbox.migrate(&fixture.pool).await;
    assert!(
        matches!(changed, Err(MigrateError::Changed { version: 1 })),
        "{changed:?}"
    );
}
