//! What the real server's answers become, one kind at a time.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::jetstream;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, Source};
use futures_util::StreamExt;
use outbox_conformance::publisher::refusal;
use outbox_core::{Message, PublishErrorKind, PublisherExt};
use outbox_nats::{MAX_HEADER_BLOCK_BYTES, NatsConfig, NatsPublisher};
use support::server::Server;
use support::{
    PATIENCE, connect, create, delete, message, new_subject, payloads, read, stream, url,
};

const WITHIN: Duration = Duration::from_secs(30);

fn publisher(client: &Client) -> NatsPublisher {
    publisher_with(client, NatsConfig::new())
}

fn publisher_with(client: &Client, config: NatsConfig) -> NatsPublisher {
    NatsPublisher::new(client.clone(), config).unwrap()
}

/// For what the server passes over in silence.
fn impatient() -> NatsConfig {
    NatsConfig::new().ack_timeout(Duration::from_millis(400))
}

#[tokio::test]
async fn a_confirmed_message_is_one_of_the_stream() {
    let client = connect(&url()).await;
    let subject = new_subject();
    create(&client, stream(&subject)).await;
    let batch = [
        Message::to(&subject)
            .key("7")
            .header("trace", "abc")
            .bytes("hello")
            .unwrap(),
        Message::to(&subject).tombstone().unwrap(),
    ];
    let answers = publisher(&client).publish_all(&batch, WITHIN).await;
    assert_eq!(answers, [Some(Ok(())), Some(Ok(()))]);
    let records = read(&client, &subject).await;
    assert_eq!(records.len(), 2);
    assert_eq!(records[0].subject, subject);
    assert_eq!(records[0].payload, b"hello");
    let text = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pairs.iter().map(own).collect()
    };
    assert_eq!(
        records[0].headers,
        text(&[
            ("Nats-Msg-Id", &batch[0].id().to_string()),
            ("Outbox-Key", "7"),
            ("trace", "abc"),
        ])
    );
    assert_eq!(records[1].payload, b"");
    assert_eq!(
        records[1].headers,
        text(&[
            ("Nats-Msg-Id", &batch[1].id().to_string()),
            ("Outbox-Tombstone", "true"),
        ])
    );
    delete(&client, &subject).await;
}

#[tokio::test]
async fn a_subject_has_the_configured_prefix() {
    let client = connect(&url()).await;
    let name = new_subject();
    let mut config = stream(&name);
    config.subjects = vec![format!("{name}.eu.>")];
    create(&client, config).await;
    let config = NatsConfig::new().subject_prefix(format!("{name}.eu"));
    let batch = [message("orders.placed", "k", "1")];
    let answers = publisher_with(&client, config)
        .publish_all(&batch, WITHIN)
        .await;
    assert_eq!(answers, [Some(Ok(()))]);
    let records = read(&client, &name).await;
    assert_eq!(records[0].subject, format!("{name}.eu.orders.placed"));
    delete(&client, &name).await;
}

#[tokio::test]
async fn a_subject_without_a_stream_is_known_at_once() {
    let client = connect(&url()).await;
    let subject = new_subject();
    let start = Instant::now();
    let batch = [message(&subject, "k", "1")];
    let answers = publisher(&client).publish_all(&batch, WITHIN).await;
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    let (kind, reason) = refusal(&answers[0]);
    assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
    assert!(reason.contains("no stream takes the subject"), "{reason}");
}

#[tokio::test]
async fn a_repeat_is_confirmed_and_counted() {
    let client = connect(&url()).await;
    let subject = new_subject();
    create(&client, stream(&subject)).await;
    let publisher = publisher(&client);
    let batch = [message(&subject, "k", "1"), message(&subject, "k", "2")];
    for repeats in [0, 2, 4] {
        let answers = publisher.publish_all(&batch, WITHIN).await;
        assert_eq!(answers, [Some(Ok(())), Some(Ok(()))]);
        assert_eq!(publisher.duplicates(), repeats);
    }
    assert_eq!(payloads(&client, &subject).await, ["1", "2"]);
    delete(&client, &subject).await;
}

#[tokio::test]
async fn a_full_stream_takes_no_new_messages_for_now() {
    let client = connect(&url()).await;
    type Limit = fn(&mut Config);
    let limits: [(Limit, &str); 3] = [
        (
            |config| config.max_messages = 2,
            "maximum messages exceeded",
        ),
        (|config| config.max_bytes = 350, "maximum bytes exceeded"),
        (
            |config| {
                config.max_messages_per_subject = 2;
                config.discard_new_per_subject = true;
            },
            "maximum messages per subject exceeded",
        ),
    ];
    for (limit, words) in limits {
        let subject = new_subject();
        let mut config = stream(&subject);
        config.discard = DiscardPolicy::New;
        limit(&mut config);
        let context = create(&client, config).await;
        let publisher = publisher(&client);
        let batch = ["1", "2", "3"].map(|name| message(&subject, "k", name));
        let answers = publisher.publish_all(&batch, WITHIN).await;
        assert_eq!(answers[..2], [Some(Ok(())), Some(Ok(()))], "{words}");
        let (kind, reason) = refusal(&answers[2]);
        assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
        assert!(reason.contains(words), "{reason}");

        // As when consumers have worked it off.
        let full = context.get_stream(&subject).await.unwrap();
        full.purge().await.unwrap();
        let answers = publisher.publish_all(&batch[2..], WITHIN).await;
        assert_eq!(answers, [Some(Ok(()))]);
        delete(&client, &subject).await;
    }
}

#[tokio::test]
async fn a_message_over_the_streams_limit_is_rejected_alone() {
    let client = connect(&url()).await;
    let subject = new_subject();
    let mut config = stream(&subject);
    config.max_message_size = 1_000;
    create(&client, config).await;
    // One key, all at once: what comes after the one that fails is stored all the same.
    let batch = [
        message(&subject, "k", "1"),
        message(&subject, "k", vec![b'x'; 1_000]),
        message(&subject, "k", "3"),
    ];
    let answers = publisher(&client).publish_all(&batch, WITHIN).await;
    assert_eq!((&answers[0], &answers[2]), (&Some(Ok(())), &Some(Ok(()))));
    let (kind, reason) = refusal(&answers[1]);
    assert_eq!(kind, PublishErrorKind::Rejected);
    assert_eq!(
        reason,
        "message size exceeds maximum allowed (code 400, error code 10054)"
    );
    assert_eq!(payloads(&client, &subject).await, ["1", "3"]);
    delete(&client, &subject).await;
}

#[tokio::test]
async fn a_message_over_the_servers_limit_is_rejected_alone_with_both_sizes() {
    let server = Server::start_with("max_payload: 2000, jetstream: { store_dir: STORE }");
    let client = connect(&server.url()).await;
    create(&client, stream("limited")).await;
    // NATS/1.0, the lines of the id and the key, an empty line: 10 + 51 + 15 + 2.
    let batch = [
        message("limited", "a", "small"),
        message("limited", "b", vec![b'x'; 2_000 - 78]),
        message("limited", "c", vec![b'x'; 2_000 - 77]),
        message("limited", "d", "small"),
    ];
    let answers = publisher(&client).publish_all(&batch, WITHIN).await;
    assert_eq!(answers[..2], [Some(Ok(())), Some(Ok(()))]);
    assert_eq!(answers[3], Some(Ok(())));
    let (kind, reason) = refusal(&answers[2]);
    assert_eq!(kind, PublishErrorKind::Rejected);
    assert!(reason.contains("have 2001 bytes"), "{reason}");
    assert!(reason.contains("max_payload is 2000"), "{reason}");
    assert_eq!(read(&client, "limited").await.len(), 3);
}

#[tokio::test]
async fn the_longest_block_of_headers_arrives() {
    let client = connect(&url()).await;
    let subject = new_subject();
    create(&client, stream(&subject)).await;
    let key = "k".repeat(MAX_HEADER_BLOCK_BYTES - (10 + 51 + 14 + 2));
    let batch = [
        message(&subject, &key, "1"),
        message(&subject, &(key.clone() + "k"), "2"),
    ];
    let answers = publisher(&client).publish_all(&batch, WITHIN).await;
    assert_eq!(answers[0], Some(Ok(())));
    let (kind, reason) = refusal(&answers[1]);
    assert_eq!(kind, PublishErrorKind::Rejected, "{reason}");
    assert!(reason.contains("JetStream takes 65535"), "{reason}");
    let records = read(&client, &subject).await;
    assert_eq!(records[0].headers["Outbox-Key"], key);
    delete(&client, &subject).await;
}

#[tokio::test]
async fn another_stream_than_the_expected_one_takes_nothing() {
    let client = connect(&url()).await;
    let subject = new_subject();
    create(&client, stream(&subject)).await;
    let batch = [message(&subject, "k", "1")];

    let wrong = publisher_with(&client, NatsConfig::new().expected_stream("ANOTHER"));
    let answers = wrong.publish_all(&batch, WITHIN).await;
    let (kind, reason) = refusal(&answers[0]);
    assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
    assert!(
        reason.contains("expected stream does not match"),
        "{reason}"
    );
    assert_eq!(read(&client, &subject).await, []);

    let right = publisher_with(&client, NatsConfig::new().expected_stream(&subject));
    assert_eq!(right.publish_all(&batch, WITHIN).await, [Some(Ok(()))]);
    delete(&client, &subject).await;
}

#[tokio::test]
async fn a_sealed_stream_is_the_topics_trouble() {
    let client = connect(&url()).await;
    let subject = new_subject();
    let context = create(&client, stream(&subject)).await;
    let mut config = stream(&subject);
    config.sealed = true;
    context.update_stream(config).await.unwrap();
    let batch = [message(&subject, "k", "1")];
    let answers = publisher(&client).publish_all(&batch, WITHIN).await;
    let (kind, reason) = refusal(&answers[0]);
    assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
    assert!(reason.contains("sealed"), "{reason}");
    delete(&client, &subject).await;
}

#[tokio::test]
async fn a_mirror_takes_no_messages_itself() {
    let client = connect(&url()).await;
    let (origin, mirror) = (new_subject(), new_subject());
    create(&client, stream(&origin)).await;
    let copy = Config {
        name: mirror.clone(),
        mirror: Some(Source {
            name: origin.clone(),
            ..Source::default()
        }),
        ..Config::default()
    };
    create(&client, copy).await;
    delete(&client, &origin).await;
    let batch = [message(&origin, "k", "1")];
    let answers = publisher(&client).publish_all(&batch, WITHIN).await;
    assert_eq!(refusal(&answers[0]).0, PublishErrorKind::TopicUnavailable);
    delete(&client, &mirror).await;
}

#[tokio::test]
async fn a_stream_of_interest_keeps_nothing_that_nobody_wants() {
    let client = connect(&url()).await;
    let subject = new_subject();
    let mut config = stream(&subject);
    config.retention = RetentionPolicy::Interest;
    create(&client, config).await;
    let batch = [message(&subject, "k", "1")];
    let publisher = publisher(&client);
    // It is acknowledged; the repeat too, which this server answers with no place in the stream.
    for _ in 0..2 {
        assert_eq!(publisher.publish_all(&batch, WITHIN).await, [Some(Ok(()))]);
    }
    assert_eq!(read(&client, &subject).await, []);
    delete(&client, &subject).await;
}

#[tokio::test]
async fn a_stream_that_does_not_acknowledge_is_the_topics_trouble() {
    let client = connect(&url()).await;
    let (silent, there) = (new_subject(), new_subject());
    let mut config = stream(&silent);
    config.no_ack = true;
    let context = create(&client, config).await;
    create(&client, stream(&there)).await;
    let publisher = publisher_with(&client, impatient());
    let batch = [message(&silent, "a", "1"), message(&there, "b", "2")];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    let (kind, reason) = refusal(&answers[0]);
    assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
    assert!(
        reason.contains("not acknowledged within 400ms, though the server is there"),
        "{reason}"
    );
    assert_eq!(answers[1], Some(Ok(())));
    context.update_stream(stream(&silent)).await.unwrap();
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!(answers, [Some(Ok(())), Some(Ok(()))]);
    delete(&client, &silent).await;
    delete(&client, &there).await;
}

#[tokio::test]
async fn more_than_may_be_in_flight_goes_on_after_silence() {
    let client = connect(&url()).await;
    let (silent, there) = (new_subject(), new_subject());
    let mut config = stream(&silent);
    config.no_ack = true;
    create(&client, config).await;
    create(&client, stream(&there)).await;
    let publisher = publisher_with(&client, impatient().max_in_flight(2));
    let batch = [
        message(&silent, "a", "1"),
        message(&silent, "b", "2"),
        message(&there, "c", "3"),
        message(&there, "d", "4"),
    ];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    for answer in &answers[..2] {
        assert_eq!(refusal(answer).0, PublishErrorKind::TopicUnavailable);
    }
    assert_eq!(answers[2..], [Some(Ok(())), Some(Ok(()))]);
    delete(&client, &silent).await;
    delete(&client, &there).await;
}

#[tokio::test]
async fn a_window_smaller_than_the_batch_keeps_the_order() {
    let client = connect(&url()).await;
    let subject = new_subject();
    create(&client, stream(&subject)).await;
    let publisher = publisher_with(&client, NatsConfig::new().max_in_flight(7));
    let names: Vec<String> = (0..500).map(|n| n.to_string()).collect();
    let batch: Vec<Message> = names
        .iter()
        .map(|name| message(&subject, "k", name.as_str()))
        .collect();
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!(answers, vec![Some(Ok(())); 500]);
    assert_eq!(payloads(&client, &subject).await, names);
    delete(&client, &subject).await;
}

#[tokio::test]
async fn a_subscriber_that_answers_is_no_stream() {
    let client = connect(&url()).await;
    let subject = new_subject();
    // It answers whatever it gets, and before the stream does.
    let mut requests = client.subscribe(subject.clone()).await.unwrap();
    client.flush().await.unwrap();
    let replying = tokio::spawn({
        let client = client.clone();
        async move {
            while let Some(request) = requests.next().await {
                if let Some(reply) = request.reply {
                    client.publish(reply, "{\"ok\":true}".into()).await.unwrap();
                }
            }
        }
    });
    let publisher = publisher_with(&client, impatient());
    let batch = [message(&subject, "k", "1")];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    let (kind, reason) = refusal(&answers[0]);
    assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
    assert!(
        reason.ends_with("a subscriber that is not JetStream has answered"),
        "{reason}"
    );

    create(&client, stream(&subject)).await;
    assert_eq!(publisher.publish_all(&batch, WITHIN).await, [Some(Ok(()))]);
    replying.abort();
    delete(&client, &subject).await;
}

/// A server on which `limited` may publish to `open`, and `deaf` may not subscribe to its inbox.
const RIGHTS: &str = r#"
    jetstream: { store_dir: STORE }
    authorization: { users: [
        { user: admin, password: secret }
        { user: limited, password: secret, permissions: {
            publish: ["open"], subscribe: ["_INBOX.>"] } }
        { user: deaf, password: secret, permissions: { publish: ">", subscribe: ["nothing"] } }
    ] }
"#;

#[tokio::test]
async fn a_right_that_is_missing_is_the_topics_trouble_until_it_is_given() {
    let server = Server::start_with(RIGHTS);
    let admin = server.connect_as("admin").await;
    for subject in ["open", "closed"] {
        create(&admin, stream(subject)).await;
    }
    let limited = server.connect_as("limited").await;
    let publisher = publisher_with(&limited, impatient());
    let batch = [
        message("open", "a", "1"),
        message("closed", "b", "2"),
        message("open", "c", "3"),
    ];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!((&answers[0], &answers[2]), (&Some(Ok(())), &Some(Ok(()))));
    let (kind, reason) = refusal(&answers[1]);
    assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
    assert!(
        reason.contains("no right to publish to the subject"),
        "{reason}"
    );
    // Also when there is nothing else to be seen of the server.
    let answers = publisher.publish_all(&batch[1..2], WITHIN).await;
    assert_eq!(refusal(&answers[0]).0, PublishErrorKind::TopicUnavailable);
    assert_eq!(read(&admin, "closed").await, []);

    server.reload(&RIGHTS.replace(r#"["open"]"#, r#"["open", "closed"]"#));
    let deadline = Instant::now() + PATIENCE;
    // The server cuts the user's connections when it reads its new rights.
    while publisher.publish_all(&batch, WITHIN).await != vec![Some(Ok(())); 3] {
        assert!(Instant::now() < deadline, "the right is not given");
        // wait: the server reads its configuration, and the client connects again
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn an_inbox_that_may_not_be_subscribed_to_is_told() {
    let server = Server::start_with(RIGHTS);
    let admin = server.connect_as("admin").await;
    create(&admin, stream("open")).await;
    let deaf = server.connect_as("deaf").await;
    let publisher = publisher_with(&deaf, impatient());
    let answers = publisher
        .publish_all(&[message("open", "a", "1")], WITHIN)
        .await;
    let (kind, reason) = refusal(&answers[0]);
    assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
    assert!(reason.contains("to subscribe to the inbox"), "{reason}");
}

#[tokio::test]
async fn a_server_without_jetstream_has_no_stream() {
    let server = Server::start_with("");
    let client = connect(&server.url()).await;
    let answers = publisher(&client)
        .publish_all(&[message("t", "a", "1")], WITHIN)
        .await;
    let (kind, reason) = refusal(&answers[0]);
    assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
    assert!(reason.contains("JetStream is not there"), "{reason}");
}

#[tokio::test]
async fn a_server_or_account_out_of_storage_takes_messages_when_there_is_room() {
    let of_server = r#"
        jetstream: { store_dir: STORE, max_file_store: 100KB }
        authorization: { users: [{ user: limited, password: secret }] }
    "#;
    let of_account = r#"
        jetstream: { store_dir: STORE }
        accounts: { A: {
            jetstream: { max_file: 100KB }, users: [{ user: limited, password: secret }] } }
    "#;
    for (config, said) in [
        (of_server, "insufficient resources"),
        (of_account, "resource limits exceeded for account"),
    ] {
        let server = Server::start_with(config);
        let client = server.connect_as("limited").await;
        let context = create(&client, stream("t")).await;
        let publisher = publisher(&client);
        let batch: Vec<Message> = (0..20)
            .map(|n| message("t", &format!("key-{n}"), vec![b'x'; 10_000]))
            .collect();
        let answers = publisher.publish_all(&batch, WITHIN).await;
        assert_eq!(answers[0], Some(Ok(())));
        let (kind, reason) = refusal(&answers[19]);
        assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
        assert!(reason.contains(said), "{reason}");

        let full = context.get_stream("t").await.unwrap();
        full.purge().await.unwrap();
        let answers = publisher.publish_all(&batch[19..], WITHIN).await;
        assert_eq!(answers, [Some(Ok(()))]);
    }
}

#[tokio::test]
async fn a_stream_that_was_deleted_is_a_missing_one() {
    let client = connect(&url()).await;
    let subject = new_subject();
    create(&client, stream(&subject)).await;
    let publisher = publisher(&client);
    let batch = [message(&subject, "k", "1")];
    assert_eq!(publisher.publish_all(&batch, WITHIN).await, [Some(Ok(()))]);
    delete(&client, &subject).await;
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!(refusal(&answers[0]).0, PublishErrorKind::TopicUnavailable);
    // A new stream of the same name knows nothing of the old one's messages.
    jetstream::new(client.clone())
        .create_stream(stream(&subject))
        .await
        .unwrap();
    assert_eq!(publisher.publish_all(&batch, WITHIN).await, [Some(Ok(()))]);
    assert_eq!(publisher.duplicates(), 0);
    delete(&client, &subject).await;
}
