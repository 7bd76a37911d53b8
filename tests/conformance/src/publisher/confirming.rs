//! What an answer is, and when it comes.

use std::sync::Arc;

use outbox_core::{Answer, Message};

use super::kit::{Broker, Reported, confirmed, message, messages, to};

/// Nothing to do takes no broker.
pub async fn an_empty_batch_is_done_at_once(broker: &Arc<Broker>) {
    assert_eq!(broker.publish(&[]).await, []);
}

/// Every message of a batch gets its answer.
pub async fn every_message_is_answered(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let batch = messages(&topic, 50);
    broker.confirm(&batch).await;
    broker.holds(&topic, &batch).await;
}

/// What is confirmed can be read at once, each time.
pub async fn a_confirmed_message_is_at_the_broker(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let all = messages(&topic, 24);
    for (number, batch) in all.chunks(3).enumerate() {
        broker.confirm(batch).await;
        broker.holds(&topic, &all[..(number + 1) * 3]).await;
    }
}

/// The first answers are reported while later ones are still awaited.
pub async fn answers_do_not_wait_for_the_batch(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let batch = wide(&topic, 10_000);
    let mut waited = false;
    let (ended, answers) = broker
        .publish_until(&batch, |answers| {
            waited = true;
            (1..answers.len()).contains(&answered(answers))
        })
        .await;
    assert!(
        !(ended && waited),
        "the call waited for the broker, and {} answers were all reported at its end",
        answers.len(),
    );
}

/// A batch larger than any queue on the way.
pub async fn ten_thousand_are_confirmed(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let batch: Vec<Message> = (0..10_000)
        .map(|n| message(&topic, &format!("key-{}", n % 500), &format!("message {n}")))
        .collect();
    broker.confirm(&batch).await;
    broker.holds(&topic, &batch).await;
}

/// Messages as large as the broker must take them, several in a batch.
pub async fn large_messages_are_confirmed(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let batch: Vec<Message> = (0..12)
        .map(|n| large(&topic, n, broker.open().large_payload()))
        .collect();
    broker.confirm(&batch).await;
    broker.holds(&topic, &batch).await;
}

/// Calls at the same time get their own answers, and a call's keys keep their order.
pub async fn calls_go_side_by_side(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let mut calls = Vec::new();
    for call in 0..8 {
        let key = format!("key-{call}");
        let all: Vec<Message> = (0..100)
            .map(|n| message(&topic, &key, &format!("message {n} of call {call}")))
            .collect();
        let broker = Arc::clone(broker);
        calls.push(tokio::spawn(async move {
            for batch in all.chunks(10) {
                broker.confirm(batch).await;
            }
            all
        }));
    }
    let mut everything = Vec::new();
    for call in calls {
        everything.extend(call.await.expect("a call at the same time as others"));
    }
    broker.holds(&topic, &everything).await;
    for call in 0..8 {
        broker
            .holds_in_order(&topic, &format!("key-{call}"), &everything)
            .await;
    }
}

/// What was reported before a call is dropped is true, and the publisher is none the worse.
pub async fn a_dropped_call_keeps_what_was_reported(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    for _ in 0..3 {
        let batch = wide(&topic, 2_000);
        let (_, answers) = broker
            .publish_until(&batch, |answers| answered(answers) > 0)
            .await;
        let there = broker.received(&topic).await;
        for (message, answer) in batch.iter().zip(&answers) {
            if answer == &Some(Ok(())) {
                let id = Some(message.id().to_string());
                assert!(
                    there.iter().any(|received| received.id == id),
                    "a message was reported as confirmed before the call was dropped, and is not \
                     at the broker"
                );
            }
        }
    }
    let after = message(&topic, "after", "after the dropped calls");
    let answers: Vec<Reported> = broker.publish(std::slice::from_ref(&after)).await;
    confirmed(&answers[0], "the first message after dropped calls");
    let id = Some(after.id().to_string());
    assert!(broker.received(&topic).await.iter().any(|r| r.id == id));
}

fn answered(answers: &[Answer]) -> usize {
    answers
        .iter()
        .filter(|answer| answer.get().is_some())
        .count()
}

/// So many messages of about a kilobyte: more than one answer's worth for any broker.
fn wide(topic: &str, count: usize) -> Vec<Message> {
    (0..count)
        .map(|n| {
            message(
                topic,
                &format!("key-{n}"),
                &format!("message {n} {:.>1000}", ""),
            )
        })
        .collect()
}

/// A message of so many bytes whose payload begins with its number and repeats nowhere soon.
pub(super) fn large(topic: &str, number: usize, bytes: usize) -> Message {
    let mut payload = format!("large {number} ").into_bytes();
    let mut state = number as u32;
    payload.resize_with(bytes, || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    to(topic)
        .key(number)
        .bytes(payload)
        .expect("a valid message")
}
