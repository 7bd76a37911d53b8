//! Delivered messages that are kept: exactly those that were settled, in days that come and go.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::{Outcome, PublishError, Store};
use outbox_postgres::PostgresStore;
use support::store::{DEADLINE, Db, deliver, deliver_some, limits, on_both_servers};
use support::until;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn keeping(db: &Db) -> PostgresStore {
    let store = db.outbox.store(&db.pool);
    store.keep_delivered_for(2 * DAY).unwrap()
}

/// How many are kept with this text, or all.
async fn kept(db: &Db, text: &str) -> i64 {
    db.number(&format!(
        "SELECT count(*) FROM {{schema}}.delivered WHERE convert_from(payload, 'UTF8') LIKE '{text}'"
    ))
    .await
}

/// How many partitions there are, but for the last one.
async fn days(db: &Db) -> i64 {
    db.number(
        "SELECT count(*) FROM pg_inherits
          WHERE inhparent = '{schema}.delivered'::regclass
            AND inhrelid <> '{schema}.delivered_other'::regclass",
    )
    .await
}

/// A day of so long ago with one row, and its name.
async fn day_ago(db: &Db, days: i64) -> String {
    let name = format!("to_char(now() AT TIME ZONE 'UTC' - interval '{days} days', 'YYYYMMDD')");
    let name = db.number(&format!("SELECT {name}::bigint")).await;
    db.sql(&format!(
        "DO $$ BEGIN EXECUTE format(
             'CREATE TABLE {{schema}}.delivered_{name} PARTITION OF {{schema}}.delivered
                  FOR VALUES FROM (%L) TO (%L)',
             '{name}'::timestamp AT TIME ZONE 'UTC',
             ('{name}'::timestamp + interval '1 day') AT TIME ZONE 'UTC'); END $$;
         INSERT INTO {{schema}}.delivered (position, id, topic, enqueued_at, delivered_at)
         VALUES (1, gen_random_uuid(), 't', now(), '{name}'::timestamp AT TIME ZONE 'UTC')"
    ))
    .await;
    format!("delivered_{name}")
}

/// How many rows are in the last partition.
async fn kept_elsewhere(db: &Db) -> i64 {
    db.number("SELECT count(*) FROM {schema}.delivered_other")
        .await
}

async fn exists(db: &Db, table: &str) -> bool {
    db.number(&format!("SELECT count(to_regclass('{{schema}}.{table}'))"))
        .await
        == 1
}

on_both_servers! {
    async fn exactly_what_was_settled_as_delivered_is_kept(db: Db) {
        let store = keeping(&db);
        for text in ["delivered", "parked", "dead"] {
            db.enqueue(text, text).await;
        }
        let claim = store.claim(&limits(10)).await.unwrap().unwrap();
        assert_eq!(claim.messages().len(), 3);
        drop(claim);
        assert_eq!(kept(&db, "%").await, 0, "of a claim that was dropped");

        let claim = until_claimed(&store, 3).await;
        let error = || PublishError::rejected("no");
        let outcomes = claim
            .messages()
            .iter()
            .map(|claimed| match claimed.message.key() {
                Some("delivered") => Outcome::Delivered,
                Some("dead") => Outcome::Dead { error: error(), halt: false },
                _ => Outcome::Park { after: Duration::ZERO, counted: true, error: error() },
            })
            .collect();
        claim.settle(outcomes).await.unwrap();
        assert_eq!((kept(&db, "%").await, kept(&db, "delivered").await), (1, 1));

        deliver(&store, 1).await;
        assert_eq!((kept(&db, "%").await, kept(&db, "parked").await), (2, 1));
        assert_eq!(db.places().await, [0, 0, 1, 0]);
        assert_eq!(kept_elsewhere(&db).await, 0);
    }

    async fn nothing_is_kept_unless_it_is_asked_for(db: Db) {
        db.enqueue("k", "text").await;
        deliver(&db.outbox.store(&db.pool), 1).await;
        assert_eq!((kept(&db, "%").await, days(&db).await), (0, 0));
    }

    async fn days_are_made_ahead_and_dropped_whole(db: Db) {
        let old = day_ago(&db, 3).await;
        let young = day_ago(&db, 2).await;
        db.sql(
            "INSERT INTO {schema}.delivered (position, id, topic, enqueued_at, delivered_at)
             VALUES (1, gen_random_uuid(), 't', now(), now() - interval '5 years')",
        )
        .await;
        assert!(deliver_some(&keeping(&db), &limits(1)).await.is_empty());
        assert!(!exists(&db, &old).await, "older as a whole");
        // One day at a time.
        assert_eq!(again(&db).await, 1, "nothing is left");
        assert!(exists(&db, &young).await, "in part within the two days");
        // Today and the next two days, or one more where midnight has passed.
        assert!((4..=5).contains(&days(&db).await));
        assert_eq!(kept_elsewhere(&db).await, 0);
    }

    /// What had no day of its own is dropped in steps, and it says so while there is more.
    async fn what_is_old_in_the_last_partition_is_dropped_to_the_end(db: Db) {
        db.sql(
            "INSERT INTO {schema}.delivered (position, id, topic, enqueued_at, delivered_at)
             SELECT i, gen_random_uuid(), 't', now(), now() - interval '9 days' FROM generate_series(1, 10001) AS i",
        )
        .await;
        assert_eq!(again(&db).await, 0, "it says that some are left");
        assert_eq!(kept_elsewhere(&db).await, 1);
        assert_eq!(again(&db).await, 1, "nothing is left");
        assert_eq!(kept_elsewhere(&db).await, 0);
    }

    /// As a dump does, and a transaction that somebody forgot.
    async fn who_reads_a_day_keeps_it_and_delays_no_settle(db: Db) {
        let old = day_ago(&db, 9).await;
        let mut reader = db.connection().await;
        db.sql_on(&mut reader, &format!("BEGIN; SELECT * FROM {{schema}}.{old}; SELECT * FROM {{schema}}.delivered"))
            .await;
        db.enqueue("k", "text").await;
        let started = Instant::now();
        deliver(&keeping(&db), 1).await;
        assert!(started.elapsed() < DEADLINE / 2);
        assert_eq!(kept(&db, "text").await, 1);
        assert!(exists(&db, &old).await);
        assert_eq!(again(&db).await, 0, "it says that a day is left");

        db.sql_on(&mut reader, "COMMIT").await;
        again(&db).await;
        assert!(!exists(&db, &old).await);
        assert_eq!(again(&db).await, 1, "nothing is left");
    }

    /// As after a relay was off for more than the two days that are made ahead.
    async fn what_was_kept_without_its_day_is_moved_into_it(db: Db) {
        let store = keeping(&db);
        deliver_some(&store, &limits(1)).await;
        drop_days(&db).await;
        db.enqueue("k", "text").await;
        deliver(&store, 1).await;
        assert_eq!(in_the_last(&db).await, 1);
        assert_eq!(again(&db).await, 1);
        assert_eq!((in_the_last(&db).await, kept(&db, "text").await), (0, 1));
        assert!((3..=4).contains(&days(&db).await));
    }

    /// Ten thousand at a time, and it says so, or it would never catch up. What is too much to be moved in one
    /// transaction stays until it is old.
    async fn what_stays_without_its_day_is_drained_when_it_is_old(db: Db) {
        let insert = |rows: i64, age: &str| {
            format!(
                "INSERT INTO {{schema}}.delivered (position, id, topic, enqueued_at, delivered_at)
                 SELECT i, gen_random_uuid(), 't', now(), clock_timestamp() - interval '{age}'
                   FROM generate_series(1, {rows}) AS i"
            )
        };
        db.sql(&insert(25_000, "5 years")).await;
        db.sql(&insert(10_001, "0")).await;
        let mut left = Vec::new();
        for _ in 0..3 {
            left.push((again(&db).await, in_the_last(&db).await));
        }
        assert_eq!(left, [(0, 25_001), (0, 15_001), (1, 10_001)]);
        // The other days are there, or today's too where midnight has passed.
        assert!((2..=3).contains(&days(&db).await));
    }

    /// A settle that waits for the day to be made is not refused by the last partition then.
    async fn a_settle_goes_into_the_day_that_is_made_meanwhile(db: Db) {
        db.enqueue("k", "text").await;
        let store = keeping(&db);
        let mut maker = db.connection().await;
        db.sql_on(&mut maker, "BEGIN; SELECT {schema}.keep_delivered('2 days')").await;
        let claim = store.claim(&limits(1)).await.unwrap().unwrap();
        let settle = tokio::spawn(async move { claim.settle(vec![Outcome::Delivered]).await });
        until("the settle waits", async || {
            db.number(
                "SELECT count(*) FROM pg_locks JOIN pg_class ON pg_class.oid = pg_locks.relation
                  WHERE NOT granted AND relnamespace = '{schema}'::regnamespace",
            )
            .await
                == 1
        })
        .await;
        db.sql_on(&mut maker, "COMMIT").await;
        settle.await.unwrap().unwrap();
        assert_eq!((in_the_last(&db).await, kept(&db, "text").await), (0, 1));
    }

    /// Whoever makes them may take long: nobody settles before.
    async fn the_first_claims_wait_for_the_days(db: Db) {
        for n in 0..4 {
            db.enqueue(&n.to_string(), "text").await;
        }
        db.sql(
            "ALTER FUNCTION {schema}.keep_delivered RENAME TO keep_delivered_at_once;
             CREATE FUNCTION {schema}.keep_delivered(age interval) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM pg_advisory_xact_lock(hashtextextended('test {schema}', 0));
                 RETURN {schema}.keep_delivered_at_once(age);
             END $$",
        )
        .await;
        let mut holder = db.connection().await;
        db.sql_on(&mut holder, "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('test {schema}', 0))").await;
        let store = Arc::new(keeping(&db));
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let store = Arc::clone(&store);
                tokio::spawn(async move { deliver_some(&*store, &limits(1)).await.len() })
            })
            .collect();
        // wait: who does not wait settles meanwhile
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!((kept(&db, "%").await, db.places().await[0]), (0, 4));
        db.sql_on(&mut holder, "COMMIT").await;
        let mut delivered = 0;
        for worker in workers {
            delivered += worker.await.unwrap();
        }
        deliver(&*store, 4 - delivered).await;
        assert_eq!((in_the_last(&db).await, kept(&db, "%").await), (0, 4));
    }
}

async fn in_the_last(db: &Db) -> i64 {
    db.number("SELECT count(*) FROM {schema}.delivered_other")
        .await
}

async fn drop_days(db: &Db) {
    db.sql(
        "DO $$ DECLARE day regclass; BEGIN
             FOR day IN SELECT inhrelid::regclass FROM pg_inherits
                         WHERE inhparent = '{schema}.delivered'::regclass
                           AND inhrelid <> '{schema}.delivered_other'::regclass
             LOOP EXECUTE format('DROP TABLE %s', day); END LOOP;
         END $$",
    )
    .await;
}

/// What the relay does every hour; 1 if nothing is left to do.
async fn again(db: &Db) -> i64 {
    db.number("SELECT {schema}.keep_delivered('2 days')::integer::bigint")
        .await
}

async fn until_claimed(store: &PostgresStore, messages: usize) -> Box<dyn outbox_core::Claim> {
    let mut found = None;
    until("the dropped claim has ended", async || {
        found = store.claim(&limits(10)).await.unwrap();
        found
            .as_ref()
            .is_some_and(|claim| claim.messages().len() == messages)
    })
    .await;
    found.unwrap()
}
