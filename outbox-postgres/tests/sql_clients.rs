//! The table as clients of any language meet it: the SQL functions, and plain statements.

#![allow(clippy::unwrap_used)]

mod support;

use outbox_core::{Headers, Message, Uuid};
use sqlx::{Connection as _, PgConnection, Row as _};
use support::{Fixture, database_message, on_each_server, until};

on_each_server!(with_outbox:
    the_function_takes_arguments_by_place_and_by_name,
    json_is_kept_as_it_is_written,
    an_id_made_in_sql_is_a_uuid_of_version_7,
    the_function_names_field_and_limit,
    a_plain_insert_names_field_and_limit,
    headers_are_refused_as_in_rust,
    limits_can_be_reached,
    no_client_chooses_a_place,
    the_transaction_has_its_id_before_a_position_is_drawn,
);

async fn the_function_takes_arguments_by_place_and_by_name(f: Fixture) {
    let id = Uuid::from_u128(5);
    for call in [
        r#"{schema}.enqueue('t', '\x00ff', 'k', '{"h": "v"}', $1)"#,
        r#"{schema}.enqueue(topic => 't', payload => '\x00ff', key => 'k', headers => '{"h": "v"}', id => $1)"#,
        r#"{schema}.enqueue('t', '\x00ff', id => $1, headers => '{"h": "v"}', key => 'k')"#,
    ] {
        let given: Uuid = sqlx::query_scalar(f.sql(&format!("SELECT {call}")))
            .bind(id)
            .fetch_one(&f.pool)
            .await
            .unwrap();
        assert_eq!(given, id);
    }
    f.execute("SELECT {schema}.enqueue('t', NULL)")
        .await
        .unwrap();
    let rows = sqlx::query(f.sql(
        "SELECT id, topic, key, payload, headers::text FROM {schema}.message ORDER BY position",
    ))
    .fetch_all(&f.pool)
    .await
    .unwrap();
    for row in &rows[..3] {
        assert_eq!(row.get::<Uuid, _>(0), id);
        assert_eq!(row.get::<String, _>(1), "t");
        assert_eq!(row.get::<Option<String>, _>(2).as_deref(), Some("k"));
        assert_eq!(
            row.get::<Option<Vec<u8>>, _>(3).as_deref(),
            Some(&[0, 255][..])
        );
        assert_eq!(
            row.get::<Option<String>, _>(4).as_deref(),
            Some(r#"{"h": "v"}"#)
        );
    }
    assert_eq!(rows[3].get::<Option<Vec<u8>>, _>(3), None);
    assert_eq!(rows[3].get::<Option<String>, _>(4), None);
}

async fn json_is_kept_as_it_is_written(f: Fixture) {
    let text = r#"{ "b": 12345678901234567890.10, "a":  "\u0000\\n", "a": null }"#;
    sqlx::query(f.sql("SELECT {schema}.enqueue_json('t', $1::text::json, key => 'k')"))
        .bind(text)
        .execute(&f.pool)
        .await
        .unwrap();
    f.execute(
        "SELECT {schema}.enqueue_json('t', row_to_json(l)) FROM (SELECT 3 AS lane, 0 AS floor) AS l",
    )
    .await
    .unwrap();
    f.execute("SELECT {schema}.enqueue_json('t', NULL)")
        .await
        .unwrap();
    let payloads: Vec<Option<Vec<u8>>> =
        sqlx::query_scalar(f.sql("SELECT payload FROM {schema}.message ORDER BY position"))
            .fetch_all(&f.pool)
            .await
            .unwrap();
    assert_eq!(
        payloads,
        [
            Some(text.into()),
            Some(r#"{"lane":3,"floor":0}"#.into()),
            None
        ]
    );
}

async fn an_id_made_in_sql_is_a_uuid_of_version_7(f: Fixture) {
    let before = Uuid::now_v7();
    f.execute("INSERT INTO {schema}.message (topic) SELECT 't' FROM generate_series(1, 100)")
        .await
        .unwrap();
    let given: Uuid = sqlx::query_scalar(f.sql("SELECT {schema}.enqueue('t', NULL)"))
        .fetch_one(&f.pool)
        .await
        .unwrap();
    let ids: Vec<Uuid> =
        sqlx::query_scalar(f.sql("SELECT id FROM {schema}.message ORDER BY position"))
            .fetch_all(&f.pool)
            .await
            .unwrap();
    let after = Uuid::now_v7();
    assert_eq!(ids.last(), Some(&given));
    let millis = |id: &Uuid| id.as_u128() >> 80;
    for id in &ids {
        assert_eq!(id.get_version_num(), 7, "{id}");
        assert_eq!(id.get_variant(), uuid::Variant::RFC4122, "{id}");
        // Servers and tests share a machine and its clock.
        assert!(
            (millis(&before)..=millis(&after)).contains(&millis(id)),
            "{before} {id} {after}"
        );
    }
    let distinct: std::collections::HashSet<&Uuid> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len());
}

async fn the_function_names_field_and_limit(f: Fixture) {
    for (call, expected) in [
        ("enqueue(NULL, '')", "topic is empty"),
        ("enqueue('', '')", "topic is empty"),
        (
            "enqueue(repeat('ä', 128), '')",
            "topic has 256 bytes, the limit is 255",
        ),
        (
            "enqueue('t', '', repeat('k', 65537))",
            "key has 65537 bytes, the limit is 65536",
        ),
        (
            "enqueue('t', repeat('x', 134217729)::bytea)",
            "payload has 134217729 bytes, the limit is 134217728",
        ),
        (
            "enqueue_json('t', '{}', repeat('k', 65537))",
            "key has 65537 bytes, the limit is 65536",
        ),
    ] {
        assert_eq!(
            database_message(f.execute(&format!("SELECT {{schema}}.{call}")).await),
            expected
        );
    }
    assert_eq!(f.waiting().await, 0);
}

async fn a_plain_insert_names_field_and_limit(f: Fixture) {
    for (row, expected) in [
        ("NULL, NULL, NULL", "\"topic\""),
        ("'', NULL, NULL", "message_topic_1_to_255_bytes"),
        (
            "repeat('t', 256), NULL, NULL",
            "message_topic_1_to_255_bytes",
        ),
        (
            "'t', repeat('k', 65537), NULL",
            "message_key_at_most_65536_bytes",
        ),
        (
            "'t', NULL, repeat('x', 134217729)::bytea",
            "message_payload_at_most_134217728_bytes",
        ),
    ] {
        let answer = f
            .execute(&format!(
                "INSERT INTO {{schema}}.message (topic, key, payload) VALUES ({row})"
            ))
            .await;
        let text = database_message(answer);
        assert!(text.contains(expected), "{text}");
    }
    assert_eq!(f.waiting().await, 0);
}

/// What Rust refuses, SQL refuses, with the same words where there are any.
async fn headers_are_refused_as_in_rust(f: Fixture) {
    let long_name = "n".repeat(256);
    let many: serde_json::Map<String, serde_json::Value> = (0..129)
        .map(|nth| (format!("h{nth}"), "v".into()))
        .collect();
    let large = serde_json::json!({ "a": "x".repeat(40_000), "b": "ä".repeat(12_768) });
    for headers in [
        serde_json::json!({ "": "v" }),
        serde_json::json!({ "OutBox-id": "v" }),
        serde_json::json!({ "outbox-": "v" }),
        many.into(),
        large,
    ] {
        let refused = refusal(&f, &headers).await;
        assert_eq!(refused, rust_refusal(&headers), "{headers}");
    }
    let refused = refusal(&f, &serde_json::json!({ &long_name: "v" })).await;
    assert!(refused.starts_with("header name \"nnn"), "{refused}");
    assert!(
        refused.ends_with("has 256 bytes, the limit is 255"),
        "{refused}"
    );

    for (headers, expected) in [
        (
            serde_json::json!({ "a": "b", "n": 7 }),
            "header \"n\" is JSON of type number, not a string",
        ),
        (
            serde_json::json!({ "n": null }),
            "header \"n\" is JSON of type null, not a string",
        ),
        (
            serde_json::json!({ "n": ["a"] }),
            "header \"n\" is JSON of type array, not a string",
        ),
        (
            serde_json::json!({ "n": {} }),
            "header \"n\" is JSON of type object, not a string",
        ),
        (
            serde_json::json!(["a"]),
            "headers are JSON of type array, not an object",
        ),
        (
            serde_json::json!("a"),
            "headers are JSON of type string, not an object",
        ),
    ] {
        assert_eq!(refusal(&f, &headers).await, expected);
    }
    assert_eq!(f.waiting().await, 0);
}

/// Of the function and of a plain insert, which must agree.
async fn refusal(f: &Fixture, headers: &serde_json::Value) -> String {
    let mut answers = Vec::new();
    for statement in [
        "SELECT {schema}.enqueue('t', NULL, NULL, $1::text::jsonb)",
        "INSERT INTO {schema}.message (topic, headers) VALUES ('t', $1::text::jsonb)",
    ] {
        let answer = sqlx::query(f.sql(statement))
            .bind(headers.to_string())
            .execute(&f.pool)
            .await;
        answers.push(database_message(answer));
    }
    assert_eq!(answers[0], answers[1]);
    answers.swap_remove(0)
}

fn rust_refusal(headers: &serde_json::Value) -> String {
    let mut rust = Headers::default();
    headers
        .as_object()
        .unwrap()
        .iter()
        .find_map(|(name, value)| rust.insert(name, value.as_str().unwrap()).err())
        .unwrap()
        .to_string()
}

async fn limits_can_be_reached(f: Fixture) {
    let headers: serde_json::Map<String, serde_json::Value> = (0..128)
        .map(|nth| (format!("{nth:0>255}"), "v".repeat(257).into()))
        .collect();
    sqlx::query(f.sql(
        "SELECT {schema}.enqueue(repeat('t', 255), repeat('x', 134217728)::bytea,
                                 repeat('k', 65536), $1::text::jsonb)",
    ))
    .bind(serde_json::Value::Object(headers).to_string())
    .execute(&f.pool)
    .await
    .unwrap();
    assert_eq!(f.waiting().await, 1);
}

async fn no_client_chooses_a_place(f: Fixture) {
    f.execute(
        "INSERT INTO {schema}.message (lane, position, topic, key) VALUES (99, -5, 't', 'k'), (NULL, 1, 't', 'k');
         INSERT INTO {schema}.message (topic) VALUES ('t')",
    )
    .await
    .unwrap();
    let right: bool = sqlx::query_scalar(f.sql(
        "SELECT array_agg(position ORDER BY position) = ARRAY[1, 2, 3]::bigint[]
            AND bool_and(lane = coalesce(hashtextextended(key, 0), position) & 63)
           FROM {schema}.message",
    ))
    .fetch_one(&f.pool)
    .await
    .unwrap();
    assert!(right);
}

/// Every way to insert, stopped inside `nextval` by a lock on the sequence: the transaction must have its
/// id by then. A relay that has seen a later id knows that nothing below the sequence's value comes.
async fn the_transaction_has_its_id_before_a_position_is_drawn(f: Fixture) {
    f.execute("CREATE TABLE {schema}.source AS SELECT 't' AS topic FROM generate_series(1, 3)")
        .await
        .unwrap();
    for way in [
        "INSERT INTO {schema}.message (topic) VALUES ('t')",
        "INSERT INTO {schema}.message (position, topic) VALUES (DEFAULT, 't'), (7, 't')",
        "INSERT INTO {schema}.message (topic) SELECT topic FROM {schema}.source",
        "INSERT INTO {schema}.message (topic) VALUES ('t') ON CONFLICT DO NOTHING",
        "WITH given AS (INSERT INTO {schema}.message (topic) VALUES ('t') RETURNING id) SELECT id FROM given",
        "PREPARE way AS INSERT INTO {schema}.message (topic) VALUES ($1); EXECUTE way('t')",
        "SAVEPOINT s; INSERT INTO {schema}.message (topic) VALUES ('t')",
        "SELECT {schema}.enqueue('t', NULL)",
        "COPY",
        "enqueue",
        "enqueue_all",
    ] {
        let mut holder = f.pool.begin().await.unwrap();
        sqlx::raw_sql(f.sql("ALTER SEQUENCE {schema}.message_position CACHE 1"))
            .execute(&mut *holder)
            .await
            .unwrap();

        let mut producer = PgConnection::connect(&f.url).await.unwrap();
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
            .fetch_one(&mut producer)
            .await
            .unwrap();
        sqlx::raw_sql("BEGIN").execute(&mut producer).await.unwrap();
        let insert = tokio::spawn({
            let f = f.clone();
            async move { insert(&f, producer, way).await }
        });
        until(way, async || is_waiting(&f, pid).await).await;
        let has_id: bool = sqlx::query_scalar(
            "SELECT backend_xid IS NOT NULL FROM pg_stat_activity WHERE pid = $1",
        )
        .bind(pid)
        .fetch_one(&f.pool)
        .await
        .unwrap();
        assert!(
            has_id,
            "a position is drawn before the transaction has its id: {way}"
        );
        holder.rollback().await.unwrap();
        insert.await.unwrap();
    }
}

async fn is_waiting(f: &Fixture, pid: i32) -> bool {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock')",
    )
    .bind(pid)
    .fetch_one(&f.pool)
    .await
    .unwrap()
}

async fn insert(f: &Fixture, mut conn: PgConnection, way: &str) {
    let message = || Message::to("t").tombstone().unwrap();
    match way {
        "COPY" => {
            let statement = f.sql("COPY {schema}.message (topic) FROM STDIN").0;
            let mut copy = sqlx::postgres::PgConnection::copy_in_raw(&mut conn, &statement)
                .await
                .unwrap();
            copy.send(&b"t\nt\n"[..]).await.unwrap();
            copy.finish().await.unwrap();
        }
        "enqueue" => f.outbox.enqueue(&mut conn, &message()).await.unwrap(),
        "enqueue_all" => {
            f.outbox
                .enqueue_all(&mut conn, &[message(), message()])
                .await
                .unwrap();
        }
        statements => {
            sqlx::raw_sql(f.sql(statements))
                .execute(&mut conn)
                .await
                .unwrap();
        }
    }
    sqlx::raw_sql("COMMIT").execute(&mut conn).await.unwrap();
}
