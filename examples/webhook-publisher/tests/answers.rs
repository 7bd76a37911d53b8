//! What the answers of a real server become, one by one, and what a call does about them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::{Duration, Instant};

use outbox_core::memory::{MemoryCounts, MemoryStore};
use outbox_core::{
    Answer, Delivery, ExponentialBackoff, Message, PublishError, PublishErrorKind, Publisher as _,
    PublisherExt as _, Relay, Uuid,
};
use support::{Act, PATIENCE, Receiver};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use webhook_publisher::{WebhookConfig, WebhookPublisher};

type Reported = Option<Result<(), PublishError>>;

fn publisher(url: &str) -> WebhookPublisher {
    WebhookPublisher::new(WebhookConfig::new(url)).unwrap()
}

fn message(key: &str) -> Message {
    Message::to("orders").key(key).bytes("payload").unwrap()
}

/// So many messages of as many keys.
fn messages(count: usize) -> Vec<Message> {
    (0..count).map(|n| message(&format!("key-{n}"))).collect()
}

fn kind(reported: &Reported) -> Option<PublishErrorKind> {
    match reported {
        Some(Err(error)) => Some(error.kind()),
        _ => None,
    }
}

#[tokio::test]
async fn each_status_becomes_what_the_readme_says() {
    use PublishErrorKind::*;
    let receiver = Receiver::start().await;
    for (statuses, expected) in [
        (&[200, 202, 204][..], None),
        (&[429, 502, 503, 504], Some(BrokerUnavailable)),
        (&[301, 401, 403, 404, 410], Some(TopicUnavailable)),
        (&[400, 413, 415, 422, 431], Some(Rejected)),
        (&[408, 409, 500, 501], Some(Retryable)),
    ] {
        for &status in statuses {
            receiver.act(move |_| Act::Answer(status));
            let publisher = publisher(&receiver.url);
            let batch = [message("k")];
            let answers = publisher.publish_all(&batch, PATIENCE).await;
            assert_eq!(kind(&answers[0]), expected, "{status}: {answers:?}");
            match &answers[0] {
                Some(Err(error)) => {
                    let reason = error.reason();
                    assert!(reason.contains(&status.to_string()), "{reason}");
                    assert!(reason.contains("orders"), "{reason}");
                    assert!(!reason.contains("payload"), "{reason}");
                }
                answer => assert_eq!(answer, &Some(Ok(()))),
            }
        }
    }
}

#[tokio::test]
async fn nobody_there_is_an_outage() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let answers = publisher(&url).publish_all(&messages(3), PATIENCE).await;
    for answer in &answers {
        let Some(Err(error)) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(error.kind(), PublishErrorKind::BrokerUnavailable);
        assert!(error.reason().contains("refused"), "{error}");
    }
}

#[tokio::test]
async fn a_connection_that_breaks_under_a_request_counts() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let crashing = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let _ = connection.read(&mut [0; 1024]).await.unwrap();
    });
    let answers = publisher(&url).publish_all(&messages(1), PATIENCE).await;
    assert_eq!(kind(&answers[0]), Some(PublishErrorKind::Retryable));
    crashing.await.unwrap();
}

#[tokio::test]
async fn what_gets_no_answer_is_not_reported() {
    let receiver = Receiver::start().await;
    receiver.act(|received| match received.key.as_deref() {
        Some("key-1") => Act::Hang,
        _ => Act::Take,
    });
    let (batch, answers) = (messages(3), [const { Answer::new() }; 3]);
    let deliveries: Vec<Delivery<'_>> = batch
        .iter()
        .zip(&answers)
        .map(|(message, answer)| Delivery::new(message, answer))
        .collect();
    let others = async {
        while answers[0].get().is_none() || answers[2].get().is_none() {
            // wait: the poll of a loop that the timeout bounds
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let publisher = publisher(&receiver.url);
    tokio::select! {
        () = publisher.publish(&deliveries) => panic!("it came back without an answer"),
        answered = tokio::time::timeout(PATIENCE, others) => answered.unwrap(),
    }
    drop(deliveries);
    assert_eq!(
        answers.map(Answer::into_inner),
        [Some(Ok(())), None, Some(Ok(()))]
    );
}

#[tokio::test]
async fn a_receiver_that_asks_for_it_is_left_alone() {
    let receiver = Receiver::start().await;
    let publisher = publisher(&receiver.url);
    receiver.act(|_| Act::LeaveAlone(1));
    let asked = Instant::now();
    let batch = messages(1);
    let answers = publisher.publish_all(&batch, PATIENCE).await;
    assert_eq!(kind(&answers[0]), Some(PublishErrorKind::BrokerUnavailable));
    receiver.act(|_| Act::Take);
    loop {
        let requests = receiver.requests();
        let answers = publisher.publish_all(&batch, PATIENCE).await;
        if answers == [Some(Ok(()))] {
            break;
        }
        assert_eq!(kind(&answers[0]), Some(PublishErrorKind::BrokerUnavailable));
        assert_eq!(receiver.requests(), requests, "it was not left alone");
        assert!(asked.elapsed() < PATIENCE);
        // wait: until its time is over
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(asked.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn an_outage_in_a_call_ends_the_sending() {
    let receiver = Receiver::start().await;
    receiver.act(|_| Act::Answer(503));
    let config = WebhookConfig::new(&receiver.url).requests(4);
    let publisher = WebhookPublisher::new(config).unwrap();
    let answers = publisher.publish_all(&messages(500), PATIENCE).await;
    for answer in &answers {
        assert_eq!(kind(answer), Some(PublishErrorKind::BrokerUnavailable));
    }
    assert!(receiver.requests() <= 4, "{}", receiver.requests());
}

#[tokio::test]
async fn what_a_slow_receiver_did_not_get_is_said_not_to_be_sent() {
    let receiver = Receiver::start().await;
    receiver.act(|received| match received.key.as_deref() {
        Some("key-0") => Act::TakeAfter(Duration::from_secs(2)),
        _ => Act::Take,
    });
    let config = WebhookConfig::new(&receiver.url)
        .requests(1)
        .send_within(Duration::from_secs(1));
    let publisher = WebhookPublisher::new(config).unwrap();
    let answers = publisher.publish_all(&messages(20), PATIENCE).await;
    assert_eq!(answers[0], Some(Ok(())));
    for answer in &answers[1..] {
        assert_eq!(kind(answer), Some(PublishErrorKind::BrokerUnavailable));
    }
    assert_eq!(receiver.requests(), 1);
}

#[tokio::test]
async fn keys_travel_side_by_side_and_a_key_one_by_one() {
    let receiver = Receiver::start().await;
    receiver.act(|_| Act::TakeAfter(Duration::from_millis(2)));
    let config = WebhookConfig::new(&receiver.url).requests(8);
    let publisher = WebhookPublisher::new(config).unwrap();
    let batch: Vec<Message> = (0..400)
        .map(|n| message(&format!("key-{}", n % 20)))
        .collect();
    let answers = publisher.publish_all(&batch, PATIENCE).await;
    assert!(answers.iter().all(|answer| answer == &Some(Ok(()))));
    let (most, most_of_a_key) = receiver.most_open();
    assert!((2..=8).contains(&most), "{most}");
    assert_eq!(most_of_a_key, 1);
    for key in 0..20 {
        let key = format!("key-{key}");
        let arrived = receiver.taken(None);
        let arrived: Vec<String> = arrived
            .into_iter()
            .filter(|received| received.key.as_ref() == Some(&key))
            .map(|received| received.id.unwrap())
            .collect();
        let sent = batch.iter().filter(|message| message.key() == Some(&key));
        let sent: Vec<String> = sent.map(|message| message.id().to_string()).collect();
        assert_eq!(arrived, sent);
    }
}

/// With a policy that gives up at the first failure, so that a failure that counts leaves a dead message.
#[tokio::test]
async fn through_a_relay_an_outage_counts_nothing_and_loses_nothing() {
    let receiver = Receiver::start().await;
    let start = Instant::now();
    receiver.act(move |_| match start.elapsed() < Duration::from_secs(1) {
        true => Act::Answer(503),
        false => Act::Take,
    });
    let store = MemoryStore::new();
    let messages: Vec<Message> = (0..300)
        .map(|n| message(&format!("key-{}", n % 7)))
        .collect();
    store.enqueue(&messages);
    let policy =
        ExponentialBackoff::new(ExponentialBackoff::FIRST, ExponentialBackoff::LONGEST, 1).unwrap();
    let relay = Relay::builder(store.clone(), publisher(&receiver.url))
        .retry(policy)
        .build()
        .unwrap();
    relay
        .run_until(async {
            while store.counts() != MemoryCounts::default() {
                assert!(start.elapsed() < PATIENCE, "{:?}", store.counts());
                // wait: the poll of a bounded loop
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    let ids = |of: &str| -> Vec<Uuid> {
        let of_key = messages.iter().filter(|message| message.key() == Some(of));
        of_key.map(Message::id).collect()
    };
    let taken = receiver.taken(None);
    assert_eq!(taken.len(), messages.len());
    for key in 0..7 {
        let key = format!("key-{key}");
        let arrived: Vec<Uuid> = taken
            .iter()
            .filter(|received| received.key.as_ref() == Some(&key))
            .map(|received| received.id.as_ref().unwrap().parse().unwrap())
            .collect();
        assert_eq!(arrived, ids(&key));
    }
}
