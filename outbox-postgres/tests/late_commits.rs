//! Positions are drawn before the commit: whatever becomes visible late is found, and in order.
//!
//! Each test is a trap that an inexact scan falls into, made deterministic.

#![allow(clippy::unwrap_used)]

mod support;

use outbox_core::{Outcome, Store};
use sqlx::Connection;
use support::store::{
    Db, contents, deliver, deliver_some, limits, message, of_key, on_both_servers,
};
use support::until;

/// Another key of the same lane as `key`.
async fn lane_mate(db: &Db, key: &str) -> String {
    let sql = format!(
        "SELECT i FROM generate_series(1, 10000) AS i \
         WHERE hashtextextended('mate' || i, 0) & 63 = hashtextextended('{key}', 0) & 63 LIMIT 1"
    );
    format!(
        "mate{}",
        db.number(&format!("SELECT i::bigint FROM ({sql}) AS found(i)"))
            .await
    )
}

/// A key of another lane than that of `key`.
async fn key_of_another_lane(db: &Db, key: &str) -> String {
    let sql = format!(
        "SELECT i::bigint FROM generate_series(1, 100) AS i \
         WHERE hashtextextended('away' || i, 0) & 63 <> hashtextextended('{key}', 0) & 63 LIMIT 1"
    );
    format!("away{}", db.number(&sql).await)
}

on_both_servers! {
    /// The common floor ("greater than the last position") loses the first message; a sweep finds it
    /// after the second.
    async fn a_key_written_by_serial_transactions_stays_in_order_behind_a_delivered_position(db: Db) {
        let store = db.outbox.store(&db.pool);
        let mate = lane_mate(&db, "key").await;
        let mut first = db.pool.begin().await.unwrap();
        db.outbox.enqueue(&mut first, &message("key", "first")).await.unwrap();
        db.enqueue(&mate, "other").await;
        assert_eq!(deliver(&store, 1).await, [(mate, "other".to_owned())]);

        first.commit().await.unwrap();
        db.enqueue("key", "second").await;
        // At once: a sweep would find both in the end, and so in order.
        let next = deliver_some(&store, &limits(10)).await;
        assert_eq!(of_key(&next, "key"), ["first", "second"]);
    }

    async fn a_late_commit_is_found_behind_hundreds_of_deliveries(db: Db) {
        let store = db.outbox.store(&db.pool);
        let mut late = db.pool.begin().await.unwrap();
        db.outbox.enqueue(&mut late, &message("key", "first")).await.unwrap();
        for round in 0..300 {
            db.enqueue(&format!("k{}", round % 7), "other").await;
            deliver(&store, 1).await;
        }
        late.commit().await.unwrap();
        db.enqueue("key", "second").await;
        assert_eq!(of_key(&deliver(&store, 2).await, "key"), ["first", "second"]);
    }

    /// Workers share what they know of a lane. What one has settled is cleared for the snapshot of its
    /// own claim, not for the one that another took meanwhile.
    async fn a_late_commit_that_another_worker_saw_first_is_found(db: Db) {
        let store = db.outbox.store(&db.pool);
        let mate = lane_mate(&db, "key").await;
        // Two sessions: opening another one later would have everything forgotten.
        let away = key_of_another_lane(&db, "key").await;
        db.enqueue(&mate, "warm").await;
        let first = store.claim(&limits(1)).await.unwrap().unwrap();
        db.enqueue(&away, "warm").await;
        let second = store.claim(&limits(1)).await.unwrap().unwrap();
        for claim in [first, second] {
            claim.settle(vec![Outcome::Delivered]).await.unwrap();
        }

        let mut late = db.pool.begin().await.unwrap();
        db.outbox.enqueue(&mut late, &message("key", "late")).await.unwrap();
        // Learns how far the sequence is, so that the next claim makes a mark above the late position.
        assert!(store.claim(&limits(10)).await.unwrap().is_none());
        db.enqueue(&mate, "early").await;
        let claim = store.claim(&limits(10)).await.unwrap().unwrap();
        assert_eq!(claim.messages().len(), 1);
        late.commit().await.unwrap();
        // The lane is held, so this one only looks.
        assert!(store.claim(&limits(10)).await.unwrap().is_none());
        claim.settle(vec![Outcome::Delivered]).await.unwrap();
        // At once: a sweep would find it in the end.
        let next = deliver_some(&store, &limits(10)).await;
        assert_eq!(of_key(&next, "key"), ["late"]);
    }

    async fn several_open_transactions_are_found_as_each_ends(db: Db) {
        let store = db.outbox.store(&db.pool);
        let mut open = Vec::new();
        for number in 0..6 {
            let mut tx = db.pool.begin().await.unwrap();
            db.outbox.enqueue(&mut tx, &message("key", &number.to_string())).await.unwrap();
            db.enqueue("other", "between").await;
            deliver(&store, 1).await;
            open.push((number, tx));
        }
        // In another order than they began; one of them rolls back.
        for number in [4, 1, 5, 0, 3, 2] {
            let at = open.iter().position(|(n, _)| *n == number).unwrap();
            let (_, tx) = open.remove(at);
            if number == 5 {
                tx.rollback().await.unwrap();
                assert_eq!(deliver_some(&store, &limits(10)).await, []);
            } else {
                tx.commit().await.unwrap();
                assert_eq!(of_key(&deliver(&store, 1).await, "key"), [number.to_string()]);
            }
        }
    }

    /// The transaction id comes first, so a backend that stops between drawing its position and
    /// inserting the row is known to the relay's snapshot.
    async fn a_backend_paused_between_position_and_insert_loses_nothing(db: Db) {
        let store = db.outbox.store(&db.pool);
        // Runs after `place_message`, by its name.
        db.sql(
            "CREATE FUNCTION {schema}.pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF NEW.topic = 'paused' THEN
                     PERFORM pg_advisory_xact_lock(hashtextextended(TG_TABLE_SCHEMA, 1));
                 END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER zz_pause BEFORE INSERT ON {schema}.message
                 FOR EACH ROW EXECUTE FUNCTION {schema}.pause()",
        )
        .await;
        let mut gate = db.connection().await;
        db.sql_on(&mut gate, "SELECT pg_advisory_lock(hashtextextended('{schema}', 1))").await;
        let sql = "INSERT INTO {schema}.message (topic, key, payload) VALUES ('paused', 'key', 'first')";
        let paused = tokio::spawn({
            let (pool, sql) = (db.pool.clone(), sql.replace("{schema}", &db.schema));
            async move { sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.unwrap() }
        });
        until("the producer waits at the gate", async || {
            db.number(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                 AND ((classid::bigint << 32) | objid::bigint) = hashtextextended('{schema}', 1)",
            )
            .await
                == 1
        })
        .await;
        let mate = lane_mate(&db, "key").await;
        for _ in 0..20 {
            db.enqueue(&mate, "other").await;
            deliver(&store, 1).await;
        }
        db.sql_on(&mut gate, "SELECT pg_advisory_unlock(hashtextextended('{schema}', 1))").await;
        paused.await.unwrap();
        db.enqueue("key", "second").await;
        assert_eq!(of_key(&deliver(&store, 2).await, "key"), ["first", "second"]);
    }

    async fn the_first_position_of_a_sequence_is_delivered(db: Db) {
        let store = db.outbox.store(&db.pool);
        // Before the first nextval the sequence has no last value.
        assert_eq!(deliver_some(&store, &limits(10)).await, []);
        let mut late = db.pool.begin().await.unwrap();
        db.outbox.enqueue(&mut late, &message("key", "first")).await.unwrap();
        assert_eq!(deliver_some(&store, &limits(10)).await, []);
        late.commit().await.unwrap();
        assert_eq!(deliver(&store, 1).await.len(), 1);
        assert_eq!(db.number("SELECT last_value FROM {schema}.message_position").await, 1);
    }

    async fn a_prepared_transaction_is_found_when_it_commits(db: Db) {
        let store = db.outbox.store(&db.pool);
        let mut producer = db.connection().await;
        let name = format!("{}_2pc", db.schema);
        db.sql_on(&mut producer, "BEGIN").await;
        db.outbox.enqueue(&mut producer, &message("key", "first")).await.unwrap();
        db.sql_on(&mut producer, &format!("PREPARE TRANSACTION '{name}'")).await;
        producer.close().await.unwrap();
        for _ in 0..50 {
            db.enqueue("other", "between").await;
            deliver(&store, 1).await;
        }
        db.sql(&format!("COMMIT PREPARED '{name}'")).await;
        db.enqueue("key", "second").await;
        assert_eq!(of_key(&deliver(&store, 2).await, "key"), ["first", "second"]);
    }

    /// More subtransactions than a backend shows to others in shared memory (64).
    async fn a_hundred_subtransactions_are_one_transaction(db: Db) {
        let store = db.outbox.store(&db.pool);
        let mut late = db.pool.begin().await.unwrap();
        for number in 0..100 {
            let mut savepoint = late.begin().await.unwrap();
            let key = if number % 10 == 9 { "rolled back" } else { "key" };
            db.outbox
                .enqueue(&mut savepoint, &message(key, &number.to_string()))
                .await
                .unwrap();
            if number % 10 == 9 {
                savepoint.rollback().await.unwrap();
            } else {
                savepoint.commit().await.unwrap();
            }
        }
        for _ in 0..10 {
            db.enqueue("other", "between").await;
            deliver(&store, 1).await;
        }
        late.commit().await.unwrap();
        let delivered = deliver(&store, 90).await;
        let expected: Vec<String> =
            (0..100).filter(|n| n % 10 != 9).map(|n: i32| n.to_string()).collect();
        assert_eq!(of_key(&delivered, "key"), expected);
    }

    /// A claim that reads one message at a time leaves the rest visible below what it delivers next.
    async fn a_claim_cut_by_its_limit_goes_on_where_it_stopped(db: Db) {
        let store = db.outbox.store(&db.pool);
        for number in 0..10 {
            db.enqueue("key", &number.to_string()).await;
        }
        let mut late = db.pool.begin().await.unwrap();
        db.outbox.enqueue(&mut late, &message("late", "late")).await.unwrap();
        for number in 0..10 {
            assert_eq!(of_key(&deliver_some(&store, &limits(1)).await, "key"), [number.to_string()]);
        }
        late.commit().await.unwrap();
        assert_eq!(of_key(&deliver(&store, 1).await, "late"), ["late"]);
    }

    /// Another session delivers meanwhile, so this one's knowledge is old when it looks again.
    async fn two_sessions_with_old_knowledge_keep_a_key_in_order(db: Db) {
        let (one, two) = (db.outbox.store(&db.pool), db.outbox.store(&db.pool));
        let mut order = Vec::new();
        let mut late = None;
        for round in 0..60 {
            if round % 10 == 0 {
                let mut tx = db.pool.begin().await.unwrap();
                db.outbox.enqueue(&mut tx, &message("late", &round.to_string())).await.unwrap();
                if let Some(tx) = late.replace(tx) {
                    tx.commit().await.unwrap();
                }
            }
            db.enqueue("key", &round.to_string()).await;
            let store = if (round / 5) % 2 == 0 { &one } else { &two };
            order.extend(deliver_some(store, &limits(1000)).await);
        }
        late.unwrap().commit().await.unwrap();
        let left = 60 + 6 - order.len();
        order.extend(deliver(&one, left).await);
        let expected: Vec<String> = (0..60).map(|round| round.to_string()).collect();
        assert_eq!(of_key(&order, "key"), expected);
        assert_eq!(of_key(&order, "late"), ["0", "10", "20", "30", "40", "50"]);
    }

    async fn a_sequence_that_was_set_back_is_noticed_and_nothing_is_lost(db: Db) {
        let store = db.outbox.store(&db.pool);
        for _ in 0..5 {
            db.enqueue("key", "before").await;
        }
        deliver(&store, 5).await;
        db.sql("SELECT setval('{schema}.message_position', 1)").await;
        db.enqueue("key", "after").await;
        // The session says so and is thrown away; the next one starts from nothing.
        let error = store.claim(&limits(10)).await.map(|claim| claim.is_some()).unwrap_err();
        assert!(error.to_string().contains("restarted, restored or failed over"), "{error}");
        assert_eq!(of_key(&deliver(&store, 1).await, "key"), ["after"]);
    }

    /// A session that draws positions in advance uses one below what was already delivered.
    async fn a_sequence_that_caches_positions_is_refused(db: Db) {
        let store = db.outbox.store(&db.pool);
        for change in ["CACHE 20", "CACHE 1 CYCLE", "NO CYCLE INCREMENT 2"] {
            db.sql(&format!("ALTER SEQUENCE {{schema}}.message_position {change}")).await;
            let error = store.claim(&limits(10)).await.map(|claim| claim.is_some()).unwrap_err();
            assert!(error.to_string().contains("CACHE 1"), "{change}: {error}");
        }
        db.sql("ALTER SEQUENCE {schema}.message_position INCREMENT 1").await;
        db.enqueue("key", "first").await;
        assert_eq!(contents(&*store.claim(&limits(10)).await.unwrap().unwrap()).len(), 1);
    }

    async fn a_floor_above_the_sequence_hides_nothing(db: Db) {
        db.sql("UPDATE {schema}.lane SET floor = 1000000").await;
        let store = db.outbox.store(&db.pool);
        db.enqueue("key", "first").await;
        assert_eq!(of_key(&deliver(&store, 1).await, "key"), ["first"]);
    }

    /// Rows of a restored dump come with positions that no mark knows of.
    async fn rows_restored_below_the_floor_are_swept_up(db: Db) {
        db.sql("SELECT setval('{schema}.message_position', 500000)").await;
        db.sql("UPDATE {schema}.lane SET floor = 400000").await;
        db.sql(
            "SET session_replication_role = replica;
             INSERT INTO {schema}.message (lane, position, id, topic, key, payload)
             SELECT hashtextextended('k' || i, 0) & 63, i, gen_random_uuid(), 'test', 'k' || i, 'restored'
               FROM generate_series(1, 100) AS i;
             RESET session_replication_role",
        )
        .await;
        let store = db.outbox.store(&db.pool);
        assert_eq!(deliver(&store, 100).await.len(), 100);
    }
}
