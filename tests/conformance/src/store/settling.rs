//! That each message gets its own outcome, and that a settle is all or nothing.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use outbox_core::{Message, Outcome, Uuid};

use super::kit::{
    LIMITS, LONG, Outbox, counters, dead, keyless, message, park, same_dead, same_order, same_set,
};

/// Exactly the delivered ones leave, exactly the dead ones are dead, and so on.
pub async fn each_message_gets_its_own_outcome(outbox: &Outbox) {
    let all: Vec<Message> = (0..40)
        .map(|n| match n % 2 {
            0 => message(&format!("k{n}"), &format!("{n}")),
            _ => keyless(&format!("{n}")),
        })
        .collect();
    let is = |n: usize| all.iter().skip(n).step_by(4);
    let number: HashMap<Uuid, usize> = all.iter().map(|m| m.id()).zip(0..).collect();
    outbox.enqueue(&all).await;
    let mut seen = HashSet::new();
    while seen.len() < all.len() {
        let claim = outbox.next(&LIMITS).await;
        let mut outcomes = Vec::new();
        for claimed in claim.messages() {
            let number = number[&claimed.message.id()];
            let again = !seen.insert(number);
            outcomes.push(match number % 4 {
                0 | 2 if again => panic!("{number} was settled and came again"),
                0 => Outcome::Delivered,
                1 => Outcome::Released,
                2 => dead("refused"),
                _ => park(Duration::from_millis(1)),
            });
        }
        outbox.settle(claim, outcomes).await;
    }
    let expected: Vec<(&Message, &str)> = is(2).map(|message| (message, "refused")).collect();
    same_dead(&outbox.dead().await, &expected);
    let rest = outbox.work(&LIMITS, 20, |_| Outcome::Delivered).await;
    same_set(rest.iter().map(|c| &c.message), is(1).chain(is(3)));
    for claimed in rest {
        match number[&claimed.message.id()] % 4 {
            1 => counters(&[claimed], 0, 0),
            _ => assert!(claimed.parked >= 1 && claimed.failures == claimed.parked),
        }
    }
    outbox.nothing_comes().await;
    let counts = outbox.counts().await;
    assert_eq!((counts.waiting, counts.parked, counts.dead), (0, 0, 10));
}

/// Without order asked for, a message may be delivered while an earlier one of its key was not.
pub async fn each_message_of_one_key_gets_its_own_outcome(outbox: &Outbox) {
    let all: Vec<Message> = (0..4).map(|n| message("k", &format!("{n}"))).collect();
    outbox.enqueue(&all).await;
    let claim = outbox
        .next_together(&[&all[0], &all[1], &all[2], &all[3]])
        .await;
    let outcomes = vec![
        park(Duration::from_millis(50)),
        Outcome::Delivered,
        Outcome::Released,
        Outcome::Delivered,
    ];
    outbox.settle(claim, outcomes).await;
    let rest = outbox.work(&LIMITS, 2, |_| Outcome::Delivered).await;
    same_order(rest.iter().map(|c| &c.message), [&all[0], &all[2]]);
    counters(&rest[..1], 1, 1);
    counters(&rest[1..], 0, 0);
    outbox.is_empty().await;
}

/// Too few or too many outcomes are an error that records nothing.
pub async fn a_wrong_number_of_outcomes_records_nothing(outbox: &Outbox) {
    let all: Vec<Message> = (0..3).map(|n| message("k", &format!("{n}"))).collect();
    let together = [&all[0], &all[1], &all[2]];
    outbox.enqueue(&all).await;
    for outcomes in [
        vec![],
        vec![Outcome::Delivered],
        vec![dead("refused"), Outcome::Delivered],
        vec![
            park(LONG),
            Outcome::Behind,
            Outcome::Behind,
            Outcome::Behind,
        ],
        vec![Outcome::Delivered; 4],
    ] {
        let claim = outbox.next_together(&together).await;
        let count = outcomes.len();
        let answer = outbox.try_settle(claim, outcomes).await;
        assert!(
            answer.is_err(),
            "{count} outcomes were taken for 3 messages"
        );
    }
    outbox.holds_untouched(&all).await;
}

/// Released messages come again, with the counters that they had, wherever they were.
pub async fn released_changes_nothing(outbox: &Outbox) {
    let all = [message("k", "first"), message("k", "second")];
    outbox.enqueue(&all).await;
    let together = [&all[0], &all[1]];
    for _ in 0..3 {
        let claim = outbox.next_together(&together).await;
        counters(claim.messages(), 0, 0);
        outbox.settle(claim, vec![Outcome::Released; 2]).await;
    }
    let claim = outbox.next_together(&together).await;
    let outcomes = vec![park(Duration::from_millis(50)), Outcome::Behind];
    outbox.settle(claim, outcomes).await;
    for _ in 0..3 {
        let claim = outbox.next_together(&together).await;
        counters(&claim.messages()[..1], 1, 1);
        counters(&claim.messages()[1..], 0, 0);
        outbox.settle(claim, vec![Outcome::Released; 2]).await;
    }
    same_order(&outbox.deliver(2).await, &all);
    outbox.is_empty().await;
}
