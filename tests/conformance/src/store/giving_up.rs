//! Dead messages: kept until a person replays or discards them, and what their key does meanwhile.

use std::time::Duration;

use outbox_core::{ClaimLimits, Message, Outcome, PublishError};

use super::kit::{
    LIMITS, Outbox, counters, dead, halt, keyless, message, park, same_dead, same_order,
};

const ONE: ClaimLimits = ClaimLimits {
    messages: 1,
    ..LIMITS
};

fn messages<const N: usize>() -> [Message; N] {
    std::array::from_fn(|n| message("k", &format!("{n}")))
}

/// It never comes again, and a person sees which it was and why.
pub async fn a_dead_message_is_kept_with_its_reason(outbox: &Outbox) {
    let all: [Message; 2] = messages();
    let reason = "zu groß:\n\"1 048 577\" > '1 MiB' — 拒否 \u{1F4A5}".to_owned();
    let long = "x".repeat(PublishError::MAX_REASON_BYTES);
    outbox.enqueue(&all).await;
    let claim = outbox.next_together(&[&all[0], &all[1]]).await;
    outbox.settle(claim, vec![dead(&reason), dead(&long)]).await;
    outbox.nothing_comes().await;
    same_dead(
        &outbox.dead().await,
        &[(&all[0], &reason), (&all[1], &long)],
    );
    let counts = outbox.counts().await;
    assert_eq!((counts.waiting, counts.parked, counts.dead), (0, 0, 2));
    outbox.discard(&all[0]).await;
    same_dead(&outbox.dead().await, &[(&all[1], &long)]);
    outbox.discard(&all[1]).await;
    outbox.is_empty().await;
}

/// The later messages of its key go on, those of the same claim and new ones.
pub async fn a_dead_message_lets_its_key_go_on(outbox: &Outbox) {
    let all: [Message; 3] = messages();
    outbox.enqueue(&all[..2]).await;
    let claim = outbox.next_together(&[&all[0], &all[1]]).await;
    outbox
        .settle(claim, vec![dead("refused"), Outcome::Released])
        .await;
    outbox.enqueue(&all[2..]).await;
    same_order(&outbox.deliver_within(&ONE, 2).await, &all[1..]);
    outbox.nothing_comes().await;
    same_dead(&outbox.dead().await, &[(&all[0], "refused")]);
}

/// Nothing of a halted key comes, the others go on; after a replay all come in the old order.
pub async fn a_halted_key_waits_for_a_replay(outbox: &Outbox) {
    let all: [Message; 4] = messages();
    let other = message("other", "other");
    outbox.enqueue(&all[..3]).await;
    let together = [&all[0], &all[1], &all[2]];
    // Parked once before, so that a replay has counters to forget.
    let claim = outbox.next_together(&together).await;
    let outcomes = vec![
        park(Duration::from_millis(20)),
        Outcome::Behind,
        Outcome::Behind,
    ];
    outbox.settle(claim, outcomes).await;
    let claim = outbox.next_together(&together).await;
    outbox
        .settle(
            claim,
            vec![halt("refused"), Outcome::Behind, Outcome::Released],
        )
        .await;
    outbox.enqueue([&all[3], &other]).await;
    same_order(&outbox.deliver(1).await, [&other]);
    outbox.nothing_comes().await;
    same_dead(&outbox.dead().await, &[(&all[0], "refused")]);
    outbox.replay(&all[0]).await;
    let claimed = outbox.work(&ONE, 4, |_| Outcome::Delivered).await;
    same_order(claimed.iter().map(|claimed| &claimed.message), &all);
    counters(&claimed, 0, 0);
    outbox.is_empty().await;
}

/// After a discard the rest of a halted key goes on in order, without the dead one.
pub async fn a_halted_key_waits_for_a_discard(outbox: &Outbox) {
    let all: [Message; 4] = messages();
    outbox.enqueue(&all[..3]).await;
    let claim = outbox.next_together(&[&all[0], &all[1], &all[2]]).await;
    outbox
        .settle(
            claim,
            vec![Outcome::Delivered, halt("refused"), Outcome::Behind],
        )
        .await;
    outbox.enqueue(&all[3..]).await;
    outbox.nothing_comes().await;
    outbox.discard(&all[1]).await;
    same_order(&outbox.deliver_within(&ONE, 2).await, &all[2..]);
    outbox.is_empty().await;
}

/// A key stays halted until a person has decided about the message that halts it.
pub async fn another_decision_does_not_end_a_halt(outbox: &Outbox) {
    let all: [Message; 4] = messages();
    outbox.enqueue(&all).await;
    let claim = outbox
        .next_together(&[&all[0], &all[1], &all[2], &all[3]])
        .await;
    outbox
        .settle(
            claim,
            vec![
                dead("refused"),
                dead("refused too"),
                halt("halts"),
                Outcome::Behind,
            ],
        )
        .await;
    outbox.discard(&all[0]).await;
    outbox.nothing_comes().await;
    outbox.replay(&all[1]).await;
    // The replayed one is older than the halt: whether it waits for it too is the store's business.
    let early = outbox.claim(&LIMITS).await;
    let came_early = early.is_some();
    if let Some(claim) = early {
        same_order(claim.messages().iter().map(|c| &c.message), [&all[1]]);
        outbox.settle(claim, vec![Outcome::Delivered]).await;
    }
    outbox.nothing_comes().await;
    outbox.discard(&all[2]).await;
    let rest = match came_early {
        true => vec![&all[3]],
        false => vec![&all[1], &all[3]],
    };
    same_order(&outbox.deliver_within(&ONE, rest.len()).await, rest);
    outbox.is_empty().await;
}

/// Before what was enqueued after it, as if it had never failed, and with the same id.
pub async fn a_replayed_message_returns_to_its_place(outbox: &Outbox) {
    let all: [Message; 3] = messages();
    outbox.enqueue(&all).await;
    let claim = outbox.next_together(&[&all[0], &all[1], &all[2]]).await;
    outbox
        .settle(
            claim,
            vec![
                park(Duration::from_millis(20)),
                Outcome::Behind,
                Outcome::Behind,
            ],
        )
        .await;
    let claim = outbox.next(&ONE).await;
    counters(claim.messages(), 1, 1);
    outbox.settle(claim, vec![dead("refused")]).await;
    outbox.replay(&all[0]).await;
    let claimed = outbox.work(&ONE, 3, |_| Outcome::Delivered).await;
    same_order(claimed.iter().map(|claimed| &claimed.message), &all);
    counters(&claimed, 0, 0);
    outbox.is_empty().await;
}

/// Two people who replay the same message, at once or after each other, return it once.
pub async fn two_replays_return_it_once(outbox: &Outbox) {
    let all: [Message; 1] = messages();
    outbox.enqueue(&all).await;
    for reason in ["refused", "refused again"] {
        let claim = outbox.next(&LIMITS).await;
        same_order(claim.messages().iter().map(|c| &c.message), &all);
        outbox.settle(claim, vec![dead(reason)]).await;
        same_dead(&outbox.dead().await, &[(&all[0], reason)]);
        tokio::join!(outbox.replay(&all[0]), outbox.replay(&all[0]));
        outbox.replay(&all[0]).await;
        // Neither is a person who comes too late to discard it believed.
        outbox.discard(&all[0]).await;
        same_dead(&outbox.dead().await, &[]);
    }
    same_order(&outbox.deliver(1).await, &all);
    outbox.is_empty().await;
}

/// A message without a key has no later ones.
pub async fn a_halt_without_a_key_halts_nothing(outbox: &Outbox) {
    let (first, second) = (keyless("first"), keyless("second"));
    outbox.enqueue([&first]).await;
    let claim = outbox.next(&LIMITS).await;
    outbox.settle(claim, vec![halt("refused")]).await;
    outbox.enqueue([&second]).await;
    same_order(&outbox.deliver(1).await, [&second]);
    outbox.nothing_comes().await;
    outbox.replay(&first).await;
    same_order(&outbox.deliver(1).await, [&first]);
    outbox.is_empty().await;
}
