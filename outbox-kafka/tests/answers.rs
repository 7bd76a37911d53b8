//! What the real server's answers become, one kind at a time.

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use outbox_core::{Message, PublishError, PublishErrorKind, PublisherExt, Uuid};
use outbox_kafka::KafkaPublisher;
use support::{config, create_topic, delete_topics, read};

const WITHIN: Duration = Duration::from_secs(30);

fn topic() -> String {
    format!("answers-{}", Uuid::now_v7())
}

fn publisher() -> KafkaPublisher {
    KafkaPublisher::new(config()).expect("valid")
}

fn refusal(answer: &Option<Result<(), PublishError>>) -> (PublishErrorKind, &str) {
    match answer {
        Some(Err(error)) => (error.kind(), error.reason()),
        other => panic!("it should have been refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_confirmed_message_is_a_record() {
    let topic = topic();
    create_topic(&topic, 1, &[]).await;
    let message = Message::to(&topic)
        .key("7")
        .header("trace", "abc")
        .bytes("hello")
        .expect("valid");
    let publisher = publisher();
    let answers = publisher
        .publish_all(std::slice::from_ref(&message), WITHIN)
        .await;
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
                message.id().to_string().into_bytes()
            ),
            ("trace".to_owned(), b"abc".to_vec()),
        ])
    );
    delete_topics(&[topic]).await;
}

#[tokio::test]
async fn a_missing_topic_is_unavailable_and_goes_on_when_it_is_created() {
    let (there, missing) = (topic(), topic());
    create_topic(&there, 1, &[]).await;
    let publisher = publisher();
    let batch = [
        Message::to(&there).bytes("1").expect("valid"),
        Message::to(&missing).bytes("2").expect("valid"),
        Message::to(&there).bytes("3").expect("valid"),
    ];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!(answers[0], Some(Ok(())));
    assert_eq!(answers[2], Some(Ok(())));
    assert_eq!(refusal(&answers[1]).0, PublishErrorKind::TopicUnavailable);
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!(refusal(&answers[1]).0, PublishErrorKind::TopicUnavailable);

    create_topic(&missing, 1, &[]).await;
    let start = Instant::now();
    loop {
        let answers = publisher.publish_all(&batch[1..2], WITHIN).await;
        if answers == [Some(Ok(()))] {
            break;
        }
        assert!(start.elapsed() < WITHIN, "{answers:?}");
        // wait: the client learns of the topic by asking once a second
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(read(&missing).await.len(), 1);
    delete_topics(&[there, missing]).await;
}
