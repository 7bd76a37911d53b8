//! What fails for one message or one topic delays only its own keys.

use std::time::Duration;

use outbox_conformance::address;
use outbox_core::Message;
use outbox_core::admin::DeadFilter;

use crate::support::kafka::{BROKER, Kafka};
use crate::support::relay::Relay;
use crate::support::scene::{Scene, Servers, play};
use crate::support::until;

const STOP: Duration = Duration::from_secs(20);

/// The message ids in a topic, in order for one key.
async fn ids(scene: &Scene, topic: &str) -> Vec<uuid::Uuid> {
    let records = scene.broker.read(topic).await;
    records.iter().map(|record| record.id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_keys_of_a_missing_topic_wait_and_they_go_on_when_it_is_there() {
    play(&BROKER, Servers::Steady, async |scene| {
        let missing = format!("{}.missing", scene.topic);
        let to_missing =
            |key: &str, n: i64| Message::to(&missing).key(key).bytes(n.to_string()).unwrap();
        let mut messages = Vec::new();
        for n in 1..=20 {
            for key in 0..10 {
                messages.push(scene.message(&format!("flows-{key}"), n));
                messages.push(to_missing(&format!("waits-{key}"), n));
            }
        }
        // A key keeps its order across topics: this one may not overtake.
        let behind = scene.message("waits-0", 21);
        messages.push(behind.clone());
        let relay = Relay::start(scene, &[]);
        scene.enqueue(&messages).await;

        scene.arrived(200).await;
        let counts = async || scene.outbox.counts(&scene.pool).await.unwrap();
        until("the others are parked", async || {
            counts().await.parked == 201
        })
        .await;
        let seen = counts().await;
        assert_eq!((seen.waiting, seen.dead, seen.blocked_keys), (0, 0, 10));
        assert_eq!(scene.broker.count(&scene.topic).await, 200);

        scene.create_topic(&missing).await;
        scene.settled().await;
        relay.stop(STOP).await;
        assert_eq!(scene.failures_seen().await, 0);
        assert_eq!(ids(scene, &scene.topic).await.len(), 201);
        let arrived = scene.broker.read(&missing).await;
        assert_eq!(arrived.len(), 200);
        for key in 0..10 {
            let key = format!("waits-{key}");
            let of_key = arrived.iter().filter(|it| it.key.as_ref() == Some(&key));
            let numbers: Vec<_> = of_key.map(|it| it.payload.clone().unwrap()).collect();
            let expected: Vec<_> = (1..=20).map(|n: i64| n.to_string().into_bytes()).collect();
            assert_eq!(numbers, expected, "{key}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_kafka_cannot_carry_is_dead_at_once_with_the_reason_and_its_key_goes_on() {
    play(&BROKER, Servers::Steady, async |scene| {
        let too_large = Message::to(&scene.topic)
            .key("key")
            .bytes(vec![b'x'; 2_000_000])
            .unwrap();
        let bad_name = Message::to("bestellungen/größe")
            .key("key")
            .bytes("x")
            .unwrap();
        let around = [1, 2, 3].map(|n| scene.message("key", n));
        let relay = Relay::start(scene, &[]);
        let all = [&around[0], &too_large, &around[1], &bad_name, &around[2]];
        scene.enqueue(&all.map(Clone::clone)).await;
        scene.arrived(3).await;
        scene.settled().await;
        relay.stop(STOP).await;

        assert_eq!(ids(scene, &scene.topic).await, around.map(|it| it.id()));
        let all = DeadFilter::all();
        let page = scene.outbox.dead(&scene.pool, &all, None, 10);
        let dead = page.await.unwrap().messages;
        let [large, named] = &dead[..] else {
            panic!("{dead:?}");
        };
        assert_eq!((large.id, named.id), (too_large.id(), bad_name.id()));
        assert!(large.error.contains("2000048 bytes"), "{}", large.error);
        assert!(
            named.error.contains("has the character '/'"),
            "{}",
            named.error
        );
        for dead in &dead {
            assert_eq!(dead.error_kind, "rejected");
            assert!(!dead.halted);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_halted_key_waits_for_a_person_and_goes_on_after_a_replay_or_a_discard() {
    play(&BROKER, Servers::Steady, async |scene| {
        let narrow = format!("{}.narrow", scene.topic);
        let kafka = Kafka::at(address(BROKER.steady));
        kafka
            .create_topic_with(&narrow, &[("max.message.bytes", "2000")])
            .await;
        scene.adopt_topic(&narrow);
        let message = |key: &str, bytes: usize| {
            Message::to(&narrow)
                .key(key)
                .bytes(vec![b'x'; bytes])
                .unwrap()
        };
        // Of each key the second message is too large for the topic.
        let keys = ["replayed", "discarded"];
        let messages = keys.map(|key| [10, 5_000, 20, 30].map(|bytes| message(key, bytes)));
        let relay = Relay::start(scene, &["on_dead=halt_key"]);
        scene.enqueue(messages.as_flattened()).await;

        let counts = async || scene.outbox.counts(&scene.pool).await.unwrap();
        until("both keys are halted", async || {
            let counts = counts().await;
            counts.halted_keys == 2 && counts.waiting == 0
        })
        .await;
        let seen = counts().await;
        assert_eq!((seen.parked, seen.dead), (4, 2));
        // What comes later waits too, and others are not held up by it.
        let later = keys.map(|key| message(key, 40));
        let other = message("other", 50);
        scene
            .enqueue(&[later[0].clone(), later[1].clone(), other.clone()])
            .await;
        until("the later ones are parked", async || {
            counts().await.parked == 6
        })
        .await;
        until("the other one is delivered", async || {
            scene.broker.count(&narrow).await == 3
        })
        .await;

        kafka
            .set_on_topic(&narrow, "max.message.bytes", "20000")
            .await;
        let pool = &scene.pool;
        let [replayed, discarded] = messages.each_ref().map(|of_key| of_key[1].id());
        let replay = scene.outbox.replay(pool, DeadFilter::ids([replayed]));
        assert_eq!(replay.finish().await.unwrap().messages, 1);
        let discard = scene.outbox.discard(pool, DeadFilter::ids([discarded]));
        assert_eq!(discard.finish().await.unwrap().messages, 1);
        scene.settled().await;
        relay.stop(STOP).await;

        let arrived = ids(scene, &narrow).await;
        let of_key = |number: usize| -> Vec<_> {
            let mut expected: Vec<_> = messages[number].iter().map(Message::id).collect();
            expected.push(later[number].id());
            arrived
                .iter()
                .copied()
                .filter(|id| expected.contains(id))
                .collect()
        };
        let all = |number: usize| -> Vec<_> {
            let chain = messages[number].iter().chain([&later[number]]);
            chain.map(Message::id).collect()
        };
        assert_eq!(of_key(0), all(0));
        assert_eq!(of_key(1), [&all(1)[..1], &all(1)[2..]].concat());
        assert_eq!(arrived.len(), 10);
        assert_eq!(counts().await.dead, 0);
    })
    .await;
}
