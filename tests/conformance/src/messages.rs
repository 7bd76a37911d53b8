//! Messages of any content that a message can have, for property tests.

use outbox_core::{Message, Uuid};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Text of any script, without NUL.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[ -~]{0,24}", 2 => "[^\0]{0,24}", 1 => Just(String::new())]
}

/// Any message: mostly with a topic and header names that every broker takes, otherwise with odd ones. Each
/// has an id of its own.
pub fn any_message() -> impl Strategy<Value = Message> {
    let topic = prop_oneof![6 => "[a-z][a-z0-9_-]{0,20}", 1 => "[^\0]{1,60}"];
    let name = prop_oneof![4 => "[a-z][a-z0-9-]{0,12}", 1 => "[^\0]{1,20}"];
    let names = name.prop_filter("reserved", |name: &String| {
        !name.to_lowercase().starts_with("outbox-")
    });
    let headers = btree_map(names, text(), 0..5);
    let payload = option::weighted(0.8, vec(any::<u8>(), 0..200));
    (any::<u128>(), topic, option::of(text()), payload, headers).prop_map(
        |(id, topic, key, payload, headers)| {
            let message = Message::to(topic).id(Uuid::from_u128(id));
            let message = match key {
                Some(key) => message.key(key),
                None => message,
            };
            let message = headers.into_iter().fold(message, |message, (name, value)| {
                message.header(name, value)
            });
            let message = match payload {
                Some(payload) => message.bytes(payload),
                None => message.tombstone(),
            };
            message.expect("it is within its limits")
        },
    )
}

/// So many of them, the same ones every time.
pub fn some_messages(count: usize) -> Vec<Message> {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = any_message();
    (0..count)
        .map(|_| {
            let tree = strategy.new_tree(&mut runner);
            tree.expect("few are filtered").current()
        })
        .collect()
}
