//! A store that sleeps is woken by the commit, and loses no wake-up on its way to sleep.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::{Claim, ClaimLimits, Outcome, Store};
use outbox_postgres::PostgresStore;
use support::store::{DEADLINE, Db, limits, on_both_servers};
use support::until;

/// Far below the ten seconds after which a sleeper polls by itself.
const WOKEN: Duration = Duration::from_secs(3);

fn patient() -> ClaimLimits {
    ClaimLimits {
        wait: DEADLINE,
        ..limits(10)
    }
}

/// How many sessions hold the lock of a sleeper.
async fn sleepers(db: &Db) -> i64 {
    db.number(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
         AND ((classid::bigint << 32) | objid::bigint) = hashtextextended('outbox:{schema}', 0)",
    )
    .await
}

fn claim_in_background(store: &Arc<PostgresStore>) -> tokio::task::JoinHandle<Box<dyn Claim>> {
    let store = Arc::clone(store);
    tokio::spawn(async move { store.claim(&patient()).await.unwrap().unwrap() })
}

async fn settle(claim: Box<dyn Claim>) {
    let delivered = vec![Outcome::Delivered; claim.messages().len()];
    claim.settle(delivered).await.unwrap();
}

on_both_servers! {
    async fn a_commit_wakes_a_sleeper(db: Db) {
        let store = Arc::new(db.outbox.store(&db.pool));
        for _ in 0..5 {
            let claim = claim_in_background(&store);
            until("the store sleeps", async || sleepers(&db).await == 1).await;
            let committed = Instant::now();
            db.enqueue("key", "x").await;
            settle(claim.await.unwrap()).await;
            assert!(committed.elapsed() < WOKEN, "{:?}", committed.elapsed());
            // Awake, it lets producers commit without notifying.
            until("the lock is free", async || sleepers(&db).await == 0).await;
        }
    }

    /// Commits at all moments between awake and asleep.
    async fn a_commit_while_falling_asleep_wakes(db: Db) {
        let store = Arc::new(db.outbox.store(&db.pool));
        let mut slowest = Duration::ZERO;
        for round in 0..60u64 {
            let claim = claim_in_background(&store);
            // wait: the awake phase is 127 ms, so this meets it and what follows at many moments.
            tokio::time::sleep(Duration::from_millis(90 + round * 2)).await;
            let committed = Instant::now();
            db.enqueue("key", "x").await;
            settle(claim.await.unwrap()).await;
            slowest = slowest.max(committed.elapsed());
        }
        assert!(slowest < WOKEN, "{slowest:?}");
    }

    async fn every_sleeper_is_woken_though_one_holds_the_lock(db: Db) {
        let stores = [(); 3].map(|()| Arc::new(db.outbox.store(&db.pool)));
        for _ in 0..3 {
            let claims = stores.each_ref().map(claim_in_background);
            until("one store sleeps", async || sleepers(&db).await == 1).await;
            let committed = Instant::now();
            let mut tx = db.pool.begin().await.unwrap();
            for number in 0..64 {
                let message = support::store::message(&format!("k{number}"), "x");
                db.outbox.enqueue(&mut tx, &message).await.unwrap();
            }
            tx.commit().await.unwrap();
            for claim in claims {
                // Held until all have one, so that each has to find its own.
                let claim = claim.await.unwrap();
                assert!(committed.elapsed() < WOKEN, "{:?}", committed.elapsed());
                settle(claim).await;
            }
            for store in &stores {
                while let Some(claim) = store.claim(&limits(100)).await.unwrap() {
                    settle(claim).await;
                }
            }
        }
    }

    /// The listening connection dies: polling finds messages, and the lock is taken again.
    async fn a_lost_listening_connection_is_replaced(db: Db) {
        let store = Arc::new(db.outbox.store(&db.pool));
        let claim = claim_in_background(&store);
        until("the store sleeps", async || sleepers(&db).await == 1).await;
        let killed = db
            .number(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_locks \
                 WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted \
                 AND ((classid::bigint << 32) | objid::bigint) = hashtextextended('outbox:{schema}', 0)",
            )
            .await;
        assert_eq!(killed, 1);
        let committed = Instant::now();
        db.enqueue("key", "x").await;
        settle(claim.await.unwrap()).await;
        assert!(committed.elapsed() < WOKEN, "{:?}", committed.elapsed());
        let claim = claim_in_background(&store);
        until("the store sleeps again", async || sleepers(&db).await == 1).await;
        claim.abort();
    }

    async fn a_store_that_is_dropped_frees_the_lock(db: Db) {
        let store = Arc::new(db.outbox.store(&db.pool));
        let claim = claim_in_background(&store);
        until("the store sleeps", async || sleepers(&db).await == 1).await;
        claim.abort();
        let _ = claim.await;
        drop(store);
        until("the lock is free", async || sleepers(&db).await == 0).await;
    }

    /// A parked message is due while the store sleeps, and nothing notifies of that.
    async fn a_sleeper_wakes_for_a_parked_message_that_is_due(db: Db) {
        let store = Arc::new(db.outbox.store(&db.pool));
        db.enqueue("key", "x").await;
        let claim = store.claim(&patient()).await.unwrap().unwrap();
        let park = Outcome::Park {
            after: Duration::from_secs(1),
            counted: true,
            error: outbox_core::PublishError::retryable("no"),
        };
        claim.settle(vec![park]).await.unwrap();
        let parked = Instant::now();
        let claim = claim_in_background(&store);
        settle(claim.await.unwrap()).await;
        assert!(parked.elapsed() < Duration::from_secs(1) + WOKEN, "{:?}", parked.elapsed());
        assert_eq!(db.places().await, [0; 4]);
    }
}
