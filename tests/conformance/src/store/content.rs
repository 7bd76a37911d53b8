//! That a message comes back as it was enqueued, byte for byte.

use std::collections::HashSet;
use std::time::Duration;

use outbox_core::{MAX_HEADERS, MAX_HEADERS_BYTES, MAX_TOPIC_BYTES, Message, Uuid};

use crate::messages::some_messages;

use super::kit::{LIMITS, Outbox, dead, park, same_set};

/// Text that something between here and the disk might want to change.
const TEXTS: &[&str] = &[
    " spaces  around ",
    "line\nbreak\r\nand\ttab",
    "quote ' and \" and ` and \\ and \\n and $1 and %s and {}",
    "\u{1}\u{7f}\u{85}\u{2028}",
    "e\u{301} is not \u{e9}",
    "\u{1F4E6} \u{645}\u{631}\u{62D}\u{628}\u{627} \u{65E5}\u{672C}",
    "CASE and case",
    "null",
    "{\"a\": 1, \"a\": 2}",
    "NULL",
    "\\x00",
    "\\N",
];

fn text() -> Vec<Message> {
    TEXTS
        .iter()
        .map(|text| {
            Message::to(format!("topic {text}"))
                .key(text)
                .header(format!("name {text}"), *text)
                .header("CASE", "upper")
                .header("case", "lower")
                .header("empty", "")
                .bytes(*text)
                .expect("a valid message")
        })
        .collect()
}

fn bytes() -> Vec<Message> {
    let every: Vec<u8> = (0..=255).collect();
    [
        every.as_slice(),
        &[0],
        &[0xff, 0xfe, 0, 0xd8],
        b"\\x4142",
        b"{\"text\": \"\\u0000\", \"number\": 123456789012345678901234567890.10}",
    ]
    .into_iter()
    .map(|payload| {
        Message::to("bytes")
            .bytes(payload.to_vec())
            .expect("a valid message")
    })
    .collect()
}

fn empty() -> Vec<Message> {
    let mut all = Vec::new();
    for key in [None, Some(""), Some("k")] {
        for payload in [None, Some(""), Some("p")] {
            let mut builder = Message::to("empty");
            if let Some(key) = key {
                builder = builder.key(key);
            }
            let message = match payload {
                Some(payload) => builder.bytes(payload),
                None => builder.tombstone(),
            };
            all.push(message.expect("a valid message"));
        }
    }
    all
}

/// What does not compress, so that it stays large wherever it is kept.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    })
    .take(bytes)
    .collect()
}

fn large() -> Vec<Message> {
    let hex = |bytes: usize| -> String {
        noise(bytes / 2)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    };
    let mut many = Message::to("headers");
    for n in 0..MAX_HEADERS {
        many = many.header(format!("header {n}"), format!("{n}"));
    }
    let name = "long";
    [
        Message::to("t".repeat(MAX_TOPIC_BYTES)).tombstone(),
        Message::to("key").key(hex(36 * 1024)).bytes("key"),
        Message::to("payload")
            .key("payload")
            .bytes(noise(1024 * 1024)),
        many.tombstone(),
        Message::to("header")
            .header(name, hex(MAX_HEADERS_BYTES - name.len()))
            .tombstone(),
    ]
    .map(|message| message.expect("a valid message"))
    .into()
}

async fn comes_back(outbox: &Outbox, all: Vec<Message>) {
    outbox.enqueue(&all).await;
    same_set(&outbox.deliver(all.len()).await, &all);
    outbox.is_empty().await;
}

/// Unicode, control characters, quotes, spaces: in topic, key, header name, header value.
pub async fn text_comes_back_unchanged(outbox: &Outbox) {
    comes_back(outbox, text()).await;
}

/// Three hundred messages of any content, the same in every run.
pub async fn any_message_comes_back_unchanged(outbox: &Outbox) {
    comes_back(outbox, some_messages(300)).await;
}

/// Any bytes, also those that are no text and those that look like something else.
pub async fn bytes_come_back_unchanged(outbox: &Outbox) {
    comes_back(outbox, bytes()).await;
}

/// An absent key, an absent payload, an empty one: four different things.
pub async fn empty_is_not_absent(outbox: &Outbox) {
    comes_back(outbox, empty()).await;
}

/// Fields at and near their limits.
pub async fn large_fields_come_back_unchanged(outbox: &Outbox) {
    comes_back(outbox, large()).await;
}

/// An application's own ids of any version, and the strangest ones.
pub async fn given_ids_come_back_unchanged(outbox: &Outbox) {
    let ids = [
        Uuid::nil(),
        Uuid::max(),
        Uuid::from_u128(0x6ba7_b810_9dad_41d1_80b4_00c0_4fd4_30c8),
        Uuid::now_v7(),
    ];
    let all = ids
        .iter()
        .map(|id| {
            Message::to("ids")
                .id(*id)
                .tombstone()
                .expect("a valid message")
        })
        .collect();
    comes_back(outbox, all).await;
}

/// The way through parked and dead and back changes nothing either.
pub async fn set_aside_comes_back_unchanged(outbox: &Outbox) {
    let mut all: Vec<Message> = [text(), bytes(), empty(), large()].concat();
    // One message a key: each is to be parked by itself.
    let mut keys = HashSet::new();
    all.retain(|message| match message.key() {
        Some(key) => keys.insert(key.to_owned()),
        None => true,
    });
    outbox.enqueue(&all).await;
    outbox
        .work(&LIMITS, all.len() * 2, |claimed| match claimed.parked {
            0 => park(Duration::from_millis(20)),
            _ => dead("refused"),
        })
        .await;
    for message in &all {
        outbox.replay(message).await;
    }
    same_set(&outbox.deliver(all.len()).await, &all);
    outbox.is_empty().await;
}
