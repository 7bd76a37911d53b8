//! Relays that die of a message, and relays that are killed again and again for no message's sake.

use std::time::{Duration, Instant};

use outbox_core::Message;
use outbox_core::admin::DeadFilter;

use crate::support::kafka::BROKER;
use crate::support::relay::Relay;
use crate::support::scene::{Scene, Servers, play};
use crate::support::{PATIENCE, until};

const STOP: Duration = Duration::from_secs(20);
/// The header that is fatal to a relay.
const FATAL: &str = "fatal";

/// Keeps so many relays running, as supervisors would, until everything is settled. How many ended.
async fn supervise(scene: &Scene, relays: usize, settings: &[&str]) -> usize {
    let mut relays: Vec<Relay> = (0..relays).map(|_| Relay::start(scene, settings)).collect();
    let mut ended = 0;
    until("everything is settled", async || {
        for relay in &mut relays {
            if relay.has_ended() {
                ended += 1;
                *relay = Relay::start(scene, settings);
            }
        }
        scene.unsettled().await == 0
    })
    .await;
    for relay in relays {
        relay.stop(STOP).await;
    }
    ended
}

/// Two messages in a backlog that end every process which publishes them, among others of their keys.
async fn write_around(scene: &Scene, keys: usize) -> [Message; 2] {
    scene.write_backlog(keys, 20, 1).await;
    let fatal = ["key-7", "key-23"].map(|key| {
        let message = Message::to(&scene.topic).key(key).header(FATAL, "yes");
        message.bytes("fatal").unwrap()
    });
    let mut tx = scene.pool.begin().await.unwrap();
    scene.outbox.enqueue_all(&mut tx, &fatal).await.unwrap();
    for n in 21..=30 {
        for key in 1..=keys {
            let key = format!("key-{key}");
            let message = scene.message(&key, n);
            scene.write(&mut tx, &key, n, &message).await.unwrap();
        }
    }
    tx.commit().await.unwrap();
    fatal
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_ends_the_process_each_time_is_dead_after_a_few_starts_and_no_other_is() {
    play(&BROKER, Servers::Steady, async |scene| {
        let fatal = write_around(scene, 60).await;
        let ended = supervise(scene, 3, &["batch=200"]).await;
        // One end for each message that nobody expects, one that finds it among a few, and three that
        // prove it; the two may take their lanes at the same time.
        assert!(
            (2 * 3..=2 * 5 + 2).contains(&ended),
            "{ended} processes ended"
        );

        let all = DeadFilter::all();
        let page = scene.outbox.dead(&scene.pool, &all, None, 10);
        let dead = page.await.unwrap().messages;
        let ids: Vec<_> = dead.iter().map(|dead| dead.id).collect();
        assert_eq!(ids, fatal.each_ref().map(Message::id));
        for dead in &dead {
            assert!(dead.error.contains("ended 3 times"), "{}", dead.error);
        }
        let audit = scene.audit().await;
        assert_eq!(audit.committed, 60 * 30);
        audit.assert_sound();
        assert_eq!(scene.failures_seen().await, 2);
    })
    .await;
}

/// Killed while they start, look, publish and settle; there is no message in it that ends anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_that_are_killed_again_and_again_give_up_no_message() {
    play(&BROKER, Servers::Steady, async |scene| {
        scene.write_backlog(60, 400, 1).await;
        let settings = ["batch=100"];
        let start = Instant::now();
        let mut random = fastrand::Rng::with_seed(26);
        let mut kills = 0;
        let mut relays = [(); 2].map(|()| Relay::start(scene, &settings));
        while kills < 14 {
            assert!(start.elapsed() < PATIENCE, "{kills} kills");
            let before = scene.unsettled().await;
            let soon = Instant::now() + Duration::from_millis(random.u64(0..400));
            until("some work is done", async || {
                let left = scene.unsettled().await;
                Instant::now() > soon && (kills % 3 == 0 || left < before || left == 0)
            })
            .await;
            let killed = &mut relays[kills % 2];
            std::mem::replace(killed, Relay::start(scene, &settings))
                .kill()
                .await;
            kills += 1;
        }
        scene.settled().await;
        for relay in relays {
            relay.stop(STOP).await;
        }
        assert_eq!(scene.failures_seen().await, 0);
        assert_eq!(scene.outbox.counts(&scene.pool).await.unwrap().dead, 0);
        scene.audit().await.assert_sound();
    })
    .await;
}
