//! How an outbox stands.

use std::time::Duration;

use outbox_core::Store as _;
use outbox_core::admin::{Count, Status, TopicCounts};

use crate::support::store::{Db, limits};
use crate::support::{Fixture, on_each_server, until};
use crate::{blocked, dead, parked};

on_each_server!(with_outbox:
    counts_say_what_is_where,
    a_status_says_how_everything_stands,
    a_halted_key_is_seen_in_a_table_that_an_incident_has_left_large,
    large_tables_are_estimated,
    relays_and_what_they_hold_are_seen,
    an_outbox_without_a_relay_shows_it,
    what_is_not_found_in_time_is_left_out,
);

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

async fn status(f: &Fixture) -> Status {
    f.outbox.status(&f.pool).await.unwrap()
}

fn topic(topic: &str, waiting: u64, parked: u64, dead: u64) -> TopicCounts {
    TopicCounts {
        topic: topic.to_owned(),
        waiting,
        parked,
        dead,
    }
}

async fn a_halted_key_is_seen_in_a_table_that_an_incident_has_left_large(f: Fixture) {
    f.execute(
        "INSERT INTO {schema}.blocked (key_hash, lane, head, due_at, error)
         SELECT n, n & 63, n, 'infinity', repeat('x', 1900) FROM generate_series(1, 20000) AS n",
    )
    .await
    .unwrap();
    let crowd = f.outbox.gauges(&f.pool).await.unwrap();
    assert_eq!(crowd.halted_keys, Count::Exact(20_000));
    assert!(
        matches!(crowd.held_keys, Count::About(10_000..)),
        "{crowd:?}"
    );
    f.execute("DELETE FROM {schema}.blocked").await.unwrap();
    f.execute("VACUUM {schema}.blocked").await.unwrap();
    blocked(&f, "a", 1, "infinity").await;
    let (seen, gauges) = (status(&f).await, f.outbox.gauges(&f.pool).await.unwrap());
    for keys in [
        (seen.held_keys, seen.halted_keys),
        (gauges.held_keys, gauges.halted_keys),
    ] {
        assert_eq!(keys, (Count::Exact(1), Count::Exact(1)));
    }
    assert!(seen.oldest_held.is_some() && gauges.oldest_held.is_some());
}

async fn a_status_says_how_everything_stands(f: Fixture) {
    let empty = status(&f).await;
    assert_eq!(
        (empty.waiting, empty.parked, empty.dead),
        (Count::Exact(0), Count::Exact(0), Count::Exact(0))
    );
    assert_eq!(
        (empty.oldest_waiting, empty.oldest_held, empty.next_due),
        (None, None, None)
    );
    assert_eq!(
        (empty.topics, empty.complete, empty.more_topics),
        (vec![], true, false)
    );
    assert_eq!(empty.lanes.len(), 64);

    f.execute("INSERT INTO {schema}.message (topic, enqueued_at) VALUES ('t', now()), ('u', now() - interval '1 hour')")
        .await
        .unwrap();
    parked(&f, 1, "a").await;
    parked(&f, 2, "a").await;
    parked(&f, 3, "b").await;
    blocked(&f, "a", 1, "2100-01-01").await;
    blocked(&f, "b", 3, "infinity").await;
    f.execute("UPDATE {schema}.blocked SET blocked_at = now() - interval '2 hours' WHERE head = 1")
        .await
        .unwrap();
    dead(&f, 7, "b", true).await;
    f.outbox
        .pause(&f.pool, &"u".parse().unwrap(), "me")
        .await
        .unwrap();
    let seen = status(&f).await;
    assert_eq!(
        (seen.waiting, seen.parked, seen.dead),
        (Count::Exact(2), Count::Exact(3), Count::Exact(1))
    );
    assert_eq!(
        (seen.held_keys, seen.halted_keys),
        (Count::Exact(2), Count::Exact(1))
    );
    let hours = |age: Option<Duration>| age.unwrap().as_secs() / 3_600;
    assert_eq!(hours(seen.oldest_waiting_age()), 1);
    assert_eq!(hours(seen.oldest_held_age()), 2);
    assert!(seen.next_due.unwrap() > seen.now + Duration::from_secs(3_600));
    assert_eq!(
        seen.topics,
        [
            topic("t", 1, 3, 0),
            topic("orders.placed", 0, 0, 1),
            topic("u", 1, 0, 0)
        ]
    );
    assert_eq!(seen.paused.len(), 1);
    let gauges = f.outbox.gauges(&f.pool).await.unwrap();
    assert_eq!((gauges.waiting, gauges.parked), (seen.waiting, seen.parked));
    assert_eq!((gauges.dead, gauges.held_keys), (seen.dead, seen.held_keys));
    assert_eq!(gauges.halted_keys, seen.halted_keys);
    assert_eq!(
        (hours(gauges.oldest_waiting), hours(gauges.oldest_held)),
        (1, 2)
    );
    assert_eq!((gauges.lanes_held, gauges.floor_lag), (Some(0), Some(2)));
    assert_eq!(gauges.paused_topics, 1);
    assert!(gauges.complete);
    assert!(seen.complete);
    assert!(
        seen.lanes
            .iter()
            .all(|lane| lane.held.is_none() && lane.floor_lag == 2)
    );
}

async fn large_tables_are_estimated(f: Fixture) {
    // 37,500 rows of a kilobyte are more than is counted, and of the half that is gone nothing is left
    // but its space.
    f.execute(
        "ALTER TABLE {schema}.dead SET (autovacuum_enabled = off);
         INSERT INTO {schema}.dead
         SELECT n, n, gen_random_uuid(), CASE WHEN n % 3 = 0 THEN 'few' ELSE 'many' END, NULL, NULL, NULL, now(),
                now(), 1, 1, 'rejected', repeat('x', 1000), false
           FROM generate_series(1, 75000) AS n;
         DELETE FROM {schema}.dead WHERE position % 2 = 0",
    )
    .await
    .unwrap();
    let near = |number: u64, expected: u64| number.abs_diff(expected) < expected / 5;
    // What the statistics say comes later.
    until("the number is near", async || {
        let seen = status(&f).await;
        let Count::About(number) = seen.dead else {
            panic!("{:?}", seen.dead)
        };
        let [many, few] = &seen.topics[..] else {
            panic!("{:?}", seen.topics)
        };
        assert_eq!((many.topic.as_str(), few.topic.as_str()), ("many", "few"));
        assert!(
            near(many.dead, 25_000) && near(few.dead, 12_500),
            "{many:?} {few:?}"
        );
        assert_eq!(seen.waiting, Count::Exact(0));
        let gauges = f.outbox.gauges(&f.pool).await.unwrap();
        let Count::About(of_statistics) = gauges.dead else {
            panic!("{gauges:?}")
        };
        near(number, 37_500) && near(of_statistics, 37_500)
    })
    .await;
}

async fn relays_and_what_they_hold_are_seen(f: Fixture) {
    let db = Db::new(f.clone());
    let store = db.outbox.store(&db.pool);
    db.enqueue("a", "1").await;
    let claim = store.claim(&limits(10)).await.unwrap().unwrap();
    let seen = status(&f).await;
    let held: Vec<_> = seen
        .lanes
        .iter()
        .filter_map(|lane| lane.held.as_ref())
        .collect();
    // A claim may hold lanes besides that it has not looked at yet.
    let holder = held.first().unwrap();
    assert!(held.iter().all(|other| other.pid == holder.pid));
    let name = format!("outbox relay {}", f.outbox.schema());
    let name = &name[..name.len().min(63)];
    assert_eq!(holder.application, name);
    assert!(holder.since.unwrap() <= seen.now && holder.pid > 0);
    let gauges = f.outbox.gauges(&f.pool).await.unwrap();
    assert_eq!(gauges.lanes_held, Some(held.len() as u64));
    let relays = seen.relays.unwrap();
    let [relay] = &relays[..] else {
        panic!("{relays:?}")
    };
    assert_eq!((relay.application.as_str(), relay.connections), (name, 1));
    assert!(relay.since.unwrap() <= seen.now);

    drop(claim);
    drop(store);
    until("it is gone", async || {
        let seen = status(&f).await;
        seen.relays.unwrap().is_empty() && seen.lanes.iter().all(|lane| lane.held.is_none())
    })
    .await;
}

/// Producers enqueue in SQL, and nobody has ever started a relay.
async fn an_outbox_without_a_relay_shows_it(f: Fixture) {
    f.execute("SELECT {schema}.enqueue('t', '\\x01', 'k')")
        .await
        .unwrap();
    let seen = status(&f).await;
    assert_eq!(
        (seen.waiting, &seen.relays),
        (Count::Exact(1), &Some(vec![]))
    );
    assert!(seen.oldest_waiting_age().unwrap() < Duration::from_secs(60));
}

/// A table that answers late, as one does with millions of deleted rows before the first that is left.
async fn what_is_not_found_in_time_is_left_out(f: Fixture) {
    f.execute("SELECT {schema}.enqueue('t', '\\x01', 'k')")
        .await
        .unwrap();
    f.execute(
        "ALTER TABLE {schema}.lane RENAME TO real_lane;
         CREATE VIEW {schema}.lane AS
         SELECT lane, floor, xmax FROM {schema}.real_lane,
                LATERAL (SELECT pg_sleep_for(CASE current_setting('enable_seqscan') WHEN 'off' THEN interval '1 s' ELSE '0' END)) AS late",
    )
    .await
    .unwrap();
    let seen = status(&f).await;
    assert!(!seen.complete && !f.outbox.gauges(&f.pool).await.unwrap().complete);
    assert_eq!((seen.waiting, seen.oldest_waiting), (Count::Exact(1), None));
    assert_eq!(seen.lanes.len(), 64);
}
