//! What arrives is what was sent, or it is refused with the field named.

use std::sync::Arc;

use outbox_core::{Message, PublishErrorKind, Uuid};

use crate::messages::some_messages;

use super::Received;
use super::kit::{Broker, Reported, confirmed, failed, message, new_topic, same, to};

/// Id, key, payload and headers of one message, those of W3C Trace Context among them.
pub async fn every_field_arrives(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let batch = [Message::to(&topic)
        .id(Uuid::from_u128(0x0123_4567_89AB_CDEF_0123_4567_89AB_CDEF))
        .key("order-7")
        .header(
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        )
        .header("tracestate", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")
        .header("content-type", "application/json")
        .bytes("{\"order\":7}")
        .expect("a valid message")];
    broker.confirm(&batch).await;
    broker.holds(&topic, &batch).await;
}

/// A payload is bytes: all of them, and text that looks like an escape or a huge number.
pub async fn every_byte_arrives(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let every: Vec<u8> = (0..=255).collect();
    let backwards: Vec<u8> = (0..=255).rev().collect();
    let payloads: [&[u8]; 8] = [
        &every,
        &backwards,
        &[0],
        &[0; 300],
        &[0xff; 300],
        br#"{"nul":"\u0000","text":"\\u0000"}"#,
        br#"{"huge":123456789012345678901234567890.000000000000000000001e400}"#,
        b"\r\n\r\n.\r\n",
    ];
    let batch = payloads.map(|payload| {
        to(&topic)
            .key("bytes")
            .bytes(payload.to_vec())
            .expect("a valid message")
    });
    broker.confirm(&batch).await;
    broker.holds(&topic, &batch).await;
}

/// An empty payload and none, an empty key and none: four different things.
pub async fn empty_is_not_absent(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let batch = [
        to(&topic).key("").bytes(""),
        to(&topic).key("").tombstone(),
        to(&topic).bytes(""),
        to(&topic).tombstone(),
        Message::to(&topic).key("k").bytes(""),
        Message::to(&topic).key("k").tombstone(),
    ]
    .map(|message| message.expect("a valid message"));
    broker.confirm(&batch).await;
    broker.holds(&topic, &batch).await;
}

/// Keys, header values and payloads are text of any script.
pub async fn text_of_any_script_arrives(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let texts = [
        "schlüssel",
        "κλειδί",
        "鍵",
        "مفتاح",
        "\u{1F511}",
        "e\u{301}",
        "\u{feff}",
    ];
    let batch = texts.map(|text| {
        Message::to(&topic)
            .key(text)
            .header("text", text)
            .bytes(text)
            .expect("a valid message")
    });
    broker.confirm(&batch).await;
    broker.holds(&topic, &batch).await;
}

/// A consumer tells a repeat by the message id; a broker may itself drop the repeat.
pub async fn a_repeat_has_the_same_id(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let batch = [message(&topic, "k", "repeated")];
    broker.confirm(&batch).await;
    broker.confirm(&batch).await;
    let received = broker.received(&topic).await;
    assert!(
        (1..=2).contains(&received.len()),
        "published twice, arrived {} times",
        received.len()
    );
    for received in received {
        same(&received, &Received::of(&batch[0]));
    }
}

/// Names and values of headers that make trouble somewhere: each arrives unchanged, or its message is
/// rejected with the header named, and nothing else happens.
pub async fn odd_headers_arrive_or_are_rejected(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let long_name = "n".repeat(255);
    let names = [
        "with space",
        "größe",
        "\u{1F980}",
        "line\nbreak",
        "carriage\rreturn",
        "tab\there",
        "colon:",
        "\"quoted\"",
        "comma, semicolon;",
        ".",
        "UPPER",
        // Names that some broker gives a meaning.
        "id",
        "key",
        "payload",
        "message_id",
        "Nats-Msg-Id",
        "Nats-Expected-Stream",
        "x-delay",
        &long_name,
    ];
    let long_value = "v".repeat(10_000);
    let values = [
        "",
        " ",
        " leading",
        "trailing ",
        "line\nbreak",
        "two\r\nlines: injected",
        "tab\t",
        "größe \u{1F980}",
        "\u{1}\u{7f}",
        "\u{feff}",
        "\"quoted\"",
        &long_value,
    ];
    let mut batch: Vec<(String, Message)> = Vec::new();
    for name in names {
        let message = Message::to(&topic).key("k").header(name, "value");
        batch.push((
            name.to_owned(),
            message.bytes(name.to_owned()).expect("valid"),
        ));
    }
    for (number, value) in values.into_iter().enumerate() {
        let name = format!("header-{number}");
        let message = Message::to(&topic).key("k").header(&name, value);
        batch.push((name.clone(), message.bytes(name).expect("valid")));
    }
    let both = Message::to(&topic)
        .key("k")
        .header("case", "lower")
        .header("CASE", "upper");
    batch.push(("case".to_owned(), both.bytes("both").expect("valid")));

    let all: Vec<Message> = batch.iter().map(|(_, message)| message.clone()).collect();
    let answers = broker.publish(&all).await;
    let mut carried = Vec::new();
    for ((name, message), answer) in batch.iter().zip(&answers) {
        if arrives_or_is_rejected(answer, format_args!("header {name:?}"), &[name.as_str()]) {
            carried.push(message.clone());
        }
    }
    broker.holds(&topic, &carried).await;
}

/// As many headers as a message can have.
pub async fn many_headers_arrive_or_are_rejected(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let mut message = Message::to(&topic).key("k");
    for number in 0..outbox_core::MAX_HEADERS {
        message = message.header(format!("header-{number}"), format!("value {number}"));
    }
    let batch = [message.bytes("many headers").expect("a valid message")];
    let answers = broker.publish(&batch).await;
    let carried = arrives_or_is_rejected(&answers[0], "a message of many headers", &["header"]);
    broker
        .holds(&topic, if carried { &batch } else { &[] })
        .await;
}

/// Topics that make trouble somewhere: each takes its message, or the message is rejected with the
/// topic named, and nothing else happens.
pub async fn odd_topics_take_messages_or_are_rejected(broker: &Arc<Broker>) {
    let mut batch = Vec::new();
    let mut possible = Vec::new();
    for topic in odd_topics() {
        possible.push(broker.open().create_topic(&topic).await);
        batch.push(message(&topic, "k", &topic));
    }
    let answers = broker.publish(&batch).await;
    for ((message, answer), possible) in batch.into_iter().zip(&answers).zip(possible) {
        let topic = message.topic().to_owned();
        let what = format!("topic {topic:?}");
        let carried = arrives_or_is_rejected(answer, &what, &["topic"]);
        assert!(!carried || possible, "{what} was confirmed, and cannot be");
        if carried {
            broker.holds(&topic, &[message]).await;
        }
    }
}

/// A hundred messages of any content, the same in every run: each arrives unchanged, or is rejected with the
/// field named.
pub async fn any_messages_arrive_or_are_rejected(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let batch: Vec<Message> = some_messages(100)
        .into_iter()
        .map(|message| {
            let (key, payload) = (message.key().map(str::to_owned), message.payload().cloned());
            let (id, headers) = (Uuid::now_v7(), message.headers().clone());
            Message::from_parts(id, topic.clone(), key, payload, headers).expect("still valid")
        })
        .collect();
    let answers = broker.publish(&batch).await;
    let mut carried = Vec::new();
    for (message, answer) in batch.into_iter().zip(&answers) {
        if arrives_or_is_rejected(answer, &message, &["key", "header"]) {
            carried.push(message);
        }
    }
    broker.holds(&topic, &carried).await;
}

/// A key of 36 kB.
pub async fn a_long_key_arrives_or_is_rejected(broker: &Arc<Broker>) {
    let topic = broker.topic().await;
    let batch = [message(&topic, &"k".repeat(36 * 1024), "long key")];
    let answers = broker.publish(&batch).await;
    let carried = arrives_or_is_rejected(&answers[0], "a message of a long key", &["key"]);
    broker
        .holds(&topic, if carried { &batch } else { &[] })
        .await;
}

/// Names that no one else uses and that break somebody's rules.
pub(super) fn odd_topics() -> Vec<String> {
    let own = new_topic();
    let mut topics: Vec<String> = [
        "größe-",
        "\u{1F980}-",
        "with space-",
        "tab\t-",
        "line\nbreak-",
        "slash/",
        "colon:",
        "star.*.",
        "greater.>.",
        "hash.#.",
        "$SYS.",
        "percent%",
        ".dot-",
        "two..dots-",
        "\"quoted\"-",
    ]
    .into_iter()
    .map(|odd| format!("{odd}{own}"))
    .collect();
    topics.push(format!("{own}."));
    topics.push(format!("{own}{}", "x".repeat(255 - own.len())));
    topics
}

/// Whether a message was confirmed; otherwise it must be rejected, with one of `named` in the reason.
fn arrives_or_is_rejected(answer: &Reported, what: impl std::fmt::Debug, named: &[&str]) -> bool {
    if matches!(answer, Some(Ok(()))) {
        confirmed(answer, &what);
        return true;
    }
    let reason = failed(answer, PublishErrorKind::Rejected, &what).to_lowercase();
    let is_named = named.iter().any(|name| {
        // A reason may be cut, and may show what cannot be printed in an escaped form.
        let start: String = name.to_lowercase().chars().take(40).collect();
        reason.contains(&start) || reason.contains(&start.escape_debug().to_string())
    });
    assert!(is_named, "{what:?} is not named in the reason {reason:?}");
    false
}
