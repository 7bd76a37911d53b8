//! Databases that cannot be used, and those that cannot be used for a while.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::time::{Duration, Instant};

use outbox_core::{ClaimLimits, Message, Outcome, PublishError, Store as _};
use outbox_sqlite::{OpenError, Outbox};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, SqlitePool};
use support::{Fixture, Folder, deliver, limits, message, options, pool, texts};

/// What opening the store of a database says.
async fn refusal(pool: &SqlitePool) -> String {
    match Outbox::new().store(pool).await {
        Ok(_) => panic!("it was opened"),
        Err(error) => error.to_string(),
    }
}

fn lazy(options: SqliteConnectOptions) -> SqlitePool {
    SqlitePoolOptions::new().connect_lazy_with(options)
}

#[tokio::test]
async fn a_database_that_cannot_be_used_is_named_with_the_reason() {
    let folder = Folder::new();
    let path = folder.path();
    let missing = path.join("missing").join("app.db");
    let text = refusal(&lazy(options(&missing))).await;
    assert!(text.contains("missing/app.db"), "{text}");
    assert!(text.contains("unable to open database file"), "{text}");

    // Nothing is made where there is nothing, whatever the pool may do.
    let absent = path.join("absent.db");
    let text = refusal(&lazy(options(&absent))).await;
    assert!(text.contains("unable to open database file"), "{text}");
    assert!(!absent.exists());

    let text = refusal(&lazy(SqliteConnectOptions::new().filename(path))).await;
    assert!(text.contains("unable to open database file"), "{text}");

    let garbage = path.join("garbage.db");
    fs::write(
        &garbage,
        "no database, but a text that is longer than a header of one ".repeat(20),
    )
    .unwrap();
    let text = refusal(&lazy(SqliteConnectOptions::new().filename(&garbage))).await;
    assert!(text.contains("garbage.db"), "{text}");
    assert!(text.contains("file is not a database"), "{text}");

    let empty = path.join("empty.db");
    let text = refusal(&pool(options(&empty)).await).await;
    assert!(
        text.contains("empty.db has no table outbox_message: migrate first"),
        "{text}"
    );
}

#[tokio::test]
async fn a_database_in_memory_is_refused() {
    for name in ["sqlite::memory:", "sqlite:"] {
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .connect(name)
            .await
            .unwrap();
        Outbox::new().migrate(&pool).await.unwrap();
        let refused = Outbox::new().store(&pool).await;
        assert!(matches!(refused, Err(OpenError::InMemory)), "{name}");
    }
}

#[tokio::test]
async fn a_database_that_cannot_be_written_is_refused_at_once() {
    let fixture = Fixture::new().await;
    let database = fixture.folder.database();
    let read_only = options(&database).create_if_missing(false).read_only(true);
    let text = refusal(&lazy(read_only)).await;
    assert!(text.contains("app.db"), "{text}");
    assert!(
        text.contains("attempt to write a readonly database"),
        "{text}"
    );
}

#[tokio::test]
async fn a_lock_file_that_cannot_be_made_is_named() {
    let fixture = Fixture::new().await;
    fs::create_dir(fixture.folder.path().join("app.db-outbox_relay.lock")).unwrap();
    let text = refusal(&fixture.pool).await;
    assert!(text.contains("app.db-outbox_relay.lock: "), "{text}");
}

#[tokio::test]
async fn a_full_database_refuses_producers_and_lets_the_relay_go_on() {
    let fixture = Fixture::with_options(|options| options.pragma("max_page_count", "64")).await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    let large = Message::to("t").key("k").bytes(vec![7; 16 * 1024]).unwrap();
    let mut enqueued = 0;
    let error = loop {
        let mut conn = fixture.pool.acquire().await.unwrap();
        match fixture.outbox.enqueue(&mut conn, &large).await {
            Ok(()) => enqueued += 1,
            Err(error) => break error,
        }
        assert!(enqueued < 64, "it never became full");
    };
    assert!(
        error.to_string().contains("database or disk is full"),
        "{error}"
    );
    let claim = store.claim(&limits(1_000)).await.unwrap().unwrap();
    assert_eq!(claim.messages().len(), enqueued);
    claim
        .settle(vec![Outcome::Delivered; enqueued])
        .await
        .unwrap();
    fixture.enqueue(&[large]).await;
}

#[tokio::test]
async fn a_database_that_breaks_meanwhile_is_told_and_nothing_panics() {
    let fixture = Fixture::new().await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    fixture.enqueue(&[message("k", "0")]).await;
    let claim = store.claim(&limits(1)).await.unwrap().unwrap();
    fixture
        .execute("ALTER TABLE outbox_message RENAME TO gone")
        .await
        .unwrap();
    let error = claim.settle(vec![Outcome::Delivered]).await.unwrap_err();
    assert!(error.to_string().starts_with("settle failed: "), "{error}");
    assert!(
        error.to_string().contains("no such table: outbox_message"),
        "{error}"
    );
    let Err(error) = store.claim(&limits(1)).await else {
        panic!("claimed from a table that is gone");
    };
    assert!(error.to_string().starts_with("claim failed: "), "{error}");
    fixture
        .execute("ALTER TABLE gone RENAME TO outbox_message")
        .await
        .unwrap();
    assert_eq!(deliver(&store, 1).await, ["0"]);
}

/// Reading goes on beside a writer, and the settle waits for it: nothing is published twice for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settle_waits_for_a_long_transaction_of_the_application() {
    let fixture = Fixture::new().await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    fixture
        .enqueue(&[message("a", "0"), message("b", "1")])
        .await;
    let mut tx = fixture.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    fixture
        .outbox
        .enqueue(&mut tx, &message("c", "2"))
        .await
        .unwrap();

    let claim = store.claim(&limits(1_000)).await.unwrap().unwrap();
    assert_eq!(claim.messages().len(), 2);
    let settle = tokio::spawn(claim.settle(vec![Outcome::Delivered; 2]));
    assert!(store.claim(&limits(1_000)).await.unwrap().is_none());
    assert!(!settle.is_finished());
    tx.commit().await.unwrap();
    settle.await.unwrap().unwrap();
    assert_eq!(deliver(&store, 1).await, ["2"]);
}

/// The relay gives up waiting for a settle after a time: it is recorded all the same, and until then
/// nobody else gets the messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settle_that_nobody_waits_for_goes_on() {
    let fixture = Fixture::new().await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    fixture.enqueue(&[message("k", "0")]).await;
    let claim = store.claim(&limits(1)).await.unwrap().unwrap();
    let tx = fixture.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let settle = claim.settle(vec![Outcome::Delivered]);
    let dropped = tokio::time::timeout(Duration::from_millis(50), settle).await;
    assert!(dropped.is_err(), "it did not wait for the writer");
    assert!(store.claim(&limits(1)).await.unwrap().is_none());
    tx.commit().await.unwrap();
    support::until("the message has left", async || {
        fixture.places().await == [0; 4]
    })
    .await;
    assert!(store.claim(&limits(1)).await.unwrap().is_none());
}

/// What cannot be moved now, because another writer is at work, does not keep the rest from going.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_keeps_no_claim_from_what_need_not_move() {
    let fixture = Fixture::new().await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    fixture.enqueue(&[message("blocked", "head")]).await;
    let claim = store.claim(&limits(1)).await.unwrap().unwrap();
    let park = Outcome::Park {
        after: Duration::from_secs(3_600),
        counted: true,
        error: PublishError::retryable("not now"),
    };
    claim.settle(vec![park]).await.unwrap();
    let mut all: Vec<Message> = (0..2_000).map(|_| message("blocked", "follower")).collect();
    all.extend((0..400).map(|n| message(&format!("key {n}"), "free")));
    fixture.enqueue(&all).await;

    let tx = fixture.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let started = Instant::now();
    let claim = store.claim(&limits(10)).await.unwrap().unwrap();
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "it waited for the writer"
    );
    assert_eq!(texts(&*claim), ["free"; 10]);
    tx.commit().await.unwrap();
    claim.settle(vec![Outcome::Delivered; 10]).await.unwrap();
    assert_eq!(deliver(&store, 390).await, vec!["free"; 390]);
    let waits = ClaimLimits {
        wait: Duration::from_millis(1),
        ..limits(1_000)
    };
    support::until("all followers are set aside", async || {
        assert!(store.claim(&waits).await.unwrap().is_none());
        fixture.places().await == [0, 2_001, 0, 1]
    })
    .await;
}

/// In the mode `EXCLUSIVE` nobody else gets in, not even to read.
#[tokio::test]
async fn a_database_that_another_keeps_for_itself_is_told_in_bounded_time() {
    let fixture = Fixture::new().await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    let database = fixture.folder.database();
    fixture.pool.close().await;
    // The store's own connections are lazy: one writes, and it is open already.
    drop(store);
    let exclusive = options(&database).pragma("locking_mode", "EXCLUSIVE");
    let mut other = exclusive.connect().await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE; COMMIT")
        .execute(&mut other)
        .await
        .unwrap();
    let text = refusal(&lazy(options(&database))).await;
    assert!(text.contains("database is locked"), "{text}");
    other.close().await.unwrap();
}
