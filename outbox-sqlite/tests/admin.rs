//! What people do: counts, lists, and decisions about dead messages.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, SystemTime};

use outbox_core::{Message, Outcome, PublishError, Store as _, Uuid};
use support::{Fixture, deliver, limits, message, texts};

fn dead(halt: bool) -> Outcome {
    Outcome::Dead {
        error: PublishError::rejected("too large"),
        halt,
    }
}

fn park() -> Outcome {
    Outcome::Park {
        after: Duration::from_secs(3_600),
        counted: true,
        error: PublishError::retryable("not now"),
    }
}

/// Claims everything there is, and settles each message by its text.
async fn settle(fixture: &Fixture, outcome: impl Fn(&str) -> Outcome) {
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    while let Some(claim) = store.claim(&limits(1_000)).await.unwrap() {
        let outcomes = texts(&*claim).iter().map(|text| outcome(text)).collect();
        claim.settle(outcomes).await.unwrap();
    }
}

#[tokio::test]
async fn counts_say_what_is_where_and_how_old() {
    let fixture = Fixture::new().await;
    let nothing = fixture.outbox.counts(&fixture.pool).await.unwrap();
    assert_eq!((nothing.waiting, nothing.oldest_waiting), (0, None));

    let parked = [message("a", "park"), message("a", "behind")];
    fixture.enqueue(&parked).await;
    fixture
        .enqueue(&[message("b", "halt"), message("c", "die")])
        .await;
    settle(&fixture, |text| match text {
        "park" => park(),
        "behind" => Outcome::Behind,
        "halt" => dead(true),
        _ => dead(false),
    })
    .await;
    fixture
        .enqueue(&[message("d", "waits"), message("b", "waits")])
        .await;
    fixture
        .execute("UPDATE outbox_message SET enqueued_at = enqueued_at - 60000")
        .await
        .unwrap();
    let counts = fixture.outbox.counts(&fixture.pool).await.unwrap();
    assert_eq!((counts.waiting, counts.parked, counts.dead), (2, 2, 2));
    assert_eq!((counts.blocked_keys, counts.halted_keys), (2, 1));
    let oldest = counts.oldest_waiting.unwrap();
    assert!((60..120).contains(&oldest.as_secs()), "{oldest:?}");
}

#[tokio::test]
async fn dead_messages_are_listed_in_pages_with_their_reasons() {
    let fixture = Fixture::new().await;
    let mut all: Vec<Message> = (0..5).map(|n| message("k", &n.to_string())).collect();
    all.push(Message::to("other").tombstone().unwrap());
    let before = SystemTime::now() - Duration::from_secs(1);
    fixture.enqueue(&all).await;
    settle(&fixture, |_| dead(false)).await;

    let mut listed = Vec::new();
    let mut after = None;
    loop {
        let page = fixture.outbox.dead(&fixture.pool, after, 4).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.position);
        listed.extend(page);
    }
    let ids = |messages: &[Message]| messages.iter().map(Message::id).collect::<Vec<Uuid>>();
    assert_eq!(
        listed.iter().map(|dead| dead.id).collect::<Vec<_>>(),
        ids(&all)
    );
    let first = &listed[0];
    assert_eq!(
        (first.topic.as_str(), first.key.as_deref()),
        ("test", Some("k"))
    );
    assert_eq!((first.parked, first.failures, first.halted), (0, 1, false));
    assert_eq!(
        (first.error_kind.as_str(), first.error.as_str()),
        ("rejected", "too large")
    );
    assert_eq!(first.payload_bytes, Some(1));
    assert!(before <= first.enqueued_at && first.enqueued_at <= first.died_at);
    assert!(first.died_at <= SystemTime::now() + Duration::from_secs(1));
    assert_eq!((&listed[5].key, listed[5].payload_bytes), (&None, None));
}

#[tokio::test]
async fn decisions_count_what_they_decided() {
    let fixture = Fixture::new().await;
    // More than one step.
    let all: Vec<Message> = (0..1_500).map(|n| message("k", &n.to_string())).collect();
    fixture.enqueue(&all).await;
    settle(&fixture, |_| dead(false)).await;
    let (outbox, pool) = (&fixture.outbox, &fixture.pool);
    let unknown = Uuid::now_v7();
    assert_eq!(outbox.replay(pool, &[unknown]).await.unwrap(), 0);
    assert_eq!(
        outbox.discard(pool, &[unknown, all[0].id()]).await.unwrap(),
        1
    );
    assert_eq!(
        outbox
            .replay(pool, &[all[1].id(), all[1].id()])
            .await
            .unwrap(),
        1
    );
    assert_eq!(outbox.discard_oldest(pool, 8).await.unwrap(), 8);
    assert_eq!(outbox.replay_oldest(pool, 1_200).await.unwrap(), 1_200);
    assert_eq!(outbox.discard_oldest(pool, u64::MAX).await.unwrap(), 290);
    assert_eq!(fixture.places().await, [0, 1_201, 0, 1]);

    let store = outbox.store(pool).await.unwrap();
    let expected: Vec<String> = std::iter::once(1)
        .chain(10..1_210)
        .map(|n| n.to_string())
        .collect();
    assert_eq!(deliver(&store, 1_201).await, expected);
    assert_eq!(fixture.places().await, [0, 0, 0, 0]);
}

/// A person need not stop the relay, nor wait for what it has in hand.
#[tokio::test]
async fn a_decision_during_a_claim_of_the_key_is_kept() {
    let fixture = Fixture::new().await;
    fixture.enqueue(&[message("k", "dead")]).await;
    settle(&fixture, |_| dead(false)).await;
    fixture
        .enqueue(&["0", "1", "2"].map(|text| message("k", text)))
        .await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    let claim = store.claim(&limits(1_000)).await.unwrap().unwrap();
    assert_eq!(
        fixture
            .outbox
            .replay_oldest(&fixture.pool, 1)
            .await
            .unwrap(),
        1
    );
    let outcomes = vec![Outcome::Delivered, Outcome::Released, Outcome::Released];
    claim.settle(outcomes).await.unwrap();
    assert_eq!(deliver(&store, 3).await, ["dead", "1", "2"]);
    assert_eq!(fixture.places().await, [0, 0, 0, 0]);
}

/// A store that waits is told of what a person has put back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_ends_the_wait() {
    let fixture = Fixture::new().await;
    fixture
        .enqueue(&[message("k", "again"), message("k", "next")])
        .await;
    settle(&fixture, |text| match text {
        "again" => dead(true),
        _ => Outcome::Behind,
    })
    .await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    let waits = outbox_core::ClaimLimits {
        wait: support::DEADLINE,
        ..limits(1_000)
    };
    let call = tokio::spawn(async move { texts(&*store.claim(&waits).await.unwrap().unwrap()) });
    assert_eq!(
        fixture
            .outbox
            .discard_oldest(&fixture.pool, 1)
            .await
            .unwrap(),
        1
    );
    assert_eq!(call.await.unwrap(), ["next"]);
}
