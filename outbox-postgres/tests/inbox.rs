//! The inbox on real servers: who is told that it is the first, whatever runs at the same time.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use futures_util::future::join_all;
use outbox_core::inbox::MAX_CONSUMER_BYTES;
use outbox_core::{Message, Uuid};
use outbox_postgres::Inbox;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool, Postgres, Row as _, Transaction};
use support::{Fixture, database_message, on_each_server, until};
use tokio::task::JoinHandle;

on_each_server!(with_outbox:
    a_message_is_met_once_by_each_consumer,
    a_rollback_forgets,
    a_rollback_to_a_savepoint_forgets,
    a_second_one_waits_and_answers_by_what_became_of_the_first,
    a_second_one_waits_for_no_more_than_the_savepoint,
    a_stricter_isolation_refuses_what_it_cannot_see,
    of_two_that_wait_for_each_other_one_is_ended,
    many_consumers_at_once_have_each_effect_once,
    it_is_asked_within_a_transaction,
    a_name_keeps_to_its_limits,
    a_handler_runs_once,
    what_a_handler_refuses_comes_again,
    what_the_server_rolled_back_is_no_success,
    what_a_handler_enqueues_is_there_once,
    what_is_old_is_forgotten_in_steps,
    the_documents_statement_forgets_what_is_old,
    forgetting_and_consuming_do_not_wait_for_each_other,
    forgetting_goes_by_the_index_whatever_the_statistics,
    one_process_forgets_at_a_time,
    one_statement_is_prepared_or_none,
);

const ISOLATIONS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

fn inbox(f: &Fixture) -> Inbox {
    Inbox::in_schema(f.outbox.schema()).unwrap()
}

async fn begin(pool: &PgPool, isolation: &str) -> Transaction<'static, Postgres> {
    let begin = format!("BEGIN ISOLATION LEVEL {isolation}");
    pool.begin_with(AssertSqlSafe(begin)).await.unwrap()
}

/// Asks in a transaction of its own that commits.
async fn ask(f: &Fixture, consumer: &str, id: Uuid) -> bool {
    let mut tx = f.pool.begin().await.unwrap();
    let answer = inbox(f).first_time(&mut tx, consumer, id).await.unwrap();
    tx.commit().await.unwrap();
    answer
}

/// A transaction that has asked and is open.
async fn asked(f: &Fixture, isolation: &str, id: Uuid) -> Transaction<'static, Postgres> {
    let mut tx = begin(&f.pool, isolation).await;
    assert!(inbox(f).first_time(&mut tx, "c", id).await.unwrap());
    tx
}

/// What another transaction is answered, which commits; it waits when this returns.
async fn second(f: &Fixture, isolation: &str, id: Uuid) -> JoinHandle<Result<bool, sqlx::Error>> {
    let mut tx = begin(&f.pool, isolation).await;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    let inbox = inbox(f);
    let second = tokio::spawn(async move {
        let answer = inbox.first_time(&mut tx, "c", id).await?;
        tx.commit().await?;
        Ok(answer)
    });
    until("the second waits", async || {
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)")
            .bind(pid)
            .fetch_one(&f.pool)
            .await
            .unwrap()
    })
    .await;
    second
}

#[track_caller]
fn assert_not_serializable(answer: Result<bool, sqlx::Error>) {
    let error = answer.unwrap_err();
    let code = error.as_database_error().and_then(|error| error.code());
    assert_eq!(code.as_deref(), Some("40001"), "{error}");
}

async fn a_message_is_met_once_by_each_consumer(f: Fixture) {
    let (one, other) = (Uuid::now_v7(), Uuid::now_v7());
    assert!(ask(&f, "billing", one).await);
    assert!(!ask(&f, "billing", one).await);
    assert!(ask(&f, "billing", other).await);
    assert!(ask(&f, "shipping", one).await);
    assert!(ask(&f, "Billing", one).await);
    // In one transaction too.
    let mut tx = f.pool.begin().await.unwrap();
    let id = Uuid::nil();
    for expected in [true, false] {
        let answer = inbox(&f).first_time(&mut tx, "billing", id).await;
        assert_eq!(answer.unwrap(), expected);
    }
}

async fn a_rollback_forgets(f: Fixture) {
    let id = Uuid::now_v7();
    for isolation in ISOLATIONS {
        asked(&f, isolation, id).await.rollback().await.unwrap();
        drop(asked(&f, isolation, id).await);
    }
    assert!(ask(&f, "c", id).await);
}

async fn a_rollback_to_a_savepoint_forgets(f: Fixture) {
    for isolation in ISOLATIONS {
        let (undone, kept) = (Uuid::now_v7(), Uuid::now_v7());
        let mut tx = begin(&f.pool, isolation).await;
        let mut savepoint = tx.begin().await.unwrap();
        assert!(
            inbox(&f)
                .first_time(&mut savepoint, "c", undone)
                .await
                .unwrap()
        );
        savepoint.rollback().await.unwrap();
        let mut savepoint = tx.begin().await.unwrap();
        assert!(
            inbox(&f)
                .first_time(&mut savepoint, "c", kept)
                .await
                .unwrap()
        );
        savepoint.commit().await.unwrap();
        tx.commit().await.unwrap();
        assert!(ask(&f, "c", undone).await);
        assert!(!ask(&f, "c", kept).await);
    }
}

async fn a_second_one_waits_and_answers_by_what_became_of_the_first(f: Fixture) {
    for first in ISOLATIONS {
        for isolation in ISOLATIONS {
            let id = Uuid::now_v7();
            let tx = asked(&f, first, id).await;
            let answer = second(&f, isolation, id).await;
            tx.commit().await.unwrap();
            let answer = answer.await.unwrap();
            if isolation == "READ COMMITTED" {
                assert!(!answer.unwrap());
            } else {
                assert_not_serializable(answer);
            }
            assert!(!ask(&f, "c", id).await);

            let id = Uuid::now_v7();
            let tx = asked(&f, first, id).await;
            let answer = second(&f, isolation, id).await;
            tx.rollback().await.unwrap();
            assert!(answer.await.unwrap().unwrap(), "{first}, {isolation}");
            assert!(!ask(&f, "c", id).await);
        }
    }
}

async fn a_second_one_waits_for_no_more_than_the_savepoint(f: Fixture) {
    for isolation in ISOLATIONS {
        let id = Uuid::now_v7();
        let mut tx = begin(&f.pool, isolation).await;
        let mut savepoint = tx.begin().await.unwrap();
        assert!(inbox(&f).first_time(&mut savepoint, "c", id).await.unwrap());
        let answer = second(&f, isolation, id).await;
        savepoint.rollback().await.unwrap();
        assert!(answer.await.unwrap().unwrap());
        tx.commit().await.unwrap();
        assert!(!ask(&f, "c", id).await);
    }
}

async fn a_stricter_isolation_refuses_what_it_cannot_see(f: Fixture) {
    for isolation in ISOLATIONS {
        let id = Uuid::now_v7();
        assert!(ask(&f, "c", id).await);
        let mut tx = begin(&f.pool, isolation).await;
        assert!(!inbox(&f).first_time(&mut tx, "c", id).await.unwrap());
        drop(tx);

        let id = Uuid::now_v7();
        let mut tx = begin(&f.pool, isolation).await;
        // This is when it takes its snapshot.
        sqlx::raw_sql("SELECT 1").execute(&mut *tx).await.unwrap();
        assert!(ask(&f, "c", id).await);
        let answer = inbox(&f).first_time(&mut tx, "c", id).await;
        if isolation == "READ COMMITTED" {
            assert!(!answer.unwrap());
        } else {
            assert_not_serializable(answer);
        }
    }
}

async fn of_two_that_wait_for_each_other_one_is_ended(f: Fixture) {
    let ids = [Uuid::now_v7(), Uuid::now_v7()];
    let mut first = asked(&f, "READ COMMITTED", ids[0]).await;
    let mut second = asked(&f, "READ COMMITTED", ids[1]).await;
    let inbox = inbox(&f);
    // Whoever is ended lets go of what it has, so the other one is the first to meet both.
    let (one, other) = tokio::join!(
        async {
            let answer = inbox.first_time(&mut first, "c", ids[1]).await;
            drop(first);
            answer
        },
        async {
            let answer = inbox.first_time(&mut second, "c", ids[0]).await;
            drop(second);
            answer
        },
    );
    let (met, ended) = if one.is_ok() {
        (one, other)
    } else {
        (other, one)
    };
    assert!(met.unwrap());
    let error = ended.unwrap_err();
    let code = error.as_database_error().and_then(|error| error.code());
    assert_eq!(code.as_deref(), Some("40P01"), "{error}");
}

/// Eight tasks consume the same messages, each in an order of its own and each time in another isolation.
async fn many_consumers_at_once_have_each_effect_once(f: Fixture) {
    const MESSAGES: usize = 40;
    f.execute("CREATE TABLE {schema}.effect (id uuid NOT NULL)")
        .await
        .unwrap();
    let ids: Vec<Uuid> = (0..MESSAGES).map(|_| Uuid::now_v7()).collect();
    let consumers = (0..8_usize).map(|nth| {
        let (f, ids, inbox) = (f.clone(), ids.clone(), inbox(&f));
        tokio::spawn(async move {
            for at in 0..MESSAGES {
                // Halves meet at once, from both ends.
                let id = ids[if nth % 2 == 0 { at } else { MESSAGES - 1 - at }];
                let isolation = ISOLATIONS[(nth + at) % 3];
                while let Err(error) = effect(&f, &inbox, isolation, id).await {
                    assert_not_serializable(Err(error));
                }
            }
        })
    });
    for ended in join_all(consumers).await {
        ended.unwrap();
    }
    let effects: (i64, i64) =
        sqlx::query_as(f.sql("SELECT count(*), count(DISTINCT id) FROM {schema}.effect"))
            .fetch_one(&f.pool)
            .await
            .unwrap();
    assert_eq!(effects, (MESSAGES as i64, MESSAGES as i64));
}

async fn effect(f: &Fixture, inbox: &Inbox, isolation: &str, id: Uuid) -> Result<(), sqlx::Error> {
    let mut tx = begin(&f.pool, isolation).await;
    if inbox.first_time(&mut tx, "c", id).await? {
        sqlx::query(f.sql("INSERT INTO {schema}.effect VALUES ($1)"))
            .bind(id)
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await
}

async fn it_is_asked_within_a_transaction(f: Fixture) {
    let id = Uuid::now_v7();
    let mut conn = PgConnection::connect(&f.url).await.unwrap();
    let error = inbox(&f).first_time(&mut conn, "c", id).await.unwrap_err();
    assert!(matches!(error, sqlx::Error::InvalidArgument(_)), "{error}");
    // One that sqlx does not know of is one.
    sqlx::raw_sql("BEGIN").execute(&mut conn).await.unwrap();
    assert!(inbox(&f).first_time(&mut conn, "c", id).await.unwrap());
    sqlx::raw_sql("ROLLBACK").execute(&mut conn).await.unwrap();
    assert!(ask(&f, "c", id).await);
}

async fn a_name_keeps_to_its_limits(f: Fixture) {
    let mut tx = f.pool.begin().await.unwrap();
    let id = Uuid::now_v7();
    let longest = "n".repeat(MAX_CONSUMER_BYTES);
    let too_long = "n".repeat(MAX_CONSUMER_BYTES + 1);
    for (name, reason) in [
        ("", "consumer name is empty"),
        (&too_long, "consumer name has 256 bytes, the limit is 255"),
        ("a\0", "consumer name holds a NUL character"),
    ] {
        let error = inbox(&f).first_time(&mut tx, name, id).await.unwrap_err();
        assert_eq!(error.to_string(), reason);
    }
    // Nothing was sent, so the transaction goes on.
    assert!(inbox(&f).first_time(&mut tx, &longest, id).await.unwrap());
    tx.commit().await.unwrap();

    let in_sql = async |arguments: &str| {
        let statement = format!("SELECT {{schema}}.first_time({arguments})");
        sqlx::query_scalar::<_, bool>(f.sql(&statement))
            .fetch_one(&f.pool)
            .await
    };
    let id = "'00000000-0000-0000-0000-000000000001'";
    assert!(in_sql(&format!("'c', {id}")).await.unwrap());
    assert!(
        !in_sql(&format!("consumer => 'c', message_id => {id}"))
            .await
            .unwrap()
    );
    for (arguments, reason) in [
        (format!("'', {id}"), "consumer name is empty"),
        (format!("NULL, {id}"), "consumer name is empty"),
        (
            format!("repeat('n', 256), {id}"),
            "consumer name has 256 bytes, the limit is 255",
        ),
        (
            "'c', NULL".to_owned(),
            "null value in column \"message_id\"",
        ),
    ] {
        let message = database_message(in_sql(&arguments).await);
        assert!(message.contains(reason), "{message}");
    }
    let by_hand = f
        .execute("INSERT INTO {schema}.inbox VALUES ('', gen_random_uuid())")
        .await;
    assert!(database_message(by_hand).contains("inbox_consumer_1_to_255_bytes"));
}

async fn a_handler_runs_once(f: Fixture) {
    f.execute("CREATE TABLE {schema}.effect (n bigint NOT NULL)")
        .await
        .unwrap();
    let id = Uuid::now_v7();
    // Spawned, since that is how most consumers run.
    let run = || {
        let (f, inbox) = (f.clone(), inbox(&f));
        tokio::spawn(async move {
            let text = String::from("borrowed by the handler");
            let statement = "INSERT INTO {schema}.effect VALUES ($1)";
            inbox
                .once(&f.pool, "c", id, async |tx| {
                    let length = i64::try_from(text.len()).unwrap();
                    sqlx::query(f.sql(statement))
                        .bind(length)
                        .execute(tx)
                        .await?;
                    Ok::<i64, sqlx::Error>(length)
                })
                .await
        })
    };
    let answers = join_all((0..4).map(|_| run())).await;
    let ran: Vec<i64> = answers
        .into_iter()
        .filter_map(|it| it.unwrap().unwrap())
        .collect();
    assert_eq!(ran, [23]);
    let effects: Vec<i64> = sqlx::query_scalar(f.sql("SELECT n FROM {schema}.effect"))
        .fetch_all(&f.pool)
        .await
        .unwrap();
    assert_eq!(effects, [23]);
}

async fn what_a_handler_refuses_comes_again(f: Fixture) {
    #[derive(Debug)]
    enum Failure {
        Refused,
        Database,
    }
    impl From<sqlx::Error> for Failure {
        fn from(_: sqlx::Error) -> Self {
            Self::Database
        }
    }
    f.execute("CREATE TABLE {schema}.effect (n integer PRIMARY KEY)")
        .await
        .unwrap();
    let id = Uuid::now_v7();
    let insert = "INSERT INTO {schema}.effect VALUES (1)";
    let refused = inbox(&f)
        .once(&f.pool, "c", id, async |tx| {
            sqlx::raw_sql(f.sql(insert)).execute(tx).await?;
            Err::<(), _>(Failure::Refused)
        })
        .await;
    assert!(matches!(refused, Err(Failure::Refused)), "{refused:?}");
    let failed = inbox(&f)
        .once(&f.pool, "c", id, async |tx| {
            sqlx::raw_sql(f.sql(insert)).execute(&mut *tx).await?;
            sqlx::raw_sql(f.sql(insert)).execute(tx).await?;
            Ok::<(), Failure>(())
        })
        .await;
    assert!(matches!(failed, Err(Failure::Database)), "{failed:?}");
    let done = inbox(&f)
        .once(&f.pool, "c", id, async |tx| {
            sqlx::raw_sql(f.sql(insert)).execute(tx).await?;
            Ok::<_, Failure>("done")
        })
        .await;
    assert_eq!(done.unwrap(), Some("done"));
}

/// `COMMIT` rolls a failed transaction back and says so by its tag alone, as it does after a `ROLLBACK` by hand.
async fn what_the_server_rolled_back_is_no_success(f: Fixture) {
    f.execute("CREATE TABLE {schema}.effect (n integer PRIMARY KEY)")
        .await
        .unwrap();
    let id = Uuid::now_v7();
    let insert = "INSERT INTO {schema}.effect VALUES (1)";
    for (ends_it, expected) in [("SELECT 1 / 0", "25P02"), ("ROLLBACK", "25P01")] {
        let done = inbox(&f)
            .once(&f.pool, "c", id, async |tx| {
                sqlx::raw_sql(f.sql(insert)).execute(&mut *tx).await?;
                let _ = sqlx::raw_sql(ends_it).execute(tx).await;
                Ok::<(), sqlx::Error>(())
            })
            .await;
        let error = done.unwrap_err();
        let code = error.as_database_error().and_then(|error| error.code());
        assert_eq!(code.as_deref(), Some(expected), "{error}");
    }
    // A failure that is kept to a savepoint is the handler's own affair.
    let done = inbox(&f)
        .once(&f.pool, "c", id, async |tx| {
            let mut savepoint = tx.begin().await?;
            sqlx::raw_sql("SELECT 1 / 0")
                .execute(&mut *savepoint)
                .await
                .unwrap_err();
            savepoint.rollback().await?;
            sqlx::raw_sql(f.sql(insert)).execute(tx).await
        })
        .await;
    assert!(done.unwrap().is_some());
    assert!(!ask(&f, "c", id).await);
}

async fn what_a_handler_enqueues_is_there_once(f: Fixture) {
    let message = Message::to("t").bytes("x").unwrap();
    let id = Uuid::now_v7();
    let failing = inbox(&f)
        .once(&f.pool, "c", id, async |tx| {
            f.outbox.enqueue(tx, &message).await?;
            Err::<(), _>(sqlx::Error::RowNotFound)
        })
        .await;
    failing.unwrap_err();
    for expected in [Some(()), None, None] {
        let done = inbox(&f)
            .once(&f.pool, "c", id, async |tx| {
                f.outbox.enqueue(tx, &message).await
            })
            .await;
        assert_eq!(done.unwrap(), expected);
    }
    assert_eq!(f.waiting().await, 1);
}

/// Rows of so many days ago.
async fn remembered(f: &Fixture, number: i64, days_ago: i32) {
    let statement = "INSERT INTO {schema}.inbox
        SELECT 'c', gen_random_uuid(), clock_timestamp() - $2 * interval '1 day' FROM generate_series(1, $1)";
    sqlx::query(f.sql(statement))
        .bind(number)
        .bind(days_ago)
        .execute(&f.pool)
        .await
        .unwrap();
}

async fn left(f: &Fixture) -> i64 {
    sqlx::query_scalar(f.sql("SELECT count(*) FROM {schema}.inbox"))
        .fetch_one(&f.pool)
        .await
        .unwrap()
}

const DAY: Duration = Duration::from_secs(24 * 3_600);

async fn what_is_old_is_forgotten_in_steps(f: Fixture) {
    remembered(&f, 2_345, 31).await;
    remembered(&f, 2_000, 40).await;
    remembered(&f, 7, 29).await;
    let id = Uuid::now_v7();
    assert!(ask(&f, "c", id).await);
    // Each statement says how many rows it has deleted.
    f.execute(
        "CREATE TABLE {schema}.step (rows bigint);
         CREATE FUNCTION {schema}.count_step() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             INSERT INTO {schema}.step SELECT count(*) FROM deleted;
             RETURN NULL;
         END $$;
         CREATE TRIGGER count_step AFTER DELETE ON {schema}.inbox REFERENCING OLD TABLE AS deleted
             FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_step();",
    )
    .await
    .unwrap();
    assert_eq!(inbox(&f).forget(&f.pool, 30 * DAY).await.unwrap(), 4_345);
    let steps: Vec<i64> = sqlx::query_scalar(f.sql("SELECT rows FROM {schema}.step"))
        .fetch_all(&f.pool)
        .await
        .unwrap();
    assert_eq!(steps, [1_000, 1_000, 1_000, 1_000, 345]);
    assert_eq!(left(&f).await, 8);
    assert_eq!(inbox(&f).forget(&f.pool, 30 * DAY).await.unwrap(), 0);
    assert_eq!(inbox(&f).forget(&f.pool, Duration::MAX).await.unwrap(), 0);
    assert!(!ask(&f, "c", id).await);
    assert_eq!(inbox(&f).forget(&f.pool, Duration::ZERO).await.unwrap(), 8);
    assert!(
        ask(&f, "c", id).await,
        "what was forgotten is met for the first time"
    );
}

async fn the_documents_statement_forgets_what_is_old(f: Fixture) {
    remembered(&f, 1_005, 31).await;
    remembered(&f, 7, 29).await;
    let document = include_str!("../../docs/consumers.md");
    let statement = document
        .split("```")
        .filter_map(|block| block.strip_prefix("sql ")?.split_once('\n'))
        .map(|(_, statement)| statement)
        .find(|block| block.starts_with("DELETE"))
        .unwrap()
        .replace("outbox.", "{schema}.");
    for expected in [1_000, 5, 0] {
        let deleted = sqlx::raw_sql(f.sql(&statement))
            .execute(&f.pool)
            .await
            .unwrap();
        assert_eq!(deleted.rows_affected(), expected);
    }
    assert_eq!(left(&f).await, 7);
}

async fn forgetting_and_consuming_do_not_wait_for_each_other(f: Fixture) {
    remembered(&f, 1_500, 31).await;
    // A consumer is in the midst of its work.
    let tx = asked(&f, "READ COMMITTED", Uuid::now_v7()).await;
    assert_eq!(inbox(&f).forget(&f.pool, 30 * DAY).await.unwrap(), 1_500);
    tx.commit().await.unwrap();

    // A step is in the midst of its work: held up by a trigger after its delete.
    remembered(&f, 3, 31).await;
    let id = Uuid::now_v7();
    assert!(ask(&f, "c", id).await);
    let age = "UPDATE {schema}.inbox SET processed_at = processed_at - interval '31 days' WHERE message_id = $1";
    sqlx::query(f.sql(age))
        .bind(id)
        .execute(&f.pool)
        .await
        .unwrap();
    f.execute(
        "CREATE FUNCTION {schema}.hold() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             PERFORM pg_advisory_xact_lock(hashtextextended('{schema}', 0));
             RETURN NULL;
         END $$;
         CREATE TRIGGER hold AFTER DELETE ON {schema}.inbox
             FOR EACH STATEMENT EXECUTE FUNCTION {schema}.hold();",
    )
    .await
    .unwrap();
    let mut holder = f.pool.begin().await.unwrap();
    let hold = "SELECT pg_advisory_xact_lock(hashtextextended('{schema}', 0))";
    sqlx::raw_sql(f.sql(hold))
        .execute(&mut *holder)
        .await
        .unwrap();
    let forgetting = tokio::spawn({
        let f = f.clone();
        async move { inbox(&f).forget(&f.pool, 30 * DAY).await }
    });
    until("a step is held up", async || {
        sqlx::query_scalar(f.sql(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
             AND (classid::bigint << 32 | objid::bigint) = hashtextextended('{schema}', 0))",
        ))
        .fetch_one(&f.pool)
        .await
        .unwrap()
    })
    .await;
    assert!(ask(&f, "c", Uuid::now_v7()).await);
    // Only for a message that is being forgotten it is waited for.
    let answer = second(&f, "READ COMMITTED", id).await;
    assert!(!forgetting.is_finished());
    holder.commit().await.unwrap();
    assert_eq!(forgetting.await.unwrap().unwrap(), 4);
    assert!(answer.await.unwrap().unwrap());
}

/// With the statistics of an empty table, which a new inbox has for a while, and with good ones.
async fn forgetting_goes_by_the_index_whatever_the_statistics(f: Fixture) {
    let plan = async || {
        let mut tx = f.pool.begin().await.unwrap();
        sqlx::raw_sql("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
            .execute(&mut *tx)
            .await
            .unwrap();
        let statement = include_str!("../sql/inbox_forget.sql")
            .replace("$1", "NULL")
            .replace("$2", "2592000000000")
            .replace("$3", "1000");
        let comments = |line: &&str| !line.starts_with("--");
        let statement: Vec<&str> = statement.lines().filter(comments).collect();
        let explain = format!(
            "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) {}",
            statement.join("\n")
        );
        let rows = sqlx::raw_sql(f.sql(&explain))
            .fetch_all(&mut *tx)
            .await
            .unwrap();
        let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        lines.join("\n")
    };
    f.execute("ALTER TABLE {schema}.inbox SET (autovacuum_enabled = off); ANALYZE {schema}.inbox")
        .await
        .unwrap();
    remembered(&f, 5_000, 1).await;
    let stale = plan().await;
    f.execute("ANALYZE {schema}.inbox").await.unwrap();
    for plan in [stale, plan().await] {
        assert!(plan.contains("using inbox_by_time"), "{plan}");
        assert!(plan.contains("Tid Scan on inbox"), "{plan}");
        assert!(!plan.contains("Seq Scan"), "{plan}");
        assert!(!plan.contains("Rows Removed"), "{plan}");
    }
}

async fn one_process_forgets_at_a_time(f: Fixture) {
    remembered(&f, 10, 31).await;
    let mut other = f.pool.begin().await.unwrap();
    let turn = include_str!("../sql/inbox_turn.sql");
    sqlx::raw_sql(f.sql(turn))
        .execute(&mut *other)
        .await
        .unwrap();
    assert_eq!(inbox(&f).forget(&f.pool, 30 * DAY).await.unwrap(), 0);
    other.rollback().await.unwrap();
    assert_eq!(inbox(&f).forget(&f.pool, 30 * DAY).await.unwrap(), 10);
}

async fn one_statement_is_prepared_or_none(f: Fixture) {
    let prepared = async |conn: &mut PgConnection| -> i64 {
        let count = "SELECT count(*) FROM pg_prepared_statements";
        sqlx::raw_sql(count).fetch_one(conn).await.unwrap().get(0)
    };
    let mut conn = PgConnection::connect(&f.url).await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    let unprepared = inbox(&f).without_prepared_statements();
    assert!(
        unprepared
            .first_time(&mut tx, "c", Uuid::now_v7())
            .await
            .unwrap()
    );
    assert_eq!(prepared(&mut tx).await, 0);
    for _ in 0..3 {
        assert!(
            inbox(&f)
                .first_time(&mut tx, "c", Uuid::now_v7())
                .await
                .unwrap()
        );
    }
    assert_eq!(prepared(&mut tx).await, 1);
}
