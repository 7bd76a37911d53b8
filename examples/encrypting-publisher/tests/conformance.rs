//! What is encrypted passes the publisher suite: everything arrives, once it is opened.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use encrypting_publisher::{ENCRYPTION_HEADER, EncryptingPublisher, Key, KeyRing};
use outbox_conformance::publisher::{InMemory, Received};
use outbox_core::Message;

fn key() -> Key {
    Key::new("2026-11", &[7; 32]).unwrap()
}

/// What a consumer makes of a message. One without a payload must not say that it has an encrypted one.
fn opened(message: &Message) -> Received {
    let mut received = Received::of(message);
    let header = received.headers.remove(ENCRYPTION_HEADER);
    assert_eq!(header.is_some(), received.payload.is_some());
    if let (Some(header), Some(payload)) = (header, &mut received.payload) {
        let ring = KeyRing::new([key()]);
        *payload = ring.open(message.id(), &header, payload).unwrap();
    }
    received
}

outbox_conformance::publisher_suite!(InMemory {
    wrap: |memory| Arc::new(EncryptingPublisher::new(memory, key())),
    read: opened,
    chains: true,
});
