//! Dead messages: lists of them, and decisions.

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use outbox_core::admin::{DeadFilter, Decided};
use outbox_core::{Headers, Outcome, PublishError, Store as _, Uuid};
use outbox_postgres::DeadSteps;
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Postgres, Transaction};

use crate::support::store::limits;
use crate::support::{Fixture, database_message, on_each_server, until};
use crate::{blocked, dead, discard, ids, key, listed, parked, positions, replay, stands};

on_each_server!(with_outbox:
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
    a_filter_means_what_fits_all_that_it_asks_for,
    a_look_has_a_bound_where_nothing_fits,
    what_dies_again_meanwhile_is_left_alone,
    what_dies_after_the_counting_is_not_decided_about,
    a_step_that_failed_is_repeated,
    a_replay_says_how_long_ago_the_youngest_died,
    content_is_shown_unharmed,
    lanes_that_are_free_come_first,
    the_servers_own_timeouts_do_not_cut_a_decision,
    a_replay_goes_on_where_its_connection_was_cut,
    a_replay_and_a_relay_at_once_lose_nothing,
);

async fn dead_messages_are_listed_in_pages(f: Fixture) {
    let mut ids = Vec::new();
    for position in [30, 10, 20] {
        ids.push(dead(&f, position, "k", position == 10).await);
    }
    // One that no version could decode is listed all the same.
    f.execute(r#"UPDATE {schema}.dead SET headers = '[7]', payload = NULL, key = NULL WHERE position = 20"#)
        .await
        .unwrap();
    let all = DeadFilter::all();
    let page = f.outbox.dead(&f.pool, &all, None, 2).await.unwrap();
    let [first, second] = &page.messages[..] else {
        panic!("{page:?}");
    };
    assert_eq!([first.id, second.id], [ids[1], ids[2]]);
    assert_eq!((second.key.as_deref(), second.payload_bytes), (None, None));
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
    assert!(first.halted && !second.halted);
    let enqueued = first
        .enqueued_at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    assert_eq!(enqueued, Duration::from_micros(1_767_323_045_678_901));
    assert!(first.enqueued_at < first.died_at && first.died_at < page.now);

    let next = f.outbox.dead(&f.pool, &all, page.next, 2).await.unwrap();
    assert_eq!(next.next, None);
    assert_eq!(next.messages.len(), 1);
    assert_eq!(next.messages[0].id, ids[0]);
    let behind = f.outbox.dead(&f.pool, &all, Some(30), 2).await.unwrap();
    assert_eq!((behind.messages, behind.next), (vec![], None));
}

async fn a_replay_brings_the_message_back_as_it_was(f: Fixture) {
    let id = dead(&f, 7, "k", false).await;
    assert_eq!(replay(&f, ids([Uuid::nil(), id])).await, 1);
    assert_eq!(replay(&f, ids([id])).await, 0);
    assert_eq!(discard(&f, ids([id])).await, 0);
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
    assert_eq!(replay(&f, ids([late])).await, 1);
    assert_eq!(key(&f, "k").await.unwrap().head, 20);
    assert_eq!(replay(&f, ids([early])).await, 1);
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
    assert_eq!(replay(&f, ids([first, before, other])).await, 3);
    assert_eq!(key(&f, "k").await, stands(4, "never", 0));
    assert_eq!(key(&f, "other").await, stands(7, "now", 0));
    assert_eq!(discard(&f, ids([second])).await, 1);
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
    let all = [with_followers, one_of_two, alone, Uuid::nil()];
    assert_eq!(discard(&f, ids(all)).await, 3);
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
    assert_eq!(discard(&f, ids([id])).await, 1);
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
    let people = join_all((0..4).map(|_| replay(&f, DeadFilter::all()))).await;
    let replayed: u64 = people.into_iter().sum();
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

/// A transaction that holds lanes, as a claim does.
async fn hold(f: &Fixture, lanes: &str) -> Transaction<'static, Postgres> {
    let mut tx = f.pool.begin().await.unwrap();
    sqlx::query(f.sql(&format!(
        "SELECT FROM {{schema}}.lane WHERE lane IN ({lanes}) ORDER BY lane FOR UPDATE"
    )))
    .execute(&mut *tx)
    .await
    .unwrap();
    tx
}

/// Whether a decision has waited for a lane for so many milliseconds.
async fn waits(f: &Fixture, millis: i64) -> bool {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM pg_stat_activity
                         WHERE wait_event_type = 'Lock' AND query LIKE $1
                           AND clock_timestamp() - query_start >= $2 * interval '1 millisecond')",
    )
    .bind(format!("%{}.lane%FOR UPDATE%", f.outbox.schema()))
    .bind(millis)
    .fetch_one(&f.pool)
    .await
    .unwrap()
}

async fn a_decision_waits_for_the_claim_that_holds_the_lane(f: Fixture) {
    let id = dead(&f, 7, "k", false).await;
    let mut claim = hold(&f, "hashtextextended('k', 0) & 63").await;
    let replaying = tokio::spawn({
        let f = f.clone();
        async move { replay(&f, ids([id])).await }
    });
    until("the replay waits for the lane", async || waits(&f, 0).await).await;
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
    assert_eq!(replaying.await.unwrap(), 1);
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
    let first = dead(&f, 7, "k", false).await;
    let second = dead(&f, 8, "k", false).await;
    assert_eq!(replay(&f, ids([first])).await, 1);
    assert_eq!(discard(&f, ids([second])).await, 1);
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
    let all = DeadFilter::all;
    let limited = async |steps: DeadSteps, limit| steps.limit(limit).finish().await.unwrap();
    let replaying = limited(f.outbox.replay(&f.pool, all()), 0);
    assert_eq!(replaying.await, Decided::default());
    let replaying = limited(f.outbox.replay(&f.pool, all()), 1_200);
    assert_eq!(replaying.await.messages, 1_200);
    assert_eq!(
        positions(&f, "parked").await,
        (1..=1_200).collect::<Vec<i64>>()
    );
    let discarding = limited(f.outbox.discard(&f.pool, all()), 10);
    assert_eq!(discarding.await.messages, 10);
    assert_eq!(
        positions(&f, "dead").await,
        (1_211..=2_500).collect::<Vec<i64>>()
    );
    let counting = f.outbox.count_dead(&f.pool, all()).finish();
    assert_eq!(counting.await.unwrap().messages, 1_290);
    assert_eq!(discard(&f, all()).await, 1_290);
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
    replay(&f, ids([replayed])).await;
    discard(&f, ids([dropped])).await;
    for _ in 0..2 {
        let told = tokio::time::timeout(Duration::from_secs(30), listener.recv()).await;
        assert_eq!(told.unwrap().unwrap().channel(), channel);
    }
}

/// Dead messages of their own, one for each row of `values`: position, topic, key, error kind and how many
/// hours ago it died.
async fn died(f: &Fixture, values: &str) {
    f.execute(&format!(
        "INSERT INTO {{schema}}.dead
         SELECT d.position, coalesce(hashtextextended(d.key, 0), d.position), gen_random_uuid(), d.topic, d.key,
                NULL, NULL, now(), now() - d.hours * interval '1 hour', 1, 1, d.kind, 'refused', false
           FROM (VALUES {values}) AS d(position, topic, key, kind, hours)"
    ))
    .await
    .unwrap();
}

async fn a_filter_means_what_fits_all_that_it_asks_for(f: Fixture) {
    died(
        &f,
        r"(1, 'orders.placed', 'k', 'rejected', 1),
          (2, 'orders.placed', 'k', 'retryable', 30),
          (3, 'orders.paid', 'schlüssel 🔑', 'rejected', 30),
          (4, 'a%_\.x', '', 'rejected', 30),
          (5, 'abcd.x', NULL, 'rejected', 30)",
    )
    .await;
    const DAY: Duration = Duration::from_secs(24 * 3_600);
    let all = DeadFilter::all;
    let topic = |pattern: &str| all().topic(pattern.parse().unwrap());
    let everything = listed(&f, &all(), 10).await;
    let some = [
        everything[4].id,
        everything[1].id,
        everything[1].id,
        Uuid::nil(),
    ];
    for (filter, expected) in [
        (all(), &[1, 2, 3, 4, 5][..]),
        (topic("orders.placed"), &[1, 2]),
        (topic("orders.*"), &[1, 2, 3]),
        (topic("*p*d"), &[1, 2, 3]),
        (topic(r"a%_\*"), &[4]),
        (topic("orders"), &[]),
        (all().key("k"), &[1, 2]),
        (all().key("schlüssel 🔑"), &[3]),
        (all().key(""), &[4]),
        (all().error_kind("retryable"), &[2]),
        (all().older_than(DAY), &[2, 3, 4, 5]),
        (all().older_than(Duration::MAX), &[]),
        (all().younger_than(DAY), &[1]),
        (all().younger_than(Duration::MAX), &[1, 2, 3, 4, 5]),
        (topic("orders.*").key("k").older_than(DAY), &[2]),
        (DeadFilter::ids([]), &[]),
        (DeadFilter::ids(some), &[2, 5]),
        (DeadFilter::ids(some).key("k"), &[2]),
    ] {
        for limit in [1, 2, 10] {
            let found = listed(&f, &filter, limit).await;
            let found: Vec<i64> = found.iter().map(|dead| dead.position).collect();
            assert_eq!(found, expected, "{filter:?}");
        }
        let counted = f.outbox.count_dead(&f.pool, filter.clone()).finish();
        assert_eq!(
            counted.await.unwrap().messages,
            expected.len() as u64,
            "{filter:?}"
        );
    }
    // A decision means the same.
    assert_eq!(discard(&f, topic("orders.*").older_than(DAY)).await, 2);
    assert_eq!(replay(&f, all().key("k")).await, 1);
    assert_eq!(discard(&f, DeadFilter::ids(some)).await, 1);
    assert_eq!(positions(&f, "dead").await, [4]);
}

/// Many dead messages, each of a key of its own, as (first, last) position.
async fn many(f: &Fixture, first: i64, last: i64) {
    f.execute(&format!(
        "INSERT INTO {{schema}}.dead
         SELECT n, n, gen_random_uuid(), 't', NULL, NULL, NULL, now(), clock_timestamp(), 1, 1, 'rejected',
                'refused', false
           FROM generate_series({first}, {last}) AS n"
    ))
    .await
    .unwrap();
}

async fn a_look_has_a_bound_where_nothing_fits(f: Fixture) {
    many(&f, 1, 25_000).await;
    let filter = DeadFilter::all().topic("other".parse().unwrap());
    let page = f.outbox.dead(&f.pool, &filter, None, 5).await.unwrap();
    assert_eq!((page.messages, page.next), (vec![], Some(10_000)));
    let mut steps = f.outbox.replay(&f.pool, filter);
    let mut number = 0;
    while steps.step().await.unwrap() {
        number += 1;
        assert_eq!(steps.done().looked_at, number * 10_000);
    }
    let done = steps.done();
    assert_eq!(
        (done.messages, done.looked_at, done.youngest),
        (0, 25_000, None)
    );
}

/// The new one comes before a counted one, and would take its place in the number.
async fn what_dies_after_the_counting_is_not_decided_about(f: Fixture) {
    for (first, decide) in [
        (1, DeadSteps::replay as fn(DeadSteps) -> DeadSteps),
        (11, DeadSteps::discard),
    ] {
        dead(&f, first, "k", false).await;
        dead(&f, first + 2, "k", false).await;
        let mut counting = f.outbox.count_dead(&f.pool, DeadFilter::all());
        assert!(!counting.step().await.unwrap());
        assert_eq!(counting.done().messages, 2);
        dead(&f, first + 1, "k", false).await;
        let decided = decide(counting).finish().await.unwrap();
        assert_eq!(decided.messages, 2);
        assert_eq!(positions(&f, "dead").await, [first + 1]);
        assert_eq!(discard(&f, DeadFilter::all()).await, 1);
    }
    assert_eq!(positions(&f, "parked").await, [1, 3]);
}

async fn what_dies_again_meanwhile_is_left_alone(f: Fixture) {
    many(&f, 1, 5_000).await;
    let mut steps = f.outbox.replay(&f.pool, DeadFilter::all());
    assert!(steps.step().await.unwrap());
    assert_eq!(steps.done().messages, 4_000);
    // Two that were put back die again. Another dies for the first time; and one that the next step
    // will come to is replayed by somebody else and dies again.
    f.execute(
        "DELETE FROM {schema}.parked WHERE position IN (10, 4000);
         DELETE FROM {schema}.dead WHERE position = 4500",
    )
    .await
    .unwrap();
    for position in [10, 4_000, 4_500, 6_000] {
        many(&f, position, position).await;
    }
    let replayed = steps.finish().await.unwrap();
    assert_eq!(replayed.messages, 4_999);
    assert_eq!(positions(&f, "dead").await, [10, 4_000, 4_500, 6_000]);
    assert_eq!(replay(&f, DeadFilter::all()).await, 4);
    assert_eq!(positions(&f, "parked").await.len(), 5_001);
}

async fn a_step_that_failed_is_repeated(f: Fixture) {
    many(&f, 1, 200).await;
    // A message without a key has its position for a hash, so this is of the last lane but one.
    f.execute(
        "CREATE FUNCTION {schema}.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             RAISE EXCEPTION 'not now';
         END $$;
         CREATE TRIGGER fail BEFORE DELETE ON {schema}.dead
             FOR EACH ROW WHEN (OLD.position = 62) EXECUTE FUNCTION {schema}.fail()",
    )
    .await
    .unwrap();
    let mut steps = f.outbox.discard(&f.pool, DeadFilter::all());
    assert_eq!(database_message(steps.step().await), "not now");
    assert_eq!(steps.done().messages, 194, "all lanes but two");
    f.execute("DROP TRIGGER fail ON {schema}.dead")
        .await
        .unwrap();
    assert_eq!(steps.finish().await.unwrap().messages, 200);
    assert!(positions(&f, "dead").await.is_empty());
}

async fn a_replay_says_how_long_ago_the_youngest_died(f: Fixture) {
    died(
        &f,
        "(1, 't', 'a', 'rejected', 5), (2, 't', 'b', 'rejected', 2), (3, 't', 'b', 'rejected', 3)",
    )
    .await;
    let hours = |decided: Decided| decided.youngest.map(|ago| ago.as_secs() / 3_600);
    let all = DeadFilter::all;
    let counted = f.outbox.count_dead(&f.pool, all()).finish().await.unwrap();
    assert_eq!(hours(counted), Some(2));
    let replayed = f.outbox.replay(&f.pool, all()).finish().await.unwrap();
    assert_eq!((replayed.messages, hours(replayed)), (3, Some(2)));
    let nothing = f.outbox.replay(&f.pool, all()).finish().await.unwrap();
    assert_eq!(nothing, Decided::default());
}

async fn content_is_shown_unharmed(f: Fixture) {
    let payload: Vec<u8> = (0..=255).chain([0; 3]).collect();
    let (topic, key) = ("bestellungen.größe 🚚\n\"x\"", "schlüssel\t\u{202e}'; --");
    let headers = r#"{"größe": "a\nb\u001b[31m", "x": ""}"#;
    let id: Uuid = sqlx::query_scalar(f.sql(
        "INSERT INTO {schema}.dead (position, key_hash, id, topic, key, payload, headers, enqueued_at,
                                    parked, failures, error_kind, error, halted)
         VALUES (7, 7, gen_random_uuid(), $1, $2, $3, $4::jsonb, now(), 0, 1, 'rejected', $5, false)
         RETURNING id",
    ))
    .bind(topic)
    .bind(key)
    .bind(&payload)
    .bind(headers)
    .bind("größer\n als erlaubt")
    .fetch_one(&f.pool)
    .await
    .unwrap();
    let content = f.outbox.dead_content(&f.pool, id).await.unwrap().unwrap();
    let message = &content.message;
    assert_eq!(
        (message.topic.as_str(), message.key.as_deref()),
        (topic, Some(key))
    );
    assert_eq!(message.error, "größer\n als erlaubt");
    assert_eq!(message.payload_bytes, Some(259));
    assert_eq!(content.payload.as_deref(), Some(&payload[..]));
    let shown = Headers::from_json(content.headers.as_deref().unwrap()).unwrap();
    assert_eq!(shown, Headers::from_json(headers).unwrap());
    assert_eq!(listed(&f, &DeadFilter::all(), 10).await, [content.message]);

    let nothing = f.outbox.dead_content(&f.pool, Uuid::nil()).await.unwrap();
    assert_eq!(nothing, None);
    // What no version can decode is shown as it is, and an absent payload is no empty one.
    f.execute("UPDATE {schema}.dead SET headers = '[7]', payload = NULL")
        .await
        .unwrap();
    let content = f.outbox.dead_content(&f.pool, id).await.unwrap().unwrap();
    assert_eq!(
        (content.payload, content.headers.as_deref()),
        (None, Some("[7]"))
    );
}

async fn lanes_that_are_free_come_first(f: Fixture) {
    many(&f, 0, 127).await;
    let claim = hold(&f, "0, 30").await;
    let discarding = tokio::spawn({
        let f = f.clone();
        async move { discard(&f, DeadFilter::all()).await }
    });
    until("what is free is done", async || {
        positions(&f, "dead").await == [0, 30, 64, 94]
    })
    .await;
    claim.commit().await.unwrap();
    assert_eq!(discarding.await.unwrap(), 128);
}

async fn the_servers_own_timeouts_do_not_cut_a_decision(f: Fixture) {
    many(&f, 5, 5).await;
    let settings = [
        "statement_timeout",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
    ];
    let options = (*f.pool.connect_options()).clone();
    let pool = PgPoolOptions::new()
        .connect_with(options.options(settings.map(|setting| (setting, "500"))))
        .await
        .unwrap();
    let claim = hold(&f, "5").await;
    let discarding = tokio::spawn({
        let outbox = f.outbox.clone();
        async move { outbox.discard(&pool, DeadFilter::all()).finish().await }
    });
    until("it has waited for longer", async || waits(&f, 700).await).await;
    claim.commit().await.unwrap();
    assert_eq!(discarding.await.unwrap().unwrap().messages, 1);
}

async fn a_replay_goes_on_where_its_connection_was_cut(f: Fixture) {
    many(&f, 1, 20_000).await;
    let name = format!("replay of {}", &f.outbox.schema()[..30]);
    let options = (*f.pool.connect_options()).clone();
    let pool = PgPoolOptions::new()
        .connect_with(options.application_name(&name))
        .await
        .unwrap();
    let mut steps = f.outbox.replay(&pool, DeadFilter::all());
    let mut cuts = 0;
    let left = async || {
        let left: i64 = sqlx::query_scalar(f.sql("SELECT count(*) FROM {schema}.dead"))
            .fetch_one(&f.pool)
            .await
            .unwrap();
        left
    };
    loop {
        let before = left().await;
        let cut = async {
            if cuts < 3 {
                until("a part is done", async || {
                    left().await < (before - 300).max(1)
                })
                .await;
                let cut = sqlx::query(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1",
                );
                cut.bind(&name).execute(&f.pool).await.unwrap();
            }
        };
        let (step, ()) = tokio::join!(steps.step(), cut);
        match step {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) => cuts += 1,
        }
    }
    assert!(cuts > 0);
    assert!(positions(&f, "dead").await.is_empty());
    assert_eq!(
        positions(&f, "parked").await,
        (1..=20_000).collect::<Vec<i64>>()
    );
    // What was committed when the connection was cut may not be in the count.
    assert!(
        (17_000..=20_000).contains(&steps.done().messages),
        "{:?}",
        steps.done()
    );
}

/// Some of what is replayed is delivered at once, and some dies again at once.
async fn a_replay_and_a_relay_at_once_lose_nothing(f: Fixture) {
    many(&f, 1, 6_000).await;
    let store = f.outbox.store(&f.pool);
    let settled = async {
        let (mut delivered, mut died) = (0, 0);
        while delivered + died < 6_000 {
            let Some(claim) = store.claim(&limits(500)).await.unwrap() else {
                tokio::task::yield_now().await;
                continue;
            };
            let outcomes: Vec<Outcome> = (0..claim.messages().len())
                .map(|number| match number % 5 {
                    0 => Outcome::Dead {
                        error: PublishError::rejected("again"),
                        halt: false,
                    },
                    _ => Outcome::Delivered,
                })
                .collect();
            let dead = outcomes.len().div_ceil(5);
            (delivered, died) = (delivered + outcomes.len() - dead, died + dead);
            claim.settle(outcomes).await.unwrap();
        }
        (delivered, died)
    };
    let (replayed, (delivered, died)) = tokio::join!(replay(&f, DeadFilter::all()), settled);
    assert_eq!((replayed, delivered + died), (6_000, 6_000));
    assert_eq!(positions(&f, "dead").await.len(), died);
    assert!(positions(&f, "parked").await.is_empty() && positions(&f, "message").await.is_empty());
}
