//! What real servers make of a chain: a stream takes a batch or has nothing of it, and what takes no batches
//! gets one message of a key after the other.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::stream::Config;
use futures_util::StreamExt;
use outbox_conformance::publisher::{publish_chained, refusal};
use outbox_core::{Message, PublishError, PublishErrorKind, Publisher as _};
use outbox_nats::{NatsConfig, NatsPublisher};
use support::{connect, create, delete, latest_url, message, new_subject, payloads, stream, url};

const WITHIN: Duration = Duration::from_secs(60);
const CONFIRMED: Option<Result<(), PublishError>> = Some(Ok(()));

fn in_batches(client: &Client) -> NatsPublisher {
    NatsPublisher::new(client.clone(), NatsConfig::new().atomic_batches(true)).unwrap()
}

/// What a stream is made with that takes batches.
fn batches(subject: &str) -> Config {
    Config {
        allow_atomic_publish: true,
        ..stream(subject)
    }
}

/// So many messages of a key; the payload is the place.
fn chain(topic: &str, key: &str, messages: usize) -> Vec<Message> {
    (0..messages)
        .map(|place| message(topic, key, place.to_string()))
        .collect()
}

fn places(messages: usize) -> Vec<String> {
    (0..messages).map(|place| place.to_string()).collect()
}

fn all_confirmed(answers: &[Option<Result<(), PublishError>>]) {
    for (place, answer) in answers.iter().enumerate() {
        assert_eq!(answer, &CONFIRMED, "place {place}");
    }
}

#[tokio::test]
async fn a_key_is_taken_in_batches_of_what_a_server_allows() {
    let client = connect(&latest_url()).await;
    let subject = new_subject();
    create(&client, batches(&subject)).await;
    let publisher = in_batches(&client);
    assert!(publisher.chains_keys());
    let batch = chain(&subject, "k", 2_500);
    all_confirmed(&publish_chained(&publisher, &batch, WITHIN).await);
    assert_eq!(payloads(&client, &subject).await, places(2_500));
    assert_eq!(publisher.duplicates(), 0);
    delete(&client, &subject).await;
}

/// Also where the stream or the server knows of no batches.
#[tokio::test]
async fn a_chain_ends_at_what_the_stream_refuses() {
    for (url, allow_atomic_publish) in [(latest_url(), true), (latest_url(), false), (url(), false)]
    {
        let client = connect(&url).await;
        let subject = new_subject();
        let limited = Config {
            max_message_size: 2_000,
            allow_atomic_publish,
            ..stream(&subject)
        };
        create(&client, limited).await;
        let mut batch = chain(&subject, "k", 300);
        batch[123] = message(&subject, "k", vec![b'x'; 3_000]);
        let answers = publish_chained(&in_batches(&client), &batch, WITHIN).await;
        all_confirmed(&answers[..123]);
        assert_eq!(refusal(&answers[123]).0, PublishErrorKind::Rejected);
        assert!(answers[124..].iter().all(Option::is_none), "{answers:?}");
        assert_eq!(payloads(&client, &subject).await, places(123));
        delete(&client, &subject).await;
    }
}

/// A relay that died before it knew of the confirmation publishes the same again.
#[tokio::test]
async fn what_a_stream_has_already_is_confirmed_and_not_taken_again() {
    let client = connect(&latest_url()).await;
    let subject = new_subject();
    create(&client, batches(&subject)).await;
    let batch = chain(&subject, "k", 50);
    all_confirmed(&publish_chained(&in_batches(&client), &batch[..30], WITHIN).await);
    let publisher = in_batches(&client);
    all_confirmed(&publish_chained(&publisher, &batch, WITHIN).await);
    assert_eq!(publisher.duplicates(), 30);
    assert_eq!(payloads(&client, &subject).await, places(50));
    delete(&client, &subject).await;
}

#[tokio::test]
async fn a_stream_or_a_server_without_batches_takes_one_after_the_other() {
    for (url, knows_batches) in [(latest_url(), true), (url(), false)] {
        let client = connect(&url).await;
        let subject = new_subject();
        create(&client, stream(&subject)).await;
        let publisher = in_batches(&client);
        assert_eq!(publisher.chains_keys(), knows_batches);
        let batch = chain(&subject, "k", 40);
        all_confirmed(&publish_chained(&publisher, &batch, WITHIN).await);
        assert_eq!(payloads(&client, &subject).await, places(40), "{url}");
        delete(&client, &subject).await;
    }
}

#[tokio::test]
async fn a_key_may_change_its_stream_and_ends_where_there_is_none() {
    let client = connect(&latest_url()).await;
    let (one, other, missing) = (new_subject(), new_subject(), new_subject());
    create(&client, batches(&one)).await;
    create(&client, batches(&other)).await;
    let topics = [&one, &one, &other, &other, &one, &missing, &one];
    let batch: Vec<Message> = (0..)
        .zip(topics)
        .map(|(place, topic): (usize, _)| message(topic, "k", place.to_string()))
        .collect();
    let answers = publish_chained(&in_batches(&client), &batch, WITHIN).await;
    all_confirmed(&answers[..5]);
    assert_eq!(refusal(&answers[5]).0, PublishErrorKind::TopicUnavailable);
    assert_eq!(answers[6], None);
    assert_eq!(payloads(&client, &one).await, ["0", "1", "4"]);
    assert_eq!(payloads(&client, &other).await, ["2", "3"]);
    delete(&client, &one).await;
    delete(&client, &other).await;
}

/// It answers with nothing, as a stream does that has begun a batch.
#[tokio::test]
async fn a_subscriber_that_answers_confirms_no_batch() {
    let client = connect(&latest_url()).await;
    let subject = new_subject();
    let mut requests = client.subscribe(subject.clone()).await.unwrap();
    client.flush().await.unwrap();
    let answering = tokio::spawn({
        let client = client.clone();
        async move {
            while let Some(request) = requests.next().await {
                if let Some(reply) = request.reply {
                    client.publish(reply, "".into()).await.unwrap();
                }
            }
        }
    });
    let config = NatsConfig::new()
        .atomic_batches(true)
        .ack_timeout(Duration::from_millis(300));
    let publisher = NatsPublisher::new(client.clone(), config).unwrap();
    let batch = chain(&subject, "k", 5);
    let answers = publish_chained(&publisher, &batch, WITHIN).await;
    assert_eq!(refusal(&answers[0]).0, PublishErrorKind::TopicUnavailable);
    assert!(answers[1..].iter().all(Option::is_none), "{answers:?}");

    create(&client, batches(&subject)).await;
    all_confirmed(&publish_chained(&publisher, &batch, WITHIN).await);
    assert_eq!(payloads(&client, &subject).await, places(5));
    answering.abort();
    delete(&client, &subject).await;
}
