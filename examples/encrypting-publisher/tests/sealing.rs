//! What the suite cannot ask: what a broker sees, what a reader refuses, and where answers land.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use encrypting_publisher::{ENCRYPTION_HEADER, EncryptingPublisher, Key, KeyRing, OpenError};
use outbox_core::memory::MemoryPublisher;
use outbox_core::{
    Answer, Delivery, MAX_HEADERS, Message, PublishError, PublishErrorKind, Publisher as _,
    PublisherExt as _, Uuid,
};

const PATIENCE: Duration = Duration::from_secs(10);
const SECRET: &[u8] = b"a payload that nobody else may read";

fn key(id: &str, byte: u8) -> Key {
    Key::new(id, &[byte; 32]).unwrap()
}

fn message() -> Message {
    Message::to("orders.placed")
        .key("customer-7")
        .header("trace", "abc")
        .bytes(SECRET)
        .unwrap()
}

/// What the wrapped publisher was given.
async fn sealed(message: &Message) -> Message {
    let memory = MemoryPublisher::new();
    let publisher = EncryptingPublisher::new(memory.clone(), key("k1", 1));
    let answers = publisher
        .publish_all(std::slice::from_ref(message), PATIENCE)
        .await;
    assert_eq!(answers, [Some(Ok(()))]);
    memory.published().remove(0)
}

fn open(ring: &KeyRing, sealed: &Message) -> Result<Vec<u8>, OpenError> {
    let header = sealed.headers().get(ENCRYPTION_HEADER).unwrap();
    ring.open(sealed.id(), header, sealed.payload().unwrap())
}

#[tokio::test]
async fn only_the_payload_is_hidden_and_one_header_added() {
    let message = message();
    let sealed = sealed(&message).await;
    assert_eq!(sealed.id(), message.id());
    assert_eq!(sealed.topic(), message.topic());
    assert_eq!(sealed.key(), message.key());
    let headers: Vec<_> = sealed.headers().iter().collect();
    assert_eq!(
        headers,
        [
            ("encryption", "xchacha20poly1305; key=k1"),
            ("trace", "abc")
        ]
    );
    let payload = sealed.payload().unwrap();
    assert_eq!(payload.len(), 24 + SECRET.len() + 16);
    assert!(!payload.windows(8).any(|part| SECRET.starts_with(part)));
    assert_eq!(
        open(&KeyRing::new([key("k1", 1)]), &sealed).unwrap(),
        SECRET
    );
}

#[tokio::test]
async fn a_repeat_has_a_nonce_of_its_own() {
    let message = message();
    let (first, second) = (sealed(&message).await, sealed(&message).await);
    let nonce = |sealed: &Message| sealed.payload().unwrap()[..24].to_vec();
    assert_ne!(nonce(&first), nonce(&second));
    assert_eq!(first.id(), second.id());
}

#[tokio::test]
async fn a_tombstone_stays_one() {
    let tombstone = Message::to("orders").key("k").tombstone().unwrap();
    assert_eq!(sealed(&tombstone).await, tombstone);
}

#[tokio::test]
async fn what_was_tampered_with_is_not_opened() {
    let ring = KeyRing::new([key("k1", 1)]);
    let sealed = sealed(&message()).await;
    let header = sealed.headers().get(ENCRYPTION_HEADER).unwrap();
    let payload = sealed.payload().unwrap().to_vec();
    assert!(ring.open(sealed.id(), header, &payload).is_ok());
    // Nonce, ciphertext and tag.
    for place in [0, 23, 24, payload.len() - 17, payload.len() - 1] {
        let mut altered = payload.clone();
        altered[place] ^= 1;
        let opened = ring.open(sealed.id(), header, &altered);
        assert_eq!(opened, Err(OpenError::Altered), "byte {place}");
    }
    for length in [0, 23, 24, 39, payload.len() - 1] {
        let opened = ring.open(sealed.id(), header, &payload[..length]);
        assert_eq!(opened, Err(OpenError::Altered), "{length} bytes");
    }
    // As the payload of another message, and with another secret under the same id.
    let other = ring.open(Uuid::now_v7(), header, &payload);
    assert_eq!(other, Err(OpenError::Altered));
    let wrong = KeyRing::new([key("k1", 2)]);
    assert_eq!(open(&wrong, &sealed), Err(OpenError::Altered));
}

#[tokio::test]
async fn a_reader_says_what_it_lacks() {
    let sealed = sealed(&message()).await;
    assert_eq!(
        open(&KeyRing::new([key("k2", 1)]), &sealed),
        Err(OpenError::UnknownKey { id: "k1".into() })
    );
    let ring = KeyRing::new([key("k0", 0), key("k1", 1)]);
    assert_eq!(open(&ring, &sealed).unwrap(), SECRET);
    for scheme in ["rot13", "rot13; key=k1", ""] {
        let opened = ring.open(sealed.id(), scheme, sealed.payload().unwrap());
        assert!(matches!(opened, Err(OpenError::UnknownScheme { .. })));
    }
}

#[tokio::test]
async fn answers_land_in_the_original_deliveries() {
    let memory = MemoryPublisher::new();
    memory.answer_with(|message| match message.topic() {
        "full" => Err(PublishError::retryable("not now")),
        "strict" => Err(PublishError::rejected("never")),
        "away" => Err(PublishError::broker_unavailable("refused")),
        _ => Ok(()),
    });
    let publisher = EncryptingPublisher::new(memory.clone(), key("k1", 1));
    let to = |topic: &str| Message::to(topic).key("k");
    let mut crowded = to("plain");
    for number in 0..MAX_HEADERS {
        crowded = crowded.header(format!("header-{number}"), "");
    }
    let batch = [
        to("plain").bytes("first").unwrap(),
        to("full").bytes("second").unwrap(),
        to("plain")
            .header("encryption", "own")
            .bytes("third")
            .unwrap(),
        to("strict").tombstone().unwrap(),
        crowded.bytes("fifth").unwrap(),
        to("plain").bytes("sixth").unwrap(),
    ];
    let answers = publisher.publish_all(&batch, PATIENCE).await;
    let rejected = |reason: &str| Some(Err(PublishError::rejected(reason)));
    assert_eq!(
        answers,
        [
            Some(Ok(())),
            Some(Err(PublishError::retryable("not now"))),
            rejected("encrypted, header \"encryption\" is given twice"),
            rejected("never"),
            rejected("encrypted, headers: 129 given, the limit is 128"),
            Some(Ok(())),
        ]
    );
    let arrived: Vec<Uuid> = memory.published().iter().map(Message::id).collect();
    assert_eq!(arrived, [batch[0].id(), batch[5].id()]);

    // Behind a router the broker's absence is that of its topics, also through the wrapper.
    let (message, answer) = (to("away").bytes("x").unwrap(), Answer::new());
    let delivery = Delivery::new(&message, &answer).one_of_many();
    publisher.publish(&[delivery]).await;
    let error = answer.into_inner().unwrap().unwrap_err();
    assert_eq!(error.kind(), PublishErrorKind::TopicUnavailable);
}

#[test]
fn a_key_shows_its_id_and_no_secret() {
    let shown = format!(
        "{:?}",
        EncryptingPublisher::new(MemoryPublisher::new(), key("k1", 9))
    );
    assert!(shown.contains("k1"), "{shown}");
    assert!(!shown.contains('9'), "{shown}");
    for id in ["", "two words", "a;b", &"x".repeat(65)] {
        assert!(Key::new(id, &[0; 32]).is_err(), "{id:?}");
    }
}
