//! What holds a claim, what ends it, and what the server's settings do to it.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use outbox_core::{ClaimLimits, Outcome, PublishError, Store};
use sqlx::PgPool;
use support::store::{
    DEADLINE, Db, contents, deliver, deliver_some, limits, message, of_key, on_both_servers,
};
use support::until;

/// Backends of ours that are in a transaction, other than the one that asks.
async fn open_claims(db: &Db) -> i64 {
    db.number(
        "SELECT count(DISTINCT l.pid) FROM pg_locks AS l \
         WHERE l.relation = '{schema}.lane'::regclass AND l.mode = 'RowShareLock'",
    )
    .await
}

on_both_servers! {
    /// Under a stricter default the second statement would have the first one's snapshot, and read
    /// what another relay has just delivered.
    async fn a_stricter_default_isolation_makes_no_duplicates(db: Db) {
        for setting in ["repeatable read", "serializable"] {
            let pool = db
                .pool_with(&[
                    ("default_transaction_isolation", setting),
                    ("default_transaction_read_only", "on"),
                    ("default_transaction_deferrable", "on"),
                ])
                .await;
            let (one, two) = (db.outbox.store(&pool), db.outbox.store(&pool));
            for number in 0..40 {
                db.enqueue(&format!("k{number}"), "x").await;
            }
            let mut delivered = 0;
            while delivered < 40 {
                let (a, b) = (limits(5), limits(5));
                let (a, b) = tokio::join!(deliver_some(&one, &a), deliver_some(&two, &b));
                delivered += a.len() + b.len();
            }
            assert_eq!(delivered, 40, "under {setting}");
        }
    }

    /// A claim finds its rows again by where they lie. What somebody deletes by hand meanwhile may leave
    /// its place to another message, which nobody has delivered.
    async fn a_message_in_the_place_of_one_that_was_deleted_by_hand_stays(db: Db) {
        // A database of its own: elsewhere an older transaction may hold vacuum back.
        let database = format!("{}_deleted", db.schema);
        db.sql(&format!("CREATE DATABASE {database}")).await;
        let elsewhere = (*db.pool.connect_options()).clone().database(&database);
        let alone = Db { pool: PgPool::connect_with(elsewhere).await.unwrap(), ..db.clone() };
        alone.outbox.migrate(&alone.pool).await.unwrap();
        let store = alone.outbox.store(&alone.pool);
        alone.enqueue("key", "first").await;
        let place = "SELECT (ctid::text::point)[1]::bigint FROM {schema}.message";
        let first = alone.number(place).await;

        // Begins before the claim, so that the claim does not keep what it deletes from vacuum.
        let mut by_hand = alone.connection().await;
        alone.sql_on(&mut by_hand, "BEGIN; DELETE FROM {schema}.message").await;
        let claim = store.claim(&limits(10)).await.unwrap().unwrap();
        alone.sql_on(&mut by_hand, "COMMIT").await;
        alone.sql("VACUUM {schema}.message").await;
        alone.enqueue("key", "second").await;
        assert_eq!(alone.number(place).await, first, "the place was not taken");

        claim.settle(vec![Outcome::Delivered]).await.unwrap();
        assert_eq!(of_key(&deliver(&store, 1).await, "key"), ["second"]);
        drop((store, by_hand));
        alone.pool.close().await;
        db.sql(&format!("DROP DATABASE {database} WITH (FORCE)")).await;
    }

    /// After a full claim the next one looks at a few lanes only; where those have nothing it looks at all.
    async fn a_message_in_a_lane_out_of_reach_is_claimed_at_once(db: Db) {
        let store = db.outbox.store(&db.pool);
        for number in 0..40 {
            db.enqueue(&format!("k{number}"), "x").await;
            // Full, with the one lane that it may lock.
            assert_eq!(deliver_some(&store, &limits(1)).await.len(), 1, "message {number}");
        }
    }

    /// Thin traffic has a session take all lanes at once. A burst that fills such a claim must not have the next one
    /// look at a lane twice.
    async fn after_a_full_claim_of_all_lanes_each_message_is_claimed_once(db: Db) {
        let store = db.outbox.store(&db.pool);
        let enqueue = async |count: usize| {
            db.sql(&format!(
                "SELECT {{schema}}.enqueue('test', '', key => 'k' || i) FROM generate_series(1, {count}) AS i"
            ))
            .await;
        };
        let some = async || deliver_some(&store, &limits(1_000)).await.len();
        until("one claim takes all lanes", async || {
            enqueue(200).await;
            let first = some().await;
            let mut taken = first;
            while taken < 200 {
                taken += some().await;
            }
            first == 200
        })
        .await;
        // Nearly all of a lane's share, so that hardly anything is left.
        enqueue(600).await;
        let full = some().await;
        assert!((500..=600).contains(&full), "{full}");
        enqueue(1).await;
        let mut taken = full;
        while db.places().await[0] > 0 {
            taken += some().await;
        }
        assert_eq!(taken, 601);
    }

    /// Debezium makes such a publication by default.
    async fn a_publication_for_all_tables_stops_no_settle(db: Db) {
        // A database of its own: a publication speaks for all tables of its database.
        let database = format!("{}_published", db.schema);
        db.sql(&format!("CREATE DATABASE {database}")).await;
        let elsewhere = (*db.pool.connect_options()).clone().database(&database);
        let published = Db { pool: PgPool::connect_with(elsewhere).await.unwrap(), ..db.clone() };
        published.outbox.migrate(&published.pool).await.unwrap();
        published.sql("CREATE PUBLICATION everything FOR ALL TABLES").await;
        let store = published.outbox.store(&published.pool);
        let day = Duration::from_secs(24 * 3600);
        let store = store.keep_delivered_for(day).unwrap();
        for number in 0..6 {
            published.enqueue(&format!("k{number}"), "x").await;
        }
        let error = PublishError::retryable("no");
        let mut settled = 0;
        while let Some(claim) = store.claim(&limits(100)).await.unwrap() {
            let outcomes = (settled..settled + claim.messages().len())
                .map(|number| match number % 3 {
                    0 => Outcome::Delivered,
                    1 => Outcome::Dead { error: error.clone(), halt: false },
                    _ => Outcome::Park { after: DEADLINE, counted: true, error: error.clone() },
                })
                .collect();
            settled += claim.messages().len();
            claim.settle(outcomes).await.unwrap();
        }
        assert_eq!(published.places().await, [0, 2, 2, 2]);
        drop(store);
        published.pool.close().await;
        db.sql(&format!("DROP DATABASE {database} WITH (FORCE)")).await;
    }

    /// The server ends the claim of a frozen relay by the bound that the claim set; one that is only
    /// busy keeps it, whatever the server's own settings are.
    async fn a_claim_brings_its_own_timeouts(db: Db) {
        let pool = db
            .pool_with(&[
                ("idle_in_transaction_session_timeout", "150"),
                ("statement_timeout", "150"),
                ("lock_timeout", "150"),
            ])
            .await;
        let store = db.outbox.store(&pool);
        db.enqueue("key", "x").await;
        let claim = store.claim(&limits(10)).await.unwrap().unwrap();
        // A transaction that began later and does as little.
        let mut other = pool.acquire().await.unwrap().detach();
        sqlx::raw_sql("BEGIN").execute(&mut other).await.unwrap();
        db.is_ended(other).await;
        claim.settle(vec![Outcome::Delivered]).await.unwrap();
        assert_eq!(db.places().await, [0; 4]);
    }

    /// A frozen relay: nothing is sent, nothing is closed. The bound is hold + 10 s.
    async fn a_frozen_claim_is_ended_by_the_server(db: Db) {
        let frozen = db.outbox.store(&db.pool);
        db.enqueue("key", "x").await;
        let mut short = limits(10);
        short.hold = Duration::from_millis(1);
        let claim = frozen.claim(&short).await.unwrap().unwrap();
        let other = db.outbox.store(&db.pool);
        assert_eq!(deliver_some(&other, &limits(10)).await, []);
        let started = Instant::now();
        until("the lanes are free", async || !deliver_some(&other, &limits(10)).await.is_empty()).await;
        assert!(started.elapsed() > Duration::from_secs(8), "{:?}", started.elapsed());
        let refused = claim.settle(vec![Outcome::Delivered]).await;
        assert!(refused.is_err(), "a claim that the server has ended settles nothing");
        assert_eq!(db.places().await, [0; 4]);
    }

    async fn a_dropped_claim_frees_its_lanes_at_once(db: Db) {
        let store = db.outbox.store(&db.pool);
        db.enqueue("key", "x").await;
        let claim = store.claim(&limits(10)).await.unwrap().unwrap();
        assert_eq!(open_claims(&db).await, 1);
        drop(claim);
        until("no claim is open", async || open_claims(&db).await == 0).await;
        assert_eq!(of_key(&deliver(&store, 1).await, "key"), ["x"]);
    }

    async fn a_claim_whose_backend_is_killed_repeats_and_loses_nothing(db: Db) {
        let store = db.outbox.store(&db.pool);
        for number in 0..10 {
            db.enqueue("key", &number.to_string()).await;
        }
        let claim = store.claim(&limits(4)).await.unwrap().unwrap();
        let held = claim.messages().len();
        let killed = db
            .number(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_locks \
                 WHERE relation = '{schema}.lane'::regclass AND mode = 'RowShareLock'",
            )
            .await;
        assert_eq!(killed, 1);
        let failed = claim.settle(vec![Outcome::Delivered; held]).await;
        assert!(failed.is_err());
        let expected: Vec<String> = (0..10).map(|number| number.to_string()).collect();
        assert_eq!(of_key(&deliver(&store, 10).await, "key"), expected);
    }

    /// A row that this version cannot read goes to the dead, and nothing behind it waits.
    async fn a_row_that_cannot_be_decoded_is_given_up_with_its_reason(db: Db) {
        let store = db.outbox.store(&db.pool);
        db.enqueue("key", "first").await;
        db.sql(
            "ALTER TABLE {schema}.message DISABLE TRIGGER USER;
             INSERT INTO {schema}.message (lane, position, id, topic, key, payload, headers)
             SELECT hashtextextended('key', 0) & 63, nextval('{schema}.message_position'),
                    gen_random_uuid(), 'test', 'key', 'broken', '{\"number\": 1}';
             ALTER TABLE {schema}.message ENABLE TRIGGER USER",
        )
        .await;
        db.enqueue("key", "second").await;
        assert_eq!(of_key(&deliver(&store, 2).await, "key"), ["first", "second"]);
        assert_eq!(db.places().await, [0, 0, 1, 0]);
        let reason = db
            .number("SELECT count(*) FROM {schema}.dead WHERE error LIKE '%header \"number\" is not text%'")
            .await;
        assert_eq!(reason, 1);
    }

    /// A whole batch of them: the claim goes on by itself.
    async fn a_batch_that_holds_nothing_to_publish_is_moved_out_of_the_way(db: Db) {
        let store = db.outbox.store(&db.pool);
        db.sql(
            "ALTER TABLE {schema}.message DISABLE TRIGGER USER;
             INSERT INTO {schema}.message (lane, position, id, topic, key, payload, headers)
             SELECT hashtextextended('key', 0) & 63, nextval('{schema}.message_position'),
                    gen_random_uuid(), 'test', 'key', 'broken', '{\"number\": 1}'
               FROM generate_series(1, 50);
             ALTER TABLE {schema}.message ENABLE TRIGGER USER",
        )
        .await;
        db.enqueue("key", "good").await;
        assert_eq!(of_key(&deliver_some(&store, &limits(10)).await, "key"), ["good"]);
        assert_eq!(db.places().await, [0, 0, 50, 0]);
    }

    /// A claim asks for each message whether its key is blocked only in lanes that say so.
    async fn a_lane_says_whether_keys_are_blocked_in_it(db: Db) {
        let blocked = "SELECT count(*) FROM {schema}.lane WHERE blocked";
        let store = db.outbox.store(&db.pool);
        let park_the_head = async || {
            db.enqueue("key", "head").await;
            let claim = store.claim(&limits(10)).await.unwrap().unwrap();
            // Due at once, so that it is not waited for.
            let outcome = Outcome::Park {
                after: Duration::ZERO,
                counted: true,
                error: PublishError::retryable("no"),
            };
            claim.settle(vec![outcome]).await.unwrap();
        };
        park_the_head().await;
        assert_eq!(db.number(blocked).await, 1);
        // Another relay; a new one asks at once whether that is still so.
        let other = db.outbox.store(&db.pool);
        assert_eq!(of_key(&deliver(&other, 1).await, "key"), ["head"]);
        assert_eq!(db.number(blocked).await, 0);

        park_the_head().await;
        db.enqueue("key", "follower").await;
        assert_eq!(of_key(&deliver(&other, 2).await, "key"), ["head", "follower"]);
        assert_eq!(db.number(blocked).await, 1, "it asks again after a minute");
    }

    /// Small messages are read without adding up their bytes; a large one among them ends that.
    async fn a_large_message_among_small_ones_keeps_to_the_bound_and_the_order(db: Db) {
        let store = db.outbox.store(&db.pool);
        let small = ClaimLimits { bytes: 10_000, ..limits(100) };
        let mut expected = Vec::new();
        for number in 0..60 {
            let content = match number % 20 {
                10..14 => number.to_string().repeat(2_000),
                _ => number.to_string(),
            };
            db.enqueue("key", &content).await;
            expected.push(content);
        }
        let mut delivered = Vec::new();
        while delivered.len() < expected.len() {
            let claim = store.claim(&small).await.unwrap().expect("what is left");
            let bytes: usize = claim.messages().iter().map(|claimed| claimed.message.size()).sum();
            assert!(bytes <= 10_000, "{bytes} bytes at once");
            delivered.extend(of_key(&contents(&*claim), "key"));
            let outcomes = vec![Outcome::Delivered; claim.messages().len()];
            claim.settle(outcomes).await.unwrap();
        }
        assert_eq!(delivered, expected);
    }

    /// Blocked without a parked message, as after a delete by hand: freed, not looked at for ever.
    async fn a_key_blocked_by_nothing_is_freed(db: Db) {
        let store = db.outbox.store(&db.pool);
        db.sql(
            "INSERT INTO {schema}.blocked (key_hash, lane, head, due_at)
             SELECT hashtextextended('key', 0), hashtextextended('key', 0) & 63, 1, now()",
        )
        .await;
        db.enqueue("key", "x").await;
        assert_eq!(of_key(&deliver(&store, 1).await, "key"), ["x"]);
        assert_eq!(db.places().await, [0; 4]);
    }

    /// A failing head with many behind it costs the other keys of its lane one move each row, once.
    /// Without order, a relay that stops releases a message although a later one of its key has failed.
    async fn a_parked_message_that_was_released_in_front_of_a_failure_comes_back(db: Db) {
        let store = db.outbox.store(&db.pool);
        for text in ["first", "second"] {
            db.enqueue("key", text).await;
        }
        let park = || Outcome::Park {
            after: Duration::ZERO,
            counted: true,
            error: PublishError::retryable("no"),
        };
        let claim = store.claim(&limits(10)).await.unwrap().unwrap();
        claim.settle(vec![park(), park()]).await.unwrap();
        let mut waiting = limits(10);
        waiting.wait = DEADLINE;
        let claim = store.claim(&waiting).await.unwrap().unwrap();
        assert_eq!(claim.messages().len(), 2);
        claim.settle(vec![Outcome::Released, park()]).await.unwrap();
        let delivered = deliver_some(&store, &waiting).await;
        assert_eq!(of_key(&delivered, "key"), ["first", "second"]);
        assert_eq!(db.places().await, [0, 0, 0, 0]);
    }

    async fn followers_leave_the_hot_table_once_and_come_back_in_order(db: Db) {
        const FOLLOWERS: usize = 5_000;
        let store = db.outbox.store(&db.pool);
        let mut tx = db.pool.begin().await.unwrap();
        let messages: Vec<_> =
            (0..FOLLOWERS).map(|number| message("key", &number.to_string())).collect();
        db.outbox.enqueue_all(&mut tx, &messages).await.unwrap();
        tx.commit().await.unwrap();
        let claim = store.claim(&limits(100)).await.unwrap().unwrap();
        let mut outcomes = vec![Outcome::Behind; claim.messages().len()];
        outcomes[0] = Outcome::Park {
            after: Duration::from_secs(3600),
            counted: true,
            error: PublishError::retryable("no"),
        };
        claim.settle(outcomes).await.unwrap();
        until("all have moved", async || {
            assert_eq!(deliver_some(&store, &limits(1000)).await, []);
            db.places().await == [0, FOLLOWERS as i64, 0, 1]
        })
        .await;

        db.sql("UPDATE {schema}.blocked SET due_at = clock_timestamp()").await;
        // In batches, of which what is parked may fill a half; not one for each look.
        let (mut delivered, mut claims) = (Vec::new(), 0);
        while delivered.len() < FOLLOWERS {
            delivered.extend(deliver_some(&store, &limits(1000)).await);
            claims += 1;
        }
        assert!(claims <= FOLLOWERS / 500 + 1, "{claims} claims");
        let expected: Vec<String> = (0..FOLLOWERS).map(|number| number.to_string()).collect();
        assert_eq!(of_key(&delivered, "key"), expected);
        assert_eq!(db.places().await, [0; 4]);
    }

    /// A transaction that is unrelated to the outbox neither delays nor loses anything.
    async fn an_unrelated_open_transaction_delays_nothing(db: Db) {
        let store = db.outbox.store(&db.pool);
        let mut unrelated = db.pool.begin().await.unwrap();
        sqlx::query("SELECT pg_current_xact_id()").execute(&mut *unrelated).await.unwrap();
        for number in 0..20 {
            db.enqueue("key", &number.to_string()).await;
            assert_eq!(of_key(&deliver_some(&store, &limits(10)).await, "key"), [number.to_string()]);
        }
        unrelated.rollback().await.unwrap();
    }

    async fn a_store_behind_a_pooler_leaves_nothing_in_its_sessions(db: Db) {
        let stores = [
            db.outbox.store(&db.pool).through_pooler(),
            // An outbox that is told so has its store know it too.
            db.outbox.clone().without_prepared_statements().store(&db.pool),
        ];
        for store in stores {
            // Long enough for another store to fall asleep, which takes 127 ms of polls.
            let mut patient = limits(10);
            patient.wait = Duration::from_secs(1);
            assert!(store.claim(&patient).await.unwrap().is_none());
            let sessions = "SELECT count(*) FROM pg_stat_activity \
                             WHERE application_name LIKE 'outbox relay {schema}%'";
            assert!(db.number(sessions).await > 0, "its sessions have another name");
            let sleeping = format!("{sessions} AND query LIKE '%advisory_lock%'");
            assert_eq!(db.number(&sleeping).await, 0, "a session sleeps with a lock");
            db.enqueue("key", "x").await;
            let claim = store.claim(&patient).await.unwrap().unwrap();
            assert_eq!(contents(&*claim).len(), 1);
            claim.settle(vec![Outcome::Delivered]).await.unwrap();
        }
    }

    /// A backlog behind a blocked key is only moved, and that must not outlast the caller's patience:
    /// the relay would take it for a store that does not answer.
    async fn a_claim_that_only_moves_rows_keeps_to_its_time(db: Db) {
        let store = db.outbox.store(&db.pool);
        db.enqueue("key", "head").await;
        let claim = store.claim(&limits(1)).await.unwrap().unwrap();
        let park = Outcome::Park {
            after: Duration::from_secs(3600),
            counted: true,
            error: PublishError::retryable("no"),
        };
        claim.settle(vec![park]).await.unwrap();
        db.sql(
            "INSERT INTO {schema}.message (topic, key, payload)
             SELECT 'test', 'key', 'x' FROM generate_series(1, 60000)",
        )
        .await;
        // Ten rows at a time are 6,000 transactions.
        assert!(store.claim(&limits(10)).await.unwrap().is_none());
        assert!(db.places().await[0] > 0, "one claim moved all of it");
        until("all has moved", async || {
            assert!(store.claim(&limits(1000)).await.unwrap().is_none());
            db.places().await == [0, 60_001, 0, 1]
        })
        .await;
    }

    /// Neither the number nor the bytes of what is tried again take all of a claim.
    async fn large_retries_leave_room_for_new_messages(db: Db) {
        let store = db.outbox.store(&db.pool);
        for key in ["one", "two"] {
            db.enqueue(key, &"x".repeat(600)).await;
        }
        let mut parked = 0;
        while parked < 2 {
            let Some(claim) = store.claim(&limits(10)).await.unwrap() else { continue };
            parked += claim.messages().len();
            let error = PublishError::retryable("no");
            let park = Outcome::Park { after: Duration::ZERO, counted: true, error };
            let outcomes = vec![park; claim.messages().len()];
            claim.settle(outcomes).await.unwrap();
        }
        db.enqueue("new", &"x".repeat(600)).await;
        let mut both = limits(10);
        both.bytes = 1400;
        let keys: Vec<String> =
            deliver_some(&store, &both).await.into_iter().map(|(key, _)| key).collect();
        assert!(keys.contains(&"new".to_owned()), "{keys:?}");
        assert_eq!(keys.len(), 2, "{keys:?}");
    }

    async fn a_number_of_lanes_that_there_are_not_is_refused(db: Db) {
        for lanes in [0, 65] {
            let refused = db.outbox.store(&db.pool).lanes_per_claim(lanes).map(drop).unwrap_err();
            let expected = format!("lanes_per_claim is {lanes}, allowed is 1 to 64");
            assert_eq!(refused.to_string(), expected);
        }
    }

    /// What an application commits asynchronously is visible before it is on disk.
    async fn a_claim_can_wait_until_what_it_read_is_on_disk(db: Db) {
        let store = db.outbox.store(&db.pool).wait_until_flushed();
        let mut producer = db.connection().await;
        db.sql_on(&mut producer, "SET synchronous_commit = off").await;
        for number in 0..20 {
            db.outbox
                .enqueue(&mut producer, &message("key", &number.to_string()))
                .await
                .unwrap();
            let committed: String =
                sqlx::query_scalar("SELECT pg_current_wal_insert_lsn()::text")
                    .fetch_one(&mut producer)
                    .await
                    .unwrap();
            let claim = store.claim(&limits(10)).await.unwrap().unwrap();
            let flushed =
                format!("SELECT (pg_current_wal_flush_lsn() >= '{committed}')::int::bigint");
            assert_eq!(db.number(&flushed).await, 1);
            claim.settle(vec![Outcome::Delivered]).await.unwrap();
        }
    }

    /// A byte bound that leaves no room beside a retry hides nothing from the next claim.
    async fn what_does_not_fit_beside_a_retry_is_claimed_next(db: Db) {
        for key in ["one", "two"] {
            db.enqueue(key, &"x".repeat(600)).await;
        }
        let store = db.outbox.store(&db.pool);
        let mut room_for_one = limits(10);
        room_for_one.bytes = 700;
        let claim = store.claim(&room_for_one).await.unwrap().unwrap();
        let first = contents(&*claim);
        assert_eq!(first.len(), 1);
        let error = PublishError::retryable("no");
        claim.settle(vec![Outcome::Park { after: Duration::ZERO, counted: true, error }]).await.unwrap();

        assert_eq!(deliver_some(&store, &room_for_one).await, first);
        let second = deliver_some(&store, &room_for_one).await;
        assert_eq!(second.len(), 1);
        assert_ne!(second, first);
        assert_eq!(db.places().await, [0; 4]);
    }
}
