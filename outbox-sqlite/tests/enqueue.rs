//! Enqueue belongs to the application's transaction, whatever that does.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use outbox_core::admin::DeadFilter;
use outbox_core::testing::assert_enqueued;
use outbox_core::{Message, Store as _};
use outbox_sqlite::Outbox;
use sqlx::Acquire as _;
use sqlx::sqlite::SqliteJournalMode;
use support::{Fixture, deliver, limits, message};

#[tokio::test]
async fn what_commits_is_delivered_and_what_rolls_back_never_was() {
    let fixture = Fixture::new().await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    fixture
        .execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        .await
        .unwrap();

    let mut tx = fixture.pool.begin().await.unwrap();
    sqlx::query("INSERT INTO orders VALUES (1)")
        .execute(&mut *tx)
        .await
        .unwrap();
    fixture
        .outbox
        .enqueue(&mut tx, &message("k", "rolled back"))
        .await
        .unwrap();
    tx.rollback().await.unwrap();

    let mut tx = fixture.pool.begin().await.unwrap();
    sqlx::query("INSERT INTO orders VALUES (2)")
        .execute(&mut *tx)
        .await
        .unwrap();
    fixture
        .outbox
        .enqueue(&mut tx, &message("k", "committed"))
        .await
        .unwrap();
    assert!(
        store.claim(&limits(1)).await.unwrap().is_none(),
        "uncommitted"
    );
    tx.commit().await.unwrap();

    // Dropped without an end, as by `?`.
    let mut tx = fixture.pool.begin().await.unwrap();
    fixture
        .outbox
        .enqueue(&mut tx, &message("k", "dropped"))
        .await
        .unwrap();
    drop(tx);

    assert_eq!(deliver(&store, 1).await, ["committed"]);
    assert_eq!(fixture.number("SELECT sum(id) FROM orders").await, 2);
    assert_eq!(fixture.places().await, [0, 0, 0, 0]);
}

#[tokio::test]
async fn a_savepoint_takes_its_messages_with_it() {
    let fixture = Fixture::new().await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    let mut tx = fixture.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    fixture
        .outbox
        .enqueue(&mut tx, &message("k", "before"))
        .await
        .unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    fixture
        .outbox
        .enqueue(&mut savepoint, &message("k", "gone"))
        .await
        .unwrap();
    savepoint.rollback().await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    fixture
        .outbox
        .enqueue(&mut savepoint, &message("k", "kept"))
        .await
        .unwrap();
    savepoint.commit().await.unwrap();
    fixture
        .outbox
        .enqueue(&mut tx, &message("k", "after"))
        .await
        .unwrap();
    tx.commit().await.unwrap();
    assert_eq!(deliver(&store, 3).await, ["before", "kept", "after"]);
}

#[tokio::test]
async fn outside_of_a_transaction_it_commits_by_itself() {
    let fixture = Fixture::new().await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    let mut conn = fixture.pool.acquire().await.unwrap();
    fixture
        .outbox
        .enqueue(&mut conn, &message("k", "0"))
        .await
        .unwrap();
    let more = [message("k", "1"), message("k", "2")];
    fixture.outbox.enqueue_all(&mut conn, &more).await.unwrap();
    fixture.outbox.enqueue_all(&mut conn, &[]).await.unwrap();
    assert_eq!(deliver(&store, 3).await, ["0", "1", "2"]);
}

#[tokio::test]
async fn many_are_enqueued_all_or_none() {
    let fixture = Fixture::new().await;
    // The third of a key is refused, by a rule of the application.
    fixture
        .execute(
            "CREATE TRIGGER at_most_two BEFORE INSERT ON outbox_message \
             WHEN (SELECT count(*) FROM outbox_message WHERE key = NEW.key) >= 2 \
             BEGIN SELECT raise(ABORT, 'two are enough'); END",
        )
        .await
        .unwrap();
    let three = ["0", "1", "2"].map(|text| message("k", text));
    let mut conn = fixture.pool.acquire().await.unwrap();
    let error = fixture
        .outbox
        .enqueue_all(&mut conn, &three)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("two are enough"), "{error}");
    assert_eq!(fixture.places().await, [0, 0, 0, 0]);

    // In a transaction the rest of it goes on.
    let mut tx = conn.begin().await.unwrap();
    fixture
        .outbox
        .enqueue(&mut tx, &message("other", "other"))
        .await
        .unwrap();
    fixture
        .outbox
        .enqueue_all(&mut tx, &three)
        .await
        .unwrap_err();
    tx.commit().await.unwrap();
    assert_eq!(fixture.places().await, [1, 0, 0, 0]);
}

#[tokio::test]
async fn a_transaction_begun_by_a_statement_is_the_callers() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.pool.acquire().await.unwrap();
    let two = [message("k", "0"), message("k", "1")];
    for (end, waiting) in [("ROLLBACK", 0), ("COMMIT", 2)] {
        sqlx::raw_sql("BEGIN").execute(&mut *conn).await.unwrap();
        fixture.outbox.enqueue_all(&mut conn, &two).await.unwrap();
        sqlx::raw_sql(end).execute(&mut *conn).await.unwrap();
        assert_eq!(fixture.places().await, [waiting, 0, 0, 0]);
    }
}

#[tokio::test]
async fn a_transaction_shows_what_it_has_enqueued() {
    for mode in [SqliteJournalMode::Wal, SqliteJournalMode::Delete] {
        let f = Fixture::with_options(|options| options.journal_mode(mode)).await;
        let mut tx = f.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
        assert_enqueued(&f.outbox.enqueued(&mut tx).await.unwrap(), &[]);
        let first = message("k", "first");
        f.outbox.enqueue(&mut tx, &first).await.unwrap();
        assert_enqueued(&f.outbox.enqueued(&mut tx).await.unwrap(), &[first]);
        tx.rollback().await.unwrap();
        f.enqueue(&[message("k", "committed")]).await;

        let mut tx = f.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
        assert_enqueued(&f.outbox.enqueued(&mut tx).await.unwrap(), &[]);
        let whole = Message::to("t")
            .key("")
            .header("a", "b\n\"")
            .bytes(vec![0, 255])
            .unwrap();
        f.outbox.enqueue(&mut tx, &whole).await.unwrap();
        let mut savepoint = tx.begin().await.unwrap();
        let undone = message("k", "undone");
        f.outbox.enqueue(&mut savepoint, &undone).await.unwrap();
        savepoint.rollback().await.unwrap();
        let mut savepoint = tx.begin().await.unwrap();
        let kept = message("k", "kept");
        f.outbox.enqueue(&mut savepoint, &kept).await.unwrap();
        let enqueued = f.outbox.enqueued(&mut savepoint).await.unwrap();
        assert_enqueued(&enqueued, &[whole.clone(), kept.clone()]);
        assert_eq!(enqueued[0], whole, "its id too");
        savepoint.commit().await.unwrap();
        tx.commit().await.unwrap();

        let mut conn = f.pool.acquire().await.unwrap();
        assert_enqueued(&f.outbox.enqueued(&mut conn).await.unwrap(), &[]);
    }
}

#[tokio::test]
async fn delayed_messages_are_seen() {
    let f = Fixture::new().await;
    let delayed = |text: &str, hours: u64| {
        let delay = Duration::from_secs(3_600 * hours) + Duration::from_micros(1);
        message("k", text).with_deliver_after(delay).unwrap()
    };
    f.enqueue(&[delayed("before", 3)]).await;
    let all = [delayed("2", 2), message("k", "0"), delayed("1", 1)];
    let mut tx = f.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    f.outbox.enqueue_all(&mut tx, &all).await.unwrap();
    let expected = [1, 0, 2].map(|nth: usize| all[nth].clone());
    assert_enqueued(&f.outbox.enqueued(&mut tx).await.unwrap(), &expected);
    tx.commit().await.unwrap();

    let list = f.outbox.delayed(&f.pool, None, 2).await.unwrap();
    let listed: Vec<_> = list.messages.iter().map(|listed| listed.id).collect();
    assert_eq!(
        (&listed[..], list.next.is_some()),
        (&[all[2].id(), all[0].id()][..], true)
    );
    let due = list.messages[0]
        .deliver_at
        .duration_since(list.now)
        .unwrap();
    assert!(
        due.abs_diff(Duration::from_secs(3_600)) < Duration::from_secs(60),
        "{due:?}"
    );
    let rest = f.outbox.delayed(&f.pool, list.next, 2).await.unwrap();
    assert_eq!((rest.messages.len(), rest.next), (1, None));
    let status = f.outbox.status(&f.pool).await.unwrap();
    assert_eq!((status.delayed.number(), status.waiting.number()), (3, 1));
    assert_eq!(status.next_delayed, Some(list.messages[0].deliver_at));
    assert_eq!(f.outbox.gauges(&f.pool).await.unwrap().delayed.number(), 3);
}

/// Also of those that are due at the same moment.
#[tokio::test]
async fn delayed_messages_are_listed_in_pages() {
    let f = Fixture::new().await;
    let hour = Duration::from_secs(3_600);
    let delayed = |n: u32| {
        message("k", &n.to_string())
            .with_deliver_after(hour)
            .unwrap()
    };
    let all: Vec<_> = (0..5).map(delayed).collect();
    f.enqueue(&all).await;
    sqlx::query("UPDATE outbox_delayed SET deliver_at = 4000000000000")
        .execute(&f.pool)
        .await
        .unwrap();
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = f.outbox.delayed(&f.pool, after, 2).await.unwrap();
        listed.extend(page.messages.iter().map(|message| message.id));
        let Some(next) = page.next else { break };
        after = Some(next.to_string().parse().unwrap());
    }
    let expected: Vec<_> = all.iter().map(|message| message.id()).collect();
    assert_eq!(listed, expected);
}

#[tokio::test]
async fn a_database_in_memory_shows_all_that_waits() {
    let outbox = Outbox::new();
    let pool = support::pool_in_memory().await;
    outbox.migrate(&pool).await.unwrap();
    let mut conn = pool.acquire().await.unwrap();
    for text in ["a", "b"] {
        let mut tx = conn.begin().await.unwrap();
        outbox.enqueue(&mut tx, &message("k", text)).await.unwrap();
        tx.commit().await.unwrap();
    }
    let waiting = [message("k", "a"), message("k", "b")];
    assert_enqueued(&outbox.enqueued(&mut conn).await.unwrap(), &waiting);
}

#[tokio::test]
async fn a_position_is_never_given_twice() {
    let fixture = Fixture::new().await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    let mut positions = Vec::new();
    for text in ["0", "1", "2"] {
        fixture.enqueue(&[message("k", text)]).await;
        positions.push(
            fixture
                .number("SELECT max(position) FROM outbox_message")
                .await,
        );
        deliver(&store, 1).await;
    }
    assert!(positions.is_sorted_by(|a, b| a < b), "{positions:?}");
}

#[tokio::test]
async fn outboxes_of_two_prefixes_do_not_disturb_each_other() {
    let fixture = Fixture::new().await;
    let billing = Outbox::with_prefix("billing_").unwrap();
    billing.migrate(&fixture.pool).await.unwrap();
    let (first, second) = (
        fixture.outbox.store(&fixture.pool).await.unwrap(),
        billing.store(&fixture.pool).await.unwrap(),
    );
    let mut tx = fixture.pool.begin().await.unwrap();
    fixture
        .outbox
        .enqueue(&mut tx, &message("k", "outbox"))
        .await
        .unwrap();
    billing
        .enqueue(&mut tx, &message("k", "billing"))
        .await
        .unwrap();
    tx.commit().await.unwrap();
    assert_eq!(deliver(&second, 1).await, ["billing"]);
    assert_eq!(billing.counts(&fixture.pool).await.unwrap().waiting, 0);
    assert_eq!(deliver(&first, 1).await, ["outbox"]);
}

/// What no message of ours can be, but a row written by hand: it must not stop those behind it.
#[tokio::test]
async fn a_row_that_cannot_be_read_is_given_up_with_its_reason() {
    let fixture = Fixture::new().await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    let behind = Message::to("t").key("k").bytes("behind").unwrap();
    for (columns, values, reason) in [
        ("headers", "'{\"a\": 1}'", "header \"a\" is not text"),
        ("headers", "'[]'", "headers: "),
        ("headers", "'{\"outbox-a\": \"\"}'", "are reserved"),
        ("key", "CAST(x'ff' AS TEXT)", "utf-8"),
        ("key", "'a' || char(0)", "key holds a NUL character"),
    ] {
        fixture
            .execute(&format!(
                "INSERT INTO outbox_message (line, id, topic, {columns}) \
                 VALUES (7, randomblob(16), 't', {values})"
            ))
            .await
            .unwrap();
        fixture.enqueue(std::slice::from_ref(&behind)).await;
        assert_eq!(deliver(&store, 1).await, ["behind"]);
        support::until("the row is dead", async || {
            assert!(store.claim(&limits(1)).await.unwrap().is_none());
            fixture.places().await == [0, 0, 1, 0]
        })
        .await;
        let (outbox, pool, all) = (&fixture.outbox, &fixture.pool, DeadFilter::all());
        let dead = outbox.dead(pool, &all, None, 10).await.unwrap().messages;
        assert!(dead[0].error.contains(reason), "{}", dead[0].error);
        assert_eq!(dead[0].error_kind, "rejected");
        // It is shown whole all the same.
        let shown = outbox
            .dead_content(pool, dead[0].id)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(shown.message, dead[0]);
        let discarded = outbox.discard(pool, all).finish().await.unwrap();
        assert_eq!(discarded.messages, 1);
    }
}

#[tokio::test]
async fn a_limit_holds_for_rows_written_by_hand_too() {
    let fixture = Fixture::new().await;
    for (topic, id, key) in [
        ("''", "randomblob(16)", "NULL"),
        ("printf('%256d', 0)", "randomblob(16)", "NULL"),
        ("'t'", "randomblob(15)", "NULL"),
        ("'t'", "randomblob(16)", "printf('%65537d', 0)"),
    ] {
        let error = fixture
            .execute(&format!(
                "INSERT INTO outbox_message (line, id, topic, key) VALUES (7, {id}, {topic}, {key})"
            ))
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains("CHECK constraint failed"),
            "{error}"
        );
    }
}
