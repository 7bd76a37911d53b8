//! What a claim holds, for how long, and how it waits.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use outbox_core::{ClaimLimits, Message, Outcome};

use super::kit::{
    LIMITS, LONG, Outbox, counters, dead, keyless, message, not_earlier, one_for_each_key, park,
    same_order, same_set,
};

/// A call on an empty outbox takes its wait and then says that there was nothing.
pub async fn an_empty_outbox_is_waited_for(outbox: &Outbox) {
    let wait = Duration::from_millis(200);
    let start = Instant::now();
    let limits = ClaimLimits { wait, ..LIMITS };
    assert!(outbox.claim(&limits).await.is_none());
    not_earlier(start, wait, "the answer that there is nothing");
    let limits = ClaimLimits {
        wait: Duration::ZERO,
        ..LIMITS
    };
    assert!(outbox.claim(&limits).await.is_none());
}

/// A call that waits comes back when something is committed, long before its wait is over.
pub async fn a_commit_ends_the_wait(outbox: &Outbox) {
    let limits = ClaimLimits {
        wait: LONG,
        ..LIMITS
    };
    let mut waiting = outbox.store().claim(&limits);
    let early = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
    assert!(
        early.is_err(),
        "a claim came back before anything was there"
    );
    let first = message("k", "first");
    outbox.enqueue([&first]).await;
    let claim = tokio::time::timeout(outbox.patience(), waiting)
        .await
        .expect("a commit did not end the wait of a claim")
        .expect("claim")
        .expect("a claim that waits gave up");
    same_order(claim.messages().iter().map(|c| &c.message), [&first]);
}

/// A call that waits comes back when a parked message becomes due, and nothing is committed.
pub async fn a_due_message_ends_the_wait(outbox: &Outbox) {
    let first = message("k", "first");
    outbox.enqueue([&first]).await;
    let claim = outbox.next(&LIMITS).await;
    let after = Duration::from_millis(300);
    let start = Instant::now();
    outbox.settle(claim, vec![park(after)]).await;
    let limits = ClaimLimits {
        wait: LONG,
        ..LIMITS
    };
    let claim = tokio::time::timeout(outbox.patience(), outbox.store().claim(&limits))
        .await
        .expect("a due message did not end the wait of a claim")
        .expect("claim")
        .expect("a claim that waits gave up");
    not_earlier(start, after, "a parked message");
    same_order(claim.messages().iter().map(|c| &c.message), [&first]);
}

/// A call that waits comes back when another claim ends, settled or dropped, and leaves something.
pub async fn the_end_of_another_claim_ends_the_wait(outbox: &Outbox) {
    let all: Vec<Message> = (0..3).map(|n| message("k", &format!("{n}"))).collect();
    outbox.enqueue(&all).await;
    let one = ClaimLimits {
        messages: 1,
        ..LIMITS
    };
    let limits = ClaimLimits { wait: LONG, ..one };
    let mut held = outbox.next(&one).await;
    for (settled, next) in [(true, &all[1]), (false, &all[1]), (true, &all[2])] {
        let mut waiting = outbox.store().claim(&limits);
        let early = tokio::time::timeout(Duration::from_millis(50), &mut waiting).await;
        assert!(early.is_err(), "two claims hold one key");
        match settled {
            true => outbox.settle(held, vec![Outcome::Delivered]).await,
            false => drop(held),
        }
        held = tokio::time::timeout(outbox.patience(), waiting)
            .await
            .expect("the end of a claim did not end the wait of another")
            .expect("claim")
            .expect("a claim that waits gave up");
        same_order(held.messages().iter().map(|c| &c.message), [next]);
    }
    outbox.settle(held, vec![Outcome::Delivered]).await;
    outbox.is_empty().await;
}

/// No claim holds more messages than asked, and all come.
pub async fn a_claim_keeps_to_the_number(outbox: &Outbox) {
    let mut all: Vec<Message> = (0..10).map(|n| message("k", &format!("{n}"))).collect();
    all.extend((0..10).map(|n| message(&format!("k{n}"), &format!("k{n}"))));
    all.extend((0..10).map(|n| keyless(&format!("keyless {n}"))));
    outbox.enqueue(&all).await;
    let limits = ClaimLimits {
        messages: 3,
        ..LIMITS
    };
    same_set(&outbox.deliver_within(&limits, all.len()).await, &all);
    outbox.is_empty().await;
}

/// No claim of several messages holds more bytes than asked, and all come.
pub async fn a_claim_keeps_to_the_bytes(outbox: &Outbox) {
    let sized = |key: &str, n: usize| message(key, &format!("{n:01000}"));
    let mut all: Vec<Message> = (0..10).map(|n| sized("k", n)).collect();
    all.extend((0..10).map(|n| sized(&format!("k{n}"), n)));
    outbox.enqueue(&all).await;
    let limits = ClaimLimits {
        bytes: 2_500,
        ..LIMITS
    };
    same_set(&outbox.deliver_within(&limits, all.len()).await, &all);
    outbox.is_empty().await;
}

/// A message that alone is larger than the limit is claimed all the same, in its place.
pub async fn a_larger_message_goes_alone(outbox: &Outbox) {
    let all = [
        message("k", "before"),
        message("k", &format!("{:05000}", 0)),
        message("k", "after"),
    ];
    outbox.enqueue(&all).await;
    let limits = ClaimLimits {
        bytes: 1_000,
        ..LIMITS
    };
    same_order(&outbox.deliver_within(&limits, all.len()).await, &all);
    outbox.is_empty().await;
}

/// While claims are held together, no key is in two of them.
pub async fn claims_share_no_key(outbox: &Outbox) {
    let all: Vec<Message> = (0..100)
        .map(|n| message(&format!("k{}", n % 20), &format!("{n}")))
        .collect();
    outbox.enqueue(&all).await;
    let limits = ClaimLimits {
        messages: 3,
        ..LIMITS
    };
    let mut held = Vec::new();
    while held.len() < 8
        && let Some(claim) = outbox.claim(&limits).await
    {
        held.push(claim);
    }
    let mut keys = HashSet::new();
    for claim in &held {
        let of_claim: HashSet<&str> = claim
            .messages()
            .iter()
            .filter_map(|claimed| claimed.message.key())
            .collect();
        for key in of_claim {
            assert!(keys.insert(key.to_owned()), "two claims hold key {key}");
        }
    }
    let mut delivered = Vec::new();
    for claim in held {
        delivered.extend(claim.messages().iter().map(|c| c.message.clone()));
        let outcomes = vec![Outcome::Delivered; claim.messages().len()];
        outbox.settle(claim, outcomes).await;
    }
    let rest = all.len() - delivered.len();
    delivered.extend(outbox.deliver_within(&limits, rest).await);
    for n in 0..20 {
        let key = format!("k{n}");
        let of_key = |message: &&Message| message.key() == Some(&key);
        same_order(delivered.iter().filter(of_key), all.iter().filter(of_key));
    }
}

/// A claim that is held does not keep another one from messages of other keys.
pub async fn claims_go_side_by_side(outbox: &Outbox) {
    outbox.enqueue(&one_for_each_key()).await;
    let limits = ClaimLimits {
        messages: 1,
        ..LIMITS
    };
    let first = outbox.next(&limits).await;
    let second = outbox.next(&limits).await;
    assert_ne!(first.messages()[0].message, second.messages()[0].message);
}

/// What a dropped claim held comes again, untouched and in order.
pub async fn a_dropped_claim_is_released(outbox: &Outbox) {
    let all: Vec<Message> = (0..5).map(|n| message("k", &format!("{n}"))).collect();
    outbox.enqueue(&all).await;
    for _ in 0..3 {
        drop(outbox.next(&LIMITS).await);
    }
    outbox.holds_untouched(&all).await;
}

/// A call that is dropped while it waits, looks or locks keeps nothing from the next one.
pub async fn a_cancelled_call_holds_nothing(outbox: &Outbox) {
    let limits = ClaimLimits {
        wait: LONG,
        ..LIMITS
    };
    // Dropped while it waits.
    let call = outbox.store().claim(&limits);
    let early = tokio::time::timeout(Duration::from_millis(50), call).await;
    assert!(
        early.is_err(),
        "a claim came back before anything was there"
    );

    let all: Vec<Message> = (0..5).map(|n| message("k", &format!("{n}"))).collect();
    outbox.enqueue(&all).await;
    // wait: for what must not happen, that a call that is over takes the messages
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Dropped after any step of its work: the first ones are the shortest.
    for step in 0..100 {
        let call = outbox.store().claim(&limits);
        let claim = tokio::time::timeout(Duration::from_micros(step * step * 2), call).await;
        drop(claim);
    }
    same_order(&outbox.deliver(all.len()).await, &all);
    outbox.is_empty().await;
}

/// A claim that is held for longer than it said is ended by the store, and cannot be settled.
pub async fn an_overdue_claim_is_taken_away(outbox: &Outbox) {
    let first = message("k", "first");
    outbox.enqueue([&first]).await;
    let limits = ClaimLimits {
        hold: Duration::from_millis(100),
        ..LIMITS
    };
    let overdue = outbox.next(&limits).await;
    // A store may add a margin of its own, so this takes more patience than the others.
    let patient = ClaimLimits {
        wait: outbox.patience() * 3,
        ..LIMITS
    };
    let claim = outbox
        .claim(&patient)
        .await
        .expect("an overdue claim kept its messages");
    same_order(claim.messages().iter().map(|c| &c.message), [&first]);
    counters(claim.messages(), 0, 0);
    let late = outbox.try_settle(overdue, vec![dead("too late")]).await;
    assert!(late.is_err(), "an overdue claim was settled");
    outbox.settle(claim, vec![Outcome::Delivered]).await;
    outbox.is_empty().await;
}
