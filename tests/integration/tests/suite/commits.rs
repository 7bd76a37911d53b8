//! Only what committed is delivered.

use std::time::Duration;

use sqlx::Connection as _;

use crate::support::kafka::BROKER;
use crate::support::relay::Relay;
use crate::support::scene::{Servers, play};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_rolled_back_is_never_delivered_while_the_rest_of_the_transaction_is() {
    play(&BROKER, Servers::Steady, async |scene| {
        let relay = Relay::start(scene, &[]);
        let message = |n| scene.message("key", n);
        let (first, rolled_back, nested, last) = (message(1), message(2), message(3), message(4));

        let mut tx = scene.pool.begin().await.unwrap();
        scene.outbox.enqueue(&mut tx, &first).await.unwrap();
        let mut savepoint = tx.begin().await.unwrap();
        scene
            .outbox
            .enqueue(&mut savepoint, &rolled_back)
            .await
            .unwrap();
        // Released into a savepoint that is rolled back: gone too.
        let mut inner = savepoint.begin().await.unwrap();
        scene.outbox.enqueue(&mut inner, &nested).await.unwrap();
        inner.commit().await.unwrap();
        savepoint.rollback().await.unwrap();
        scene.outbox.enqueue(&mut tx, &last).await.unwrap();

        // A whole transaction of the same key, rolled back while the first one is open.
        let mut other = scene.pool.begin().await.unwrap();
        scene.outbox.enqueue(&mut other, &message(5)).await.unwrap();
        other.rollback().await.unwrap();
        tx.commit().await.unwrap();

        // Behind all of it, so that when this has arrived nothing else of the key can.
        let end = message(6);
        let mut tx = scene.pool.begin().await.unwrap();
        scene.outbox.enqueue(&mut tx, &end).await.unwrap();
        tx.commit().await.unwrap();

        scene.arrived(3).await;
        scene.settled().await;
        relay.stop(Duration::from_secs(20)).await;
        let arrived: Vec<_> = scene
            .broker
            .read(&scene.topic)
            .await
            .iter()
            .map(|record| record.id)
            .collect();
        assert_eq!(arrived, [first.id(), last.id(), end.id()]);
    })
    .await;
}
