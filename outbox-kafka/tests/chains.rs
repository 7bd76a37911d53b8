//! Chains, where the suite does not reach: a server that has nothing of the session, a connection that is cut or
//! says nothing, a right that is missing.

mod support;

use std::slice;
use std::time::{Duration, Instant};

use outbox_conformance::proxy::Proxy;
use outbox_conformance::publisher::publish_chained;
use outbox_core::{Message, PublishErrorKind};
use outbox_kafka::KafkaPublisher;
use support::rights::{Right, forget_rights, give_right};
use support::{config, create_topic, delete_topics, fails_as, new_topic, port, read, within};

const WITHIN: Duration = Duration::from_secs(30);

/// A publisher that reaches the server through a proxy.
async fn through_proxy(settings: &[(&str, &str)]) -> (Proxy, KafkaPublisher) {
    let proxy = Proxy::to_kafka(port()).await;
    let mut config = config();
    config.set("bootstrap.servers", proxy.address().to_string());
    for (property, value) in settings {
        config.set(*property, *value);
    }
    let publisher = KafkaPublisher::new(config).expect("a configuration that is accepted");
    (proxy, publisher)
}

fn chain(topic: &str, key: &str, numbers: std::ops::Range<usize>) -> Vec<Message> {
    numbers
        .map(|n| {
            let message = Message::to(topic).key(key).bytes(format!("{key} {n:04}"));
            message.expect("valid")
        })
        .collect()
}

/// The payloads of a key in the order of their first copies.
async fn first_copies(topic: &str, key: &str) -> Vec<String> {
    let mut met = Vec::new();
    for record in read(topic).await {
        if record.key.as_deref() == Some(key.as_bytes()) {
            let value = String::from_utf8(record.value.expect("a payload")).expect("text");
            if !met.contains(&value) {
                met.push(value);
            }
        }
    }
    met
}

fn payloads(batch: &[Message]) -> Vec<String> {
    let payloads = batch.iter().filter_map(Message::payload);
    payloads
        .map(|payload| String::from_utf8_lossy(payload).into_owned())
        .collect()
}

/// The server has nothing of the session when it refuses the first: it would take the second, were that on its
/// way already.
#[tokio::test]
async fn nothing_of_a_chain_is_on_its_way_behind_what_may_be_refused() {
    const DELAY: Duration = Duration::from_millis(500);
    let topic = new_topic();
    create_topic(&topic, 1, &[]).await;
    let (proxy, publisher) = through_proxy(&[("batch.num.messages", "1")]).await;
    let known = publish_chained(&publisher, &chain(&topic, "k", 0..2), WITHIN).await;
    assert_eq!(known, vec![Some(Ok(())); 2]);
    delete_topics(slice::from_ref(&topic)).await;

    // The proxy passes on 64 KiB at a time: the first message, and some of the second, then more of that.
    proxy.slow_down(DELAY);
    let batch: Vec<Message> = ["2", "3", "4"]
        .map(|n| Message::to(&topic).key("k").bytes(n.repeat(60_000)))
        .map(|message| message.expect("valid"))
        .into();
    let (answers, ()) = tokio::join!(publish_chained(&publisher, &batch, WITHIN), async {
        tokio::time::sleep(DELAY * 5 / 4).await; // wait: until the first was refused
        create_topic(&topic, 1, &[]).await;
        tokio::time::sleep(DELAY * 4).await; // wait: until others would have been taken
        proxy.release();
    });
    assert_eq!(answers, vec![Some(Ok(())); 3]);
    let copies = first_copies(&topic, "k").await;
    let copies: Vec<&str> = copies.iter().map(|payload| &payload[..1]).collect();
    assert_eq!(copies, ["2", "3", "4"]);
    delete_topics(&[topic]).await;
}

#[tokio::test]
async fn nothing_of_a_chain_is_written_behind_a_refusal() {
    let topic = new_topic();
    create_topic(&topic, 1, &[("max.message.bytes", "2000")]).await;
    let (_proxy, publisher) = through_proxy(&[("batch.num.messages", "1")]).await;
    let mut batch = chain(&topic, "k", 0..50);
    let large = Message::to(&topic).key("k").bytes(vec![b'x'; 3_000]);
    batch[5] = large.expect("valid");
    for _ in 0..10 {
        let answers = publish_chained(&publisher, &batch, WITHIN).await;
        assert_eq!(answers[..5], vec![Some(Ok(())); 5]);
        fails_as(&answers[5], PublishErrorKind::Rejected);
        assert_eq!(answers[6..], vec![None; 44]);
    }
    // What was on its way comes before this.
    let after = publish_chained(&publisher, &chain(&topic, "after", 0..2), WITHIN).await;
    assert_eq!(after, vec![Some(Ok(())); 2]);
    assert_eq!(first_copies(&topic, "k").await, payloads(&batch[..5]));
    delete_topics(&[topic]).await;
}

#[tokio::test]
async fn connections_that_are_cut_in_mid_chain_change_no_order() {
    let topic = new_topic();
    create_topic(&topic, 1, &[]).await;
    let (proxy, publisher) = through_proxy(&[("reconnect.backoff.max.ms", "100")]).await;
    let batch = chain(&topic, "k", 0..4_000);
    let deadline = Instant::now() + WITHIN;
    let (mut done, mut cuts) = (0, 0);
    while done < batch.len() {
        assert!(Instant::now() < deadline, "{done} after {cuts} cuts");
        let part = &batch[done..batch.len().min(done + 1_000)];
        let published = publish_chained(&publisher, part, WITHIN);
        tokio::pin!(published);
        let answers = loop {
            tokio::select! {
                answers = &mut published => break answers,
                // wait: some of the chain, seldom all of it
                () = tokio::time::sleep(Duration::from_millis(2)), if cuts < 20 => {
                    proxy.cut();
                    cuts += 1;
                }
            }
        };
        done += answers.iter().take_while(|it| **it == Some(Ok(()))).count();
    }
    assert_eq!(cuts, 20);
    assert_eq!(first_copies(&topic, "k").await, payloads(&batch));
    delete_topics(&[topic]).await;
}

#[tokio::test]
async fn a_chain_without_an_answer_ends_in_time_and_goes_on_with_the_next_call() {
    let topic = new_topic();
    create_topic(&topic, 1, &[]).await;
    let (proxy, publisher) = through_proxy(&[("delivery.timeout.ms", "1500")]).await;
    let known = publish_chained(&publisher, &chain(&topic, "k", 0..2), WITHIN).await;
    assert_eq!(known, vec![Some(Ok(())); 2]);

    proxy.hold();
    let rest = chain(&topic, "k", 2..500);
    let start = Instant::now();
    let answers = publish_chained(&publisher, &rest, WITHIN).await;
    within(Duration::from_secs(10), start);
    let reason = fails_as(&answers[0], PublishErrorKind::BrokerUnavailable);
    assert!(reason.contains("not confirmed within 1500 ms"), "{reason}");
    assert_eq!(answers[1..], vec![None; rest.len() - 1]);

    proxy.release();
    let deadline = Instant::now() + WITHIN;
    while publish_chained(&publisher, &rest, WITHIN).await != vec![Some(Ok(())); rest.len()] {
        assert!(
            Instant::now() < deadline,
            "a server that answers is not used"
        );
    }
    assert_eq!(
        first_copies(&topic, "k").await,
        [payloads(&chain(&topic, "k", 0..2)), payloads(&rest)].concat()
    );
    delete_topics(&[topic]).await;
}

#[tokio::test]
async fn a_chain_ends_where_a_right_is_missing_and_others_go_on() {
    let (there, closed) = (new_topic(), new_topic());
    create_topic(&there, 1, &[]).await;
    create_topic(&closed, 1, &[]).await;
    give_right(&closed, Right::Describe).await;
    let (_proxy, publisher) = through_proxy(&[]).await;
    let mut batch = chain(&there, "a", 0..100);
    batch.extend(chain(&closed, "a", 100..103));
    batch.extend(chain(&there, "a", 103..106));
    batch.extend(chain(&there, "b", 0..100));
    for _ in 0..2 {
        let answers = publish_chained(&publisher, &batch, WITHIN).await;
        let reason = fails_as(&answers[100], PublishErrorKind::TopicUnavailable);
        assert!(reason.contains("TopicAuthorizationFailed"), "{reason}");
        assert_eq!(answers[101..106], vec![None; 5]);
        assert_eq!(answers[..100], vec![Some(Ok(())); 100]);
        assert_eq!(answers[106..], vec![Some(Ok(())); 100]);
    }
    assert_eq!(first_copies(&there, "a").await, payloads(&batch[..100]));
    assert_eq!(first_copies(&there, "b").await, payloads(&batch[106..]));
    forget_rights(&closed).await;
    delete_topics(&[there, closed]).await;
}
