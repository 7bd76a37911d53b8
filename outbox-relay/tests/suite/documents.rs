//! The programs, statements and scripts that the guides show, run against a real Postgres.
//!
//! They name the schema `outbox`, so each has a database of its own. `tests/tidy` sees to it that the guides show
//! the files that are run here.

use std::fs;

use outbox_conformance::address;
use outbox_core::{Message, Uuid};
use outbox_postgres::Outbox;
use sqlx::{AssertSqlSafe, PgPool};
use tokio::process::Command;

use crate::support::place::{Ended, Place, command};
use crate::support::repository;
use crate::support::scene::{self, execute};

/// A row of the outbox, in the order of enqueue.
type Row = (Uuid, String, Option<String>, Vec<u8>, Option<String>);

/// The text of a file of the repository.
fn read(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap()
}

/// Runs a test with a database that has an empty outbox, and with its URL.
async fn with_database(test: impl AsyncFnOnce(&PgPool, &str)) {
    scene::with_database(async |url| {
        let pool = PgPool::connect(url).await.unwrap();
        Outbox::new().migrate(&pool).await.unwrap();
        test(&pool, url).await;
    })
    .await;
}

async fn rows(pool: &PgPool) -> Vec<Row> {
    sqlx::query_as(
        "SELECT id, topic, key, payload, headers::text FROM outbox.message ORDER BY position",
    )
    .fetch_all(pool)
    .await
    .unwrap()
}

#[tokio::test]
async fn a_service_in_python() {
    let mut python = command("/usr/bin/python3"); // Debian's, which has Debian's psycopg
    python.arg(repository("examples/other-languages/place_order.py"));
    place_orders(python).await;
}

#[tokio::test]
async fn a_service_in_node() {
    let mut node = command("node");
    node.env("NODE_PATH", address("OUTBOX_TEST_NODE_PATH"));
    node.arg(repository("examples/other-languages/place-order.js"));
    place_orders(node).await;
}

/// Both do the same: an order, one that is rolled back, a picture, and many at once.
async fn place_orders(mut program: Command) {
    with_database(async |pool, url| {
        execute(
            pool,
            "CREATE TABLE public.orders (id bigint PRIMARY KEY, item text NOT NULL, label bytea)",
        )
        .await;
        let url = format!("{url}?options=-csearch_path%3Dpublic");
        program.env("DATABASE_URL", url);
        let printed = Ended::of(program).await.success();

        let rows = rows(pool).await;
        let ids: Vec<String> = rows[..2].iter().map(|row| row.0.to_string()).collect();
        assert_eq!(printed.lines().collect::<Vec<_>>(), ids);
        let parts: Vec<(&str, Option<&str>)> = rows
            .iter()
            .map(|row| (row.1.as_str(), row.2.as_deref()))
            .collect();
        assert_eq!(
            parts,
            [
                ("orders.placed", Some("order-1")),
                ("orders.labels", Some("order-1")),
                ("orders.imported", Some("order-2")),
                ("orders.imported", Some("order-3")),
            ]
        );
        assert_eq!(rows[1].3, b"\x89PNG\x00\xff");
        assert_eq!(
            rows[0].4.as_deref(),
            Some(r#"{"content-type": "application/json"}"#)
        );
        let order: serde_json::Value = serde_json::from_slice(&rows[3].3).unwrap();
        assert_eq!(order, serde_json::json!({ "id": 3, "item": "größe 東京" }));
    })
    .await;
}

/// The statements of the program in Go, prepared as pgx does: the server says what the parameters are.
#[tokio::test]
async fn the_statements_in_go() {
    let program = read("examples/other-languages/place_order.go");
    place_one_order(&statements(&program, '`'), |_| "unknown").await;
}

/// The statements of the program in Java, prepared as JDBC does: the program says what the parameters are.
#[tokio::test]
async fn the_statements_in_java() {
    let program = read("examples/other-languages/PlaceOrder.java");
    let statements: Vec<String> = statements(&program, '"')
        .iter()
        .map(|statement| numbered(statement))
        .collect();
    place_one_order(&statements, |parameter| match parameter {
        Parameter::Number(_) => "int8",
        Parameter::Text(_) => "varchar",
        Parameter::Bytes(_) => "bytea",
    })
    .await;
}

enum Parameter {
    Number(i64),
    Text(&'static str),
    Bytes(&'static str),
}

/// The SQL in a program's literals.
fn statements(program: &str, quote: char) -> Vec<String> {
    let is_sql = |literal: &&str| {
        let verbs = ["SELECT outbox.", "INSERT INTO "];
        verbs.iter().any(|verb| literal.starts_with(verb))
    };
    let mut found: Vec<String> = program
        .split(quote)
        .filter(is_sql)
        .map(str::to_owned)
        .collect();
    found.sort();
    found
}

/// With `$1`, `$2` in place of each `?`.
fn numbered(statement: &str) -> String {
    let mut parts = statement.split('?');
    let mut text = parts.next().unwrap().to_owned();
    for (nth, part) in parts.enumerate() {
        text += &format!("${}{part}", nth + 1);
    }
    text
}

/// The order itself, the picture and the message, in the order in which [`statements`] gives the statements.
async fn place_one_order(statements: &[String], type_of: impl Fn(&Parameter) -> &'static str) {
    use Parameter::{Bytes, Number, Text};

    let parameters = [
        vec![Number(1), Text("tea")],
        vec![
            Text("orders.labels"),
            Bytes("\\x89504e4700ff"),
            Text("order-1"),
        ],
        vec![
            Text("orders.placed"),
            Text("{\"id\": 1}"),
            Text("order-1"),
            Text("{\"content-type\": \"application/json\"}"),
        ],
    ];
    assert_eq!(statements.len(), parameters.len(), "{statements:?}");
    with_database(async |pool, _| {
        execute(
            pool,
            "CREATE TABLE public.orders (id bigint PRIMARY KEY, item text NOT NULL)",
        )
        .await;
        let mut tx = pool.begin().await.unwrap();
        for (statement, parameters) in statements.iter().zip(&parameters) {
            let types: Vec<&str> = parameters.iter().map(&type_of).collect();
            let values: Vec<String> = parameters
                .iter()
                .map(|parameter| match parameter {
                    Number(number) => number.to_string(),
                    Text(text) | Bytes(text) => format!("'{text}'"),
                })
                .collect();
            let run = format!(
                "SET LOCAL search_path = public; PREPARE it ({}) AS {statement}; EXECUTE it ({}); DEALLOCATE it",
                types.join(", "),
                values.join(", "),
            );
            let ran = sqlx::raw_sql(AssertSqlSafe(run)).execute(&mut *tx).await;
            ran.unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        tx.commit().await.unwrap();
        let rows = rows(pool).await;
        let sent: Vec<(&str, &[u8])> = rows
            .iter()
            .map(|row| (row.1.as_str(), row.3.as_slice()))
            .collect();
        assert_eq!(
            sent,
            [
                ("orders.labels", &b"\x89PNG\x00\xff"[..]),
                ("orders.placed", b"{\"id\": 1}"),
            ]
        );
        assert!(rows.iter().all(|row| row.2.as_deref() == Some("order-1")), "{rows:?}");
    })
    .await;
}

/// What each guide has beside its program: the configuration of the relay, and what a consumer asks.
#[tokio::test]
async fn the_configuration_and_the_consumer_of_each_guide() {
    with_database(async |pool, _| {
        for path in [
            "docs/from-python.md",
            "docs/from-node.md",
            "docs/from-go.md",
            "docs/from-java.md",
        ] {
            let guide = read(path);
            let [settings] = blocks(&guide, "toml")[..] else {
                panic!("{path} has not one configuration");
            };
            Place::with(settings).done(&["config"]).await;

            let id = Uuid::now_v7();
            let [ask] = blocks(&guide, "sql")[..] else {
                panic!("{path} has not one statement");
            };
            for is_new in [true, false] {
                let asked = sqlx::query_scalar(AssertSqlSafe(ask.to_owned())).bind(id);
                let answer: bool = asked.fetch_one(pool).await.unwrap();
                assert_eq!(answer, is_new, "{path}: {ask}");
            }
        }
    })
    .await;
}

/// What other documents say in SQL.
#[tokio::test]
async fn the_statements_of_the_documents() {
    with_database(async |pool, url| {
        execute(
            pool,
            "CREATE TABLE public.invoices (order_id bigint PRIMARY KEY)",
        )
        .await;
        let database = url.rsplit_once('/').unwrap().1;
        for path in [
            "README.md",
            "outbox-postgres/README.md",
            "docs/consumers.md",
            "docs/operations.md",
        ] {
            let document = read(path);
            let statements = blocks(&document, "sql");
            assert!(!statements.is_empty(), "{path}");
            for block in statements {
                // Roles are the whole server's, so the test has none of this name.
                let mine = format!("CURRENT_USER IN DATABASE {database}");
                execute(pool, &block.replace("app IN DATABASE shop", &mine)).await;
            }
        }
    })
    .await;
}

/// In the order of before, as new messages; and nothing of another topic or day.
#[tokio::test]
async fn what_was_delivered_is_sent_again() {
    with_database(async |pool, _| {
        execute(
            pool,
            "INSERT INTO outbox.delivered (position, id, topic, key, payload, headers, enqueued_at, delivered_at)
             SELECT position, gen_random_uuid(), topic, 'order-7', payload::bytea, '{\"a\": \"b\"}', day, day
               FROM (VALUES (3, 'orders.placed', '3', timestamptz '2026-11-30 08:00Z'),
                            (2, 'orders.placed', '2', '2026-11-30 09:00Z'),
                            (4, 'orders.shipped', '4', '2026-11-30 10:00Z'),
                            (1, 'orders.placed', '1', '2026-11-29 10:00Z')) AS sent (position, topic, payload, day)",
        )
        .await;
        let mut session = pool.acquire().await.unwrap();
        // The days of the document are UTC's.
        sqlx::raw_sql("SET timezone = 'UTC'").execute(&mut *session).await.unwrap();
        let document = read("docs/operations.md");
        let again = blocks(&document, "sql").into_iter().find(|block| block.starts_with("INSERT "));
        sqlx::raw_sql(AssertSqlSafe(again.unwrap().to_owned())).execute(&mut *session).await.unwrap();
        let sent: Vec<_> = rows(pool).await.into_iter().map(|row| (row.1, row.2, row.3, row.4)).collect();
        let row = |payload: &[u8]| {
            let headers = "{\"a\": \"b\"}".to_owned();
            ("orders.placed".to_owned(), Some("order-7".to_owned()), payload.to_vec(), Some(headers))
        };
        assert_eq!(sent, [row(b"2"), row(b"3")]);
    })
    .await;
}

/// What monitors are told to ask for is what the program says it has.
#[test]
fn the_alarms_ask_for_metrics_that_there_are() {
    let documented = [
        "outbox-relay/README.md",
        "outbox-core/src/relay.rs",
        "outbox-postgres/src/store.rs",
    ]
    .map(read)
    .concat();
    let mut asked = 0;
    for path in ["deploy/prometheus-alerts.yml", "docs/operations.md"] {
        let text = read(path);
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for metric in words.filter(|word| word.starts_with("outbox_")) {
            assert!(
                documented.contains(&format!("`{metric}`")),
                "{path}: {metric}"
            );
            asked += 1;
        }
    }
    assert!(asked > 10, "{asked}");
}

/// The blocks of this language of which a document says that they are run here.
fn blocks<'a>(document: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("\n```{language} test=outbox-relay/tests/suite/documents.rs\n");
    let parts = document.split(begin.as_str()).skip(1);
    parts
        .map(|part| part.split_once("\n```").unwrap().0)
        .collect()
}

#[tokio::test]
async fn moving_from_a_table_of_ones_own() {
    with_database(async |pool, _| {
        let insert = async |order: i64, body: i64| {
            let statement = "INSERT INTO public.events (topic, order_id, body) VALUES ('t', $1, to_jsonb($2))";
            sqlx::query(statement).bind(order).bind(body).execute(pool).await.unwrap();
        };
        execute(
            pool,
            "CREATE TABLE public.events (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), topic text NOT NULL,
                 order_id bigint NOT NULL, body jsonb NOT NULL, created_at timestamptz DEFAULT clock_timestamp(),
                 sent_at timestamptz)",
        )
        .await;
        for body in 1..=3 {
            insert(7, body).await;
        }
        execute(pool, "UPDATE public.events SET sent_at = now() WHERE body = '1'").await;
        execute(pool, &read("examples/migration/from-own-table.sql")).await;
        insert(7, 4).await;
        let message = Message::to("t").key("7").bytes("5").unwrap();
        Outbox::new().enqueue(&mut pool.acquire().await.unwrap(), &message).await.unwrap();

        let payloads: Vec<Vec<u8>> = rows(pool).await.into_iter().map(|row| row.3).collect();
        assert_eq!(payloads, [b"2", b"3", b"4", b"5"]);
        let old: i64 = sqlx::query_scalar("SELECT count(*) FROM public.events WHERE sent_at IS NULL")
            .fetch_one(pool)
            .await
            .unwrap();
        assert_eq!(old, 0);
    })
    .await;
}

#[tokio::test]
async fn moving_from_change_data_capture() {
    with_database(async |pool, _| {
        execute(
            pool,
            "CREATE TABLE public.outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL,
                 aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb)",
        )
        .await;
        execute(pool, &read("examples/migration/from-debezium.sql")).await;
        let id = Uuid::now_v7();
        sqlx::query("INSERT INTO public.outboxevent VALUES ($1, 'Order', '7', 'OrderPlaced', '{\"a\": 1}')")
            .bind(id)
            .execute(pool)
            .await
            .unwrap();
        let rows = rows(pool).await;
        assert_eq!(rows.len(), 1);
        let (found, topic, key, payload, headers) = &rows[0];
        assert_eq!((found, topic.as_str(), key.as_deref()), (&id, "outbox.event.Order", Some("7")));
        assert_eq!(payload, b"{\"a\": 1}");
        let headers: serde_json::Value = serde_json::from_str(headers.as_deref().unwrap()).unwrap();
        assert_eq!(headers, serde_json::json!({ "id": id.to_string(), "eventType": "OrderPlaced" }));
    })
    .await;
}
