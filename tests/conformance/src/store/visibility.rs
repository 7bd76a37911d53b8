//! Which messages are claimed, and in what order they come to be seen.

use outbox_core::{ClaimLimits, Message, Outcome};

use super::kit::{LIMITS, Outbox, message, one_for_each_key, same_order, same_set};

/// A message is not claimed before its transaction commits.
pub async fn uncommitted_is_not_claimed(outbox: &Outbox) {
    let first = message("k", "first");
    let mut transaction = outbox.begin().await;
    transaction.enqueue(&first).await;
    outbox.nothing_comes().await;
    transaction.commit().await;
    same_order(&outbox.deliver(1).await, [&first]);
}

/// A message of a transaction that rolled back never comes.
pub async fn rolled_back_is_never_claimed(outbox: &Outbox) {
    let rolled_back = message("k", "rolled back");
    let committed = message("k", "committed");
    let mut transaction = outbox.begin().await;
    transaction.enqueue(&rolled_back).await;
    transaction.rollback().await;
    outbox.enqueue([&committed]).await;
    same_order(&outbox.deliver(1).await, [&committed]);
    outbox.is_empty().await;
}

/// A message is delivered although messages of higher positions were delivered before it committed.
pub async fn a_late_commit_is_delivered(outbox: &Outbox) {
    let late = message("k", "late");
    let mut transaction = outbox.begin().await;
    transaction.enqueue(&late).await;
    let others = one_for_each_key();
    if let Some(transaction) = outbox.enqueue_beside(transaction, &others).await {
        same_set(&outbox.deliver(others.len()).await, &others);
        transaction.commit().await;
        same_order(&outbox.deliver(1).await, [&late]);
    } else {
        let all = others.iter().chain([&late]);
        same_set(&outbox.deliver(others.len() + 1).await, all);
    }
    outbox.is_empty().await;
}

/// What was enqueued for the key of a late commit after that commit comes after it.
pub async fn a_late_commit_comes_before_what_was_enqueued_after_it(outbox: &Outbox) {
    let (late, after) = (message("k", "late"), message("k", "after"));
    let mut transaction = outbox.begin().await;
    transaction.enqueue(&late).await;
    // Whatever the store locks or remembers together with the key has passed the position of `late`.
    let one = ClaimLimits {
        messages: 1,
        ..LIMITS
    };
    let others = one_for_each_key();
    if let Some(transaction) = outbox.enqueue_beside(transaction, &others).await {
        same_set(&outbox.deliver(others.len()).await, &others);
        transaction.commit().await;
        outbox.enqueue([&after]).await;
        same_order(&outbox.deliver_within(&one, 2).await, [&late, &after]);
    } else {
        outbox.enqueue([&after]).await;
        let delivered = outbox.deliver_within(&one, others.len() + 2).await;
        let of_key = delivered
            .iter()
            .filter(|message| message.key() == late.key());
        same_order(of_key, [&late, &after]);
    }
    outbox.is_empty().await;
}

/// What commits while a claim holds the key comes after it, in order.
pub async fn a_commit_during_a_claim_keeps_the_order(outbox: &Outbox) {
    let all: Vec<Message> = (0..4).map(|n| message("k", &format!("{n}"))).collect();
    outbox.enqueue([&all[0]]).await;
    let mut transaction = outbox.begin().await;
    transaction.enqueue(&all[1]).await;
    let claim = outbox.next(&LIMITS).await;
    transaction.commit().await;
    outbox.enqueue([&all[2]]).await;
    same_order(claim.messages().iter().map(|c| &c.message), [&all[0]]);
    outbox.settle(claim, vec![Outcome::Delivered]).await;
    outbox.enqueue([&all[3]]).await;
    let one = ClaimLimits {
        messages: 1,
        ..LIMITS
    };
    same_order(&outbox.deliver_within(&one, 3).await, &all[1..]);
    outbox.is_empty().await;
}

/// Messages that one transaction enqueued for a key come in the order of its statements.
pub async fn a_transaction_keeps_the_order_of_its_statements(outbox: &Outbox) {
    let all: Vec<Message> = (0..50).map(|n| message("k", &format!("{n}"))).collect();
    outbox.enqueue(&all).await;
    let seven = ClaimLimits {
        messages: 7,
        ..LIMITS
    };
    same_order(&outbox.deliver_within(&seven, all.len()).await, &all);
    outbox.is_empty().await;
}
