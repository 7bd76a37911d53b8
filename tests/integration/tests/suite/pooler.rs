//! A transaction pooler between everybody and Postgres: a session belongs to nobody for longer than a
//! transaction.

use std::time::Duration;

use futures_util::future::join_all;
use futures_util::join;
use outbox_core::Message;
use outbox_core::admin::DeadFilter;
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, Row as _};

use crate::support::kafka::BROKER;
use crate::support::relay::Relay;
use crate::support::scene::{Scene, Servers, play};
use crate::support::until;

const STOP: Duration = Duration::from_secs(20);
const PRODUCERS: i64 = 12;
const EACH: i64 = 100;

/// Writes its messages one transaction each, as an application behind the pooler does.
async fn produce(scene: &Scene, pool: &PgPool, key: &str) {
    for n in 1..=EACH {
        let message = scene.message(key, n);
        let mut tx = pool.begin().await.unwrap();
        scene.write(&mut tx, key, n, &message).await.unwrap();
        tx.commit().await.unwrap();
    }
}

/// What one of the pooler's sessions has of others: a setting, a lock, a channel that it listens to.
async fn left_behind(scene: &Scene, pool: &PgPool) -> i64 {
    let statement = "SELECT (current_setting('synchronous_commit') <> 'on')::int::bigint \
         + (current_setting('enable_seqscan') <> 'on')::int \
         + (SELECT count(*) FROM pg_listening_channels()) \
         + (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) \
         + (SELECT count(*) FROM pg_prepared_statements)";
    let row = sqlx::raw_sql(scene.sql(statement))
        .fetch_one(pool)
        .await
        .unwrap();
    row.get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_a_transaction_pooler_everything_works_and_nothing_is_left_in_its_sessions() {
    play(&BROKER, Servers::Pooled, async |scene| {
        let pool = PgPoolOptions::new()
            .max_connections(PRODUCERS as u32)
            .connect(&scene.url)
            .await
            .unwrap();
        let outbox = &scene.outbox;
        outbox.migrate(&pool).await.unwrap();

        let settings = ["pooled=true", "batch=50"];
        let doomed = Relay::start(scene, &settings);
        let other = Relay::start(scene, &settings);
        let keys: Vec<String> = (0..PRODUCERS).map(|key| format!("key-{key}")).collect();
        let producers = join_all(keys.iter().map(|key| produce(scene, &pool, key)));
        let killer = async {
            scene.arrived(300).await;
            doomed.kill().await;
        };
        join!(producers, killer);
        scene.settled().await;
        assert!(
            !other.has_logged("the store fails"),
            "a claim met what another client had left"
        );
        let audit = scene.audit().await;
        assert_eq!(audit.committed, (PRODUCERS * EACH) as usize);
        audit.assert_sound();
        assert_eq!(scene.failures_seen().await, 0);

        // People decide through it too.
        let refused = |key: &str| {
            Message::to("bestellungen/größe")
                .key(key)
                .bytes("x")
                .unwrap()
        };
        let refused = ["replayed", "discarded"].map(refused);
        let mut tx = pool.begin().await.unwrap();
        outbox.enqueue_all(&mut tx, &refused).await.unwrap();
        tx.commit().await.unwrap();
        let dead = async || outbox.counts(&pool).await.unwrap().dead;
        until("both are dead", async || dead().await == 2).await;
        let [replayed, discarded] = refused.each_ref().map(Message::id);
        let discard = outbox.discard(&pool, DeadFilter::ids([discarded]));
        assert_eq!(discard.finish().await.unwrap().messages, 1);
        let replay = outbox.replay(&pool, DeadFilter::ids([replayed]));
        assert_eq!(replay.finish().await.unwrap().messages, 1);
        until("the replayed one is dead again", async || dead().await == 1).await;

        // Every session of the pooler is somebody else's next time. Some of these are one session twice.
        let looks = join_all((0..PRODUCERS).map(|_| left_behind(scene, &pool))).await;
        assert_eq!(looks, vec![0; PRODUCERS as usize]);
        other.stop(STOP).await;
    })
    .await;
}
