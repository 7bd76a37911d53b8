//! Many messages wait: order, lateness and memory.

use std::time::Duration;

use sqlx::{Executor as _, PgConnection};

use crate::support::kafka::BROKER;
use crate::support::relay::Relay;
use crate::support::scene::{Scene, Servers, play};

const STOP: Duration = Duration::from_secs(20);

/// A transaction that has written its messages and does not commit yet.
async fn late(scene: &Scene, key: &str, first: i64) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let mut tx = scene.pool.begin().await.unwrap();
    write(scene, &mut tx, key, first).await;
    tx
}

/// Five messages of a key.
async fn write(scene: &Scene, conn: &mut PgConnection, key: &str, first: i64) {
    for n in first..first + 5 {
        let message = scene.message(key, n);
        scene.write(conn, key, n, &message).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_transactions_keep_their_order_in_a_backlog_under_an_old_snapshot() {
    play(&BROKER, Servers::Steady, async |scene| {
        // It keeps every deleted row in the index for as long as the test runs.
        let mut old = scene
            .pool
            .begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ")
            .await
            .unwrap();
        old.execute("SELECT 1").await.unwrap();

        // Their positions are the lowest of all, and they become visible when far higher ones are gone.
        let mut open = Vec::new();
        for key in 0..4 {
            open.push(late(scene, &format!("late-{key}"), 1).await);
        }
        scene.write_backlog(2_000, 100, 250).await;
        let relays = [Relay::start(scene, &[]), Relay::start(scene, &[])];
        for (number, tx) in open.into_iter().enumerate() {
            scene.arrived(20_000 * (number as u64 + 1)).await;
            tx.commit().await.unwrap();
            // After it has committed, and so behind it.
            let mut conn = scene.pool.acquire().await.unwrap();
            write(scene, &mut conn, &format!("late-{number}"), 6).await;
        }
        assert!(
            scene.unsettled().await > 0,
            "the relays were faster than the test"
        );
        scene.settled().await;
        for relay in relays {
            let peak = relay.peak_memory();
            assert!(peak < 150, "a relay took {peak} MiB");
            relay.stop(STOP).await;
        }
        old.rollback().await.unwrap();
        let audit = scene.audit().await;
        assert_eq!(audit.committed, 200_040);
        audit.assert_exactly_once();
        assert_eq!(scene.failures_seen().await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_large_messages_are_bounded_by_their_bytes() {
    play(&BROKER, Servers::Steady, async |scene| {
        // 400 MB, of which one claim without a bound on bytes would take all.
        scene.write_backlog(100, 5, 800_000).await;
        let relay = Relay::start(scene, &[]);
        scene.settled().await;
        let peak = relay.peak_memory();
        // Four claims of 16 MiB, decoded from buffers of the same size, and the client's queue of 64 MiB.
        assert!(peak < 300, "the relay took {peak} MiB");
        relay.stop(STOP).await;
        scene.audit().await.assert_exactly_once();
    })
    .await;
}
