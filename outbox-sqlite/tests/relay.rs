//! A relay beside producers that are at work all the time.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use outbox_core::memory::MemoryPublisher;
use outbox_core::{
    ClaimLimits, ExponentialBackoff, Message, PublishError, Relay, Store as _, Uuid,
};
use support::{DEADLINE, Fixture, limits, message, texts};
use tokio::task::JoinSet;

const PRODUCERS: usize = 8;
const TRANSACTIONS: usize = 100;

/// Each producer has a key of its own, rolls every tenth transaction back, and some messages fail once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_producers_and_a_relay_get_on() {
    let fixture = Arc::new(Fixture::new().await);
    let publisher = MemoryPublisher::new();
    let tries = Arc::new(AtomicUsize::new(0));
    publisher.answer_with(move |_| match tries.fetch_add(1, Relaxed) % 50 {
        49 => Err(PublishError::retryable("not now")),
        _ => Ok(()),
    });
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    let soon = ExponentialBackoff::new(
        Duration::from_millis(1),
        ExponentialBackoff::LONGEST,
        ExponentialBackoff::MAX_FAILURES,
    )
    .unwrap();
    let relay = Relay::builder(store, publisher.clone())
        .retry(soon)
        .build()
        .unwrap();

    let mut producers = JoinSet::new();
    for producer in 0..PRODUCERS {
        let fixture = Arc::clone(&fixture);
        producers.spawn(async move {
            let mut committed = Vec::new();
            for n in 0..TRANSACTIONS {
                let message = message(&format!("producer {producer}"), &n.to_string());
                let mut tx = fixture.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
                fixture.outbox.enqueue(&mut tx, &message).await.unwrap();
                if n % 10 == 9 {
                    tx.rollback().await.unwrap();
                } else {
                    tx.commit().await.unwrap();
                    committed.push(message.id());
                }
            }
            committed
        });
    }
    let expected = PRODUCERS * TRANSACTIONS * 9 / 10;
    let delivered = {
        let publisher = publisher.clone();
        async move { drop(publisher.wait_for(expected, DEADLINE).await) }
    };
    relay.run_until(delivered).await;

    let mut order_of_key: HashMap<String, Vec<Uuid>> = HashMap::new();
    let mut seen = Vec::new();
    for message in publisher.published() {
        if !seen.contains(&message.id()) {
            seen.push(message.id());
            let key = message.key().unwrap_or_default().to_owned();
            order_of_key.entry(key).or_default().push(message.id());
        }
    }
    let mut committed = producers.join_all().await;
    committed.sort();
    let mut delivered: Vec<Vec<Uuid>> = order_of_key.into_values().collect();
    delivered.sort();
    assert_eq!(delivered, committed);
    assert_eq!(fixture.places().await, [0, 0, 0, 0]);
}

/// The store that sleeps is told of an enqueue in its process, and does not wait for its next poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_of_this_process_is_noticed_soon() {
    let fixture = Fixture::new().await;
    let store = Arc::new(fixture.outbox.store(&fixture.pool).await.unwrap());
    let waits = ClaimLimits {
        wait: DEADLINE,
        ..limits(1)
    };
    let mut latencies = Vec::new();
    for n in 0..5 {
        let (claiming, waits) = (Arc::clone(&store), waits);
        let call = tokio::spawn(async move { claiming.claim(&waits).await.unwrap().unwrap() });
        // wait: until the store polls no more than once a second
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        let committed = Instant::now();
        fixture.enqueue(&[message("k", &n.to_string())]).await;
        let claim = call.await.unwrap();
        latencies.push(committed.elapsed());
        assert_eq!(texts(&*claim), [n.to_string()]);
        claim
            .settle(vec![outbox_core::Outcome::Delivered])
            .await
            .unwrap();
    }
    // Polling alone takes half a second on average, and is never as quick five times.
    let total: Duration = latencies.iter().sum();
    assert!(total < Duration::from_secs(1), "{latencies:?}");
}

#[tokio::test]
async fn a_claim_of_large_messages_keeps_to_the_bytes() {
    let fixture = Fixture::new().await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    let all: Vec<Message> = (0..40)
        .map(|n| {
            let message = Message::to("t").key(n % 10);
            message.bytes(vec![n as u8; 1024 * 1024]).unwrap()
        })
        .collect();
    fixture.enqueue(&all).await;
    let few = ClaimLimits {
        bytes: 5 * 1024 * 1024,
        ..limits(1_000)
    };
    let mut claims = 0;
    let mut left = all.len();
    while left > 0 {
        let claim = store.claim(&few).await.unwrap().unwrap();
        let count = claim.messages().len();
        assert!((1..=4).contains(&count), "{count}");
        let outcomes = vec![outbox_core::Outcome::Delivered; count];
        claim.settle(outcomes).await.unwrap();
        left -= count;
        claims += 1;
    }
    assert!(claims <= 20, "{claims} claims");
}
