//! What the real server's answers become, one kind at a time.

mod support;

use std::collections::BTreeMap;
use std::slice;
use std::time::{Duration, Instant};

use outbox_conformance::proxy::Proxy;
use outbox_core::{Message, PublishErrorKind, PublisherExt};
use outbox_kafka::KafkaPublisher;
use rdkafka::error::RDKafkaErrorCode;
use support::rights::{Right, forget_rights, give_right, give_right_to};
use support::{
    config, create_topic, delete_topics, fails_as, new_topic, port, produce_ahead, read,
    set_on_topic, within,
};

const WITHIN: Duration = Duration::from_secs(30);

fn publisher(settings: &[(&str, &str)]) -> KafkaPublisher {
    let mut config = config();
    for (property, value) in settings {
        config.set(*property, *value);
    }
    KafkaPublisher::new(config).expect("a configuration that is accepted")
}

fn message(topic: &str, key: &str, payload: impl Into<Vec<u8>>) -> Message {
    let payload: Vec<u8> = payload.into();
    Message::to(topic).key(key).bytes(payload).expect("valid")
}

/// What is in a topic, in its order.
async fn values(topic: &str) -> Vec<Vec<u8>> {
    let records = read(topic).await.into_iter();
    records.filter_map(|record| record.value).collect()
}

/// What a batch has.
fn sent(batch: &[Message]) -> Vec<Vec<u8>> {
    let payloads = batch.iter().filter_map(Message::payload);
    payloads.map(|payload| payload.to_vec()).collect()
}

/// Publishes until all are delivered by one call.
async fn are_taken_in_the_end(publisher: &KafkaPublisher, batch: &[Message]) {
    let deadline = Instant::now() + WITHIN;
    loop {
        let answers = publisher.publish_all(batch, WITHIN).await;
        if answers == vec![Some(Ok(())); batch.len()] {
            return;
        }
        assert!(Instant::now() < deadline, "still refused: {answers:?}");
        // wait: the server has an answer at once, and what it said no to takes a moment to change.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_confirmed_message_is_a_record() {
    let topic = new_topic();
    create_topic(&topic, 1, &[]).await;
    let batch = [Message::to(&topic)
        .key("7")
        .header("trace", "abc")
        .bytes("hello")
        .expect("valid")];
    let answers = publisher(&[]).publish_all(&batch, WITHIN).await;
    assert_eq!(answers, [Some(Ok(()))]);
    let records = read(&topic).await;
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].key.as_deref(), Some(b"7".as_slice()));
    assert_eq!(records[0].value.as_deref(), Some(b"hello".as_slice()));
    assert_eq!(
        records[0].headers,
        BTreeMap::from([
            (
                "outbox-id".to_owned(),
                batch[0].id().to_string().into_bytes()
            ),
            ("trace".to_owned(), b"abc".to_vec()),
        ])
    );
    delete_topics(&[topic]).await;
}

#[tokio::test]
async fn a_missing_topic_is_known_before_the_delivery_timeout() {
    let topic = new_topic();
    let publisher = publisher(&[]);
    let batch = [message(&topic, "k", "1")];
    let start = Instant::now();
    let answers = publisher.publish_all(&batch, WITHIN).await;
    within(Duration::from_secs(10), start);
    let reason = fails_as(&answers[0], PublishErrorKind::TopicUnavailable);
    assert!(reason.contains("UnknownTopic"), "{reason}");

    // The second time nobody is asked.
    let start = Instant::now();
    let answers = publisher.publish_all(&batch, WITHIN).await;
    within(Duration::from_secs(1), start);
    fails_as(&answers[0], PublishErrorKind::TopicUnavailable);
}

#[tokio::test]
async fn what_is_confirmed_is_reported_while_another_answer_is_awaited() {
    let (there, missing) = (new_topic(), new_topic());
    create_topic(&there, 1, &[]).await;
    let publisher = publisher(&[]);
    let batch = [
        message(&missing, "a", "1"),
        message(&there, "b", "2"),
        message(&missing, "c", "3"),
        message(&there, "d", "4"),
    ];
    // The call is dropped while the missing topic is not known to be missing.
    let answers = publisher.publish_all(&batch, Duration::from_secs(3)).await;
    assert_eq!(answers, [None, Some(Ok(())), None, Some(Ok(()))]);
    delete_topics(&[there]).await;
}

#[tokio::test]
async fn a_deleted_topic_is_a_missing_one() {
    let topic = new_topic();
    create_topic(&topic, 1, &[]).await;
    let publisher = publisher(&[]);
    let batch = [message(&topic, "k", "1")];
    assert_eq!(publisher.publish_all(&batch, WITHIN).await, [Some(Ok(()))]);
    delete_topics(&[topic]).await;
    let deadline = Instant::now() + WITHIN;
    loop {
        let answers = publisher.publish_all(&batch, WITHIN).await;
        if answers != [Some(Ok(()))] {
            fails_as(&answers[0], PublishErrorKind::TopicUnavailable);
            return;
        }
        assert!(Instant::now() < deadline, "a deleted topic takes messages");
    }
}

#[tokio::test]
async fn a_message_over_the_clients_limit_is_rejected_with_both_sizes() {
    let topic = new_topic();
    create_topic(&topic, 1, &[]).await;
    let publisher = publisher(&[("message.max.bytes", "5000")]);
    let batch = [
        message(&topic, "a", "small"),
        message(&topic, "b", vec![b'x'; 5_000]),
        message(&topic, "c", "small"),
    ];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!((&answers[0], &answers[2]), (&Some(Ok(())), &Some(Ok(()))));
    let reason = fails_as(&answers[1], PublishErrorKind::Rejected);
    // Key, value and the header with the id: 1 + 5000 + 9 + 36.
    assert!(reason.contains("5046 bytes"), "{reason}");
    assert!(reason.contains("message.max.bytes is 5000"), "{reason}");
    delete_topics(&[topic]).await;
}

#[tokio::test]
async fn a_message_over_the_topics_limit_is_rejected_alone() {
    let topic = new_topic();
    create_topic(&topic, 1, &[("max.message.bytes", "2000")]).await;
    // They all travel in one record batch, which the server refuses as a whole.
    let publisher = publisher(&[("linger.ms", "50")]);
    let batch = [
        message(&topic, "a", "small"),
        message(&topic, "b", vec![b'x'; 2_000]),
        message(&topic, "c", "small"),
    ];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!((&answers[0], &answers[2]), (&Some(Ok(())), &Some(Ok(()))));
    let reason = fails_as(&answers[1], PublishErrorKind::Rejected);
    assert!(reason.contains("2046 bytes"), "{reason}");
    assert!(reason.contains("max.message.bytes"), "{reason}");
    assert_eq!(read(&topic).await.len(), 2);
    delete_topics(&[topic]).await;
}

#[tokio::test]
async fn a_message_that_fits_when_it_is_compressed_is_not_rejected() {
    let topic = new_topic();
    create_topic(&topic, 1, &[("max.message.bytes", "2000")]).await;
    let publisher = publisher(&[("linger.ms", "50"), ("compression.type", "gzip")]);
    // What a generator of random numbers gives does not get smaller.
    let mut state = 1_u64;
    let noise: Vec<u8> = (0..5_000)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state.to_be_bytes()[0]
        })
        .collect();
    let batch = [
        message(&topic, "a", vec![b'x'; 5_000]),
        message(&topic, "b", noise),
        message(&topic, "c", vec![b'y'; 5_000]),
    ];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!((&answers[0], &answers[2]), (&Some(Ok(())), &Some(Ok(()))));
    let reason = fails_as(&answers[1], PublishErrorKind::Rejected);
    assert!(reason.contains("5046 bytes"), "{reason}");
    delete_topics(&[topic]).await;
}

#[tokio::test]
async fn a_record_batch_over_the_topics_limit_kills_no_message() {
    let topic = new_topic();
    create_topic(&topic, 1, &[("max.message.bytes", "2000")]).await;
    let publisher = publisher(&[("linger.ms", "50")]);
    let batch: Vec<Message> = (0..40)
        .map(|n| message(&topic, &format!("key-{n}"), vec![b'x'; 500]))
        .collect();
    let answers = publisher.publish_all(&batch, WITHIN).await;
    for answer in &answers {
        assert_eq!(answer, &Some(Ok(())));
    }
    assert_eq!(read(&topic).await.len(), 40);
    delete_topics(&[topic]).await;
}

#[tokio::test]
async fn what_is_sent_again_overtakes_nothing_of_its_key() {
    let topic = new_topic();
    create_topic(&topic, 1, &[("max.message.bytes", "2000")]).await;
    let publisher = publisher(&[("linger.ms", "50")]);
    let batch: Vec<Message> = (0..12)
        .map(|n| message(&topic, "k", format!("{n:0500}")))
        .collect();
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!(answers, vec![Some(Ok(())); 12]);
    assert_eq!(values(&topic).await, sent(&batch));
    delete_topics(&[topic]).await;
}

#[tokio::test]
async fn what_was_taken_behind_a_refusal_comes_again_after_it() {
    let topic = new_topic();
    create_topic(&topic, 1, &[("max.message.bytes", "2000")]).await;
    let publisher = publisher(&[("linger.ms", "50"), ("batch.num.messages", "4")]);
    // A record batch of four that is refused, and one that is not.
    let large = (0..4).map(|n| message(&topic, "k", format!("{n:0600}")));
    let small = (4..6).map(|n| message(&topic, "k", n.to_string()));
    let mut batch: Vec<Message> = large.chain(small).collect();
    batch.push(message(&topic, "other", "beside"));
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!(answers, vec![Some(Ok(())); 7]);
    let arrived = values(&topic).await;
    let all = sent(&batch);
    assert_eq!(arrived, [&all[4..], &all[..6]].concat());
    delete_topics(&[topic]).await;
}

#[tokio::test]
async fn a_record_without_a_key_on_a_compacted_topic_is_rejected_alone() {
    let topic = new_topic();
    create_topic(&topic, 1, &[("cleanup.policy", "compact")]).await;
    let publisher = publisher(&[("linger.ms", "50")]);
    let batch = [
        message(&topic, "a", "1"),
        Message::to(&topic).bytes("2").expect("valid"),
        message(&topic, "c", "3"),
        Message::to(&topic).key("a").tombstone().expect("valid"),
    ];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    let reason = fails_as(&answers[1], PublishErrorKind::Rejected);
    assert!(reason.contains("InvalidRecord"), "{reason}");
    for good in [0, 2, 3] {
        assert_eq!(answers[good], Some(Ok(())), "{good}");
    }
    delete_topics(&[topic]).await;
}

#[tokio::test]
async fn a_right_that_is_missing_is_the_topics_trouble_until_it_is_given() {
    // One that may be seen and not written to, and one of which nothing may be known.
    let (there, seen, hidden) = (new_topic(), new_topic(), new_topic());
    for topic in [&there, &seen, &hidden] {
        create_topic(topic, 1, &[]).await;
    }
    give_right(&seen, Right::Describe).await;
    give_right_to(&hidden, "User:somebody-else", Right::Write).await;
    let publisher = publisher(&[]);
    let batch = [
        message(&there, "a", "1"),
        message(&seen, "b", "2"),
        message(&hidden, "c", "3"),
        message(&there, "d", "4"),
    ];
    for _ in 0..2 {
        let answers = publisher.publish_all(&batch, WITHIN).await;
        assert_eq!((&answers[0], &answers[3]), (&Some(Ok(())), &Some(Ok(()))));
        for refused in [1, 2] {
            let reason = fails_as(&answers[refused], PublishErrorKind::TopicUnavailable);
            assert!(reason.contains("TopicAuthorizationFailed"), "{reason}");
        }
    }
    give_right(&seen, Right::Write).await;
    forget_rights(&hidden).await;
    // The client asks again for a topic that it could not see, after a while.
    are_taken_in_the_end(&publisher, &batch).await;
    forget_rights(&seen).await;
    delete_topics(&[there, seen, hidden]).await;
}

#[tokio::test]
async fn a_clock_that_the_topic_does_not_accept_kills_no_message() {
    let topic = new_topic();
    create_topic(&topic, 1, &[("message.timestamp.before.max.ms", "1")]).await;
    // The record is older than that when it arrives.
    let publisher = publisher(&[("linger.ms", "100")]);
    let batch = [message(&topic, "k", "1")];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    let reason = fails_as(&answers[0], PublishErrorKind::TopicUnavailable);
    assert!(reason.contains("this host's clock"), "{reason}");
    assert!(reason.contains("InvalidTimestamp"), "{reason}");
    set_on_topic(&topic, "message.timestamp.before.max.ms", "3600000").await;
    are_taken_in_the_end(&publisher, &batch).await;
    delete_topics(&[topic]).await;
}

/// What the clock of a relay's host may be. The publisher leaves the stamp to the client, which takes the
/// host's clock; here it is written by hand, since librdkafka does not run under a clock that is faked.
#[tokio::test]
async fn the_server_takes_what_is_stamped_up_to_an_hour_ahead_unless_it_stamps_it_itself() {
    const HOUR: i64 = 3_600_000;
    let (plain, stamping) = (new_topic(), new_topic());
    create_topic(&plain, 1, &[]).await;
    let by_server = [("message.timestamp.type", "LogAppendTime")];
    create_topic(&stamping, 1, &by_server).await;
    let refused = Err(RDKafkaErrorCode::InvalidTimestamp);
    assert_eq!(produce_ahead(&plain, 2 * HOUR).await, refused);
    assert_eq!(produce_ahead(&plain, HOUR / 2).await, Ok(()));
    assert_eq!(produce_ahead(&plain, -20 * 365 * 24 * HOUR).await, Ok(()));
    assert_eq!(produce_ahead(&stamping, 2 * HOUR).await, Ok(()));
    delete_topics(&[plain, stamping]).await;
}

/// A broker that has nothing of a client's session takes any of its record batches first. So one that was
/// refused while the next was on its way already is passed over, and the client takes the answer to the next for
/// an answer to both.
#[tokio::test]
async fn what_only_the_answer_to_a_later_message_speaks_for_is_not_confirmed() {
    // On a busy machine it may not come to that.
    for _ in 0..5 {
        let stored = refuse_the_first_while_the_second_is_on_its_way().await;
        if stored == [b"2", b"1"] {
            return;
        }
        assert_eq!(stored, [b"1", b"2"], "both are confirmed");
    }
    panic!("the second was never taken before the first");
}

/// Publishes 1 and 2, which are both confirmed. Gives back what is in the topic.
async fn refuse_the_first_while_the_second_is_on_its_way() -> Vec<Vec<u8>> {
    const DELAY: Duration = Duration::from_secs(1);
    let topic = new_topic();
    create_topic(&topic, 1, &[("max.message.bytes", "2000")]).await;
    let proxy = Proxy::to_kafka(port()).await;
    let publisher = publisher(&[("bootstrap.servers", &proxy.address().to_string())]);
    // Now the client has a session and knows the topic, which has nothing of the session.
    let large = [message(&topic, "k", vec![b'x'; 3_000])];
    let answers = publisher.publish_all(&large, WITHIN).await;
    fails_as(&answers[0], PublishErrorKind::Rejected);
    delete_topics(slice::from_ref(&topic)).await;

    // Pieces go one after the other: the first arrives after one delay, the second after two, and so does the
    // answer to the first at the client.
    proxy.slow_down(DELAY);
    let batches = ["1", "2"].map(|payload| [message(&topic, payload, payload)]);
    let publish = |batch| publisher.publish_all(batch, WITHIN);
    let (first, second, ()) = tokio::join!(
        publish(&batches[0]),
        async {
            tokio::time::sleep(DELAY / 4).await; // wait: until the first is on its way
            publish(&batches[1]).await
        },
        async {
            tokio::time::sleep(DELAY * 5 / 4).await; // wait: until the first was refused
            create_topic(&topic, 1, &[]).await;
            tokio::time::sleep(DELAY * 2).await; // wait: until the second was taken
            proxy.release();
        },
    );
    assert_eq!((first, second), (vec![Some(Ok(()))], vec![Some(Ok(()))]));
    let stored = values(&topic).await;
    delete_topics(&[topic]).await;
    stored
}

#[tokio::test]
async fn a_full_queue_is_waited_for_in_order() {
    let topic = new_topic();
    create_topic(&topic, 1, &[]).await;
    let publisher = publisher(&[("queue.buffering.max.messages", "7")]);
    let batch: Vec<Message> = (0..500)
        .map(|n| message(&topic, "k", format!("{n}")))
        .collect();
    let answers = publisher.publish_all(&batch, WITHIN).await;
    for answer in &answers {
        assert_eq!(answer, &Some(Ok(())));
    }
    assert_eq!(values(&topic).await, sent(&batch));
    delete_topics(&[topic]).await;
}

/// The vectors are those of Apache Kafka's own `UtilsTest.testMurmur2`.
#[tokio::test]
async fn a_key_goes_to_the_partition_that_java_clients_choose() {
    const PARTITIONS: i32 = 7;
    let vectors: [(&str, i32); 6] = [
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        (
            "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
            -58_897_971,
        ),
        ("abc", 479_470_107),
    ];
    let topic = new_topic();
    create_topic(&topic, PARTITIONS, &[]).await;
    let batch = vectors.map(|(key, _)| message(&topic, key, key));
    let answers = publisher(&[]).publish_all(&batch, WITHIN).await;
    assert_eq!(answers, vec![Some(Ok(())); vectors.len()]);
    let records = read(&topic).await;
    for (key, hash) in vectors {
        let record = records
            .iter()
            .find(|record| record.key.as_deref() == Some(key.as_bytes()))
            .expect("a record for each key");
        assert_eq!(record.partition, (hash & 0x7fff_ffff) % PARTITIONS, "{key}");
    }
    delete_topics(&[topic]).await;
}
