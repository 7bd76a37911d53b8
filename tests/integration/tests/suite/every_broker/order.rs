//! What each order mode promises, and what a dead message means for its key, read back from the broker.
//!
//! All messages of a key are written before the relay starts, so that one claim has them all. What fails for
//! now and what is refused for good is played in front of the broker, message by message, by the relay's
//! wrapper; what is too large the adapter or the broker refuses itself.

use std::collections::HashSet;
use std::time::Duration;

use outbox_core::Message;
use outbox_core::admin::DeadFilter;

use crate::support::broker::Install;
use crate::support::relay::Relay;
use crate::support::scene::{Scene, Servers, play};
use crate::support::until;

const STOP: Duration = Duration::from_secs(20);

/// The numbers of all copies of a key, in the order in which a consumer reads them.
type Copies = &'static [i64];

/// A key, and what a consumer reads of it.
type Expected = (&'static str, Copies);

pub(crate) async fn per_key_sends_nothing_of_a_key_before_what_fails(broker: &Install) {
    let expected: [Expected; 3] = [
        ("first fails", &[1, 2, 3]),
        ("second fails", &[1, 2, 3]),
        ("second is refused", &[1, 3]),
    ];
    continues(broker, "order=per_key", expected).await;
}

pub(crate) async fn per_key_sends_nothing_of_a_halted_key_until_a_person_decides(broker: &Install) {
    let halted = Halted {
        meanwhile: &[1],
        replayed: &[1, 2, 3, 4],
        discarded: &[1, 3, 4],
        large_meanwhile: &[1],
    };
    halts(broker, "order=per_key", halted).await;
}

pub(crate) async fn pipelined_sends_all_of_a_key_again_after_what_fails(broker: &Install) {
    let expected: [Expected; 3] = [
        ("first fails", &[2, 3, 1, 2, 3]),
        ("second fails", &[1, 3, 2, 3]),
        ("second is refused", &[1, 3]),
    ];
    continues(broker, "order=per_key_pipelined", expected).await;
}

pub(crate) async fn pipelined_sends_all_of_a_halted_key_again_when_a_person_has_decided(
    broker: &Install,
) {
    let halted = Halted {
        // What was in the batch with it is there, and nothing else.
        meanwhile: &[1, 3],
        replayed: &[1, 3, 2, 3, 4],
        discarded: &[1, 3, 3, 4],
        large_meanwhile: &[1, 3],
    };
    halts(broker, "order=per_key_pipelined", halted).await;
}

/// Also where a key would halt.
pub(crate) async fn unordered_lets_no_message_wait_for_another(broker: &Install) {
    let expected: [Expected; 3] = [
        ("first fails", &[2, 3, 1]),
        ("second fails", &[1, 3, 2]),
        ("second is refused", &[1, 3]),
    ];
    play(broker, Servers::Steady, async |scene| {
        scene.enqueue(&three_keys(scene)).await;
        let relay = Relay::start(scene, &["order=unordered", "on_dead=halt_key"]);
        scene.settled().await;
        relay.stop(STOP).await;
        assert_copies(broker, scene, &expected).await;
        let counts = scene.outbox.counts(&scene.pool).await.unwrap();
        assert_eq!((counts.dead, counts.halted_keys), (1, 0));
    })
    .await;
}

/// A key goes on after a dead message.
async fn continues(broker: &Install, order: &str, expected: [Expected; 3]) {
    play(broker, Servers::Steady, async |scene| {
        scene.enqueue(&three_keys(scene)).await;
        let settings = [&[order, "on_dead=continue"], broker.too_large.1].concat();
        let relay = Relay::start(scene, &settings);
        scene.settled().await;
        assert_copies(broker, scene, &expected).await;

        scene.enqueue(&second_too_large(broker, scene)).await;
        scene.settled().await;
        relay.stop(STOP).await;
        assert_eq!(without_repeats(&copies(scene, "large").await), [1, 3]);
        let all = DeadFilter::all();
        let page = scene.outbox.dead(&scene.pool, &all, None, 10);
        let dead = page.await.unwrap().messages;
        let kinds: Vec<_> = dead.iter().map(|dead| dead.error_kind.as_str()).collect();
        assert_eq!(kinds, ["rejected", "rejected"]);
    })
    .await;
}

/// What a consumer reads of a key that halts at its second message.
struct Halted {
    /// While it is halted.
    meanwhile: Copies,
    /// In the end, when the dead message was replayed.
    replayed: Copies,
    /// In the end, when it was discarded.
    discarded: Copies,
    /// While it is halted by a message that was too large, repeats left out.
    large_meanwhile: Copies,
}

/// A key halts at a dead message.
async fn halts(broker: &Install, order: &str, expected: Halted) {
    play(broker, Servers::Steady, async |scene| {
        let keys = ["replayed", "discarded"];
        let messages = keys.map(|key| {
            [
                scene.message(key, 1),
                asking(scene, key, 2, "refused"),
                scene.message(key, 3),
            ]
        });
        scene.enqueue(messages.as_flattened()).await;
        let settings = [&[order, "on_dead=halt_key"], broker.too_large.1].concat();
        let relay = Relay::start(scene, &settings);
        let halted = async |keys: u64, parked: u64| {
            until("the keys are halted", async || {
                let counts = scene.outbox.counts(&scene.pool).await.unwrap();
                (counts.waiting, counts.halted_keys, counts.parked) == (0, keys, parked)
            })
            .await;
        };
        halted(2, 2).await;
        // What comes later waits too, and others do not.
        let later = keys.map(|key| scene.message(key, 4));
        scene.enqueue(&later).await;
        scene.enqueue(&[scene.message("other", 1)]).await;
        halted(2, 4).await;
        let meanwhile: [Expected; 3] = [
            (keys[0], expected.meanwhile),
            (keys[1], expected.meanwhile),
            ("other", &[1]),
        ];
        assert_copies(broker, scene, &meanwhile).await;

        let [replayed, discarded] = messages.each_ref().map(|of_key| of_key[1].id());
        let (outbox, pool) = (&scene.outbox, &scene.pool);
        let replay = outbox.replay(pool, DeadFilter::ids([replayed]));
        assert_eq!(replay.finish().await.unwrap().messages, 1);
        let discard = outbox.discard(pool, DeadFilter::ids([discarded]));
        assert_eq!(discard.finish().await.unwrap().messages, 1);
        scene.settled().await;
        let decided: [Expected; 2] = [(keys[0], expected.replayed), (keys[1], expected.discarded)];
        assert_copies(broker, scene, &decided).await;

        let large = second_too_large(broker, scene);
        scene.enqueue(&large).await;
        halted(1, 1).await;
        let meanwhile = without_repeats(&copies(scene, "large").await);
        assert_eq!(meanwhile, expected.large_meanwhile);
        let discard = outbox.discard(pool, DeadFilter::ids([large[1].id()]));
        assert_eq!(discard.finish().await.unwrap().messages, 1);
        scene.settled().await;
        relay.stop(STOP).await;
        assert_eq!(without_repeats(&copies(scene, "large").await), [1, 3]);
    })
    .await;
}

/// A message that the relay's wrapper answers once, as its header says.
fn asking(scene: &Scene, key: &str, n: i64, header: &str) -> Message {
    let message = Message::to(&scene.topic).key(key).header(header, "1");
    message.bytes(n.to_string()).unwrap()
}

/// Three messages of each key of [`continues`].
fn three_keys(scene: &Scene) -> Vec<Message> {
    let mut messages = Vec::new();
    for (key, at, header) in [
        ("first fails", 1, "fails"),
        ("second fails", 2, "fails"),
        ("second is refused", 2, "refused"),
    ] {
        messages.extend((1..=3).map(|n| match n == at {
            true => asking(scene, key, n, header),
            false => scene.message(key, n),
        }));
    }
    messages
}

/// Three messages of one key.
fn second_too_large(broker: &Install, scene: &Scene) -> [Message; 3] {
    let large = vec![b'x'; broker.too_large.0];
    let large = Message::to(&scene.topic).key("large").bytes(large).unwrap();
    [scene.message("large", 1), large, scene.message("large", 3)]
}

/// All copies of a key in the order of their arrival.
async fn copies(scene: &Scene, key: &str) -> Vec<i64> {
    let records = scene.broker.read(&scene.topic).await;
    let of_key = records.iter().filter(|it| it.key.as_deref() == Some(key));
    let payloads = of_key.map(|it| it.payload.as_deref().expect("a payload"));
    payloads
        .map(|it| {
            std::str::from_utf8(it)
                .expect("text")
                .parse()
                .expect("a number")
        })
        .collect()
}

async fn assert_copies(broker: &Install, scene: &Scene, expected: &[Expected]) {
    for (key, expected) in expected {
        let expected = match broker.drops_repeats {
            true => without_repeats(expected),
            false => expected.to_vec(),
        };
        assert_eq!(copies(scene, key).await, expected, "{key}");
    }
}

fn without_repeats(copies: &[i64]) -> Vec<i64> {
    let mut seen = HashSet::new();
    let first = copies.iter().copied().filter(|copy| seen.insert(*copy));
    first.collect()
}
