//! What goes wrong around a store: gaps between positions, rows that nobody can read, a database that is
//! gone at the worst moment, an application that has taken every connection of its pool.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use outbox_core::{Outcome, PublishError, Store};
use sqlx::postgres::PgPoolOptions;
use support::store::{DEADLINE, Db, contents, deliver, limits, message, of_key, on_both_servers};
use tokio::time::timeout;

/// Ends the sessions that have lanes, as when the database goes away.
async fn end_claims(db: &Db) -> i64 {
    db.number(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_locks \
         WHERE relation = '{schema}.lane'::regclass AND mode = 'RowShareLock'",
    )
    .await
}

fn park(after: Duration) -> Outcome {
    Outcome::Park {
        after,
        counted: true,
        error: PublishError::retryable("no"),
    }
}

on_both_servers! {
    /// Half of all transactions are rolled back, the large ones too, and a million positions are left
    /// out. Nothing waits for what will never come, and what comes late is found across the gap.
    async fn gaps_between_positions_stall_nothing(db: Db) {
        let store = db.outbox.store(&db.pool);
        let mut enqueued = Vec::new();
        for round in 0..3 {
            let mut late = db.pool.begin().await.unwrap();
            let first = format!("{round}: first");
            db.outbox.enqueue(&mut late, &message("late", &first)).await.unwrap();
            for number in 0..20 {
                let text = format!("{round}: {number}");
                let mut tx = db.pool.begin().await.unwrap();
                db.outbox.enqueue(&mut tx, &message("key", &text)).await.unwrap();
                if number % 2 == 0 {
                    tx.rollback().await.unwrap();
                } else {
                    tx.commit().await.unwrap();
                    enqueued.push(text);
                }
            }
            db.sql(
                "BEGIN;
                 INSERT INTO {schema}.message (topic, key, payload)
                 SELECT 'test', 'key', 'x' FROM generate_series(1, 5000);
                 ROLLBACK;
                 SELECT setval('{schema}.message_position', nextval('{schema}.message_position') + 1000000)",
            )
            .await;
            let text = format!("{round}: behind the gap");
            db.enqueue("key", &text).await;
            enqueued.push(text);

            let delivered = deliver(&store, 11).await;
            assert_eq!(of_key(&delivered, "key"), enqueued[round * 11..]);
            late.commit().await.unwrap();
            let second = format!("{round}: second");
            db.enqueue("late", &second).await;
            assert_eq!(of_key(&deliver(&store, 2).await, "late"), [first, second]);
        }
    }

    /// The error path itself fails: the database goes away while it is told what the broker refused.
    async fn failures_that_could_not_be_recorded_leave_all_as_it_was(db: Db) {
        let store = db.outbox.store(&db.pool);
        for key in ["delivered", "parked", "dead"] {
            db.enqueue(key, "x").await;
        }
        let dead = Outcome::Dead { error: PublishError::rejected("no"), halt: false };
        let outcomes = |claim: &dyn outbox_core::Claim| -> Vec<Outcome> {
            let of = |(key, _): &(String, String)| match key.as_str() {
                "parked" => park(DEADLINE),
                "dead" => dead.clone(),
                _ => Outcome::Delivered,
            };
            contents(claim).iter().map(of).collect()
        };
        for _ in 0..3 {
            let claim = store.claim(&limits(10)).await.unwrap().unwrap();
            for claimed in claim.messages() {
                assert_eq!((claimed.parked, claimed.failures), (0, 0), "{claimed:?}");
            }
            let outcomes = outcomes(&*claim);
            assert_eq!(outcomes.len(), 3);
            assert_eq!(end_claims(&db).await, 1);
            assert!(claim.settle(outcomes).await.is_err());
            assert_eq!(db.places().await, [3, 0, 0, 0]);
        }
        let claim = store.claim(&limits(10)).await.unwrap().unwrap();
        let outcomes = outcomes(&*claim);
        claim.settle(outcomes).await.unwrap();
        assert_eq!(db.places().await, [0, 1, 1, 1]);
    }

    /// Another version, or a person, has written what this one cannot read, into a row that is tried again.
    async fn a_parked_row_that_cannot_be_decoded_is_given_up_and_its_followers_go_on(db: Db) {
        let store = db.outbox.store(&db.pool);
        for text in ["1", "2", "3", "4"] {
            db.enqueue("key", text).await;
        }
        let claim = store.claim(&limits(10)).await.unwrap().unwrap();
        assert_eq!(claim.messages().len(), 4);
        let mut outcomes = vec![Outcome::Behind; 4];
        outcomes[0] = park(Duration::ZERO);
        claim.settle(outcomes).await.unwrap();
        // The head, and one in the middle of what waits behind it.
        db.sql(
            "UPDATE {schema}.parked SET headers = '[\"no object\"]' WHERE payload = '1';
             UPDATE {schema}.parked SET headers = '{\"number\": 1}' WHERE payload = '3'",
        )
        .await;
        assert_eq!(of_key(&deliver(&store, 2).await, "key"), ["2", "4"]);
        assert_eq!(db.places().await, [0, 0, 2, 0]);
        let reasons = db
            .number(
                "SELECT count(*) FROM {schema}.dead
                  WHERE payload = '1' AND error LIKE '%headers%expected a map%'
                     OR payload = '3' AND error LIKE '%header \"number\" is not text%'",
            )
            .await;
        assert_eq!(reasons, 2);
    }

    /// Rows lie in the table in any order, and a key's are claimed in that of their positions: those
    /// that wait, and those that are parked.
    async fn a_key_is_claimed_by_position_wherever_its_rows_lie(db: Db) {
        const MESSAGES: i64 = 40;
        // The last position is written first.
        db.sql(&format!(
            "ALTER TABLE {{schema}}.message DISABLE TRIGGER USER;
             INSERT INTO {{schema}}.message (lane, position, id, topic, key, payload)
             SELECT hashtextextended('key', 0) & 63, position, gen_random_uuid(), 'test', 'key', position::text::bytea
               FROM generate_series({MESSAGES}, 1, -1) AS position;
             INSERT INTO {{schema}}.parked (key_hash, position, id, topic, key, payload, enqueued_at)
             SELECT hashtextextended('parked', 0), position, gen_random_uuid(), 'test', 'parked', position::text::bytea,
                    now()
               FROM generate_series({MESSAGES}, 1, -1) AS position;
             INSERT INTO {{schema}}.blocked (key_hash, lane, head, due_at)
             SELECT hashtextextended('parked', 0), hashtextextended('parked', 0) & 63, 1, now();
             SELECT setval('{{schema}}.message_position', {MESSAGES});
             ALTER TABLE {{schema}}.message ENABLE TRIGGER USER"
        ))
        .await;
        let store = db.outbox.store(&db.pool);
        let delivered = deliver(&store, 2 * MESSAGES as usize).await;
        let expected: Vec<String> = (1..=MESSAGES).map(|position| position.to_string()).collect();
        for key in ["key", "parked"] {
            assert_eq!(of_key(&delivered, key), expected, "{key}");
        }
    }

    /// The relay has connections of its own.
    async fn an_application_that_holds_every_connection_of_its_pool_holds_up_no_claim(db: Db) {
        let options = (*db.pool.connect_options()).clone();
        let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        let store = db.outbox.store(&pool);
        let mut only = pool.acquire().await.unwrap();
        db.outbox.enqueue(&mut only, &message("key", "x")).await.unwrap();
        let delivered = timeout(DEADLINE, deliver(&store, 1)).await.unwrap();
        assert_eq!(of_key(&delivered, "key"), ["x"]);
        assert!(pool.try_acquire().is_none(), "the pool was not exhausted");
        drop(only);
    }

    /// A server may be told to end sessions that do nothing, and between claims a relay's do nothing.
    async fn a_server_that_ends_idle_sessions_ends_none_of_a_store(db: Db) {
        let pool = db.pool_with(&[("idle_session_timeout", "100")]).await;
        let store = db.outbox.store(&pool);
        for text in ["1", "2", "3"] {
            db.enqueue("key", text).await;
            assert_eq!(of_key(&deliver(&store, 1).await, "key"), [text]);
            // A session that does nothing for as long as the store's does.
            db.is_ended(pool.acquire().await.unwrap().detach()).await;
        }
    }
}
