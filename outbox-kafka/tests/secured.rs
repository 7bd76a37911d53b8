//! TLS and logins, at the secured listener of the server that tests share. An operator's mistake is an
//! outage until it is mended.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use outbox_conformance::address;
use outbox_conformance::secured::{Secret, batch, certificate, is_an_outage, is_refused};
use outbox_core::{PublisherExt, Uuid};
use outbox_kafka::KafkaPublisher;
use rdkafka::ClientConfig;
use support::protocol::exchange;
use support::{PATIENCE, create_topic, delete_topics, new_topic, read};

const WITHIN: Duration = Duration::from_secs(30);

/// The address of the secured listener.
fn secured() -> String {
    address("OUTBOX_TEST_KAFKA_TLS")
}

/// Logs in to whom `authority` has certified.
fn login(authority: &str, mechanism: &str, user: &str, password: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", secured())
        .set("security.protocol", "SASL_SSL")
        .set(
            "ssl.ca.location",
            certificate(authority).display().to_string(),
        )
        .set("sasl.mechanisms", mechanism)
        .set("sasl.username", user)
        .set("sasl.password", password)
        .set("delivery.timeout.ms", "2000");
    config
}

/// Tries as the relay does: what was mended is used once the client connects again.
async fn delivers(publisher: &KafkaPublisher, topic: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answers = publisher.publish_all(&batch(topic), WITHIN).await;
        if answers.iter().all(|answer| *answer == Some(Ok(()))) {
            return;
        }
        assert!(Instant::now() < deadline, "{answers:?}");
    }
}

#[tokio::test]
async fn messages_are_delivered_to_a_broker_that_proves_who_it_is() {
    let topic = new_topic();
    create_topic(&topic, 1, &[]).await;
    // The password of the user is known to everybody, and no secret.
    let secret = Secret::new();
    let right = login("ca.pem", "PLAIN", "outbox", "secret");
    delivers(&KafkaPublisher::new(right).unwrap(), &topic).await;
    let delivered = read(&topic).await;
    assert!(delivered.len() >= 3, "{delivered:?}");

    for (authority, password, said) in [
        ("other-ca.pem", "secret", "certificate verify failed"),
        ("ca.pem", secret.password(), "Invalid username or password"),
    ] {
        let wrong = login(authority, "PLAIN", "outbox", password);
        let publisher = KafkaPublisher::new(wrong).unwrap();
        is_refused(&publisher, &topic, said, &secret).await;
    }
    secret.was_not_logged();
    assert_eq!(read(&topic).await, delivered);
    delete_topics(&[topic]).await;
}

#[tokio::test]
async fn a_login_that_is_refused_is_an_outage_until_there_is_such_a_user() {
    let topic = new_topic();
    create_topic(&topic, 1, &[]).await;
    let user = format!("test-{}", Uuid::now_v7().simple());
    let config = login("ca.pem", "SCRAM-SHA-256", &user, PASSWORD);
    let publisher = KafkaPublisher::new(config).unwrap();
    is_an_outage(&publisher, &topic, "Authentication failed").await;
    alter_users(&[], &[&user]);
    delivers(&publisher, &topic).await;
    assert!(read(&topic).await.len() >= 3);
    alter_users(&[&user], &[]);
    delete_topics(&[topic]).await;
}

#[tokio::test]
async fn a_secret_in_a_configuration_that_is_refused_is_not_shown() {
    let secret = Secret::new();
    let mut config = login("missing.pem", "PLAIN", "outbox", secret.password());
    config.set("ssl.key.password", secret.password());
    let error = KafkaPublisher::new(config).unwrap_err();
    assert!(error.to_string().contains("ssl.ca.location"), "{error}");
    secret.is_not_in(&format!("{error:?} {error}"));
    secret.was_not_logged();
}

const PASSWORD: &str = "right";

/// What SCRAM-SHA-256 makes of the password with this salt and so many iterations: PBKDF2.
const SALT: &[u8] = b"outbox";
const ITERATIONS: i32 = 4096;
const SALTED_PASSWORD: [u8; 32] = [
    0x8b, 0x32, 0x8e, 0x67, 0x14, 0x89, 0xbf, 0x65, 0x21, 0x31, 0xd8, 0x6b, 0x70, 0x07, 0x54, 0xca,
    0x4a, 0x9a, 0xe6, 0xc0, 0xb9, 0x35, 0xa3, 0x32, 0x2f, 0x59, 0xc6, 0x21, 0x37, 0x54, 0xeb, 0xe6,
];

/// Deletes users, and creates others with [`PASSWORD`].
fn alter_users(deletions: &[&str], creations: &[&str]) {
    const ALTER_USER_SCRAM_CREDENTIALS: i16 = 51;
    const SCRAM_SHA_256: u8 = 1;
    const NO_TAGS: u8 = 0;
    // The first ones are the header's.
    let mut request = vec![NO_TAGS];
    // Lengths and counts are one more than they are; all are small enough for one byte.
    let bytes = |to: &mut Vec<u8>, bytes: &[u8]| {
        to.push(u8::try_from(bytes.len() + 1).unwrap());
        to.extend_from_slice(bytes);
    };
    request.push(u8::try_from(deletions.len() + 1).unwrap());
    for user in deletions {
        bytes(&mut request, user.as_bytes());
        request.extend([SCRAM_SHA_256, NO_TAGS]);
    }
    request.push(u8::try_from(creations.len() + 1).unwrap());
    for user in creations {
        bytes(&mut request, user.as_bytes());
        request.push(SCRAM_SHA_256);
        request.extend(ITERATIONS.to_be_bytes());
        bytes(&mut request, SALT);
        bytes(&mut request, &SALTED_PASSWORD);
        request.push(NO_TAGS);
    }
    request.push(NO_TAGS);

    let answer = exchange(ALTER_USER_SCRAM_CREDENTIALS, 0, &request);
    // Behind the correlation id, tags, the throttle time and the count: one user, the code, no words.
    let user = deletions.iter().chain(creations).next().unwrap();
    let mut accepted = Vec::new();
    bytes(&mut accepted, user.as_bytes());
    accepted.extend([0, 0, 0]);
    assert_eq!(answer[10..][..accepted.len()], accepted, "{answer:?}");
}
