//! What a publisher promises that says that it chains: nothing of a key is written behind what is not.

use std::sync::Arc;

use outbox_core::{Message, PublishErrorKind};

use super::confirming::large;
use super::content::odd_topics;
use super::kit::{Broker, confirmed, failed, message, new_topic};

/// How many messages of a key are before the bad one, and how many behind it.
const SIDE: usize = 20;

/// The publisher says that it chains, and a whole batch arrives, each key in its order.
pub async fn a_chain_is_confirmed_in_order(broker: &Arc<Broker>) {
    if !asked(broker).await {
        return;
    }
    let topic = broker.topic().await;
    let batch: Vec<Message> = (0..2_000)
        .map(|n| {
            let key = match n % 10 {
                0 => format!("single-{n}"),
                of => format!("key-{}", of % 3),
            };
            message(&topic, &key, &format!("message {n}"))
        })
        .collect();
    for (number, answer) in broker.publish_chained(&batch).await.iter().enumerate() {
        confirmed(answer, format_args!("message {number} of a chained batch"));
    }
    broker.holds(&topic, &batch).await;
    for key in 0..3 {
        let key = format!("key-{key}");
        broker.holds_in_order(&topic, &key, &batch).await;
    }
}

/// A key ends at a message that the broker refuses, for now or for good, and the others go on.
pub async fn a_chain_ends_at_a_refused_message(broker: &Arc<Broker>) {
    if !asked(broker).await {
        return;
    }
    if broker.open().has_missing_topics() {
        let missing = new_topic();
        let bad = message(&missing, "hot", "to a missing topic");
        ends_at(broker, &bad, PublishErrorKind::TopicUnavailable).await;
    }
    if let Some(bytes) = broker.open().too_large_payload() {
        let topic = broker.topic().await;
        let bad = large(&topic, 0, bytes).to_builder().key("hot");
        let bad = bad.bytes(vec![b'x'; bytes]).expect("a valid message");
        ends_at(broker, &bad, PublishErrorKind::Rejected).await;
    }
}

/// A key ends at a message that the publisher itself refuses, and the others go on.
pub async fn a_chain_ends_at_what_cannot_be_sent(broker: &Arc<Broker>) {
    if !asked(broker).await {
        return;
    }
    for topic in odd_topics() {
        if !broker.open().create_topic(&topic).await {
            let bad = message(&topic, "hot", "to an impossible topic");
            return ends_at(broker, &bad, PublishErrorKind::Rejected).await;
        }
    }
}

/// Of a chain whose call is dropped there is never anything but a prefix, and what was reported is true.
pub async fn a_chain_that_is_cut_off_is_a_prefix(broker: &Arc<Broker>) {
    if !asked(broker).await {
        return;
    }
    let topic = broker.topic().await;
    for round in 0..4 {
        let key = format!("round-{round}");
        let batch: Vec<Message> = (0..1_500)
            .map(|n| message(&topic, &key, &format!("{round}.{n} {:.>700}", "")))
            .collect();
        // Cut when nothing, something, or much of it is answered.
        let least = [0, 1, 200, 700][round];
        let (_, answers) = broker
            .publish_chained_until(&batch, |answers| {
                answers
                    .iter()
                    .filter(|answer| answer.get().is_some())
                    .count()
                    >= least
            })
            .await;
        let confirmed = answers
            .iter()
            .filter(|answer| **answer == Some(Ok(())))
            .count();
        let there = broker.holds_a_prefix(&topic, &key, &batch).await;
        assert!(
            confirmed <= there,
            "{confirmed} were reported as confirmed before the call was dropped, and {there} are \
             at the broker"
        );
        // What was still on its way comes now or never.
        broker
            .confirm(&[message(&topic, "after", "after it")])
            .await;
        broker.holds_a_prefix(&topic, &key, &batch).await;
        let rest = &batch[confirmed..];
        let answers = broker.publish_chained(rest).await;
        assert!(answers.iter().all(|answer| *answer == Some(Ok(()))));
        let there = broker.holds_a_prefix(&topic, &key, &batch).await;
        assert_eq!(there, batch.len(), "how many arrived in the end");
    }
}

/// Whether the publisher says that it chains, which must be what its harness says. It may have to speak
/// to its broker before it knows.
async fn asked(broker: &Arc<Broker>) -> bool {
    let expected = broker.open().chains_keys();
    if expected {
        let topic = broker.topic().await;
        broker.confirm(&[message(&topic, "first", "first")]).await;
    } else {
        println!("not asked of this broker: a publisher that chains");
    }
    assert_eq!(
        broker.chains_keys(),
        expected,
        "whether the publisher says that it chains"
    );
    expected
}

/// Publishes a chain with `bad` in its middle: it fails as `kind`, nothing behind it is written, everything
/// else arrives, and the key goes on with the next call.
async fn ends_at(broker: &Broker, bad: &Message, kind: PublishErrorKind) {
    let topic = broker.topic().await;
    let of = |key: &str, from: usize| -> Vec<Message> {
        let numbers = from..from + SIDE;
        numbers
            .map(|n| message(&topic, key, &format!("{key} {n}")))
            .collect()
    };
    let (before, behind) = (of("hot", 0), of("hot", SIDE));
    let (others, more) = (of("other", 0), of("other", SIDE));
    let single = message(&topic, "single", "alone with its key");
    let batch: Vec<Message> = [
        &others[..],
        &before,
        std::slice::from_ref(bad),
        &behind,
        std::slice::from_ref(&single),
        &more,
    ]
    .concat();
    let answers = broker.publish_chained(&batch).await;
    for (place, (message, answer)) in batch.iter().zip(&answers).enumerate() {
        let is_behind = behind.iter().any(|it| it.id() == message.id());
        if message.id() == bad.id() {
            failed(answer, kind, "the bad message of a chain");
        } else if is_behind {
            assert!(
                !matches!(answer, Some(Ok(()))),
                "place {place}, behind the bad message of its key, was confirmed"
            );
        } else {
            confirmed(
                answer,
                format_args!("place {place} beside or before a bad message"),
            );
        }
    }
    let hot = broker.holds_a_prefix(&topic, "hot", &before).await;
    assert_eq!(hot, SIDE, "how many arrived before the bad message");
    let other: Vec<Message> = [&others[..], &more].concat();
    broker.holds_in_order(&topic, "other", &other).await;

    let answers = broker.publish_chained(&behind).await;
    for answer in &answers {
        confirmed(answer, "what was behind the bad message, in the next call");
    }
    let hot: Vec<Message> = [before, behind].concat();
    broker.holds_in_order(&topic, "hot", &hot).await;
}
