//! Cost does not depend on history: what a claim reads is counted, not timed.
//!
//! The server counts the index entries that scans return, dead ones among them, and the sequential
//! scans. A plan that walks a lane or a table, or a scan that starts too low, shows at once.

#![allow(clippy::unwrap_used)]

mod support;

use outbox_core::{Outcome, PublishError, Store};
use outbox_postgres::PostgresStore;
use std::time::{Duration, Instant};
use support::store::{Db, deliver, deliver_some, limits, message, on_both_servers};
use support::until;

const BATCH: usize = 100;
const CLAIMS: i64 = 5;

/// Index entries and rows of sequential scans that the store's session has read so far.
///
/// A backend reports at the end of a transaction, and then not for a second. So after that second the
/// session is given one more, which takes nothing.
async fn entries_read(db: &Db, store: &PostgresStore) -> i64 {
    let quiet = Instant::now();
    until("the session may report again", async || {
        quiet.elapsed() > Duration::from_millis(1100)
    })
    .await;
    if let Some(claim) = store.claim(&limits(1)).await.unwrap() {
        claim.settle(vec![Outcome::Released]).await.unwrap();
    }
    db.number(
        "SELECT (SELECT sum(idx_tup_read) FROM pg_stat_all_indexes WHERE schemaname = '{schema}')::bigint
              + (SELECT sum(seq_tup_read) FROM pg_stat_all_tables WHERE schemaname = '{schema}')::bigint",
    )
    .await
}

/// The lowest of up to ten costs of the same work, which is fair if one of them is.
///
/// An old transaction of another test may end at any time, and then every session looks once for what
/// it may have left: that is part of the algorithm, and not what is measured here.
async fn cheapest(fair: i64, mut work: impl AsyncFnMut() -> i64) -> i64 {
    let mut lowest = i64::MAX;
    for _ in 0..10 {
        lowest = lowest.min(work().await);
        if lowest < fair {
            break;
        }
    }
    lowest
}

/// What five claims of a batch each read, with everything that they settle.
async fn cost_of_claims(db: &Db, store: &PostgresStore) -> i64 {
    cheapest(CLAIMS * FAIR, async || {
        let before = entries_read(db, store).await;
        for _ in 0..CLAIMS {
            assert!(!deliver_some(store, &limits(BATCH)).await.is_empty());
        }
        entries_read(db, store).await - before
    })
    .await
}

/// Fills the outbox in one statement.
async fn fill(db: &Db, messages: usize, keys: usize) {
    db.sql(&format!(
        "INSERT INTO {{schema}}.message (topic, key, payload) \
         SELECT 'test', 'k' || i % {keys}, 'x' FROM generate_series(1, {messages}) AS i"
    ))
    .await;
}

/// Generously: reading, checking for a block and deleting a row are a few entries each, a poll is one
/// a lane or two.
const FAIR: i64 = 20 * BATCH as i64;

on_both_servers! {
    /// Statistics of an empty table are what an outbox usually has; none, and those of a full table,
    /// are what it has sometimes.
    async fn a_claim_in_a_backlog_reads_what_it_takes(db: Db) {
        db.sql("ALTER TABLE {schema}.message SET (autovacuum_enabled = off)").await;
        let store = db.outbox.store(&db.pool);
        fill(&db, 50_000, 1_000).await;
        deliver_some(&store, &limits(BATCH)).await;
        let never = cost_of_claims(&db, &store).await;
        assert!(never < CLAIMS * FAIR, "without statistics: {never} entries for 5 claims");

        db.sql("DELETE FROM {schema}.message").await;
        db.sql("VACUUM ANALYZE {schema}.message").await;
        fill(&db, 50_000, 1_000).await;
        // Another session, so that the plans are made with these statistics.
        let store = db.outbox.store(&db.pool);
        deliver_some(&store, &limits(BATCH)).await;
        let empty = cost_of_claims(&db, &store).await;
        assert!(empty < CLAIMS * FAIR, "statistics of an empty table: {empty} entries for 5 claims");

        db.sql("ANALYZE {schema}.message").await;
        let store = db.outbox.store(&db.pool);
        deliver_some(&store, &limits(BATCH)).await;
        let full = cost_of_claims(&db, &store).await;
        assert!(full < CLAIMS * FAIR, "statistics of a full table: {full} entries for 5 claims");
    }

    /// A hundred thousand keys are blocked, and none of them is met by a claim of other keys.
    async fn blocked_keys_and_dead_messages_cost_the_hot_path_nothing(db: Db) {
        let store = db.outbox.store(&db.pool);
        fill(&db, 10_000, 100).await;
        deliver_some(&store, &limits(BATCH)).await;
        let before = cost_of_claims(&db, &store).await;
        db.sql(
            "INSERT INTO {schema}.blocked (key_hash, lane, head, due_at)
             SELECT hash, hash & 63, i, 'infinity'
               FROM generate_series(1, 100000) AS i, hashtextextended('b' || i, 0) AS hash;
             INSERT INTO {schema}.dead (position, key_hash, id, topic, key, payload, enqueued_at, parked,
                                        failures, error_kind, error, halted)
             SELECT i, hashtextextended('b' || i, 0), gen_random_uuid(), 'test', 'b' || i, 'x', now(), 0,
                    1, 'rejected', 'no', true
               FROM generate_series(1, 100000) AS i",
        )
        .await;
        let store = db.outbox.store(&db.pool);
        deliver_some(&store, &limits(BATCH)).await;
        let after = cost_of_claims(&db, &store).await;
        assert!(after < before + 2 * FAIR, "{before} entries for 5 claims, then {after}");
    }

    /// Fifty thousand messages wait behind one that fails. The other keys of its lane do not meet them, and
    /// a retry reads no more of them than it takes.
    async fn followers_of_a_failing_head_cost_their_lane_nothing(db: Db) {
        let store = db.outbox.store(&db.pool);
        db.sql(
            "INSERT INTO {schema}.parked (key_hash, position, id, topic, key, payload, enqueued_at)
             SELECT hashtextextended('head', 0), nextval('{schema}.message_position'), gen_random_uuid(),
                    'test', 'head', 'x', now()
               FROM generate_series(1, 50000);
             INSERT INTO {schema}.blocked (key_hash, lane, head, due_at)
             SELECT key_hash, key_hash & 63, min(position), now() + interval '1 hour'
               FROM {schema}.parked GROUP BY key_hash;
             INSERT INTO {schema}.message (topic, key, payload)
             SELECT 'test', mate.key, 'x'
               FROM (SELECT 'k' || i AS key
                       FROM generate_series(1, 10000) AS i
                      WHERE hashtextextended('k' || i, 0) & 63 = hashtextextended('head', 0) & 63
                      LIMIT 10) AS mate
              CROSS JOIN generate_series(1, 500)",
        )
        .await;
        deliver_some(&store, &limits(BATCH)).await;
        let others = cost_of_claims(&db, &store).await;
        assert!(others < CLAIMS * FAIR, "{others} entries for 5 claims of other keys");

        deliver(&store, db.places().await[0] as usize).await;
        let retry = cheapest(FAIR, async || {
            db.sql("UPDATE {schema}.blocked SET due_at = clock_timestamp()").await;
            let before = entries_read(&db, &store).await;
            let claim = store.claim(&limits(BATCH)).await.unwrap().unwrap();
            let mut outcomes = vec![Outcome::Behind; claim.messages().len()];
            outcomes[0] = Outcome::Park {
                after: Duration::from_secs(3600),
                counted: true,
                error: PublishError::retryable("no"),
            };
            claim.settle(outcomes).await.unwrap();
            entries_read(&db, &store).await - before
        })
        .await;
        assert!(retry < FAIR, "{retry} entries for one retry");
        assert_eq!(db.places().await, [0, 50_000, 0, 1]);
    }

    /// A forgotten transaction keeps every deleted row in the index. A scan from the start would read
    /// all of them again in each poll.
    async fn a_forgotten_transaction_does_not_make_claims_read_more(db: Db) {
        let store = db.outbox.store(&db.pool);
        let mut forgotten = db.connection().await;
        db.sql_on(&mut forgotten, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await;
        fill(&db, 30_000, 500).await;
        deliver(&store, 30_000).await;
        let mut costs = Vec::new();
        for _ in 0..2 {
            fill(&db, 2_500, 50).await;
            costs.push(cost_of_claims(&db, &store).await);
            deliver(&store, db.places().await[0] as usize).await;
            fill(&db, 15_000, 500).await;
            deliver(&store, 15_000).await;
        }
        assert!(
            costs.iter().all(|cost| *cost < CLAIMS * FAIR),
            "entries for 5 claims, behind 30,000 and 45,000 dead rows: {costs:?}"
        );
        drop(forgotten);
    }

    /// An idle relay's polls do not go over what another one delivers meanwhile.
    async fn an_idle_session_keeps_up_with_what_others_deliver(db: Db) {
        let (busy, idle) = (db.outbox.store(&db.pool), db.outbox.store(&db.pool));
        let mut forgotten = db.connection().await;
        db.sql_on(&mut forgotten, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await;
        assert_eq!(deliver_some(&idle, &limits(BATCH)).await, []);
        for _ in 0..6 {
            fill(&db, 11_000, 500).await;
            deliver(&busy, 11_000).await;
            assert_eq!(deliver_some(&idle, &limits(BATCH)).await, []);
        }
        let cost = cheapest(30_000, async || {
            let before = entries_read(&db, &idle).await;
            for _ in 0..10 {
                assert_eq!(deliver_some(&idle, &limits(BATCH)).await, []);
            }
            entries_read(&db, &idle).await - before
        })
        .await;
        // One poll may still go over what was delivered since its last mark.
        assert!(cost < 30_000, "{cost} entries for 10 polls behind 66,000 dead rows");
        drop(forgotten);
    }

    /// After many retries the next one still finds the keys that are due, and only those.
    async fn retries_do_not_slow_the_next_ones(db: Db) {
        let store = db.outbox.store(&db.pool);
        let mut forgotten = db.connection().await;
        db.sql_on(&mut forgotten, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await;
        for number in 0..20 {
            db.enqueue(&format!("k{number}"), "x").await;
        }
        let mut costs = Vec::new();
        for round in 0..60 {
            let before = if round % 29 == 1 { Some(entries_read(&db, &store).await) } else { None };
            let mut parked = 0;
            while parked < 20 {
                let Some(claim) = store.claim(&limits(BATCH)).await.unwrap() else { continue };
                parked += claim.messages().len();
                let park = |_| Outcome::Park {
                    after: Duration::ZERO,
                    counted: false,
                    error: PublishError::topic_unavailable("no"),
                };
                let outcomes = (0..claim.messages().len()).map(park).collect();
                claim.settle(outcomes).await.unwrap();
            }
            if let Some(before) = before {
                costs.push(entries_read(&db, &store).await - before);
            }
        }
        // Each retry leaves one dead version of the key's own row, which its next ones pass.
        let own = 3 * 20 * 60;
        let (first, last) = (costs[0], costs[costs.len() - 1]);
        assert!(last < first.max(500) + own, "entries for one round of 20 retries: {costs:?}");
        assert_eq!(db.places().await, [0, 20, 0, 20]);
        drop(forgotten);
    }

    /// A long transaction that ends makes each lane be read from far back: once, one lane a claim, and
    /// not all of them in one poll.
    async fn a_long_transaction_that_ends_is_looked_for_one_lane_at_a_time(db: Db) {
        let store = db.outbox.store(&db.pool);
        let mut forgotten = db.connection().await;
        db.sql_on(&mut forgotten, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await;
        let mut late = db.pool.begin().await.unwrap();
        db.outbox.enqueue(&mut late, &message("late", "late")).await.unwrap();
        for _ in 0..6 {
            fill(&db, 20_000, 500).await;
            deliver(&store, 20_000).await;
        }
        late.commit().await.unwrap();
        let mut most = 0;
        let mut found = Vec::new();
        let before = entries_read(&db, &store).await;
        while found.is_empty() {
            found = deliver_some(&store, &limits(BATCH)).await;
            most += 1;
        }
        let cost = entries_read(&db, &store).await - before;
        assert_eq!(found, [("late".to_owned(), "late".to_owned())]);
        // All dead entries once, and a little for the polls; `most` is 1, since a claim that finds
        // nothing in a lane looks at the next.
        assert!(cost < 2 * 120_000 + 64 * 300, "{cost} entries in {most} claims");
        let again = entries_read(&db, &store).await;
        assert_eq!(deliver_some(&store, &limits(BATCH)).await, []);
        let cost = entries_read(&db, &store).await - again;
        assert!(cost < 130_000, "{cost} entries for the rest of the lanes");
        // A lane may be due for its sweep from zero.
        let fair = 3 * 120_000 / 64 + 1_000;
        let cost = cheapest(fair, async || {
            let before = entries_read(&db, &store).await;
            assert_eq!(deliver_some(&store, &limits(BATCH)).await, []);
            entries_read(&db, &store).await - before
        })
        .await;
        assert!(cost < fair, "{cost} entries for a poll after that");
        drop(forgotten);
    }
}
