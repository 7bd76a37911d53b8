//! Delayed messages: what the suite of all stores cannot ask, since it needs several relays, a death, a snapshot
//! that holds vacuum back, or SQL.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::testing::assert_enqueued;
use outbox_core::{ClaimLimits, Message, Outcome, Store, Uuid};
use outbox_postgres::{Access, PostgresStore};
use sqlx::AssertSqlSafe;
use support::store::{DEADLINE, Db, deliver, deliver_some, limits, message, on_both_servers};
use support::{database_message, until};

/// Far below the ten seconds after which a sleeper polls by itself.
const WOKEN: Duration = Duration::from_secs(5);

fn delayed(key: &str, text: &str, millis: u64) -> Message {
    let message = message(key, text);
    message
        .with_deliver_after(Duration::from_millis(millis))
        .unwrap()
}

async fn enqueue(db: &Db, messages: &[Message]) {
    let mut conn = db.pool.acquire().await.unwrap();
    db.outbox.enqueue_all(&mut conn, messages).await.unwrap();
}

/// How many are delayed, and how many wait.
async fn places(db: &Db) -> (i64, i64) {
    let delayed = db.number("SELECT count(*) FROM {schema}.delayed").await;
    (delayed, db.places().await[0])
}

/// How many index entries of the delayed messages were read so far, by sessions that have reported.
async fn entries_read(db: &Db) -> i64 {
    db.number(
        "SELECT sum(idx_tup_read)::bigint FROM pg_stat_all_indexes
          WHERE schemaname = '{schema}' AND relname = 'delayed'",
    )
    .await
}

on_both_servers! {
    /// A sleeper knows when the next one is due, also of one that was enqueued while it slept.
    async fn a_sleeper_is_there_when_a_message_is_due(db: Db) {
        let store = Arc::new(db.outbox.store(&db.pool));
        let waiting = {
            let store = Arc::clone(&store);
            let patient = ClaimLimits { wait: DEADLINE, ..limits(10) };
            tokio::spawn(async move { store.claim(&patient).await.unwrap().unwrap() })
        };
        until("the store sleeps", async || {
            db.number(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                    AND ((classid::bigint << 32) | objid::bigint) = hashtextextended('outbox:{schema}', 0)",
            )
            .await
                == 1
        })
        .await;
        let enqueued = Instant::now();
        enqueue(&db, &[delayed("k", "x", 300)]).await;
        let claim = waiting.await.unwrap();
        let took = enqueued.elapsed();
        assert!(took >= Duration::from_millis(300), "{took:?}");
        assert!(took < WOKEN, "{took:?}");
        claim.settle(vec![Outcome::Delivered]).await.unwrap();
    }

    /// Its transaction stays open until long after others that were due later were delivered.
    async fn a_commit_far_below_the_floor_is_found(db: Db) {
        let store = db.outbox.store(&db.pool);
        let mut late = db.pool.begin().await.unwrap();
        db.outbox.enqueue(&mut late, &delayed("late", "late", 10)).await.unwrap();
        let since = Instant::now();
        for n in 0..4 {
            enqueue(&db, &[delayed("k", &n.to_string(), 600)]).await;
            deliver(&store, 1).await;
        }
        assert!(since.elapsed() > Duration::from_secs(2), "the floor has passed");
        late.commit().await.unwrap();
        let committed = Instant::now();
        let got = deliver(&store, 1).await;
        assert_eq!(got, [("late".to_owned(), "late".to_owned())]);
        assert!(committed.elapsed() < WOKEN, "{:?}", committed.elapsed());
        // A new store begins at the beginning.
        enqueue(&db, &[delayed("k", "again", 10)]).await;
        drop(store);
        until("it is due", async || {
            db.number("SELECT count(*) FROM {schema}.delayed WHERE deliver_at < clock_timestamp() - interval '1.5 s'")
                .await == 1
        })
        .await;
        deliver(&db.outbox.store(&db.pool), 1).await;
    }

    /// The relay's session ends in the middle of the move: nothing was moved, and it is delivered once.
    async fn a_death_in_the_move_loses_and_repeats_nothing(db: Db) {
        let store = db.outbox.store(&db.pool);
        deliver_some(&store, &limits(10)).await;
        let mut blocker = db.pool.begin().await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(format!("LOCK TABLE {}.message IN SHARE MODE", db.schema)))
            .execute(&mut *blocker)
            .await
            .unwrap();
        let all: Vec<Message> = (0..20).map(|n| delayed("k", &n.to_string(), 50)).collect();
        enqueue(&db, &all).await;
        let dying = tokio::spawn(async move {
            // It ends when its session does.
            while store.claim(&limits(10)).await.is_ok() {}
        });
        let stuck = format!(
            "SELECT coalesce(max(pid), 0)::bigint FROM pg_stat_activity \
              WHERE wait_event_type = 'Lock' AND query LIKE '%{}.deliver_due%'",
            db.schema
        );
        let mut pid = 0;
        until("the move waits", async || {
            pid = db.number(&stuck).await;
            pid != 0
        })
        .await;
        db.sql(&format!("SELECT pg_terminate_backend({pid})")).await;
        dying.await.unwrap();
        blocker.rollback().await.unwrap();
        assert_eq!(places(&db).await, (20, 0));
        let store = db.outbox.store(&db.pool);
        let got = deliver(&store, 20).await;
        let expected: Vec<_> = (0..20).map(|n| ("k".to_owned(), n.to_string())).collect();
        assert_eq!(got, expected);
        assert_eq!(places(&db).await, (0, 0));
    }

    /// Each comes once, and those of a key in the order of their times, whichever relay moves and delivers them.
    async fn relays_share_the_work_and_keep_the_order(db: Db) {
        const MESSAGES: i64 = 5_000;
        const KEYS: i64 = 40;
        // Written backwards, so that the order is that of the times and not of the inserts.
        db.sql(&format!(
            "INSERT INTO {{schema}}.delayed (deliver_after, topic, key, payload)
             SELECT interval '1 hour', 'test', 'k' || i % {KEYS}, (i / {KEYS})::text::bytea
               FROM generate_series({MESSAGES} - 1, 0, -1) AS i;
             UPDATE {{schema}}.delayed
                SET deliver_at = now() + interval '500 ms'
                               + convert_from(payload, 'UTF8')::integer * interval '2 ms'"
        ))
        .await;
        let relays: Vec<Arc<PostgresStore>> =
            (0..3).map(|_| Arc::new(db.outbox.store(&db.pool))).collect();
        let got: Arc<std::sync::Mutex<Vec<(String, String)>>> = Arc::default();
        let workers: Vec<_> = relays
            .iter()
            .flat_map(|relay| [Arc::clone(relay), Arc::clone(relay)])
            .map(|store| {
                let got = Arc::clone(&got);
                tokio::spawn(async move {
                    let end = Instant::now() + DEADLINE;
                    while got.lock().unwrap().len() < MESSAGES as usize && Instant::now() < end {
                        let wait = Duration::from_millis(50);
                        let claim = store.claim(&ClaimLimits { wait, ..limits(200) }).await.unwrap();
                        let Some(claim) = claim else { continue };
                        got.lock().unwrap().extend(support::store::contents(&*claim));
                        let delivered = vec![Outcome::Delivered; claim.messages().len()];
                        claim.settle(delivered).await.unwrap();
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.await.unwrap();
        }
        let mut of_key: HashMap<String, Vec<i64>> = HashMap::new();
        for (key, text) in got.lock().unwrap().iter() {
            of_key.entry(key.clone()).or_default().push(text.parse().unwrap());
        }
        assert_eq!(of_key.len(), KEYS as usize);
        for (key, numbers) in of_key {
            assert!(numbers.is_sorted(), "{key} came as {numbers:?}");
            assert_eq!(numbers.len() as i64, MESSAGES / KEYS, "{key}");
        }
        assert_eq!(places(&db).await, (0, 0));
    }

    /// Thirty thousand were moved, and a snapshot keeps vacuum and the index from forgetting them: neither the
    /// poll nor the next move walks over them.
    async fn what_was_moved_costs_nothing_under_a_held_snapshot(db: Db) {
        const MOVED: i64 = 30_000;
        let store = db.outbox.store(&db.pool);
        let mut held = db.connection().await;
        db.sql_on(&mut held, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM {schema}.delayed").await;
        db.sql(&format!(
            "INSERT INTO {{schema}}.delayed (deliver_after, topic, key)
             SELECT interval '1 ms', 'test', 'k' || i % 100 FROM generate_series(1, {MOVED}) AS i"
        ))
        .await;
        deliver(&store, MOVED as usize).await;
        // The floor is kept a second behind, and a session reports once a second.
        let moved = Instant::now();
        until("the floor has passed", async || {
            deliver_some(&store, &limits(10)).await;
            moved.elapsed() > Duration::from_millis(2_500)
        })
        .await;
        let before = entries_read(&db).await;
        let polls = 40;
        for _ in 0..polls {
            deliver_some(&store, &limits(10)).await;
        }
        enqueue(&db, &[delayed("k", "x", 1)]).await;
        deliver(&store, 1).await;
        let reported = Instant::now();
        until("the session has reported", async || {
            deliver_some(&store, &limits(10)).await;
            reported.elapsed() > Duration::from_millis(1_200)
        })
        .await;
        // A pass below the floor walks over them all, and there is at most one a second.
        let passes = moved.elapsed().as_secs() as i64;
        let read = entries_read(&db).await - before;
        assert!(read < MOVED * passes, "{read} entries in {passes} s");
        db.sql_on(&mut held, "ROLLBACK").await;
    }

    /// The function in SQL, with the same limits as in Rust, and who calls it with the rights of a producer.
    async fn sql_delays_and_cancels_within_limits(db: Db) {
        let role = format!("role_{}", db.schema.trim_start_matches("test_"));
        db.sql(&format!("CREATE ROLE {role}; {}", db.outbox.grants_sql(Access::Producer, &role))).await;
        let mut producer = db.connection().await;
        db.sql_on(&mut producer, &format!("SET ROLE {role}")).await;
        let call = |delay: &str| {
            AssertSqlSafe(format!(
                "SELECT {}.enqueue('t', 'x'::bytea, deliver_after => {delay})", db.schema
            ))
        };
        for (delay, place) in [
            ("NULL", (0, 1)),
            ("'0'", (0, 2)),
            ("'1 hour'", (1, 2)),
            ("'366 days'", (2, 2)),
            ("'1 year'", (3, 2)),
        ] {
            let _: Uuid = sqlx::query_scalar(call(delay)).fetch_one(&mut producer).await.unwrap();
            assert_eq!(places(&db).await, place, "{delay}");
        }
        for (delay, wrong) in [
            ("'-1 s'", "deliver_after is -00:00:01, which is in the past"),
            ("'367 days'", "deliver_after is 367 days, the limit is 366 days"),
            ("'1 year 6 days'", "deliver_after is 1 year 6 days, the limit is 366 days"),
            ("'1 mon -31 days'", "deliver_after is 1 mon -31 days, which is in the past"),
        ] {
            let answer = sqlx::query(call(delay)).execute(&mut producer).await;
            assert_eq!(database_message(answer), wrong);
        }
        // A plain insert cannot get round them, nor choose the time itself.
        let insert = |columns: &str, values: &str| {
            AssertSqlSafe(format!("INSERT INTO {}.delayed ({columns}) VALUES ({values})", db.schema))
        };
        for (columns, values, wrong) in [
            ("deliver_after, topic", "'400 days', 't'", "delayed_deliver_after_above_0_and_at_most_366_days"),
            ("deliver_after, topic", "'1 year 6 days', 't'", "delayed_deliver_after_above_0_and_at_most_366_days"),
            ("deliver_after, topic", "'100000000 years', 't'", "delayed_deliver_after_above_0_and_at_most_366_days"),
            ("deliver_after, topic", "'-1 s', 't'", "delayed_deliver_after_above_0_and_at_most_366_days"),
            ("deliver_after, topic", "'1 s', ''", "delayed_topic_1_to_255_bytes"),
            ("deliver_after, topic, headers", "'1 s', 't', '{\"a\": 1}'", "not a string"),
            ("deliver_after, topic, deliver_at", "'1 s', 't', now()", "permission denied"),
        ] {
            let message = database_message(sqlx::query(insert(columns, values)).execute(&mut producer).await);
            assert!(message.contains(wrong), "{message}");
        }
        let id: Uuid = sqlx::query_scalar(call("'1 day'")).fetch_one(&mut producer).await.unwrap();
        let cancel = || AssertSqlSafe(format!("SELECT {}.cancel('{id}')", db.schema));
        for there in [true, false] {
            let cancelled: bool = sqlx::query_scalar(cancel()).fetch_one(&mut producer).await.unwrap();
            assert_eq!(cancelled, there);
        }
        assert_eq!(places(&db).await, (3, 2));
        db.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    }

    /// Whatever the day and the time zone: of so many there, some have a day of 23 or 25 hours between.
    async fn a_day_has_24_hours_in_every_time_zone(db: Db) {
        db.sql(
            "BEGIN;
             SET LOCAL timezone = 'Europe/Berlin';
             INSERT INTO {schema}.delayed (deliver_after, topic)
             SELECT days * interval '1 day', (days * 86400)::text FROM generate_series(30, 360, 30) AS days
              UNION ALL
             VALUES (interval '1 mon -29 days -23:00', '3600'),
                    (interval '11 mons', '28512000'),
                    (interval '1 year', '31557600');
             COMMIT",
        )
        .await;
        let wrong = "SELECT count(*) FROM {schema}.delayed
                      WHERE extract(epoch FROM deliver_at - enqueued_at) NOT BETWEEN topic::integer AND topic::integer + 10";
        assert_eq!(db.number(wrong).await, 0);
        assert_eq!(places(&db).await, (15, 0));
    }

    /// As of a claim, whose bound is the same.
    async fn headers_count_among_the_bytes_that_are_moved_at_once(db: Db) {
        db.sql(
            "INSERT INTO {schema}.delayed (deliver_after, topic, headers)
             SELECT interval '1 ms', 't', jsonb_build_object('a', repeat('x', 1000)) FROM generate_series(1, 3)",
        )
        .await;
        until("all are due", async || {
            db.number("SELECT count(*) FROM {schema}.delayed WHERE deliver_at < clock_timestamp()").await == 3
        })
        .await;
        let moved = "SELECT messages::bigint FROM {schema}.deliver_due('-infinity', 0, 'infinity', 1000, 2500)";
        assert_eq!(db.number(moved).await, 2);
        assert_eq!(places(&db).await, (1, 2));
    }

    /// In a snapshot that still shows the message as delayed, `false` would say what the snapshot does not.
    async fn a_cancel_that_comes_too_late_for_its_snapshot_is_not_serializable(db: Db) {
        let store = db.outbox.store(&db.pool);
        for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
            let late = delayed("k", "late", 200);
            enqueue(&db, std::slice::from_ref(&late)).await;
            let mut tx = db.connection().await;
            let begin = format!("BEGIN ISOLATION LEVEL {isolation}; SELECT FROM {{schema}}.delayed");
            db.sql_on(&mut tx, &begin).await;
            deliver(&store, 1).await;
            let error = db.outbox.cancel(&mut tx, late.id()).await.unwrap_err();
            let code = error.as_database_error().and_then(|error| error.code());
            assert_eq!(code.as_deref(), Some("40001"), "{error}");
            // Begun again, it is told.
            db.sql_on(&mut tx, &format!("ROLLBACK; BEGIN ISOLATION LEVEL {isolation}")).await;
            assert!(!db.outbox.cancel(&mut tx, late.id()).await.unwrap());
        }
    }

    /// What is cancelled by a transaction that then rolls back is delivered, though it was passed meanwhile.
    async fn a_cancel_that_rolls_back_cancels_nothing(db: Db) {
        let store = db.outbox.store(&db.pool);
        let kept = delayed("k", "kept", 100);
        enqueue(&db, std::slice::from_ref(&kept)).await;
        let mut tx = db.pool.begin().await.unwrap();
        assert!(db.outbox.cancel(&mut tx, kept.id()).await.unwrap());
        enqueue(&db, &[delayed("l", "other", 200)]).await;
        deliver(&store, 1).await;
        tx.rollback().await.unwrap();
        let got = deliver(&store, 1).await;
        assert_eq!(got, [("k".to_owned(), "kept".to_owned())]);
    }

    /// Also of those that are due at the same moment, and behind one that is gone meanwhile.
    async fn delayed_messages_are_listed_in_pages(db: Db) {
        let all: Vec<Message> = (0..7).map(|n| delayed("k", &n.to_string(), 3_600_000)).collect();
        enqueue(&db, &all).await;
        db.sql("UPDATE {schema}.delayed SET deliver_at = date_trunc('hour', now()) + interval '1 hour 1 microsecond'")
            .await;
        let mut listed = Vec::new();
        let mut after = None;
        loop {
            let page = db.outbox.delayed(&db.pool, after, 3).await.unwrap();
            assert!(page.messages.len() <= 3);
            listed.extend(page.messages.iter().map(|message| message.id));
            let last = page.messages.last().unwrap().id;
            let mut conn = db.pool.acquire().await.unwrap();
            assert!(db.outbox.cancel(&mut conn, last).await.unwrap());
            let Some(next) = page.next else { break };
            after = Some(next.to_string().parse().unwrap());
        }
        let expected: Vec<Uuid> = all.iter().map(Message::id).collect();
        assert_eq!(listed, expected);
    }

    /// Whoever asks for it while it becomes due: what was said to be cancelled never comes, and the rest comes once.
    async fn a_cancel_says_whether_the_message_comes(db: Db) {
        const MESSAGES: usize = 2_000;
        let store = Arc::new(db.outbox.store(&db.pool));
        let all: Vec<Message> = (0..MESSAGES)
            .map(|n| delayed(&(n % 20).to_string(), &n.to_string(), 200 + n as u64 / 4))
            .collect();
        enqueue(&db, &all).await;
        let cancelling: Vec<_> = (0..4)
            .map(|part| {
                let (db, all) = (db.clone(), all.clone());
                tokio::spawn(async move {
                    let mut cancelled = Vec::new();
                    let mut conn = db.pool.acquire().await.unwrap();
                    for (n, message) in all.iter().enumerate().skip(part).step_by(8) {
                        if db.outbox.cancel(&mut conn, message.id()).await.unwrap() {
                            cancelled.push(n.to_string());
                        }
                    }
                    cancelled
                })
            })
            .collect();
        let delivering: Vec<_> = (0..3)
            .map(|_| {
                let (db, store) = (db.clone(), Arc::clone(&store));
                tokio::spawn(async move {
                    let mut got = Vec::new();
                    while places(&db).await != (0, 0) {
                        got.extend(deliver_some(&*store, &limits(100)).await);
                    }
                    got
                })
            })
            .collect();
        let mut seen = Vec::new();
        let mut cancelled = 0;
        for task in cancelling {
            let of_task = task.await.unwrap();
            cancelled += of_task.len();
            seen.extend(of_task);
        }
        for task in delivering {
            seen.extend(task.await.unwrap().into_iter().map(|(_, text)| text));
        }
        assert!((1..MESSAGES).contains(&cancelled), "{cancelled}");
        seen.sort_unstable();
        let mut expected: Vec<String> = (0..MESSAGES).map(|n| n.to_string()).collect();
        expected.sort_unstable();
        assert_eq!(seen, expected);
    }

    /// What people and tests of applications see of them.
    async fn delayed_messages_are_seen(db: Db) {
        let hour = 3_600_000;
        let all = [
            delayed("k", "2", 2 * hour),
            message("k", "0"),
            delayed("k", "1", hour),
            message("l", "0"),
        ];
        let mut tx = db.pool.begin().await.unwrap();
        db.outbox.enqueue_all(&mut tx, &all).await.unwrap();
        let expected = [1, 3, 0, 2].map(|nth: usize| all[nth].clone());
        assert_enqueued(&db.outbox.enqueued(&mut tx).await.unwrap(), &expected);
        tx.commit().await.unwrap();

        let list = db.outbox.delayed(&db.pool, None, 1).await.unwrap();
        assert!(list.next.is_some());
        assert_eq!(list.messages.len(), 1);
        assert_eq!(list.messages[0].id, all[2].id());
        let due = list.messages[0].deliver_at.duration_since(list.messages[0].enqueued_at).unwrap();
        assert!(due.abs_diff(Duration::from_secs(3_600)) < Duration::from_secs(1), "{due:?}");
        assert_eq!(db.outbox.delayed(&db.pool, None, 2).await.unwrap().next, None);

        let status = db.outbox.status(&db.pool).await.unwrap();
        assert_eq!((status.delayed.number(), status.waiting.number()), (2, 2));
        assert_eq!(status.next_delayed, Some(list.messages[0].deliver_at));
        let gauges = db.outbox.gauges(&db.pool).await.unwrap();
        assert_eq!((gauges.delayed.number(), gauges.waiting.number()), (2, 2));
        assert_eq!(db.outbox.counts(&db.pool).await.unwrap().delayed, 2);
    }
}
