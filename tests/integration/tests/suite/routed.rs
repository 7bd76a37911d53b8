//! Two brokers behind one relay: an outage of one is none of the other.

use std::collections::HashSet;
use std::time::Duration;

use outbox_conformance::address;
use outbox_core::Message;
use uuid::Uuid;

use crate::support::broker::{Broker, Record};
use crate::support::relay::Relay;
use crate::support::scene::{Scene, Servers, play};
use crate::support::{nats, redis, until};

const STOP: Duration = Duration::from_secs(20);
const KEYS: i64 = 10;
/// Messages of each key before, and up to the end of, the outage.
const BEFORE: i64 = 5;
const IN_ALL: i64 = 20;

/// What is written: keys of one topic, keys of the other one, and keys that take turns.
struct Topics<'a> {
    redis: &'a str,
    nats: &'a str,
}

impl Topics<'_> {
    fn messages(&self, numbers: std::ops::RangeInclusive<i64>) -> Vec<(&'static str, Message)> {
        let mut messages = Vec::new();
        for n in numbers {
            for key in 0..KEYS {
                let turn = [self.redis, self.nats][(n % 2) as usize];
                for (kind, topic) in [("redis", self.redis), ("nats", self.nats), ("both", turn)] {
                    let key = format!("{kind}-{key}");
                    let message = Message::to(topic).key(key).bytes(n.to_string());
                    messages.push((kind, message.unwrap()));
                }
            }
        }
        messages
    }
}

async fn enqueue(scene: &Scene, messages: &[(&str, Message)]) {
    let messages: Vec<Message> = messages.iter().map(|(_, it)| it.clone()).collect();
    scene.enqueue(&messages).await;
}

/// The ids of a key's messages in the order of their first copies.
fn first_copies(records: &[Record], key: &str) -> Vec<Uuid> {
    let mut seen = HashSet::new();
    let of_key = records.iter().filter(|it| it.key.as_deref() == Some(key));
    of_key
        .map(|it| it.id)
        .filter(|id| seen.insert(*id))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_one_broker_is_stopped_the_other_ones_topics_go_on() {
    play(&redis::BROKER, Servers::FaultyBroker, async |scene| {
        let beside = (nats::BROKER.at)(address(nats::BROKER.steady));
        let in_nats = format!("{}_nats", scene.topic);
        beside.create_topic(&in_nats).await;
        let settings = settings(&*beside, &in_nats);
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let relay = Relay::start(scene, &settings);
        outage(scene, &*beside, &in_nats, &relay).await;
        relay.stop(STOP).await;
        beside.delete_topic(&in_nats).await;
    })
    .await;
}

fn settings(beside: &dyn Broker, topic: &str) -> Vec<String> {
    let mut settings = vec![
        "publish_timeout_ms=12000".to_owned(),
        "call_timeout_ms=5500".to_owned(),
        format!("beside.route={topic}"),
    ];
    settings.extend(redis::BROKER.impatient.iter().map(|it| (*it).to_owned()));
    let of_nats = nats::BROKER.impatient.iter().map(|it| (*it).to_owned());
    for argument in beside.relay_arguments().into_iter().chain(of_nats) {
        settings.push(match argument.strip_prefix("broker=") {
            Some(broker) => format!("beside={broker}"),
            None => format!("beside.{argument}"),
        });
    }
    settings
}

async fn outage(scene: &Scene, beside: &dyn Broker, in_nats: &str, relay: &Relay) {
    let topics = Topics {
        redis: &scene.topic,
        nats: in_nats,
    };
    let before = topics.messages(1..=BEFORE);
    enqueue(scene, &before).await;
    scene.settled().await;

    scene.service().stop().await;
    let during = topics.messages(BEFORE + 1..=IN_ALL);
    enqueue(scene, &during).await;
    let nats_alone = |messages: &[(&str, Message)]| -> Vec<Uuid> {
        let alone = messages.iter().filter(|(kind, _)| *kind == "nats");
        alone.map(|(_, message)| message.id()).collect()
    };
    let there = (nats_alone(&before).len() + nats_alone(&during).len()) as u64;
    // The first message of the keys that take turns is now one for Redis, so none of them goes on.
    let turns = before.iter().filter(|(kind, _)| *kind == "both");
    let turns = turns.filter(|(_, it)| it.topic() == in_nats).count() as u64;
    let goes_on = there + turns;
    until("the topics of NATS go on", async || {
        beside.count(in_nats).await >= goes_on
    })
    .await;
    until("all others are parked", async || {
        let counts = scene.outbox.counts(&scene.pool).await.unwrap();
        counts.waiting == 0 && counts.dead == 0
    })
    .await;
    assert_eq!(scene.unsettled().await, 2 * KEYS * (IN_ALL - BEFORE));
    // Nothing overtook what waits for Redis.
    assert_eq!(beside.count(in_nats).await, goes_on);
    until("the relay tells of the outage", async || {
        relay.has_logged("one of the brokers is away")
    })
    .await;

    scene.service().start().await;
    scene.settled().await;
    until("the relay tells of its end", async || {
        relay.has_logged("one of the brokers is back")
    })
    .await;
    assert!(!relay.has_logged("the broker is away"));
    assert_eq!(scene.failures_seen().await, 0);
    let (redis, nats) = (
        scene.broker.read(&scene.topic).await,
        beside.read(in_nats).await,
    );
    let all = [before, during].concat();
    for kind in ["redis", "nats", "both"] {
        for key in 0..KEYS {
            let key = format!("{kind}-{key}");
            let of_key = |topic: &str| -> Vec<Uuid> {
                let all = all.iter().map(|(_, message)| message);
                all.filter(|it| it.key() == Some(&key) && it.topic() == topic)
                    .map(Message::id)
                    .collect()
            };
            assert_eq!(first_copies(&redis, &key), of_key(&scene.topic), "{key}");
            assert_eq!(first_copies(&nats, &key), of_key(in_nats), "{key}");
        }
    }
}
