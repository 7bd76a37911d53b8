//! One message's failure is that message's alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::{Message, PublishErrorKind};

use super::confirming::large;
use super::content::odd_topics;
use super::kit::{Broker, confirmed, failed, message, new_topic};

/// The places of the bad messages in a batch of seven: at its start, inside, at its end.
const BAD: [usize; 3] = [0, 3, 6];

/// Messages to topics that do not exist.
pub async fn a_missing_topic_fails_alone(broker: &Arc<Broker>) {
    if !broker.open().has_missing_topics() {
        return not_asked("a topic that does not exist");
    }
    let missing: Vec<String> = BAD.map(|_| new_topic()).into();
    // The second time the publisher may know already.
    for _ in 0..2 {
        fail_alone(broker, PublishErrorKind::TopicUnavailable, |place| {
            message(&missing[place / 3], "bad", &format!("missing {place}"))
        })
        .await;
    }
}

/// A topic that was missing takes messages soon after it is created, from the same publisher.
pub async fn a_missing_topic_goes_on_when_it_is_created(broker: &Arc<Broker>) {
    if !broker.open().has_missing_topics() {
        return not_asked("a topic that does not exist");
    }
    let topic = new_topic();
    let batch = [message(&topic, "k", "patient")];
    let answers = broker.publish(&batch).await;
    failed(
        &answers[0],
        PublishErrorKind::TopicUnavailable,
        "a message to a missing topic",
    );
    assert!(broker.open().create_topic(&topic).await);
    let deadline = Instant::now() + broker.patience();
    loop {
        let answers = broker.publish(&batch).await;
        if answers[0] == Some(Ok(())) {
            break;
        }
        failed(
            &answers[0],
            PublishErrorKind::TopicUnavailable,
            "a message to a topic that was just created",
        );
        assert!(
            Instant::now() < deadline,
            "a topic that was created takes no messages"
        );
        // wait: the publisher learns of the topic when it asks again
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    broker.holds(&topic, &batch).await;
}

/// Messages that are larger than the broker takes.
pub async fn a_too_large_message_fails_alone(broker: &Arc<Broker>) {
    let Some(bytes) = broker.open().too_large_payload() else {
        return not_asked("a message that is too large");
    };
    let topic = broker.topic().await;
    fail_alone(broker, PublishErrorKind::Rejected, |place| {
        large(&topic, place, bytes)
    })
    .await;
    broker.holds(&topic, &[]).await;
}

/// Messages to a topic of a name that the broker cannot have.
pub async fn an_impossible_topic_fails_alone(broker: &Arc<Broker>) {
    for topic in odd_topics() {
        if !broker.open().create_topic(&topic).await {
            return fail_alone(broker, PublishErrorKind::Rejected, |place| {
                message(&topic, "bad", &format!("impossible {place}"))
            })
            .await;
        }
    }
    not_asked("a topic of an impossible name");
}

/// Where every message fails every message is answered, and the next batch is none the worse.
pub async fn a_batch_of_failures_is_answered(broker: &Arc<Broker>) {
    let (kind, bad): (_, Vec<Message>) = if broker.open().has_missing_topics() {
        let missing = new_topic();
        let bad = (0..20).map(|n| message(&missing, &format!("key-{n}"), &format!("bad {n}")));
        (PublishErrorKind::TopicUnavailable, bad.collect())
    } else if let Some(bytes) = broker.open().too_large_payload() {
        let topic = broker.topic().await;
        let bad = (0..5).map(|n| large(&topic, n, bytes));
        (PublishErrorKind::Rejected, bad.collect())
    } else {
        return not_asked("a message that must fail");
    };
    for (number, answer) in broker.publish(&bad).await.iter().enumerate() {
        failed(
            answer,
            kind,
            format_args!("message {number} of a batch of failures"),
        );
    }
    let topic = broker.topic().await;
    let good = [message(&topic, "k", "after a batch of failures")];
    broker.confirm(&good).await;
    broker.holds(&topic, &good).await;
}

/// Publishes a batch with bad messages at [`BAD`]: they fail as `kind`, the others arrive.
async fn fail_alone(broker: &Broker, kind: PublishErrorKind, bad: impl Fn(usize) -> Message) {
    let topic = broker.topic().await;
    let batch: Vec<Message> = (0..7)
        .map(|place| match BAD.contains(&place) {
            true => bad(place),
            false => message(&topic, &format!("key-{place}"), &format!("good {place}")),
        })
        .collect();
    let answers = broker.publish(&batch).await;
    let mut good = Vec::new();
    for (place, answer) in answers.iter().enumerate() {
        if BAD.contains(&place) {
            failed(
                answer,
                kind,
                format_args!("the bad message at place {place}"),
            );
        } else {
            confirmed(
                answer,
                format_args!("the message at place {place} beside bad ones"),
            );
            good.push(batch[place].clone());
        }
    }
    broker.holds(&topic, &good).await;
}

/// What a broker has no such thing as is not asked; the test's output says so.
fn not_asked(what: &str) {
    println!("not asked of this broker: {what}");
}
