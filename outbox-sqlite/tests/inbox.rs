//! The inbox in a file: who is told that it is the first, whatever runs at the same time.

#![allow(clippy::unwrap_used)]

mod support;

use std::future::{Future as _, poll_fn};
use std::task::Poll;
use std::time::Duration;

use outbox_core::Uuid;
use outbox_core::inbox::MAX_CONSUMER_BYTES;
use outbox_sqlite::{Inbox, Outbox};
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{AssertSqlSafe, Connection as _, Row as _, SqlitePool};
use support::{Fixture, Folder, options};
use tokio::task::JoinSet;

static INBOX: Inbox = Inbox::new();

/// Asks in a transaction of its own that commits.
async fn ask(pool: &SqlitePool, consumer: &str, id: Uuid) -> bool {
    let mut tx = pool.begin().await.unwrap();
    let answer = INBOX.first_time(&mut tx, consumer, id).await.unwrap();
    tx.commit().await.unwrap();
    answer
}

#[tokio::test]
async fn a_message_is_met_once_by_each_consumer() {
    let Fixture {
        pool,
        folder: _folder,
        ..
    } = Fixture::new().await;
    let (one, other) = (Uuid::now_v7(), Uuid::now_v7());
    assert!(ask(&pool, "billing", one).await);
    assert!(!ask(&pool, "billing", one).await);
    assert!(ask(&pool, "billing", other).await);
    assert!(ask(&pool, "shipping", one).await);
}

#[tokio::test]
async fn a_rollback_forgets_also_one_to_a_savepoint() {
    let Fixture {
        pool,
        folder: _folder,
        ..
    } = Fixture::new().await;
    let (undone, kept) = (Uuid::now_v7(), Uuid::now_v7());
    let mut tx = pool.begin().await.unwrap();
    assert!(INBOX.first_time(&mut tx, "c", undone).await.unwrap());
    tx.rollback().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    assert!(INBOX.first_time(&mut savepoint, "c", undone).await.unwrap());
    savepoint.rollback().await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    assert!(INBOX.first_time(&mut savepoint, "c", kept).await.unwrap());
    savepoint.commit().await.unwrap();
    tx.commit().await.unwrap();
    assert!(ask(&pool, "c", undone).await);
    assert!(!ask(&pool, "c", kept).await);
}

/// Many tasks get the same messages at once, and a handler's effect is that of one of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_runs_once_whoever_else_gets_the_message() {
    let fixture = Fixture::new().await;
    fixture
        .execute("CREATE TABLE effect (id BLOB NOT NULL)")
        .await
        .unwrap();
    let ids: Vec<Uuid> = (0..20).map(|_| Uuid::now_v7()).collect();
    let mut consumers = JoinSet::new();
    for nth in 0..6 {
        let (pool, ids) = (fixture.pool.clone(), ids.clone());
        consumers.spawn(async move {
            let mut ran = 0;
            for at in 0..ids.len() {
                let id = ids[if nth % 2 == 0 { at } else { ids.len() - 1 - at }];
                let insert = "INSERT INTO effect VALUES (?1)";
                let done = INBOX
                    .once(&pool, "c", id, async |tx| {
                        sqlx::query(insert).bind(id).execute(tx).await
                    })
                    .await;
                ran += usize::from(done.unwrap().is_some());
            }
            ran
        });
    }
    let ran: usize = consumers.join_all().await.into_iter().sum();
    assert_eq!(ran, ids.len());
    assert_eq!(fixture.number("SELECT count(*) FROM effect").await, 20);
    assert_eq!(
        fixture
            .number("SELECT count(DISTINCT id) FROM effect")
            .await,
        20
    );
}

#[tokio::test]
async fn what_a_handler_refuses_comes_again() {
    let fixture = Fixture::new().await;
    fixture
        .execute("CREATE TABLE effect (n INTEGER PRIMARY KEY)")
        .await
        .unwrap();
    let id = Uuid::now_v7();
    let insert = "INSERT INTO effect VALUES (1)";
    let refused = INBOX
        .once(&fixture.pool, "c", id, async |tx| {
            sqlx::query(insert).execute(tx).await?;
            Err::<(), _>(sqlx::Error::RowNotFound)
        })
        .await;
    assert!(
        matches!(refused, Err(sqlx::Error::RowNotFound)),
        "{refused:?}"
    );
    let done = INBOX
        .once(&fixture.pool, "c", id, async |tx| {
            sqlx::query(insert).execute(tx).await
        })
        .await;
    assert!(done.unwrap().is_some());
}

/// A few errors end the whole transaction in SQLite, unlike others.
const ENDS_IT: &str = "INSERT OR ROLLBACK INTO effect VALUES (1)";

async fn one_effect(fixture: &Fixture) {
    fixture
        .execute("CREATE TABLE effect (n INTEGER PRIMARY KEY); INSERT INTO effect VALUES (1)")
        .await
        .unwrap();
}

/// Whether the handler passes the error on or not; and the pool's one connection is as good as before.
#[tokio::test]
async fn what_sqlite_rolled_back_is_no_success_and_spoils_no_connection() {
    let folder = Folder::new();
    let one = SqlitePoolOptions::new().max_connections(1);
    let pool = one.connect_with(options(&folder.database())).await.unwrap();
    let fixture = Fixture {
        outbox: Outbox::new(),
        pool,
        folder,
    };
    INBOX.migrate(&fixture.pool).await.unwrap();
    one_effect(&fixture).await;
    let id = Uuid::now_v7();
    for passes_on in [true, false] {
        let done = INBOX
            .once(&fixture.pool, "c", id, async |tx| {
                match sqlx::query(ENDS_IT).execute(tx).await {
                    Err(error) if passes_on => Err(error),
                    _ => Ok(()),
                }
            })
            .await;
        let error = done.unwrap_err();
        let expected = match passes_on {
            true => "UNIQUE constraint failed",
            false => "no transaction is active",
        };
        assert!(error.to_string().contains(expected), "{error}");
    }
    let done = INBOX
        .once(&fixture.pool, "c", id, async |_| Ok::<(), sqlx::Error>(()))
        .await;
    assert!(done.unwrap().is_some());
}

/// It would be remembered at once, before the work is done.
#[tokio::test]
async fn it_is_not_asked_in_a_transaction_that_sqlite_has_ended() {
    let fixture = Fixture::new().await;
    one_effect(&fixture).await;
    let mut tx = fixture.pool.begin().await.unwrap();
    sqlx::query(ENDS_IT).execute(&mut *tx).await.unwrap_err();
    let id = Uuid::now_v7();
    let error = INBOX.first_time(&mut tx, "c", id).await.unwrap_err();
    assert!(matches!(error, sqlx::Error::InvalidArgument(_)), "{error}");
}

/// Dropped at each of its await points, in autocommit mode: the connection is in no transaction afterwards.
#[tokio::test]
async fn a_dropped_question_leaves_no_transaction() {
    let fixture = Fixture::new().await;
    for polls in 0.. {
        let mut conn = fixture.pool.acquire().await.unwrap();
        let mut question = Box::pin(INBOX.first_time(&mut conn, "c", Uuid::nil()));
        let mut left = polls;
        let answered = poll_fn(|cx| match question.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => {
                left -= 1;
                Poll::Pending
            }
        });
        let answered = answered.await;
        drop(question);
        sqlx::raw_sql("BEGIN; ROLLBACK")
            .execute(&mut *conn)
            .await
            .unwrap();
        if let Some(answer) = answered {
            assert!(polls > 0, "it was never dropped");
            answer.unwrap_err();
            break;
        }
    }
}

#[tokio::test]
async fn it_is_asked_within_a_transaction() {
    let Fixture {
        pool,
        folder: _folder,
        ..
    } = Fixture::new().await;
    let id = Uuid::now_v7();
    let mut conn = pool.acquire().await.unwrap();
    let error = INBOX.first_time(&mut conn, "c", id).await.unwrap_err();
    assert!(matches!(error, sqlx::Error::InvalidArgument(_)), "{error}");
    // One that sqlx does not know of is one.
    sqlx::raw_sql("BEGIN").execute(&mut *conn).await.unwrap();
    assert!(INBOX.first_time(&mut conn, "c", id).await.unwrap());
    sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await.unwrap();
    assert!(ask(&pool, "c", id).await);
}

#[tokio::test]
async fn a_name_keeps_to_its_limits() {
    let fixture = Fixture::new().await;
    let mut tx = fixture.pool.begin().await.unwrap();
    let id = Uuid::now_v7();
    let longest = "n".repeat(MAX_CONSUMER_BYTES);
    let too_long = "n".repeat(MAX_CONSUMER_BYTES + 1);
    for (name, reason) in [
        ("", "consumer name is empty"),
        (&too_long, "consumer name has 256 bytes, the limit is 255"),
        ("a\0", "consumer name holds a NUL character"),
    ] {
        let error = INBOX.first_time(&mut tx, name, id).await.unwrap_err();
        assert_eq!(error.to_string(), reason);
    }
    assert!(INBOX.first_time(&mut tx, &longest, id).await.unwrap());
    tx.commit().await.unwrap();
    for values in ["'', randomblob(16)", "'c', randomblob(15)"] {
        let insert = format!("INSERT INTO outbox_inbox (consumer, message_id) VALUES ({values})");
        let error = fixture.execute(&insert).await.unwrap_err();
        assert!(
            error.to_string().contains("CHECK constraint failed"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn inboxes_of_two_prefixes_do_not_disturb_each_other() {
    let Fixture {
        pool,
        folder: _folder,
        ..
    } = Fixture::new().await;
    let other = Inbox::with_prefix("billing_").unwrap();
    other.migrate(&pool).await.unwrap();
    let id = Uuid::now_v7();
    assert!(ask(&pool, "c", id).await);
    let mut tx = pool.begin().await.unwrap();
    assert!(other.first_time(&mut tx, "c", id).await.unwrap());
}

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Rows of so many days ago.
async fn remembered(fixture: &Fixture, number: i64, days_ago: i64) {
    let insert = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {number})
         INSERT INTO outbox_inbox
         SELECT 'c', randomblob(16), unixepoch() * 1000 - {days_ago} * 86400000 FROM n"
    );
    fixture.execute(&insert).await.unwrap();
}

#[tokio::test]
async fn what_is_old_is_forgotten_and_comes_again() {
    let fixture = Fixture::new().await;
    remembered(&fixture, 2_345, 31).await;
    remembered(&fixture, 7, 29).await;
    let id = Uuid::now_v7();
    assert!(ask(&fixture.pool, "c", id).await);
    let pool = &fixture.pool;
    assert_eq!(INBOX.forget(pool, 30 * DAY).await.unwrap(), 2_345);
    assert_eq!(INBOX.forget(pool, 30 * DAY).await.unwrap(), 0);
    assert_eq!(INBOX.forget(pool, Duration::MAX).await.unwrap(), 0);
    assert_eq!(fixture.number("SELECT count(*) FROM outbox_inbox").await, 8);
    assert!(!ask(pool, "c", id).await);
    fixture
        .execute("UPDATE outbox_inbox SET processed_at = processed_at - 1")
        .await
        .unwrap();
    assert_eq!(INBOX.forget(pool, Duration::ZERO).await.unwrap(), 8);
    assert!(ask(pool, "c", id).await);
}

#[tokio::test]
async fn forgetting_goes_by_the_index() {
    let fixture = Fixture::new().await;
    let statement = include_str!("../sql/inbox_forget.sql")
        .replace("{prefix}", "outbox_")
        .replace("?1", "2592000000")
        .replace("?2", "1000");
    let plan: Vec<String> = sqlx::raw_sql(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}")))
        .fetch_all(&fixture.pool)
        .await
        .unwrap()
        .iter()
        .map(|row| row.get("detail"))
        .collect();
    let plan = plan.join("\n");
    assert!(
        plan.contains("outbox_inbox_by_time (processed_at<?)"),
        "{plan}"
    );
    assert!(
        plan.contains("PRIMARY KEY (consumer=? AND message_id=?)"),
        "{plan}"
    );
    assert!(!plan.contains("SCAN outbox_inbox"), "{plan}");
}
