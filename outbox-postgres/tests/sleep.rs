//! A store that sleeps is woken by the commit, and loses no wake-up on its way to sleep.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_conformance::proxy::Proxy;
use outbox_core::memory::MemoryPublisher;
use outbox_core::{Claim, ClaimLimits, Outcome, Relay, Store};
use outbox_postgres::PostgresStore;
use sqlx::postgres::PgPoolOptions;
use support::store::{DEADLINE, Db, limits, on_both_servers};
use support::until;

/// Far below the ten seconds after which a sleeper polls by itself, and above the three after which it tries for
/// a lock that another one has let go.
const WOKEN: Duration = Duration::from_secs(5);

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

/// The process of the server that holds that lock; 0: none does.
async fn lock_holder(db: &Db) -> i64 {
    db.number(
        "SELECT coalesce(max(pid), 0)::bigint FROM pg_locks \
         WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted \
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

    /// The one that holds the lock ends, and whoever slept beside it is woken by its own.
    async fn who_sleeps_alongside_takes_the_lock_when_it_is_free(db: Db) {
        let first = Arc::new(db.outbox.store(&db.pool));
        let claim = claim_in_background(&first);
        until("the first store sleeps", async || sleepers(&db).await == 1).await;
        let second = Arc::new(db.outbox.store(&db.pool));
        let waiting = claim_in_background(&second);
        let tried = "SELECT count(*) FROM pg_stat_activity \
                     WHERE application_name LIKE 'outbox relay {schema}%' AND query LIKE '%pg_try_advisory_lock%'";
        until("the second store has tried", async || db.number(tried).await == 2).await;
        let holder = lock_holder(&db).await;
        claim.abort();
        let _ = claim.await;
        drop(first);
        // Nothing tells of that, but it tries again, and nobody has to enqueue for it.
        let freed = Instant::now();
        until("the second store has the lock", async || {
            ![0, holder].contains(&lock_holder(&db).await)
        })
        .await;
        assert!(freed.elapsed() < Duration::from_secs(3) + WOKEN, "{:?}", freed.elapsed());
        let committed = Instant::now();
        db.enqueue("key", "x").await;
        settle(waiting.await.unwrap()).await;
        assert!(committed.elapsed() < WOKEN, "{:?}", committed.elapsed());
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

    /// The network forgets every connection without a word. What is sent into them never arrives, and
    /// neither does an answer nor their end.
    async fn connections_that_fall_silent_are_replaced(db: Db) {
        let options = (*db.pool.connect_options()).clone();
        let proxy = Proxy::to(format!("{}:{}", options.get_host(), options.get_port())).await;
        let through = options
            .host(&proxy.address().ip().to_string())
            .port(proxy.address().port());
        let pool = PgPoolOptions::new().connect_lazy_with(through);
        let publisher = MemoryPublisher::new();
        let relay = Relay::builder(db.outbox.store(&pool), publisher.clone())
            .workers(6)
            .batch_messages(10)
            .claim_wait(Duration::from_secs(1))
            .store_timeout(Duration::from_secs(2))
            .build()
            .unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(relay.run_until(async { _ = stopped.await }));
        let mut enqueued = 0;
        until("the workers have sessions", async || {
            let mut tx = db.pool.begin().await.unwrap();
            for number in 0..100 {
                let message = support::store::message(&format!("k{number}"), "x");
                db.outbox.enqueue(&mut tx, &message).await.unwrap();
            }
            tx.commit().await.unwrap();
            enqueued += 100;
            publisher.wait_for(enqueued, DEADLINE).await;
            proxy.accepted() >= 5
        })
        .await;
        until("the relay sleeps", async || sleepers(&db).await == 1).await;

        let before = proxy.accepted();
        proxy.silence();
        db.enqueue("key", "x").await;
        let silenced = Instant::now();
        until("polling finds the message", async || publisher.published().len() > enqueued).await;
        // The patience of one claim, and not one for each session that there was.
        let took = silenced.elapsed();
        assert!(took < Duration::from_secs(8), "{took:?}");
        // The server still has the old one, as long as it hears nothing else.
        let listening = "SELECT count(*) FROM pg_stat_activity \
                          WHERE application_name LIKE 'outbox relay {schema}%' \
                            AND query LIKE '%pg_try_advisory_lock%'";
        until("another connection listens", async || db.number(listening).await == 2).await;
        assert!(proxy.accepted() > before + 1, "of {} connections", proxy.accepted());
        stop.send(()).unwrap();
        running.await.unwrap();
    }

    /// With nothing to do a store polls every ten seconds, and writes nothing.
    async fn an_idle_store_asks_little_and_writes_nothing(db: Db) {
        let store = Arc::new(db.outbox.store(&db.pool));
        let claim = claim_in_background(&store);
        until("the store sleeps", async || sleepers(&db).await == 1).await;
        // A row that is written becomes another one in another place.
        let rows = "SELECT sum((ctid::text::point)[1] * xmin::text::bigint)::bigint FROM {schema}.lane";
        let before = db.number(rows).await;

        // What is asked within half a second belongs together.
        let started = "SELECT (extract(epoch FROM query_start) * 2)::bigint \
                         FROM pg_stat_activity WHERE application_name LIKE $1 AND query_start IS NOT NULL";
        let name = format!("outbox relay {}%", db.schema);
        let mut statements = BTreeSet::new();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(14) {
            let seen: Vec<i64> =
                sqlx::query_scalar(started).bind(&name).fetch_all(&db.pool).await.unwrap();
            statements.extend(seen);
            // wait: the poll, often enough to see every burst of statements once.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // What was there at first, a poll or two, of two looks at most, and a beat or two.
        assert!((2..=10).contains(&statements.len()), "{} bursts in 14 s", statements.len());
        assert_eq!(db.number(rows).await, before, "rows were written");
        assert_eq!(db.places().await, [0; 4]);
        claim.abort();
    }
}
