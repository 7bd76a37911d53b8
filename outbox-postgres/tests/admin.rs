//! What people see, and what their decisions about dead messages do to the tables.
//!
//! What a relay delivers afterwards is the store suite's business, in `conformance.rs`.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use outbox_core::Uuid;
use sqlx::postgres::PgListener;
use sqlx::{Connection as _, PgConnection, Row as _};
use support::{Fixture, on_each_server, until};

on_each_server!(with_outbox:
    counts_say_what_is_where,
    dead_messages_are_listed_in_pages,
    a_replay_brings_the_message_back_as_it_was,
    a_replay_before_the_head_becomes_the_head,
    a_key_stays_halted_until_the_last_decision,
    a_discard_lets_the_key_go_on,
    a_discard_that_halts_nothing_changes_no_key,
    of_many_replays_at_once_each_message_returns_once,
    a_decision_waits_for_the_claim_that_holds_the_lane,
    a_decision_does_not_wait_for_ever,
    a_limit_bounds_a_decision_about_all,
    a_sleeping_relay_is_told,
);

/// A dead message with this key at this position.
async fn dead(f: &Fixture, position: i64, key: &str, halted: bool) -> Uuid {
    sqlx::query_scalar(f.sql(
        r#"INSERT INTO {schema}.dead (position, key_hash, id, topic, key, payload, headers, enqueued_at,
                                      parked, failures, error_kind, error, halted)
           VALUES ($1, hashtextextended($2, 0), gen_random_uuid(), 'orders.placed', $2, '\x00ff', '{"a": "b"}',
                   '2026-01-02 03:04:05.678901+00', 3, 2, 'rejected', 'too large', $3)
           RETURNING id"#,
    ))
    .bind(position)
    .bind(key)
    .bind(halted)
    .fetch_one(&f.pool)
    .await
    .unwrap()
}

/// A parked message behind the head of its key.
async fn parked(f: &Fixture, position: i64, key: &str) {
    sqlx::query(f.sql(
        "INSERT INTO {schema}.parked (key_hash, position, id, topic, key, enqueued_at)
         VALUES (hashtextextended($2, 0), $1, gen_random_uuid(), 't', $2, now())",
    ))
    .bind(position)
    .bind(key)
    .execute(&f.pool)
    .await
    .unwrap();
}

/// Holds a key up, behind its head, until a time.
async fn blocked(f: &Fixture, key: &str, head: i64, due_at: &str) {
    sqlx::query(f.sql(
        "INSERT INTO {schema}.blocked (key_hash, lane, head, due_at, tried, parked, failures, error_kind, error)
         VALUES (hashtextextended($1, 0), hashtextextended($1, 0) & 63, $2, $3::text::timestamptz, $2, 3, 2,
                 'retryable', 'away')",
    ))
    .bind(key)
    .bind(head)
    .bind(due_at)
    .execute(&f.pool)
    .await
    .unwrap();
}

#[derive(Debug, PartialEq, Eq)]
struct Key {
    head: i64,
    due: &'static str,
    failures: i32,
}

/// How a key stands; `None`: it is free.
async fn key(f: &Fixture, key: &str) -> Option<Key> {
    let row = sqlx::query(f.sql(
        "SELECT head, due_at = 'infinity', due_at <= clock_timestamp(), failures,
                lane = key_hash & 63 AND (failures > 0) = (tried IS NOT NULL AND error IS NOT NULL)
           FROM {schema}.blocked WHERE key_hash = hashtextextended($1, 0)",
    ))
    .bind(key)
    .fetch_optional(&f.pool)
    .await
    .unwrap()?;
    assert!(
        row.get::<bool, _>(4),
        "lane, counters and error belong together"
    );
    Some(Key {
        head: row.get(0),
        due: match (row.get(1), row.get(2)) {
            (true, _) => "never",
            (_, true) => "now",
            _ => "later",
        },
        failures: row.get(3),
    })
}

fn stands(head: i64, due: &'static str, failures: i32) -> Option<Key> {
    Some(Key {
        head,
        due,
        failures,
    })
}

async fn positions(f: &Fixture, table: &str) -> Vec<i64> {
    sqlx::query_scalar(f.sql(&format!(
        "SELECT position FROM {{schema}}.{table} ORDER BY position"
    )))
    .fetch_all(&f.pool)
    .await
    .unwrap()
}

async fn counts_say_what_is_where(f: Fixture) {
    let counts = f.outbox.counts(&f.pool).await.unwrap();
    assert_eq!(
        (
            counts.waiting,
            counts.parked,
            counts.dead,
            counts.blocked_keys,
            counts.halted_keys
        ),
        (0, 0, 0, 0, 0)
    );
    assert_eq!(counts.oldest_waiting, None);

    f.execute("INSERT INTO {schema}.message (topic, enqueued_at) VALUES ('t', now()), ('t', now() - interval '1 hour')")
        .await
        .unwrap();
    parked(&f, 1, "a").await;
    parked(&f, 2, "a").await;
    parked(&f, 3, "b").await;
    blocked(&f, "a", 1, "2020-01-01").await;
    blocked(&f, "b", 3, "infinity").await;
    dead(&f, 7, "b", true).await;
    let counts = f.outbox.counts(&f.pool).await.unwrap();
    assert_eq!(
        (
            counts.waiting,
            counts.parked,
            counts.dead,
            counts.blocked_keys,
            counts.halted_keys
        ),
        (2, 3, 1, 2, 1)
    );
    let oldest = counts.oldest_waiting.unwrap();
    assert!((3_600..3_700).contains(&oldest.as_secs()), "{oldest:?}");
}

async fn dead_messages_are_listed_in_pages(f: Fixture) {
    let mut ids = Vec::new();
    for position in [30, 10, 20] {
        ids.push(dead(&f, position, "k", position == 10).await);
    }
    // One that no version could decode is listed all the same.
    f.execute(r#"UPDATE {schema}.dead SET headers = '[7]', payload = NULL, key = NULL WHERE position = 20"#)
        .await
        .unwrap();
    let page = f.outbox.dead(&f.pool, None, 2).await.unwrap();
    assert_eq!([page[0].id, page[1].id], [ids[1], ids[2]]);
    assert_eq!(page.len(), 2);
    assert_eq!(
        (page[1].key.as_deref(), page[1].payload_bytes),
        (None, None)
    );
    let first = &page[0];
    assert_eq!(
        (first.position, first.topic.as_str()),
        (10, "orders.placed")
    );
    assert_eq!(
        (first.key.as_deref(), first.payload_bytes),
        (Some("k"), Some(2))
    );
    assert_eq!((first.parked, first.failures), (3, 2));
    assert_eq!(
        (first.error_kind.as_str(), first.error.as_str()),
        ("rejected", "too large")
    );
    assert!(first.halted && !page[1].halted);
    let enqueued = first
        .enqueued_at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    assert_eq!(enqueued, Duration::from_micros(1_767_323_045_678_901));
    assert!(first.died_at > first.enqueued_at);

    let next = f
        .outbox
        .dead(&f.pool, Some(page[1].position), 2)
        .await
        .unwrap();
    assert_eq!(
        next.iter().map(|dead| dead.id).collect::<Vec<_>>(),
        [ids[0]]
    );
    assert_eq!(f.outbox.dead(&f.pool, Some(30), 2).await.unwrap(), []);
}

async fn a_replay_brings_the_message_back_as_it_was(f: Fixture) {
    let id = dead(&f, 7, "k", false).await;
    assert_eq!(
        f.outbox.replay(&f.pool, &[Uuid::nil(), id]).await.unwrap(),
        1
    );
    assert_eq!(f.outbox.replay(&f.pool, &[id]).await.unwrap(), 0);
    assert_eq!(f.outbox.discard(&f.pool, &[id]).await.unwrap(), 0);
    assert_eq!(key(&f, "k").await, stands(7, "now", 0));
    let same: bool = sqlx::query_scalar(f.sql(
        r#"SELECT (position, key_hash, id, topic, key, payload, headers, enqueued_at)
                  = (7, hashtextextended('k', 0), $1, 'orders.placed', 'k', '\x00ff'::bytea,
                     '{"a": "b"}'::jsonb, '2026-01-02 03:04:05.678901+00'::timestamptz)
             FROM {schema}.parked"#,
    ))
    .bind(id)
    .fetch_one(&f.pool)
    .await
    .unwrap();
    assert!(same);
}

async fn a_replay_before_the_head_becomes_the_head(f: Fixture) {
    let (early, late) = (
        dead(&f, 5, "k", false).await,
        dead(&f, 50, "k", false).await,
    );
    parked(&f, 20, "k").await;
    blocked(&f, "k", 20, "2100-01-01").await;
    assert_eq!(f.outbox.replay(&f.pool, &[late]).await.unwrap(), 1);
    assert_eq!(key(&f, "k").await.unwrap().head, 20);
    assert_eq!(f.outbox.replay(&f.pool, &[early]).await.unwrap(), 1);
    assert_eq!(key(&f, "k").await, stands(5, "now", 0));
    assert_eq!(positions(&f, "parked").await, [5, 20, 50]);
}

async fn a_key_stays_halted_until_the_last_decision(f: Fixture) {
    let first = dead(&f, 5, "k", true).await;
    let second = dead(&f, 6, "k", true).await;
    let before = dead(&f, 4, "k", false).await;
    let other = dead(&f, 7, "other", false).await;
    parked(&f, 8, "k").await;
    blocked(&f, "k", 5, "infinity").await;
    assert_eq!(
        f.outbox
            .replay(&f.pool, &[first, before, other])
            .await
            .unwrap(),
        3
    );
    assert_eq!(key(&f, "k").await, stands(4, "never", 0));
    assert_eq!(key(&f, "other").await, stands(7, "now", 0));
    assert_eq!(f.outbox.discard(&f.pool, &[second]).await.unwrap(), 1);
    assert_eq!(key(&f, "k").await, stands(4, "now", 0));
    assert_eq!(positions(&f, "parked").await, [4, 5, 7, 8]);
}

async fn a_discard_lets_the_key_go_on(f: Fixture) {
    let with_followers = dead(&f, 5, "with", true).await;
    let one_of_two = dead(&f, 6, "two", true).await;
    let alone = dead(&f, 7, "alone", true).await;
    dead(&f, 8, "two", true).await;
    for position in [20, 9] {
        parked(&f, position, "with").await;
    }
    for (name, head) in [("with", 5), ("two", 6), ("alone", 7)] {
        blocked(&f, name, head, "infinity").await;
    }
    let ids = [with_followers, one_of_two, alone, Uuid::nil()];
    assert_eq!(f.outbox.discard(&f.pool, &ids).await.unwrap(), 3);
    assert_eq!(key(&f, "with").await, stands(9, "now", 0));
    assert_eq!(key(&f, "two").await, stands(6, "never", 2));
    assert_eq!(key(&f, "alone").await, None);
    assert_eq!(positions(&f, "dead").await, [8]);
    assert_eq!(positions(&f, "parked").await, [9, 20]);
}

async fn a_discard_that_halts_nothing_changes_no_key(f: Fixture) {
    let id = dead(&f, 5, "k", false).await;
    parked(&f, 9, "k").await;
    blocked(&f, "k", 9, "2100-01-01").await;
    assert_eq!(f.outbox.discard(&f.pool, &[id]).await.unwrap(), 1);
    assert_eq!(key(&f, "k").await, stands(9, "later", 2));
}

async fn of_many_replays_at_once_each_message_returns_once(f: Fixture) {
    f.execute(
        "INSERT INTO {schema}.dead
         SELECT n, hashtextextended((n % 50)::text, 0), gen_random_uuid(), 't', (n % 50)::text, NULL, NULL,
                now(), now(), 1, 1, 'rejected', 'refused', false
           FROM generate_series(1, 1000) AS n",
    )
    .await
    .unwrap();
    let page = f.outbox.dead(&f.pool, None, 1_000).await.unwrap();
    let ids: Vec<Uuid> = page.iter().map(|dead| dead.id).collect();
    let people = join_all((0..4).map(|_| f.outbox.replay(&f.pool, &ids))).await;
    let replayed: u64 = people.into_iter().map(Result::unwrap).sum();
    assert_eq!(replayed, 1_000);
    assert_eq!(
        positions(&f, "parked").await,
        (1..=1_000).collect::<Vec<i64>>()
    );
    assert!(positions(&f, "dead").await.is_empty());
    // Every key stands at its first message.
    let heads: Vec<i64> =
        sqlx::query_scalar(f.sql("SELECT head FROM {schema}.blocked ORDER BY head"))
            .fetch_all(&f.pool)
            .await
            .unwrap();
    assert_eq!(heads, (1..=50).collect::<Vec<i64>>());
}

async fn a_decision_waits_for_the_claim_that_holds_the_lane(f: Fixture) {
    let id = dead(&f, 7, "k", false).await;
    let mut claim = PgConnection::connect(&f.url).await.unwrap();
    let mut claim = claim.begin().await.unwrap();
    sqlx::query(
        f.sql("SELECT FROM {schema}.lane WHERE lane = hashtextextended('k', 0) & 63 FOR UPDATE"),
    )
    .execute(&mut *claim)
    .await
    .unwrap();
    let replay = tokio::spawn({
        let f = f.clone();
        async move { f.outbox.replay(&f.pool, &[id]).await }
    });
    until("the replay waits for the lane", async || {
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1)",
        )
        .bind(format!("%{}.lane%FOR UPDATE%", f.outbox.schema()))
        .fetch_one(&f.pool)
        .await
        .unwrap()
    })
    .await;
    assert_eq!(positions(&f, "dead").await, [7]);
    // What the claim settles before it ends is seen: the key is held up behind an earlier message.
    sqlx::query(f.sql(
        "INSERT INTO {schema}.blocked (key_hash, lane, head, due_at)
         VALUES (hashtextextended('k', 0), hashtextextended('k', 0) & 63, 3, 'infinity')",
    ))
    .execute(&mut *claim)
    .await
    .unwrap();
    claim.commit().await.unwrap();
    assert_eq!(replay.await.unwrap().unwrap(), 1);
    assert_eq!(key(&f, "k").await, stands(3, "now", 0));
}

/// Waiting for the bound would take minutes, so a trigger on what the decision changes says what it is.
async fn a_decision_does_not_wait_for_ever(f: Fixture) {
    f.execute(
        "CREATE TABLE {schema}.seen (lock_timeout text);
         CREATE FUNCTION {schema}.see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO {schema}.seen VALUES (current_setting('lock_timeout'));
             RETURN NULL;
         END $$;
         CREATE TRIGGER see AFTER DELETE ON {schema}.dead EXECUTE FUNCTION {schema}.see()",
    )
    .await
    .unwrap();
    let ids = [dead(&f, 7, "k", false).await, dead(&f, 8, "k", false).await];
    assert_eq!(f.outbox.replay(&f.pool, &ids[..1]).await.unwrap(), 1);
    assert_eq!(f.outbox.discard(&f.pool, &ids[1..]).await.unwrap(), 1);
    let seen: Vec<String> = sqlx::query_scalar(f.sql("SELECT lock_timeout FROM {schema}.seen"))
        .fetch_all(&f.pool)
        .await
        .unwrap();
    assert_eq!(seen, ["2min", "2min"]);
    // It ends with the decision: the connection is the application's.
    let after: String = sqlx::query_scalar("SELECT current_setting('lock_timeout')")
        .fetch_one(&f.pool)
        .await
        .unwrap();
    assert_eq!(after, "0");
}

async fn a_limit_bounds_a_decision_about_all(f: Fixture) {
    f.execute(
        "INSERT INTO {schema}.dead
         SELECT n, n, gen_random_uuid(), 't', NULL, NULL, NULL, now(), now(), 1, 1, 'rejected', 'refused', false
           FROM generate_series(1, 2500) AS n",
    )
    .await
    .unwrap();
    assert_eq!(f.outbox.replay_oldest(&f.pool, 0).await.unwrap(), 0);
    assert_eq!(f.outbox.replay_oldest(&f.pool, 1_200).await.unwrap(), 1_200);
    assert_eq!(
        positions(&f, "parked").await,
        (1..=1_200).collect::<Vec<i64>>()
    );
    assert_eq!(f.outbox.discard_oldest(&f.pool, 10).await.unwrap(), 10);
    assert_eq!(
        positions(&f, "dead").await,
        (1_211..=2_500).collect::<Vec<i64>>()
    );
    assert_eq!(
        f.outbox.discard_oldest(&f.pool, u64::MAX).await.unwrap(),
        1_290
    );
    assert!(positions(&f, "dead").await.is_empty());
    assert_eq!(positions(&f, "parked").await.len(), 1_200);
}

async fn a_sleeping_relay_is_told(f: Fixture) {
    let channel: String =
        sqlx::query_scalar("SELECT 'outbox:' || hashtextextended('outbox:' || $1, 0)")
            .bind(f.outbox.schema())
            .fetch_one(&f.pool)
            .await
            .unwrap();
    let mut listener = PgListener::connect(&f.url).await.unwrap();
    listener.listen(&channel).await.unwrap();
    let (replayed, dropped) = (dead(&f, 7, "k", false).await, dead(&f, 8, "k", true).await);
    f.outbox.replay(&f.pool, &[replayed]).await.unwrap();
    f.outbox.discard(&f.pool, &[dropped]).await.unwrap();
    for _ in 0..2 {
        let told = tokio::time::timeout(Duration::from_secs(30), listener.recv()).await;
        assert_eq!(told.unwrap().unwrap().channel(), channel);
    }
}
