//! Enqueue on real servers: in whose transaction, in which order, with which content.

#![allow(clippy::unwrap_used)]

mod support;

use outbox_core::testing::assert_enqueued;
use outbox_core::{Message, Uuid};
use sqlx::{Connection as _, PgConnection, Row as _};
use support::{Fixture, database_message, on_each_server};

on_each_server!(with_outbox:
    a_rollback_leaves_nothing,
    a_savepoint_that_is_rolled_back_leaves_nothing,
    a_pooled_connection_enqueues,
    messages_keep_their_order,
    a_long_slice_is_all_or_nothing_without_a_transaction,
    a_long_slice_is_part_of_a_transaction_begun_by_hand,
    a_slice_of_many_bytes_is_cut,
    an_empty_slice_is_nothing,
    content_arrives_byte_for_byte,
    one_statement_is_prepared_or_none,
    two_outboxes_do_not_disturb_each_other,
    a_transaction_shows_what_it_has_enqueued,
);

fn message(text: &str) -> Message {
    Message::to("orders.placed")
        .key("k")
        .bytes(text.to_owned())
        .unwrap()
}

fn messages(count: usize) -> Vec<Message> {
    (0..count).map(|nth| message(&nth.to_string())).collect()
}

/// The payloads as text, in the order of their positions.
async fn payloads(f: &Fixture) -> Vec<String> {
    sqlx::query_scalar(
        f.sql("SELECT convert_from(payload, 'UTF8') FROM {schema}.message ORDER BY position"),
    )
    .fetch_all(&f.pool)
    .await
    .unwrap()
}

async fn a_rollback_leaves_nothing(f: Fixture) {
    let mut tx = f.pool.begin().await.unwrap();
    f.outbox.enqueue(&mut tx, &message("a")).await.unwrap();
    f.outbox.enqueue_all(&mut tx, &messages(3)).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(f.waiting().await, 0);

    let mut tx = f.pool.begin().await.unwrap();
    f.outbox.enqueue(&mut tx, &message("b")).await.unwrap();
    drop(tx);
    assert_eq!(f.waiting().await, 0);
}

async fn a_savepoint_that_is_rolled_back_leaves_nothing(f: Fixture) {
    let mut tx = f.pool.begin().await.unwrap();
    f.outbox.enqueue(&mut tx, &message("before")).await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    f.outbox
        .enqueue(&mut savepoint, &message("inside"))
        .await
        .unwrap();
    savepoint.rollback().await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    f.outbox
        .enqueue(&mut savepoint, &message("kept"))
        .await
        .unwrap();
    savepoint.commit().await.unwrap();
    f.outbox.enqueue(&mut tx, &message("after")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(payloads(&f).await, ["before", "kept", "after"]);
}

async fn a_pooled_connection_enqueues(f: Fixture) {
    let mut conn = f.pool.acquire().await.unwrap();
    f.outbox.enqueue(&mut conn, &message("a")).await.unwrap();
    assert_eq!(f.waiting().await, 1);
}

async fn messages_keep_their_order(f: Fixture) {
    let all = messages(2_500);
    let mut tx = f.pool.begin().await.unwrap();
    f.outbox.enqueue(&mut tx, &all[0]).await.unwrap();
    f.outbox.enqueue_all(&mut tx, &all[1..2_400]).await.unwrap();
    for message in &all[2_400..] {
        f.outbox.enqueue(&mut tx, message).await.unwrap();
    }
    tx.commit().await.unwrap();
    let expected: Vec<String> = (0..2_500).map(|nth| nth.to_string()).collect();
    assert_eq!(payloads(&f).await, expected);
    let lanes: i64 = sqlx::query_scalar(f.sql("SELECT count(DISTINCT lane) FROM {schema}.message"))
        .fetch_one(&f.pool)
        .await
        .unwrap();
    assert_eq!(lanes, 1, "one key is one lane");
}

/// The last of them is refused, in another statement than the first.
async fn slice_with_a_refused_end(f: &Fixture) -> Vec<Message> {
    f.execute("ALTER TABLE {schema}.message ADD CONSTRAINT refused CHECK (topic <> 'refused')")
        .await
        .unwrap();
    let mut all = messages(20_001);
    all.push(Message::to("refused").tombstone().unwrap());
    all
}

async fn a_long_slice_is_all_or_nothing_without_a_transaction(f: Fixture) {
    let all = slice_with_a_refused_end(&f).await;
    let mut conn = f.pool.acquire().await.unwrap();
    let answer = f.outbox.enqueue_all(&mut conn, &all).await;
    assert!(database_message(answer).contains("refused"));
    assert_eq!(f.waiting().await, 0);
    f.outbox
        .enqueue_all(&mut conn, &all[..20_001])
        .await
        .unwrap();
    drop(conn);
    let expected: Vec<String> = (0..20_001).map(|nth| nth.to_string()).collect();
    assert_eq!(payloads(&f).await, expected);
}

async fn a_long_slice_is_part_of_a_transaction_begun_by_hand(f: Fixture) {
    let all = messages(10_001);
    // sqlx does not know of this transaction, and a COMMIT of ours would end it.
    let mut conn = PgConnection::connect(&f.url).await.unwrap();
    sqlx::raw_sql("BEGIN").execute(&mut conn).await.unwrap();
    f.outbox.enqueue_all(&mut conn, &all).await.unwrap();
    assert_eq!(f.waiting().await, 0);
    sqlx::raw_sql("ROLLBACK").execute(&mut conn).await.unwrap();
    assert_eq!(f.waiting().await, 0);

    let mut tx = conn.begin().await.unwrap();
    f.outbox.enqueue_all(&mut tx, &all).await.unwrap();
    assert_eq!(f.waiting().await, 0);
    tx.commit().await.unwrap();
    assert_eq!(f.waiting().await, 10_001);
}

async fn a_slice_of_many_bytes_is_cut(f: Fixture) {
    let large = vec![7_u8; 9 * 1024 * 1024];
    let all: Vec<Message> = (0..3)
        .map(|_| Message::to("large").bytes(large.clone()).unwrap())
        .collect();
    let mut conn = f.pool.acquire().await.unwrap();
    f.outbox.enqueue_all(&mut conn, &all).await.unwrap();
    assert_eq!(
        prepared(&mut conn).await,
        1,
        "two of them are above 16 MiB: each went alone, by the statement for one"
    );
    assert_eq!(f.waiting().await, 3);
}

async fn an_empty_slice_is_nothing(f: Fixture) {
    let mut conn = f.pool.acquire().await.unwrap();
    f.outbox.enqueue_all(&mut conn, &[]).await.unwrap();
    assert_eq!(f.waiting().await, 0);
}

async fn content_arrives_byte_for_byte(f: Fixture) {
    let every_byte: Vec<u8> = (0..=255).collect();
    let longest_key = "ключ".repeat(8_192);
    let id = Uuid::from_u128(7);
    let all = [
        Message::to("ä/ö.ü\n\"'\\")
            .id(id)
            .key("")
            .bytes(every_byte)
            .unwrap(),
        Message::to("t".repeat(255))
            .key(longest_key)
            .bytes("")
            .unwrap(),
        Message::to("t").tombstone().unwrap(),
        Message::to("t")
            .header("content-type", "text/plain; charset=\"utf-8\"")
            .header("ünïcödé \u{1F4A5}", "line\r\nbreak\ttab\u{1}")
            .header("empty", "")
            .json(r#"{"a":1e400,"b":"\u0000"}"#)
            .unwrap(),
    ];
    let mut conn = f.pool.acquire().await.unwrap();
    // Once each alone, once all together.
    for message in &all {
        f.outbox.enqueue(&mut conn, message).await.unwrap();
    }
    f.outbox.enqueue_all(&mut conn, &all).await.unwrap();
    drop(conn);

    let rows = sqlx::query(f.sql(
        "SELECT id, topic, key, payload,
                ARRAY(SELECT h.key FROM jsonb_each_text(headers) h ORDER BY h.key COLLATE \"C\") AS names,
                ARRAY(SELECT h.value FROM jsonb_each_text(headers) h ORDER BY h.key COLLATE \"C\") AS values
           FROM {schema}.message ORDER BY position",
    ))
    .fetch_all(&f.pool)
    .await
    .unwrap();
    assert_eq!(rows.len(), 2 * all.len());
    for (row, message) in rows.iter().zip(all.iter().chain(&all)) {
        assert_eq!(row.get::<Uuid, _>("id"), message.id());
        assert_eq!(row.get::<String, _>("topic"), message.topic());
        assert_eq!(
            row.get::<Option<String>, _>("key").as_deref(),
            message.key()
        );
        assert_eq!(
            row.get::<Option<Vec<u8>>, _>("payload").as_deref(),
            message.payload().map(|payload| payload.as_ref())
        );
        let names: Vec<String> = row.get("names");
        let values: Vec<String> = row.get("values");
        let headers: Vec<(&str, &str)> = message.headers().iter().collect();
        let stored: Vec<(&str, &str)> = names
            .iter()
            .map(String::as_str)
            .zip(values.iter().map(String::as_str))
            .collect();
        assert_eq!(stored, headers);
    }
}

/// How many statements the session has prepared.
async fn prepared(conn: &mut PgConnection) -> i64 {
    sqlx::raw_sql("SELECT count(*) FROM pg_prepared_statements")
        .fetch_one(conn)
        .await
        .unwrap()
        .get(0)
}

async fn one_statement_is_prepared_or_none(f: Fixture) {
    let mut conn = PgConnection::connect(&f.url).await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    let unprepared = f.outbox.clone().without_prepared_statements();
    unprepared.enqueue(&mut tx, &message("a")).await.unwrap();
    unprepared.enqueue_all(&mut tx, &messages(2)).await.unwrap();
    assert_eq!(prepared(&mut tx).await, 0);
    for _ in 0..3 {
        f.outbox.enqueue(&mut tx, &message("a")).await.unwrap();
    }
    assert_eq!(prepared(&mut tx).await, 1);
    tx.commit().await.unwrap();
    assert_eq!(f.waiting().await, 6);
}

async fn two_outboxes_do_not_disturb_each_other(f: Fixture) {
    let other = Fixture {
        outbox: outbox_postgres::Outbox::in_schema(format!("{}_other", f.outbox.schema())).unwrap(),
        ..f.clone()
    };
    other.outbox.migrate(&f.pool).await.unwrap();
    let mut tx = f.pool.begin().await.unwrap();
    f.outbox.enqueue(&mut tx, &message("here")).await.unwrap();
    other
        .outbox
        .enqueue(&mut tx, &message("there"))
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let (here, there) = (payloads(&f).await, payloads(&other).await);
    other
        .execute("SET client_min_messages = warning; DROP SCHEMA {schema} CASCADE")
        .await
        .unwrap();
    assert_eq!(
        (here, there),
        (vec!["here".to_owned()], vec!["there".to_owned()])
    );
    f.outbox.migrate(&f.pool).await.unwrap();
}

/// Of other transactions it shows nothing, whether they are open or have committed, and of its savepoints what
/// is left.
async fn a_transaction_shows_what_it_has_enqueued(f: Fixture) {
    let mut other = f.pool.begin().await.unwrap();
    f.outbox
        .enqueue(&mut other, &message("committed"))
        .await
        .unwrap();
    other.commit().await.unwrap();
    let mut other = f.pool.begin().await.unwrap();
    f.outbox
        .enqueue(&mut other, &message("open"))
        .await
        .unwrap();

    let mut tx = f.pool.begin().await.unwrap();
    assert_enqueued(&f.outbox.enqueued(&mut tx).await.unwrap(), &[]);
    let whole = Message::to("t")
        .key("")
        .header("a", "b\n\"")
        .bytes(vec![0, 255])
        .unwrap();
    f.outbox.enqueue(&mut tx, &whole).await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    f.outbox
        .enqueue(&mut savepoint, &message("undone"))
        .await
        .unwrap();
    savepoint.rollback().await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    f.outbox
        .enqueue_all(&mut savepoint, &messages(2))
        .await
        .unwrap();
    assert_enqueued(
        &f.outbox.enqueued(&mut savepoint).await.unwrap(),
        &[whole.clone(), message("0"), message("1")],
    );
    savepoint.commit().await.unwrap();
    sqlx::query(f.sql("SELECT {schema}.enqueue('in.sql', NULL)"))
        .execute(&mut *tx)
        .await
        .unwrap();
    let enqueued = f.outbox.enqueued(&mut tx).await.unwrap();
    let in_sql = Message::to("in.sql").tombstone().unwrap();
    assert_enqueued(
        &enqueued,
        &[whole.clone(), message("0"), message("1"), in_sql],
    );
    assert_eq!(enqueued[0], whole, "its id too");
    tx.rollback().await.unwrap();
    other.rollback().await.unwrap();
}
