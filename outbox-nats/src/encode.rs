//! What a message becomes on the wire: a pure mapping.
//!
//! | message | NATS message |
//! | --- | --- |
//! | topic | subject, after the configured prefix |
//! | message id | header `Nats-Msg-Id`, hyphenated lowercase hexadecimal text |
//! | key | header `Outbox-Key`; absent = no header, empty = an empty one |
//! | payload | payload; absent = empty, with the header `Outbox-Tombstone: true` |
//! | headers | headers, UTF-8 |
//!
//! A message of an atomic batch has the headers of that besides (`publisher/chains.rs`).
//!
//! Consumers in any language read this, so a change here is a change of the wire contract.
//!
//! NATS headers are lines of text, and its readers take white space from both ends of a value. What
//! would not arrive as it was sent is rejected here.

use std::str::FromStr;

use async_nats::header::{NATS_EXPECTED_STREAM, NATS_MESSAGE_ID};
use async_nats::message::OutboundMessage;
use async_nats::{HeaderMap, HeaderName, HeaderValue, Subject};
use outbox_core::{Message, PublishError};

use crate::config::{NatsConfig, is_blank, is_wildcard};

/// The header that holds the message id. The server drops repeats by it within the stream's duplicate
/// window.
pub const ID_HEADER: &str = "Nats-Msg-Id";

/// The header that holds the key.
pub const KEY_HEADER: &str = "Outbox-Key";

/// The header, with the value `true`, that tells an absent payload from an empty one.
pub const TOMBSTONE_HEADER: &str = "Outbox-Tombstone";

/// The largest block of headers that JetStream takes, in bytes on the wire: with the message id, the key
/// and four bytes of framing for each.
pub const MAX_HEADER_BLOCK_BYTES: usize = 65_535;

/// Header names that begin so, in any case, belong to the server.
const SERVER_HEADER_PREFIX: &str = "nats-";

/// The length of a message id as text.
const ID_BYTES: usize = 36;

static KEY: HeaderName = HeaderName::from_static(KEY_HEADER);
static TOMBSTONE: HeaderName = HeaderName::from_static(TOMBSTONE_HEADER);

/// Maps a message, or rejects it when NATS cannot carry it. `max_payload` is the server's limit, in bytes
/// of headers and payload.
pub(crate) fn encode(
    message: &Message,
    config: &NatsConfig,
    max_payload: usize,
) -> Result<OutboundMessage, PublishError> {
    let topic = message.topic();
    check_topic(topic)?;
    let subject = match &config.subject_prefix {
        None => Subject::from(topic),
        Some(prefix) => Subject::from(format!("{prefix}.{topic}")),
    };

    let mut block = Block::new();
    let mut id = [0; ID_BYTES];
    let id: &str = message.id().hyphenated().encode_lower(&mut id);
    block.insert(NATS_MESSAGE_ID, ID_HEADER, parsed(id, "message id")?);
    if let Some(stream) = &config.expected_stream {
        let value = parsed(stream, "expected stream")?;
        block.insert(NATS_EXPECTED_STREAM, "Nats-Expected-Stream", value);
    }
    if let Some(key) = message.key() {
        block.insert(KEY.clone(), KEY_HEADER, parsed(key, "key")?);
    }
    if message.payload().is_none() {
        block.insert(TOMBSTONE.clone(), TOMBSTONE_HEADER, "true".into());
    }
    for (name, value) in message.headers() {
        let value = parsed(value, format_args!("header {name:?}"))?;
        block.insert(header_name(name)?, name, value);
    }
    if block.bytes > MAX_HEADER_BLOCK_BYTES {
        return Err(PublishError::rejected(format!(
            "headers and key have {} bytes on the wire, JetStream takes {MAX_HEADER_BLOCK_BYTES}",
            block.bytes
        )));
    }

    let payload = message.payload().cloned().unwrap_or_default();
    let size = block.bytes + payload.len();
    if size > max_payload {
        return Err(PublishError::rejected(format!(
            "payload and headers have {size} bytes on the wire, the server's max_payload is \
             {max_payload}"
        )));
    }
    Ok(OutboundMessage {
        subject,
        reply: None,
        payload,
        headers: Some(block.headers),
    })
}

/// Headers, and the bytes that they take on the wire.
struct Block {
    headers: HeaderMap,
    bytes: usize,
}

impl Block {
    fn new() -> Self {
        Self {
            headers: HeaderMap::new(),
            bytes: "NATS/1.0\r\n\r\n".len(),
        }
    }

    fn insert(&mut self, name: HeaderName, text: &str, value: HeaderValue) {
        self.bytes += text.len() + ": ".len() + value.as_str().len() + "\r\n".len();
        self.headers.insert(name, value);
    }
}

/// A subject without what the server gives a meaning, or what ends a subject on the wire.
fn check_topic(topic: &str) -> Result<(), PublishError> {
    if let Some(wrong) = topic.chars().find(|&c| is_blank(c) || is_wildcard(c)) {
        return Err(PublishError::rejected(format!(
            "topic {topic:?} has the character {wrong:?}, a NATS subject takes no white space, no \
             control characters, no '*' and no '>'"
        )));
    }
    if topic.split('.').any(str::is_empty) {
        return Err(PublishError::rejected(format!(
            "topic {topic:?} has an empty token, a NATS subject takes no dot at its start, at its end \
             or beside another"
        )));
    }
    if topic.starts_with('$') {
        return Err(PublishError::rejected(format!(
            "topic {topic:?} begins with '$', such subjects belong to the server"
        )));
    }
    Ok(())
}

fn header_name(name: &str) -> Result<HeaderName, PublishError> {
    if name
        .get(..SERVER_HEADER_PREFIX.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(SERVER_HEADER_PREFIX))
    {
        return Err(PublishError::rejected(format!(
            "header {name:?}: names that begin with `Nats-` belong to the server"
        )));
    }
    HeaderName::from_str(name).map_err(|_| {
        PublishError::rejected(format!(
            "header {name:?}: a name in NATS takes visible ASCII characters except ':'"
        ))
    })
}

/// A value that arrives as it is.
fn parsed(value: &str, what: impl std::fmt::Display) -> Result<HeaderValue, PublishError> {
    if value.trim().len() != value.len() {
        return Err(PublishError::rejected(format!(
            "{what} begins or ends with white space, which readers of NATS headers remove"
        )));
    }
    HeaderValue::from_str(value).map_err(|_| {
        PublishError::rejected(format!(
            "{what} has a line break, which a NATS header does not take"
        ))
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use outbox_conformance::messages::any_message;
    use outbox_core::{MessageBuilder, PublishErrorKind, Uuid};
    use proptest::prelude::*;

    use super::*;

    const MAX_PAYLOAD: usize = 1024 * 1024;

    fn encoded(message: &Message) -> Result<OutboundMessage, PublishError> {
        encode(message, &NatsConfig::new(), MAX_PAYLOAD)
    }

    fn rejected(message: MessageBuilder) -> String {
        let error = encoded(&message.bytes("x").unwrap()).expect_err("NATS cannot carry it");
        assert_eq!(error.kind(), PublishErrorKind::Rejected);
        error.reason().to_owned()
    }

    fn headers(message: &OutboundMessage) -> Vec<(String, String)> {
        let mut headers: Vec<(String, String)> = message
            .headers
            .as_ref()
            .unwrap()
            .iter()
            .map(|(name, values)| {
                assert_eq!(values.len(), 1);
                (name.to_string(), values[0].to_string())
            })
            .collect();
        headers.sort();
        headers
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn every_part_has_its_place() {
        let message = Message::to("orders.placed")
            .id(Uuid::from_u128(0x0192_E4A0_0000_7000_8000_00AB_CDEF_0123))
            .key("42")
            .header("trace", "abc")
            .bytes("hello")
            .unwrap();
        let config = NatsConfig::new()
            .subject_prefix("shop.eu")
            .expected_stream("ORDERS");
        let sent = encode(&message, &config, MAX_PAYLOAD).unwrap();
        assert_eq!(sent.subject.as_str(), "shop.eu.orders.placed");
        assert_eq!(sent.payload, Bytes::from_static(b"hello"));
        assert_eq!(
            headers(&sent),
            pairs(&[
                ("Nats-Expected-Stream", "ORDERS"),
                ("Nats-Msg-Id", "0192e4a0-0000-7000-8000-00abcdef0123"),
                ("Outbox-Key", "42"),
                ("trace", "abc"),
            ])
        );
    }

    #[test]
    fn empty_and_absent_are_kept_apart() {
        let id = Uuid::from_u128(7);
        let id_header = ("Nats-Msg-Id", "00000000-0000-0000-0000-000000000007");
        let absent = Message::to("t").id(id).tombstone().unwrap();
        let sent = encoded(&absent).unwrap();
        assert_eq!(sent.subject.as_str(), "t");
        assert_eq!(sent.payload, Bytes::new());
        let tombstone = ("Outbox-Tombstone", "true");
        assert_eq!(headers(&sent), pairs(&[id_header, tombstone]));

        let empty = Message::to("t").id(id).key("").bytes("").unwrap();
        let sent = encoded(&empty).unwrap();
        assert_eq!(sent.payload, Bytes::new());
        assert_eq!(headers(&sent), pairs(&[id_header, ("Outbox-Key", "")]));
    }

    #[test]
    fn every_byte_of_a_payload_passes() {
        let payload: Vec<u8> = (0..=255).collect();
        let message = Message::to("t").bytes(payload.clone()).unwrap();
        assert_eq!(encoded(&message).unwrap().payload, payload);
    }

    #[test]
    fn text_that_fits_a_line_passes() {
        for text in [
            "",
            "größe \u{1F980}",
            "a\tb  c",
            "\u{1}\u{7f}",
            "\u{feff}",
            ": :",
        ] {
            let message = Message::to("t").key(text).header("text", text);
            let sent = encoded(&message.tombstone().unwrap()).unwrap();
            let headers = sent.headers.unwrap();
            for name in ["text", "Outbox-Key"] {
                assert_eq!(headers.get(name).unwrap().as_str(), text);
            }
        }
        let message = Message::to("t").header("!#$%&'*+-.^_`|~(),/;<=>?@[]{}\"\\", "any");
        encoded(&message.tombstone().unwrap()).unwrap();
    }

    #[test]
    fn text_that_would_arrive_altered_is_rejected_with_its_place() {
        for text in ["a\nb", "a\r\nNats-Rollup: all", "a\rb"] {
            assert_eq!(
                rejected(Message::to("t").header("text", text)),
                "header \"text\" has a line break, which a NATS header does not take"
            );
            assert_eq!(
                rejected(Message::to("t").key(text)),
                "key has a line break, which a NATS header does not take"
            );
        }
        for text in [" ", " a", "a ", "a\t", "\u{a0}a", "a\u{2028}", "\na"] {
            assert_eq!(
                rejected(Message::to("t").header("text", text)),
                "header \"text\" begins or ends with white space, which readers of NATS headers remove"
            );
            assert_eq!(
                rejected(Message::to("t").key(text)),
                "key begins or ends with white space, which readers of NATS headers remove"
            );
        }
    }

    #[test]
    fn header_names_follow_the_rule_of_nats() {
        for name in [
            "with space",
            "größe",
            "line\nbreak",
            "tab\t",
            "colon:",
            "\u{1F980}",
        ] {
            assert_eq!(
                rejected(Message::to("t").header(name, "value")),
                format!(
                    "header {name:?}: a name in NATS takes visible ASCII characters except ':'"
                )
            );
        }
    }

    #[test]
    fn headers_that_steer_the_server_are_rejected() {
        for name in [
            "Nats-Msg-Id",
            "Nats-Rollup",
            "nats-ttl",
            "NATS-EXPECTED-STREAM",
            "Nats-",
        ] {
            assert_eq!(
                rejected(Message::to("t").header(name, "value")),
                format!("header {name:?}: names that begin with `Nats-` belong to the server")
            );
        }
        for name in ["Nats", "Natsy", "x-nats-msg-id"] {
            encoded(&Message::to("t").header(name, "value").tombstone().unwrap()).unwrap();
        }
    }

    #[test]
    fn topics_that_are_no_subjects_are_rejected() {
        for topic in [
            "t",
            "orders.placed",
            "größe",
            "a/b:c#d%e",
            "a.$b",
            "_INBOX.x",
            "\"q\"",
        ] {
            let message = Message::to(topic).tombstone().unwrap();
            assert_eq!(encoded(&message).unwrap().subject.as_str(), topic);
        }
        for topic in [
            "a b",
            "a\tb",
            "a\r\nPUB x 0",
            "a.*",
            "a*b",
            "a.>",
            "\u{a0}",
            "a\u{7f}",
        ] {
            let reason = rejected(Message::to(topic));
            assert!(
                reason.starts_with(&format!("topic {topic:?} has the character")),
                "{reason}"
            );
        }
        for topic in [".", ".a", "a.", "a..b"] {
            let reason = rejected(Message::to(topic));
            assert!(
                reason.starts_with(&format!("topic {topic:?} has an empty token")),
                "{reason}"
            );
        }
        for topic in ["$SYS.x", "$JS.API.STREAM.PURGE.ORDERS", "$"] {
            assert_eq!(
                rejected(Message::to(topic)),
                format!("topic {topic:?} begins with '$', such subjects belong to the server")
            );
        }
    }

    #[test]
    fn sizes_are_those_of_the_wire_to_the_byte() {
        // NATS/1.0, the id's line, a key's line and the empty line.
        let block = 10 + (11 + 2 + 36 + 2) + (10 + 2 + 1 + 2) + 2;
        let message = Message::to("t").key("k").bytes("12345").unwrap();
        let config = NatsConfig::new();
        assert!(encode(&message, &config, block + 5).is_ok());
        let error = encode(&message, &config, block + 4).unwrap_err();
        assert_eq!(error.kind(), PublishErrorKind::Rejected);
        assert_eq!(
            error.reason(),
            format!(
                "payload and headers have {} bytes on the wire, the server's max_payload is {}",
                block + 5,
                block + 4
            )
        );

        let without_key = block - 1;
        let longest = MAX_HEADER_BLOCK_BYTES - without_key;
        let message = Message::to("t").key("k".repeat(longest)).bytes("").unwrap();
        assert!(encoded(&message).is_ok());
        assert_eq!(
            rejected(Message::to("t").key("k".repeat(longest + 1))),
            "headers and key have 65536 bytes on the wire, JetStream takes 65535"
        );
    }

    /// The message of what was sent, as a consumer reads it.
    fn decoded(sent: &OutboundMessage) -> Message {
        let mut message = Message::to(sent.subject.as_str());
        let mut is_tombstone = false;
        for (name, value) in headers(sent) {
            match name.as_str() {
                ID_HEADER => message = message.id(value.parse().unwrap()),
                KEY_HEADER => message = message.key(value),
                TOMBSTONE_HEADER => is_tombstone = true,
                name => message = message.header(name, value),
            }
        }
        match is_tombstone {
            true => message.tombstone().unwrap(),
            false => message.bytes(sent.payload.clone()).unwrap(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_decoded_is_the_message_or_it_is_rejected_by_the_name_of_the_field(message in any_message()) {
            match encoded(&message) {
                Ok(sent) => prop_assert_eq!(decoded(&sent), message),
                Err(error) => {
                    prop_assert_eq!(error.kind(), PublishErrorKind::Rejected);
                    let named = ["topic", "key", "header", "payload"].iter().any(|field| error.reason().contains(field));
                    prop_assert!(named, "{}", error);
                }
            }
        }
    }
}
