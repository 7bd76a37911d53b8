//! The order of a key.

use std::sync::Arc;

use outbox_core::Message;

use super::kit::{Broker, message};

/// The messages of a key arrive in slice order, with other keys between them.
pub async fn a_key_keeps_its_order_in_a_batch(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let batch = interleaved(&topic, 0..1_000, 7);
    broker.confirm(&batch).await;
    for key in 0..7 {
        broker
            .holds_in_order(&topic, &format!("key-{key}"), &batch)
            .await;
    }
}

/// The messages of a key arrive in the order of the calls.
pub async fn a_key_keeps_its_order_over_batches(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let all = interleaved(&topic, 0..300, 3);
    for batch in all.chunks(4) {
        broker.confirm(batch).await;
    }
    for key in 0..3 {
        broker
            .holds_in_order(&topic, &format!("key-{key}"), &all)
            .await;
    }
}

/// The empty key keeps its order like every other.
pub async fn an_empty_key_is_a_key(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let all: Vec<Message> = (0..200)
        .map(|n| message(&topic, "", &format!("message {n}")))
        .collect();
    for batch in all.chunks(40) {
        broker.confirm(batch).await;
    }
    broker.holds_in_order(&topic, "", &all).await;
}

fn interleaved(topic: &str, numbers: std::ops::Range<usize>, keys: usize) -> Vec<Message> {
    numbers
        .map(|n| message(topic, &format!("key-{}", n % keys), &format!("message {n}")))
        .collect()
}
