//! That a parked message delays its key and nothing else, and that the key keeps its order.

use std::time::{Duration, Instant};

use outbox_core::{ClaimLimits, Claimed, Message, Outcome};

use super::kit::{
    LIMITS, LONG, Outbox, counters, dead, keyless, message, names, not_earlier, one_for_each_key,
    park, park_uncounted, same_order, same_set,
};

/// Short enough to wait for, long enough to tell a store that does not wait.
const SOON: Duration = Duration::from_millis(200);

fn messages<const N: usize>(key: &str) -> [Message; N] {
    std::array::from_fn(|n| message(key, &format!("{key} {n}")))
}

fn of(claimed: &[Claimed]) -> impl Iterator<Item = &Message> {
    claimed.iter().map(|claimed| &claimed.message)
}

/// Everything else is delivered while one message is parked.
pub async fn a_parked_message_delays_only_its_key(outbox: &Outbox) {
    let all: [Message; 2] = messages("k");
    outbox.enqueue(&all).await;
    let claim = outbox.next_together(&[&all[0], &all[1]]).await;
    outbox
        .settle(claim, vec![park(LONG), Outcome::Behind])
        .await;
    let others = one_for_each_key();
    outbox.enqueue(&others).await;
    same_set(&outbox.deliver(others.len()).await, &others);
    outbox.nothing_comes().await;
    assert_eq!(outbox.counts().await.parked, 2);
}

/// Not before, and with its counters.
pub async fn a_parked_message_comes_back_when_due(outbox: &Outbox) {
    let all: [Message; 1] = messages("k");
    outbox.enqueue(&all).await;
    let claim = outbox.next(&LIMITS).await;
    let start = Instant::now();
    outbox.settle(claim, vec![park(SOON)]).await;
    let claim = outbox.next(&LIMITS).await;
    not_earlier(start, SOON, "a parked message");
    same_order(of(claim.messages()), &all);
    counters(claim.messages(), 1, 1);
    outbox.settle(claim, vec![Outcome::Delivered]).await;
    outbox.is_empty().await;
}

/// Counters go up by one with each park, for as long as it takes.
pub async fn each_park_is_counted(outbox: &Outbox) {
    let all: [Message; 1] = messages("k");
    outbox.enqueue(&all).await;
    for failures in 0..5 {
        let claim = outbox.next(&LIMITS).await;
        counters(claim.messages(), failures, failures);
        outbox
            .settle(claim, vec![park(Duration::from_millis(10))])
            .await;
    }
    assert_eq!(outbox.counts().await.parked, 1);
    same_order(&outbox.deliver(1).await, &all);
    outbox.is_empty().await;
}

/// A park that is no fault of the message leaves its failures alone.
pub async fn an_uncounted_park_counts_no_failure(outbox: &Outbox) {
    let all: [Message; 1] = messages("k");
    outbox.enqueue(&all).await;
    let soon = Duration::from_millis(10);
    for (outcome, parked, failures) in [
        (park_uncounted(soon), 0, 0),
        (park(soon), 1, 0),
        (park_uncounted(soon), 2, 1),
        (Outcome::Delivered, 3, 1),
    ] {
        let claim = outbox.next(&LIMITS).await;
        counters(claim.messages(), parked, failures);
        outbox.settle(claim, vec![outcome]).await;
    }
    outbox.is_empty().await;
}

/// Retry policies are written by users: the longest time there is means for ever, not an error.
pub async fn a_park_has_no_longest_time(outbox: &Outbox) {
    let (parked, other): ([Message; 1], [Message; 1]) = (messages("k"), messages("other"));
    outbox.enqueue(&parked).await;
    let claim = outbox.next(&LIMITS).await;
    outbox.settle(claim, vec![park(Duration::MAX)]).await;
    outbox.enqueue(&other).await;
    same_order(&outbox.deliver(1).await, &other);
    outbox.nothing_comes().await;
    assert_eq!(outbox.counts().await.parked, 1);
}

/// The later messages of a key come after their parked head, in order, with counters of their own.
pub async fn followers_return_in_order(outbox: &Outbox) {
    let all: [Message; 3] = messages("k");
    outbox.enqueue(&all).await;
    let claim = outbox.next_together(&[&all[0], &all[1], &all[2]]).await;
    let start = Instant::now();
    outbox
        .settle(claim, vec![park(SOON), Outcome::Behind, Outcome::Behind])
        .await;
    let claimed = outbox
        .work(&LIMITS, 3, |_| {
            not_earlier(start, SOON, "a message of a parked key");
            Outcome::Delivered
        })
        .await;
    same_order(of(&claimed), &all);
    counters(&claimed[..1], 1, 1);
    counters(&claimed[1..], 0, 0);
    outbox.is_empty().await;
}

/// Followers come in batches, not one a claim, also where the limit cuts them off from their head.
pub async fn many_followers_return_in_batches(outbox: &Outbox) {
    let all: [Message; 101] = messages("k");
    outbox.enqueue(&all).await;
    let together: Vec<&Message> = all.iter().collect();
    let claim = outbox.next_together(&together).await;
    let mut outcomes = vec![Outcome::Behind; all.len()];
    outcomes[0] = park(Duration::from_millis(50));
    outbox.settle(claim, outcomes).await;
    let seven = ClaimLimits {
        messages: 7,
        ..LIMITS
    };
    let mut claimed = Vec::new();
    let mut claims = 0;
    while claimed.len() < all.len() {
        let claim = outbox.next(&seven).await;
        claims += 1;
        claimed.extend(claim.messages().to_vec());
        let outcomes = vec![Outcome::Delivered; claim.messages().len()];
        outbox.settle(claim, outcomes).await;
    }
    same_order(of(&claimed), &all);
    assert!(
        claims <= all.len() / 2,
        "{claims} claims of up to 7 for {} messages",
        all.len()
    );
    outbox.is_empty().await;
}

/// What is enqueued for a parked key comes after what was parked.
pub async fn new_messages_wait_behind_a_parked_one(outbox: &Outbox) {
    let all: [Message; 4] = messages("k");
    outbox.enqueue(&all[..2]).await;
    let claim = outbox.next_together(&[&all[0], &all[1]]).await;
    outbox
        .settle(claim, vec![park(SOON), Outcome::Behind])
        .await;
    outbox.enqueue([&all[2]]).await;
    let one = ClaimLimits {
        messages: 1,
        ..LIMITS
    };
    let claim = outbox.next(&one).await;
    same_order(of(claim.messages()), [&all[0]]);
    // And while the head is claimed again, and parked again.
    outbox.enqueue([&all[3]]).await;
    outbox.settle(claim, vec![park(SOON)]).await;
    same_order(&outbox.deliver_within(&one, 4).await, &all);
    outbox.is_empty().await;
}

/// A late commit to a parked key comes after the parked head and before what was enqueued after it.
pub async fn late_commits_wait_behind_a_parked_one(outbox: &Outbox) {
    let head = message("k", "head");
    let (late, follower, last) = (
        message("k", "late"),
        message("k", "follower"),
        message("k", "last"),
    );
    outbox.enqueue([&head]).await;
    let mut transaction = outbox.begin().await;
    transaction.enqueue(&late).await;
    let beside = [follower.clone()];
    let transaction = outbox.enqueue_beside(transaction, &beside).await;
    let claim = match transaction {
        Some(_) => outbox.next_together(&[&head, &follower]).await,
        None => outbox.next_together(&[&head, &late, &follower]).await,
    };
    let mut outcomes = vec![Outcome::Behind; claim.messages().len()];
    outcomes[0] = park(SOON);
    outbox.settle(claim, outcomes).await;
    if let Some(transaction) = transaction {
        transaction.commit().await;
    }
    outbox.enqueue([&last]).await;
    let one = ClaimLimits {
        messages: 1,
        ..LIMITS
    };
    let delivered = outbox.deliver_within(&one, 4).await;
    // `late` and `follower` were written by concurrent transactions: either may be first.
    let between = match delivered[1] == late {
        true => [&late, &follower],
        false => [&follower, &late],
    };
    same_order(&delivered, [&head, between[0], between[1], &last]);
    outbox.is_empty().await;
}

/// After the head was delivered the next one can be parked, and the rest waits behind that.
pub async fn a_message_in_the_middle_is_parked(outbox: &Outbox) {
    let all: [Message; 3] = messages("k");
    outbox.enqueue(&all).await;
    let claim = outbox.next_together(&[&all[0], &all[1], &all[2]]).await;
    let start = Instant::now();
    outbox
        .settle(claim, vec![Outcome::Delivered, park(SOON), Outcome::Behind])
        .await;
    let claimed = outbox.work(&LIMITS, 2, |_| Outcome::Delivered).await;
    not_earlier(start, SOON, "a parked message");
    same_order(of(&claimed), &all[1..]);
    counters(&claimed[..1], 1, 1);
    counters(&claimed[1..], 0, 0);
    outbox.is_empty().await;
}

/// What was not tried, because the relay stopped, still waits behind what was parked.
pub async fn released_followers_wait_behind_a_parked_one(outbox: &Outbox) {
    let all: [Message; 3] = messages("k");
    outbox.enqueue(&all).await;
    let claim = outbox.next_together(&[&all[0], &all[1], &all[2]]).await;
    let start = Instant::now();
    outbox
        .settle(
            claim,
            vec![park(SOON), Outcome::Released, Outcome::Released],
        )
        .await;
    let claimed = outbox
        .work(&LIMITS, 3, |_| {
            not_earlier(start, SOON, "a message of a parked key");
            Outcome::Delivered
        })
        .await;
    same_order(of(&claimed), &all);
    counters(&claimed[1..], 0, 0);
    outbox.is_empty().await;
}

/// Without order asked for, two of a key may fail in one claim: each is counted, both come back.
pub async fn two_parked_of_one_key_return_in_order(outbox: &Outbox) {
    let all: [Message; 2] = messages("k");
    outbox.enqueue(&all).await;
    let claim = outbox.next_together(&[&all[0], &all[1]]).await;
    let start = Instant::now();
    outbox
        .settle(claim, vec![park(SOON), park(Duration::from_millis(1))])
        .await;
    let claimed = outbox.work(&LIMITS, 2, |_| Outcome::Delivered).await;
    not_earlier(start, SOON, "a parked message");
    same_order(of(&claimed), &all);
    counters(&claimed, 1, 1);
    outbox.is_empty().await;
}

/// A message that failed before and now waits behind another keeps what was counted.
pub async fn a_follower_keeps_its_counters(outbox: &Outbox) {
    let all: [Message; 2] = messages("k");
    let together = [&all[0], &all[1]];
    let soon = Duration::from_millis(20);
    outbox.enqueue(&all).await;
    let claim = outbox.next_together(&together).await;
    outbox.settle(claim, vec![park(soon), park(soon)]).await;
    let claim = outbox.next_together(&together).await;
    outbox
        .settle(claim, vec![park(soon), Outcome::Behind])
        .await;
    let claimed = outbox.work(&LIMITS, 2, |_| Outcome::Delivered).await;
    same_order(of(&claimed), &all);
    counters(&claimed[..1], 2, 2);
    counters(&claimed[1..], 1, 1);
    outbox.is_empty().await;
}

/// A parked head that is given up lets its followers go.
pub async fn followers_go_on_when_their_head_dies(outbox: &Outbox) {
    let all: [Message; 3] = messages("k");
    outbox.enqueue(&all).await;
    let claim = outbox.next_together(&[&all[0], &all[1], &all[2]]).await;
    outbox
        .settle(claim, vec![park(SOON), Outcome::Behind, Outcome::Behind])
        .await;
    let one = ClaimLimits {
        messages: 1,
        ..LIMITS
    };
    let claim = outbox.next(&one).await;
    same_order(of(claim.messages()), &all[..1]);
    outbox.settle(claim, vec![dead("used up")]).await;
    same_order(&outbox.deliver(2).await, &all[1..]);
    outbox.nothing_comes().await;
}

/// What was parked and is due stays so when the claim that holds it is dropped.
pub async fn a_dropped_claim_of_parked_messages_is_released(outbox: &Outbox) {
    let all: [Message; 3] = messages("k");
    let together = [&all[0], &all[1], &all[2]];
    outbox.enqueue(&all).await;
    let claim = outbox.next_together(&together).await;
    outbox
        .settle(claim, vec![park(SOON), Outcome::Behind, Outcome::Behind])
        .await;
    for _ in 0..3 {
        drop(outbox.next(&LIMITS).await);
    }
    let claimed = outbox.work(&LIMITS, 3, |_| Outcome::Delivered).await;
    same_order(of(&claimed), &all);
    counters(&claimed[..1], 1, 1);
    counters(&claimed[1..], 0, 0);
    outbox.is_empty().await;
}

/// There is nothing to wait behind: the message must not be set aside for ever.
pub async fn behind_nothing_is_released(outbox: &Outbox) {
    let (keyed, alone) = (message("k", "keyed"), keyless("keyless"));
    outbox.enqueue([&keyed, &alone]).await;
    let mut set_behind = Vec::new();
    while set_behind.len() < 2 {
        let claim = outbox.next(&LIMITS).await;
        for claimed in claim.messages() {
            if !set_behind.contains(&claimed.message) {
                set_behind.push(claimed.message.clone());
            }
        }
        let outcomes = vec![Outcome::Behind; claim.messages().len()];
        outbox.settle(claim, outcomes).await;
    }
    let claimed = outbox.work(&LIMITS, 2, |_| Outcome::Delivered).await;
    same_set(of(&claimed), [&keyed, &alone]);
    counters(&claimed, 0, 0);
    outbox.is_empty().await;
}

/// Messages without a key have nothing in common.
pub async fn keyless_messages_park_alone(outbox: &Outbox) {
    let parked = keyless("parked");
    outbox.enqueue([&parked]).await;
    let claim = outbox.next(&LIMITS).await;
    outbox.settle(claim, vec![park(LONG)]).await;
    let others: Vec<Message> = (0..300).map(|n| keyless(&format!("{n}"))).collect();
    outbox.enqueue(&others).await;
    same_set(&outbox.deliver(others.len()).await, &others);
    outbox.nothing_comes().await;
    assert_eq!(outbox.counts().await.parked, 1);
}

/// Messages with the empty key have that key in common, and messages without one do not.
pub async fn an_empty_key_is_a_key(outbox: &Outbox) {
    let all: [Message; 2] = messages("");
    let alone = keyless("keyless");
    outbox.enqueue([&all[0]]).await;
    let claim = outbox.next(&LIMITS).await;
    outbox.settle(claim, vec![park(LONG)]).await;
    outbox.enqueue([&all[1], &alone]).await;
    let delivered = outbox.deliver(1).await;
    assert!(
        delivered == [alone],
        "{} came although its key is parked",
        names(&delivered)
    );
    outbox.nothing_comes().await;
}
