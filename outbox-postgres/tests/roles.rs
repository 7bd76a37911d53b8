//! Rights, with real roles: each can do its work and nothing else.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use outbox_core::admin::{DeadFilter, KeyFilter};
use outbox_core::{Message, Store as _, Uuid};
use outbox_postgres::{Access, Inbox};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use support::store::{deliver, limits};
use support::{Fixture, database_message, on_each_server};

on_each_server!(with_outbox:
    a_producer_enqueues_and_nothing_else,
    a_relay_settles_and_nothing_else,
    a_consumer_remembers_and_forgets_and_nothing_else,
    an_operator_decides_and_nothing_else,
    the_schema_alone_gives_nothing,
    a_service_with_the_relay_inside_has_both_rights,
    a_role_may_have_any_name,
);

/// The role of the test with some rights, signed in.
struct Role {
    pool: PgPool,
}

impl Role {
    async fn new(f: &Fixture, grants: impl FnOnce(&str) -> String) -> Self {
        let name = f.role();
        f.execute(&format!(
            "CREATE ROLE {name} LOGIN PASSWORD 'secret'; {}",
            grants(&name)
        ))
        .await
        .unwrap();
        let options: PgConnectOptions = f.url.parse().unwrap();
        let pool = PgPoolOptions::new()
            .connect_with(options.username(&name).password("secret"))
            .await
            .unwrap();
        Self { pool }
    }

    async fn with(f: &Fixture, access: Access) -> Self {
        Self::new(f, |name| f.outbox.grants_sql(access, name)).await
    }

    async fn execute(&self, f: &Fixture, statements: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(f.sql(statements)).execute(&self.pool).await?;
        Ok(())
    }

    async fn is_allowed(&self, f: &Fixture, statements: &[&str]) {
        for statement in statements {
            if let Err(error) = self.execute(f, statement).await {
                panic!("{statement}: {error}");
            }
        }
    }

    async fn is_denied(&self, f: &Fixture, statements: &[&str]) {
        for statement in statements {
            match self.execute(f, statement).await {
                Err(error) => assert!(
                    error.to_string().contains("permission denied"),
                    "{statement}: {error}"
                ),
                Ok(()) => panic!("allowed: {statement}"),
            }
        }
    }
}

fn message() -> Message {
    Message::to("t")
        .key("k")
        .header("a", "b")
        .bytes("x")
        .unwrap()
}

/// What nobody but the owner may do.
const OWNERS: &[&str] = &[
    "UPDATE {schema}.message SET topic = 'x'",
    "TRUNCATE {schema}.message",
    "SELECT nextval('{schema}.message_position')",
    "SELECT setval('{schema}.message_position', 1)",
    "DELETE FROM {schema}.lane",
    "INSERT INTO {schema}.lane VALUES (0)",
    "UPDATE {schema}.lane SET lane = 1",
    "UPDATE {schema}.dead SET error = ''",
    "UPDATE {schema}.parked SET topic = 'x'",
    "UPDATE {schema}.inbox SET processed_at = now()",
    "INSERT INTO {schema}.inbox VALUES ('c', gen_random_uuid(), 'epoch')",
    "TRUNCATE {schema}.inbox",
    "INSERT INTO {schema}.migration VALUES (9, 'x', '', 9)",
    "CREATE TABLE {schema}.x ()",
    "CREATE TEMPORARY TABLE x (LIKE {schema}.message);
     CREATE TRIGGER x BEFORE INSERT ON x FOR EACH ROW EXECUTE FUNCTION {schema}.place_message()",
    "CREATE TEMPORARY TABLE x (lane smallint);
     CREATE TRIGGER x AFTER INSERT ON x REFERENCING NEW TABLE AS inserted
       FOR EACH STATEMENT EXECUTE FUNCTION {schema}.say_blocked()",
];

async fn a_producer_enqueues_and_nothing_else(f: Fixture) {
    let role = Role::with(&f, Access::Producer).await;
    f.outbox.migrate(&role.pool).await.unwrap();
    let mut tx = role.pool.begin().await.unwrap();
    f.outbox.enqueue(&mut tx, &message()).await.unwrap();
    f.outbox
        .enqueue_all(&mut tx, &[message(), message()])
        .await
        .unwrap();
    tx.commit().await.unwrap();
    role.is_allowed(
        &f,
        &[
            "SELECT {schema}.enqueue('t', NULL, 'k', '{\"a\": \"b\"}')",
            "SELECT {schema}.enqueue_json('t', '{}')",
            "INSERT INTO {schema}.message (topic) VALUES ('t')",
            "INSERT INTO {schema}.message (topic) VALUES ('t') ON CONFLICT DO NOTHING",
        ],
    )
    .await;
    assert_eq!(f.waiting().await, 7);
    role.is_denied(&f, OWNERS).await;
    role.is_denied(
        &f,
        &[
            "SELECT count(*) FROM {schema}.message",
            "INSERT INTO {schema}.message (topic) VALUES ('t') RETURNING id",
            "INSERT INTO {schema}.message (topic, position) VALUES ('t', 1)",
            "INSERT INTO {schema}.message (topic, lane) VALUES ('t', 1)",
            "INSERT INTO {schema}.message (topic, enqueued_at) VALUES ('t', 'epoch')",
            "DELETE FROM {schema}.message",
            "SELECT count(*) FROM {schema}.dead",
            "SELECT count(*) FROM {schema}.parked",
            "INSERT INTO {schema}.parked (key_hash, position, id, topic, enqueued_at)
             VALUES (1, 1, gen_random_uuid(), 't', now())",
            "SELECT lane FROM {schema}.lane FOR UPDATE",
            "SELECT last_value FROM {schema}.message_position",
            "SELECT {schema}.first_time('c', gen_random_uuid())",
            "DELETE FROM {schema}.inbox",
        ],
    )
    .await;
}

async fn a_relay_settles_and_nothing_else(f: Fixture) {
    f.execute("SELECT {schema}.enqueue('t', NULL, 'k')")
        .await
        .unwrap();
    let role = Role::with(&f, Access::Relay).await;
    f.outbox.migrate(&role.pool).await.unwrap();
    role.is_allowed(
        &f,
        &[
            "SELECT lane FROM {schema}.lane FOR UPDATE SKIP LOCKED",
            "UPDATE {schema}.lane SET floor = 0 WHERE lane = 1",
            "UPDATE {schema}.lane SET suspects = 1, step = 1, alone = 1, deaths = '{1}' WHERE lane = 1",
            "SELECT * FROM {schema}.message",
            "SELECT * FROM {schema}.dead",
            "WITH moved AS (DELETE FROM {schema}.message RETURNING *)
             INSERT INTO {schema}.parked SELECT 1, position, id, topic, key, payload, headers, enqueued_at FROM moved",
            "INSERT INTO {schema}.blocked (key_hash, lane, head, due_at) VALUES (1, 1, 1, now())
             ON CONFLICT (key_hash) DO UPDATE SET head = least(blocked.head, excluded.head)",
            "WITH moved AS (DELETE FROM {schema}.parked RETURNING *)
             INSERT INTO {schema}.dead
             SELECT position, key_hash, id, topic, key, payload, headers, enqueued_at, now(), 0, 0, '', '', false
               FROM moved",
            "DELETE FROM {schema}.blocked",
            "INSERT INTO {schema}.delivered (position, id, topic, enqueued_at)
             VALUES (1, gen_random_uuid(), 't', now())",
            "SELECT {schema}.keep_delivered('1 day')",
        ],
    )
    .await;
    let position: Option<i64> =
        sqlx::query_scalar(f.sql("SELECT pg_sequence_last_value('{schema}.message_position')"))
            .fetch_one(&role.pool)
            .await
            .unwrap();
    assert_eq!(position, Some(1));
    assert_eq!(f.outbox.paused(&role.pool).await.unwrap(), []);
    assert!(f.outbox.gauges(&role.pool).await.unwrap().complete);
    role.is_denied(&f, OWNERS).await;
    role.is_denied(
        &f,
        &[
            "SELECT {schema}.enqueue('t', NULL)",
            "INSERT INTO {schema}.message (topic) VALUES ('t')",
            "DELETE FROM {schema}.dead",
            "SELECT count(*) FROM {schema}.delivered",
            "DELETE FROM {schema}.delivered",
            "SELECT {schema}.first_time('c', gen_random_uuid())",
            "DELETE FROM {schema}.inbox",
        ],
    )
    .await;
}

async fn a_consumer_remembers_and_forgets_and_nothing_else(f: Fixture) {
    let role = Role::with(&f, Access::Consumer).await;
    let inbox = Inbox::in_schema(f.outbox.schema()).unwrap();
    inbox.migrate(&role.pool).await.unwrap();
    let id = Uuid::now_v7();
    let handler = async |_: &mut sqlx::PgConnection| Ok::<(), sqlx::Error>(());
    for first in [true, false] {
        let done = inbox.once(&role.pool, "c", id, handler).await.unwrap();
        assert_eq!(done.is_some(), first);
    }
    role.is_allowed(&f, &["SELECT {schema}.first_time('c', gen_random_uuid())"])
        .await;
    assert_eq!(inbox.forget(&role.pool, Duration::ZERO).await.unwrap(), 2);
    role.is_denied(&f, OWNERS).await;
    role.is_denied(
        &f,
        &[
            "SELECT {schema}.enqueue('t', NULL)",
            "INSERT INTO {schema}.message (topic) VALUES ('t')",
            "SELECT count(*) FROM {schema}.message",
            "SELECT count(*) FROM {schema}.dead",
            "SELECT lane FROM {schema}.lane FOR UPDATE",
        ],
    )
    .await;
}

async fn an_operator_decides_and_nothing_else(f: Fixture) {
    f.execute(
        "INSERT INTO {schema}.dead
         SELECT n, n, {schema}.new_message_id(), 't', NULL, NULL, NULL, now(), now(), 1, 1, 'rejected', 'refused', false
           FROM generate_series(1, 2) n",
    )
    .await
    .unwrap();
    let role = Role::with(&f, Access::Operator).await;
    f.outbox.migrate(&role.pool).await.unwrap();
    let all = DeadFilter::all();
    let dead = f.outbox.dead(&role.pool, &all, None, 10).await.unwrap();
    assert_eq!(dead.messages.len(), 2);
    let one = f.outbox.replay(&role.pool, all.clone()).limit(1);
    assert_eq!(one.finish().await.unwrap().messages, 1);
    let rest = f.outbox.discard(&role.pool, all);
    assert_eq!(rest.finish().await.unwrap().messages, 1);
    let retried = f.outbox.retry_now(&role.pool, KeyFilter::all()).finish();
    assert_eq!(retried.await.unwrap().looked_at, 1);
    let topic = "t".parse().unwrap();
    assert!(f.outbox.pause(&role.pool, &topic, "me").await.unwrap());
    assert!(
        f.outbox
            .resume(&role.pool, &topic)
            .await
            .unwrap()
            .was_paused
    );
    let keys = f
        .outbox
        .held_keys(&role.pool, &KeyFilter::all(), None, 10)
        .await;
    assert_eq!(keys.unwrap().keys.len(), 1);
    assert!(f.outbox.status(&role.pool).await.unwrap().complete);
    assert!(f.outbox.gauges(&role.pool).await.unwrap().complete);
    let counts = f.outbox.counts(&role.pool).await.unwrap();
    assert_eq!((counts.parked, counts.dead), (1, 0));
    let inbox = Inbox::in_schema(f.outbox.schema()).unwrap();
    assert_eq!(inbox.forget(&role.pool, Duration::ZERO).await.unwrap(), 0);
    role.is_denied(&f, OWNERS).await;
    role.is_denied(
        &f,
        &[
            "SELECT {schema}.enqueue('t', NULL)",
            "INSERT INTO {schema}.message (topic) VALUES ('t')",
            "DELETE FROM {schema}.message",
            "DELETE FROM {schema}.parked",
            "INSERT INTO {schema}.dead SELECT * FROM {schema}.dead",
        ],
    )
    .await;
}

async fn the_schema_alone_gives_nothing(f: Fixture) {
    let schema = f.outbox.schema().to_owned();
    let role = Role::new(&f, |name| {
        format!("GRANT USAGE ON SCHEMA {schema} TO {name}")
    })
    .await;
    role.is_denied(&f, OWNERS).await;
    role.is_denied(
        &f,
        &[
            "SELECT {schema}.enqueue('t', NULL)",
            "SELECT {schema}.enqueue_json('t', NULL)",
            "SELECT {schema}.new_message_id()",
            "SELECT {schema}.first_time('c', NULL)",
            "SELECT count(*) FROM {schema}.inbox",
            "SELECT count(*) FROM {schema}.message",
            "SELECT version FROM {schema}.migration",
        ],
    )
    .await;
    let error = f.outbox.migrate(&role.pool).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("permission denied for table migration"),
        "{error}"
    );
}

/// It also migrates at its start, which only looks.
async fn a_service_with_the_relay_inside_has_both_rights(f: Fixture) {
    let role = Role::with(&f, Access::Producer).await;
    let store = f.outbox.store(&role.pool);
    let store = store
        .keep_delivered_for(Duration::from_secs(24 * 3600))
        .unwrap();
    assert!(
        store.claim(&limits(10)).await.is_err(),
        "with the producer's only"
    );
    f.execute(&f.outbox.grants_sql(Access::Relay, &f.role()))
        .await
        .unwrap();

    f.outbox.migrate(&role.pool).await.unwrap();
    let mut tx = role.pool.begin().await.unwrap();
    f.outbox.enqueue(&mut tx, &message()).await.unwrap();
    tx.commit().await.unwrap();
    deliver(&store, 1).await;
    role.is_denied(&f, &["CREATE TABLE {schema}.orders (id bigint)"])
        .await;
}

async fn a_role_may_have_any_name(f: Fixture) {
    let name = format!("{} \"{{schema}}\" $outbox$; DROP", &f.outbox.schema()[..24]);
    let quoted = format!("\"{}\"", name.replace('"', "\"\""));
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("CREATE ROLE {quoted}")))
        .execute(&f.pool)
        .await
        .unwrap();
    let mut answers = Vec::new();
    for access in [
        Access::Producer,
        Access::Relay,
        Access::Consumer,
        Access::Operator,
    ] {
        let grants = sqlx::AssertSqlSafe(f.outbox.grants_sql(access, &name));
        answers.push(sqlx::raw_sql(grants).execute(&f.pool).await);
    }
    let may: bool =
        sqlx::query_scalar(f.sql("SELECT has_table_privilege($1, '{schema}.dead', 'DELETE')"))
            .bind(&name)
            .fetch_one(&f.pool)
            .await
            .unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "DROP OWNED BY {quoted}; DROP ROLE {quoted}"
    )))
    .execute(&f.pool)
    .await
    .unwrap();
    for answer in answers {
        answer.unwrap();
    }
    assert!(may);
    let gone = sqlx::query(f.sql("SELECT has_table_privilege($1, '{schema}.dead', 'DELETE')"))
        .bind(&name)
        .execute(&f.pool)
        .await;
    assert!(database_message(gone).contains("does not exist"));
}
