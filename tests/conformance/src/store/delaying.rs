//! Messages that are enqueued with a delay.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::{ClaimLimits, Message, Outcome, Uuid};

use super::Counts;
use super::kit::{
    LIMITS, LONG, Outbox, message, names, not_earlier, one_for_each_key, park, payload,
};

/// Long enough for a case to look before it is over.
const DELAY: Duration = Duration::from_millis(400);

fn delayed(key: &str, name: &str, delay: Duration) -> Message {
    message(key, name)
        .with_deliver_after(delay)
        .expect("a short delay")
}

/// What came, by what [`message`] named it. A message that comes has no delay, and so is not equal to the one that
/// was enqueued.
fn came(messages: &[Message]) -> Vec<String> {
    for message in messages {
        assert_eq!(
            message.deliver_after(),
            Duration::ZERO,
            "the delay of {:?} that came",
            payload(message)
        );
    }
    messages.iter().map(payload).collect()
}

/// It is not claimed before, though a claim waits for it, and then soon; with its id, key, payload and headers.
pub async fn a_delayed_message_comes_when_it_is_due(outbox: &Outbox) {
    let since = Instant::now();
    let first = Message::to("topic")
        .key("k")
        .header("a", "b")
        .deliver_after(DELAY)
        .bytes("first")
        .expect("a valid message");
    outbox.enqueue([&first]).await;
    let delayed = Counts {
        delayed: 1,
        ..Counts::default()
    };
    let counts = outbox.counts().await;
    assert!(
        counts == delayed || since.elapsed() >= DELAY,
        "{counts:?} of one delayed message"
    );
    let waiting = ClaimLimits {
        wait: LONG,
        ..LIMITS
    };
    let claim = tokio::time::timeout(outbox.patience(), outbox.store().claim(&waiting))
        .await
        .expect("a delayed message did not end the wait of a claim")
        .expect("claim")
        .expect("a claim that waits gave up");
    not_earlier(since, DELAY, "a delayed message");
    let got = &claim.messages()[0].message;
    let undelayed = first
        .with_deliver_after(Duration::ZERO)
        .expect("no delay is valid");
    assert_eq!(*got, undelayed, "a delayed message came back changed");
    outbox.settle(claim, vec![Outcome::Delivered]).await;
    outbox.is_empty().await;
}

/// Others of its key that are enqueued meanwhile go first.
pub async fn a_delayed_message_holds_nothing_up(outbox: &Outbox) {
    let since = Instant::now();
    let first = delayed("k", "delayed", DELAY);
    outbox
        .enqueue([&first, &message("k", "in one transaction")])
        .await;
    outbox.enqueue([&message("k", "later")]).await;
    let others = came(&outbox.deliver(2).await);
    assert_eq!(others, ["in one transaction", "later"]);
    assert!(
        since.elapsed() < DELAY + outbox.patience() / 3,
        "what a delayed message does not hold up came late"
    );
    assert_eq!(came(&outbox.deliver(1).await), ["delayed"]);
    outbox.is_empty().await;
}

/// Whatever the order in which they were enqueued; those of one time in that order.
pub async fn delayed_messages_come_in_the_order_of_their_times(outbox: &Outbox) {
    let all: Vec<Message> = [("d", 4), ("b", 2), ("a", 1), ("e", 4), ("c", 3)]
        .into_iter()
        .map(|(name, times)| delayed("k", name, DELAY / 4 * times))
        .collect();
    outbox.enqueue(&all).await;
    assert_eq!(
        came(&outbox.deliver(all.len()).await),
        ["a", "b", "c", "d", "e"]
    );
    outbox.is_empty().await;
}

/// Its place in its key is that of when it was due, whatever becomes of it then.
pub async fn what_is_enqueued_after_a_message_was_due_comes_after_it(outbox: &Outbox) {
    outbox.enqueue([&delayed("k", "first", DELAY / 4)]).await;
    let claim = outbox.next(&LIMITS).await;
    outbox.enqueue([&message("k", "second")]).await;
    outbox.settle(claim, vec![Outcome::Released]).await;
    let one = ClaimLimits {
        messages: 1,
        ..LIMITS
    };
    assert_eq!(
        came(&outbox.deliver_within(&one, 2).await),
        ["first", "second"]
    );
    outbox.is_empty().await;
}

/// When it is due it waits behind what holds its key up, as any other message does.
pub async fn a_delayed_message_waits_behind_a_parked_one(outbox: &Outbox) {
    outbox.enqueue([&message("k", "head")]).await;
    let claim = outbox.next(&LIMITS).await;
    outbox.settle(claim, vec![park(DELAY)]).await;
    outbox.enqueue([&delayed("k", "delayed", DELAY / 4)]).await;
    let one = ClaimLimits {
        messages: 1,
        ..LIMITS
    };
    assert_eq!(
        came(&outbox.deliver_within(&one, 2).await),
        ["head", "delayed"]
    );
    outbox.is_empty().await;
}

/// A delayed message of a transaction that rolled back never comes.
pub async fn a_rolled_back_delay_never_comes(outbox: &Outbox) {
    let mut transaction = outbox.begin().await;
    transaction
        .enqueue(&delayed("k", "rolled back", DELAY / 4))
        .await;
    transaction.rollback().await;
    outbox
        .enqueue([&delayed("k", "committed", DELAY / 2)])
        .await;
    assert_eq!(came(&outbox.deliver(1).await), ["committed"]);
    outbox.is_empty().await;
}

/// A transaction that stays open for longer than the delay, while others that are due later commit and come.
pub async fn a_delay_that_commits_late_is_delivered(outbox: &Outbox) {
    let mut transaction = outbox.begin().await;
    transaction.enqueue(&delayed("k", "late", DELAY / 8)).await;
    let others: Vec<Message> = one_for_each_key()
        .into_iter()
        .take(20)
        .map(|other| {
            let delay = other.with_deliver_after(DELAY / 4);
            delay.expect("a short delay")
        })
        .collect();
    let expected = if let Some(transaction) = outbox.enqueue_beside(transaction, &others).await {
        outbox.deliver(others.len()).await;
        transaction.commit().await;
        1
    } else {
        others.len() + 1
    };
    let delivered = outbox.deliver(expected).await;
    assert!(
        delivered.iter().any(|message| payload(message) == "late"),
        "the late one did not come, but {}",
        names(&delivered)
    );
    outbox.is_empty().await;
}

/// What is cancelled before it is due never comes; what came, and what was never there, cannot be cancelled.
pub async fn a_cancelled_message_never_comes(outbox: &Outbox) {
    let cancelled = delayed("k", "cancelled", DELAY);
    let kept = delayed("k", "kept", DELAY);
    outbox.enqueue([&cancelled, &kept]).await;
    assert!(outbox.cancel(cancelled.id()).await, "it was not due yet");
    assert!(!outbox.cancel(cancelled.id()).await, "it was cancelled");
    assert!(!outbox.cancel(Uuid::from_u128(7)).await, "there was none");
    assert_eq!(came(&outbox.deliver(1).await), ["kept"]);
    assert!(!outbox.cancel(kept.id()).await, "it was delivered");
    outbox.is_empty().await;
}

/// Many messages that are due at the same time, and several workers that wait for them.
pub async fn many_claimers_get_a_delayed_message_once(outbox: &Arc<Outbox>) {
    const MESSAGES: usize = 500;
    let all: Vec<Message> = (0..MESSAGES)
        .map(|n| delayed(&format!("{}", n % 50), &format!("{n}"), DELAY / 2))
        .collect();
    outbox.enqueue(&all).await;
    let limits = ClaimLimits {
        messages: 50,
        ..LIMITS
    };
    let end = Instant::now() + outbox.patience();
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let outbox = Arc::clone(outbox);
            tokio::spawn(async move {
                let mut got = Vec::new();
                while Instant::now() < end {
                    let Some(claim) = outbox.claim(&limits).await else {
                        if outbox.counts().await == Counts::default() {
                            break;
                        }
                        continue;
                    };
                    got.extend(claim.messages().iter().map(|c| c.message.clone()));
                    let outcomes = vec![Outcome::Delivered; claim.messages().len()];
                    outbox.settle(claim, outcomes).await;
                }
                got
            })
        })
        .collect();
    let mut times: HashMap<Uuid, usize> = HashMap::new();
    for worker in workers {
        for message in worker.await.expect("a worker ends") {
            *times.entry(message.id()).or_default() += 1;
        }
    }
    for message in &all {
        let times = times.get(&message.id()).copied().unwrap_or_default();
        assert_eq!(times, 1, "how often {:?} came", payload(message));
    }
    outbox.is_empty().await;
}
