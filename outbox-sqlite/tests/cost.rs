//! What the relay does costs the same whatever is parked, dead or behind: by index, and never by a look
//! at every row.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::time::{Duration, Instant};

use outbox_core::{Outcome, Store as _};
use sqlx::{AssertSqlSafe, Row as _};
use support::{Fixture, deliver, limits, message};

/// Statements that look at everything because that is what they are for, or at the first rows up to a
/// bound; and parts of statements, which stand in those.
const OTHERS: [&str; 10] = [
    "counts.sql",
    "gauges.sql",
    "status_keys.sql",
    "status_topics.sql",
    "paused.sql",
    "delayed.sql",
    "delayed_next.sql",
    "dead_find.sql",
    "dead_matches.sql",
    "keys_found.sql",
];

/// Every statement of the crate, as it is sent.
fn statements() -> Vec<(String, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/sql");
    let mut statements: Vec<(String, String)> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let part = |name| fs::read_to_string(format!("{folder}/{name}")).unwrap();
            // Each of these is sent within that one.
            let text = match name.starts_with("dead_from_") {
                true => part("dead_find.sql").replace("{source}", &text),
                false => text,
            };
            let text = text
                .replace("{matches}", &part("dead_matches.sql"))
                .replace("{found}", &part("keys_found.sql"));
            (name, text.replace("{prefix}", "outbox_"))
        })
        .filter(|(name, _)| !OTHERS.contains(&name.as_str()))
        .collect();
    statements.sort();
    assert!(statements.len() > 20, "{}", statements.len());
    statements
}

/// The steps in which a statement goes over all rows of one of our tables.
async fn scans(fixture: &Fixture) -> Vec<String> {
    let mut scans = Vec::new();
    for (name, text) in statements() {
        let plan = sqlx::query(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {text}")))
            .fetch_all(&fixture.pool)
            .await
            .unwrap();
        for step in plan {
            let step: String = step.get("detail");
            let whole = ["message", "parked", "blocked", "dead", "outbox_"]
                .iter()
                .any(|table| step.starts_with(&format!("SCAN {table}")));
            // The migrations are as many as there were releases.
            if whole && !step.starts_with("SCAN outbox_migration") {
                scans.push(format!("{name}: {step}"));
            }
        }
    }
    scans
}

#[tokio::test]
async fn every_statement_goes_by_index_with_and_without_statistics() {
    let fixture = Fixture::new().await;
    assert_eq!(scans(&fixture).await, Vec::<String>::new());
    // Of empty tables, as an outbox usually has them.
    fixture.execute("ANALYZE").await.unwrap();
    assert_eq!(scans(&fixture).await, Vec::<String>::new());
    fill(&fixture, 2_000).await;
    fixture.execute("ANALYZE").await.unwrap();
    assert_eq!(scans(&fixture).await, Vec::<String>::new());
}

/// So many dead messages, halted keys, keys that wait and messages behind them, in every lane.
async fn fill(fixture: &Fixture, rows: u32) {
    let numbers = format!(
        "WITH RECURSIVE n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < {rows})"
    );
    for statement in [
        "INSERT INTO outbox_dead (position, line, id, topic, enqueued_at, parked, failures, error_kind, \
         error, halted) SELECT -n, n, randomblob(16), 't', 0, 0, 1, 'rejected', 'no', n % 2 FROM n",
        "INSERT INTO outbox_blocked (line, due_at) SELECT n, NULL FROM n WHERE n % 2",
        "INSERT INTO outbox_blocked (line, due_at) SELECT -n, 9000000000000 FROM n",
        "INSERT INTO outbox_parked (position, line, id, topic, enqueued_at) \
         SELECT -1000000 - n, -n, randomblob(16), 't', 0 FROM n",
        "INSERT INTO outbox_parked (position, line, id, topic, enqueued_at) \
         SELECT -9000000 - n, -1, randomblob(16), 't', 0 FROM n",
    ] {
        fixture
            .execute(&format!("{numbers} {statement}"))
            .await
            .unwrap();
    }
}

/// How long a round of enqueue, claim and settle takes at best.
async fn round(fixture: &Fixture) -> Duration {
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    let all: Vec<_> = (0..100).map(|n| message(&format!("key {n}"), "")).collect();
    let mut best = Duration::MAX;
    for _ in 0..20 {
        fixture.enqueue(&all).await;
        let started = Instant::now();
        deliver(&store, all.len()).await;
        best = best.min(started.elapsed());
    }
    best
}

#[tokio::test]
async fn what_is_parked_and_dead_does_not_slow_delivery() {
    let fixture = Fixture::new().await;
    let before = round(&fixture).await;
    fill(&fixture, 50_000).await;
    let after = round(&fixture).await;
    // A scan of any of them would take a hundred times as long.
    assert!(
        after < before * 5 + Duration::from_millis(10),
        "{before:?} before, {after:?} with 250,000 rows aside"
    );
}

/// A key with many messages behind its failing head lets the other keys of its lane go on.
#[tokio::test]
async fn a_long_key_that_is_blocked_holds_up_no_other() {
    let fixture = Fixture::new().await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    fixture.enqueue(&[message("blocked", "head")]).await;
    let claim = store.claim(&limits(1)).await.unwrap().unwrap();
    let park = Outcome::Park {
        after: Duration::from_secs(3_600),
        counted: true,
        error: outbox_core::PublishError::retryable("not now"),
    };
    claim.settle(vec![park]).await.unwrap();
    let mut all: Vec<_> = (0..10_000)
        .map(|_| message("blocked", "follower"))
        .collect();
    all.extend((0..200).map(|n| message(&format!("key {n}"), "free")));
    fixture.enqueue(&all).await;
    assert_eq!(deliver(&store, 200).await, vec!["free"; 200]);
    support::until("all followers are set aside", async || {
        assert!(store.claim(&limits(1_000)).await.unwrap().is_none());
        fixture.places().await == [0, 10_001, 0, 1]
    })
    .await;
}
