//! What real servers make of a chain: a stream takes a batch or has nothing of it, and what takes no batches
//! gets one message of a key after the other.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use async_nats::header::{NATS_BATCH_COMMIT, NATS_BATCH_ID, NATS_BATCH_SEQUENCE};
use async_nats::jetstream::stream::Config;
use async_nats::{Client, ConnectOptions, HeaderMap, HeaderName};
use futures_util::StreamExt;
use outbox_conformance::publisher::{publish_chained, refusal};
use outbox_core::{Message, PublishError, PublishErrorKind, Publisher as _};
use outbox_nats::{NatsConfig, NatsPublisher};
use support::{
    connect, create, delete, latest_url, message, new_subject, payloads, read, stream, url,
};
use tokio::task::JoinHandle;

const WITHIN: Duration = Duration::from_secs(60);
const ACK_TIMEOUT: Duration = Duration::from_millis(400);
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

/// For what is answered by nobody.
fn impatient() -> NatsConfig {
    NatsConfig::new()
        .atomic_batches(true)
        .ack_timeout(ACK_TIMEOUT)
}

/// Answers what comes to a subject as if it were a stream. It is given the headers, and the place of the message.
async fn subscriber(
    client: &Client,
    subject: &str,
    answer: impl Fn(&HeaderMap, &str) -> String + Send + 'static,
) -> JoinHandle<()> {
    let mut requests = client.subscribe(subject.to_owned()).await.unwrap();
    client.flush().await.unwrap();
    let client = client.clone();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let place = std::str::from_utf8(&request.payload).unwrap();
            let answer = answer(&request.headers.unwrap(), place);
            if let Some(reply) = request.reply {
                client.publish(reply, answer.into()).await.unwrap();
            }
        }
    })
}

fn header(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).map_or("", |value| value.as_str())
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
    for (url, allow_atomic_publish) in [(latest_url(), true), (url(), false)] {
        let client = connect(&url).await;
        let subject = new_subject();
        let config = Config {
            allow_atomic_publish,
            ..stream(&subject)
        };
        create(&client, config).await;
        let batch = chain(&subject, "k", 50);
        all_confirmed(&publish_chained(&in_batches(&client), &batch[..30], WITHIN).await);
        let publisher = in_batches(&client);
        all_confirmed(&publish_chained(&publisher, &batch, WITHIN).await);
        assert_eq!(publisher.duplicates(), 30, "{url}");
        assert_eq!(payloads(&client, &subject).await, places(50));
        delete(&client, &subject).await;
    }
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
    let answering = subscriber(&client, &subject, |_, _| String::new()).await;
    let publisher = NatsPublisher::new(client.clone(), impatient()).unwrap();
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

/// When the stream's leader moves in mid-batch to a server that knows of no batches, that one stores what is
/// left of it as messages of their own, and acknowledges the last.
#[tokio::test]
async fn only_what_acknowledges_the_whole_batch_confirms_it() {
    for (said, confirms) in [
        (r#"{"stream":"S","seq":5,"batch":"ID","count":5}"#, true),
        (r#"{"stream":"S","seq":5}"#, false),
        (r#"{"stream":"S","seq":5,"duplicate":true}"#, false),
        (r#"{"stream":"S","seq":5,"batch":"ID"}"#, false),
        (r#"{"stream":"S","seq":5,"count":5}"#, false),
        (r#"{"stream":"S","seq":5,"batch":"ID","count":4}"#, false),
        (r#"{"stream":"S","seq":5,"batch":"other","count":5}"#, false),
        (r#"{"stream":"T","seq":5,"batch":"ID","count":5}"#, false),
        (r#"{"stream":"S","batch":"ID","count":5}"#, false),
        (r#"{"batch":"ID","count":5}"#, false),
        (r#"{"stream":"S","seq":5,"batch":"ID","count":"5"}"#, false),
        ("", false),
        ("pong", false),
    ] {
        let client = connect(&latest_url()).await;
        let subject = new_subject();
        let answering = subscriber(&client, &subject, move |headers, _| {
            match headers.get(NATS_BATCH_COMMIT) {
                Some(_) => said.replace("ID", header(headers, NATS_BATCH_ID)),
                None => String::new(),
            }
        })
        .await;
        let config = impatient().expected_stream("S");
        let publisher = NatsPublisher::new(client.clone(), config).unwrap();
        let batch = chain(&subject, "k", 5);
        let answers = publish_chained(&publisher, &batch, WITHIN).await;
        if confirms {
            all_confirmed(&answers);
        } else {
            let (kind, reason) = refusal(&answers[0]);
            assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{said}: {reason}");
            assert!(answers[1..].iter().all(Option::is_none), "{said}");
        }
        answering.abort();
    }
}

/// A server that knows of no batches acknowledges the first message as any other.
#[tokio::test]
async fn a_batch_that_is_not_begun_is_no_batch() {
    let alone = r#"{"stream":"S","seq":1}"#;
    let elsewhere = r#"{"stream":"T","seq":1}"#;
    let whole = r#"{"stream":"S","seq":5,"batch":"ID","count":5}"#;
    for (said, confirmed) in [(alone, 5), (elsewhere, 0), (whole, 0), ("pong", 0)] {
        let client = connect(&latest_url()).await;
        let subject = new_subject();
        let answering = subscriber(&client, &subject, move |headers, place| {
            let id = header(headers, NATS_BATCH_ID);
            assert!(id.is_empty() || place == "0", "place {place}");
            said.replace("ID", id)
        })
        .await;
        let config = impatient().expected_stream("S");
        let publisher = NatsPublisher::new(client.clone(), config).unwrap();
        let batch = chain(&subject, "k", 5);
        let answers = publish_chained(&publisher, &batch, WITHIN).await;
        all_confirmed(&answers[..confirmed]);
        if confirmed < answers.len() {
            let (kind, reason) = refusal(&answers[confirmed]);
            assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{said}: {reason}");
            assert!(answers[confirmed + 1..].iter().all(Option::is_none));
        }
        assert!(
            !answering.is_finished(),
            "more than the first came in a batch"
        );
        answering.abort();
    }
}

/// Twenty times the acknowledgement timeout is more than the call has.
#[tokio::test]
async fn topics_that_say_nothing_take_the_time_of_no_other() {
    let client = connect(&latest_url()).await;
    let (silent, good) = (new_subject(), new_subject());
    let _nobody_answers = client.subscribe(format!("{silent}.*")).await.unwrap();
    client.flush().await.unwrap();
    create(&client, batches(&good)).await;
    let mut batch: Vec<Message> = (0..20)
        .flat_map(|number| chain(&format!("{silent}.{number}"), &format!("k{number}"), 2))
        .collect();
    batch.extend(chain(&good, "k", 5));
    let publisher = NatsPublisher::new(client.clone(), impatient()).unwrap();
    let within = 10 * ACK_TIMEOUT;
    let answers = publish_chained(&publisher, &batch, within).await;
    for chain in answers[..40].chunks(2) {
        assert_eq!(refusal(&chain[0]).0, PublishErrorKind::TopicUnavailable);
        assert_eq!(chain[1], None);
    }
    all_confirmed(&answers[40..]);
    assert_eq!(payloads(&client, &good).await, places(5));
    delete(&client, &good).await;
}

#[tokio::test]
async fn a_batch_has_no_more_messages_than_may_be_in_flight() {
    let client = connect(&latest_url()).await;
    let subject = new_subject();
    create(&client, batches(&subject)).await;
    for (most, sequences) in [
        (4, vec!["1", "2", "3", "4", "1", "2", "3", "4", "1", "2"]),
        (1, vec![""; 10]),
    ] {
        let config = NatsConfig::new().atomic_batches(true).max_in_flight(most);
        let publisher = NatsPublisher::new(client.clone(), config).unwrap();
        let mut sent = client.subscribe(subject.clone()).await.unwrap();
        client.flush().await.unwrap();
        all_confirmed(&publish_chained(&publisher, &chain(&subject, "k", 10), WITHIN).await);
        for sequence in sequences {
            let headers = sent.next().await.unwrap().headers.unwrap();
            assert_eq!(header(&headers, NATS_BATCH_SEQUENCE), sequence, "{most}");
        }
    }
    delete(&client, &subject).await;
}

/// A server takes no id of a batch that is longer than 64 characters.
#[tokio::test]
async fn the_name_of_an_inbox_is_no_matter_to_a_batch() {
    let client = ConnectOptions::new()
        .custom_inbox_prefix(format!("inbox-{}", "x".repeat(100)))
        .connect(latest_url())
        .await
        .unwrap();
    let subject = new_subject();
    create(&client, batches(&subject)).await;
    all_confirmed(&publish_chained(&in_batches(&client), &chain(&subject, "k", 10), WITHIN).await);
    let records = read(&client, &subject).await;
    assert_eq!(records.len(), 10);
    for record in records {
        assert!(record.headers.contains_key("Nats-Batch-Id"), "{record:?}");
    }
    delete(&client, &subject).await;
}
