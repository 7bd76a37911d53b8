//! What a message becomes on the wire: a pure mapping.
//!
//! | message | record |
//! | --- | --- |
//! | topic | topic |
//! | key | key; absent = null, empty = empty |
//! | payload | value; absent = null (a tombstone), empty = empty |
//! | message id | header `outbox-id`, hyphenated lowercase hexadecimal text |
//! | headers | headers, UTF-8 |
//!
//! Consumers in any language read this, so a change here is a change of the wire contract.

use std::iter;

use outbox_core::{Headers, Message, PublishError};

/// The record header that holds the message id.
pub const ID_HEADER: &str = "outbox-id";

/// The longest topic name that Kafka takes.
pub const MAX_TOPIC_CHARACTERS: usize = 249;

/// The length of a message id as text.
const ID_BYTES: usize = 36;

/// The parts of a record, borrowed from the message.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    pub(crate) topic: &'a str,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
    id: [u8; ID_BYTES],
    headers: &'a Headers,
}

impl Record<'_> {
    /// The record headers, the message id first.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let own = self
            .headers
            .iter()
            .map(|(name, value)| (name, value.as_bytes()));
        iter::once((ID_HEADER, self.id.as_slice())).chain(own)
    }

    /// How many record headers there are.
    pub(crate) fn header_count(&self) -> usize {
        1 + self.headers.len()
    }

    /// The bytes of key, value and headers. The client and the broker count a few more for framing.
    pub(crate) fn size(&self) -> usize {
        self.key.map_or(0, <[u8]>::len)
            + self.value.map_or(0, <[u8]>::len)
            + self.headers.size()
            + ID_HEADER.len()
            + ID_BYTES
    }
}

/// Maps a message, or rejects it when Kafka cannot carry it.
pub(crate) fn encode(message: &Message) -> Result<Record<'_>, PublishError> {
    check_topic(message.topic())?;
    let mut id = [0; ID_BYTES];
    message.id().hyphenated().encode_lower(&mut id);
    Ok(Record {
        topic: message.topic(),
        key: message.key().map(str::as_bytes),
        value: message.payload().map(|payload| payload.as_ref()),
        id,
        headers: message.headers(),
    })
}

/// Kafka's rule for topic names. The client does not check it, and some brokers answer a broken rule
/// as if the topic were only missing.
fn check_topic(topic: &str) -> Result<(), PublishError> {
    let wrong = topic
        .chars()
        .find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')));
    if let Some(wrong) = wrong {
        return Err(PublishError::rejected(format!(
            "topic {topic:?} has the character {wrong:?}, Kafka takes a-z, A-Z, 0-9, '.', '_' and '-'"
        )));
    }
    if topic.len() > MAX_TOPIC_CHARACTERS {
        return Err(PublishError::rejected(format!(
            "topic has {} characters, Kafka takes at most {MAX_TOPIC_CHARACTERS}",
            topic.len()
        )));
    }
    if matches!(topic, "." | "..") {
        return Err(PublishError::rejected(format!(
            "topic is {topic:?}, a name that Kafka does not take"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use outbox_conformance::messages::any_message;
    use outbox_core::{PublishErrorKind, Uuid};
    use proptest::prelude::*;

    use super::*;

    fn headers(record: &Record<'_>) -> Vec<(String, Vec<u8>)> {
        let headers: Vec<_> = record
            .headers()
            .map(|(name, value)| (name.to_owned(), value.to_vec()))
            .collect();
        assert_eq!(headers.len(), record.header_count());
        headers
    }

    fn rejected(topic: &str) -> String {
        let message = Message::to(topic).tombstone().unwrap();
        let error = encode(&message).expect_err("Kafka cannot carry it");
        assert_eq!(error.kind(), PublishErrorKind::Rejected);
        error.reason().to_owned()
    }

    #[test]
    fn every_part_has_its_place() {
        let id = Uuid::from_u128(0x0192_E4A0_0000_7000_8000_00AB_CDEF_0123);
        let message = Message::to("orders.placed")
            .id(id)
            .key("42")
            .header("trace", "abc")
            .bytes("hello")
            .unwrap();
        let record = encode(&message).unwrap();
        assert_eq!(record.topic, "orders.placed");
        assert_eq!(record.key, Some(b"42".as_slice()));
        assert_eq!(record.value, Some(b"hello".as_slice()));
        assert_eq!(
            headers(&record),
            [
                (
                    "outbox-id".to_owned(),
                    b"0192e4a0-0000-7000-8000-00abcdef0123".to_vec()
                ),
                ("trace".to_owned(), b"abc".to_vec()),
            ]
        );
        assert_eq!(record.size(), 2 + 5 + 9 + 36 + 5 + 3);
    }

    #[test]
    fn empty_and_absent_are_kept_apart() {
        let absent = Message::to("t").tombstone().unwrap();
        let record = encode(&absent).unwrap();
        assert_eq!((record.key, record.value), (None, None));

        let empty = Message::to("t").key("").bytes("").unwrap();
        let record = encode(&empty).unwrap();
        assert_eq!(
            (record.key, record.value),
            (Some([].as_slice()), Some([].as_slice()))
        );
    }

    #[test]
    fn every_byte_passes() {
        let payload: Vec<u8> = (0..=255).collect();
        let message = Message::to("t").bytes(payload.clone()).unwrap();
        assert_eq!(encode(&message).unwrap().value, Some(payload.as_slice()));
    }

    #[test]
    fn headers_of_any_text_pass() {
        let message = Message::to("t")
            .key("schlüssel")
            .header("größe in m²", "\u{1F980}\r\n\t")
            .header("empty", "")
            .tombstone()
            .unwrap();
        let record = encode(&message).unwrap();
        assert_eq!(record.key, Some("schlüssel".as_bytes()));
        assert_eq!(
            headers(&record)[1..],
            [
                ("empty".to_owned(), Vec::new()),
                (
                    "größe in m²".to_owned(),
                    "\u{1F980}\r\n\t".as_bytes().to_vec()
                ),
            ]
        );
    }

    #[test]
    fn topic_names_follow_kafkas_rule() {
        for topic in ["a", "A.b_c-9", "...", &"x".repeat(249)] {
            let message = Message::to(topic).tombstone().unwrap();
            assert_eq!(encode(&message).unwrap().topic, topic);
        }
        assert_eq!(
            rejected("bestellungen/größe"),
            "topic \"bestellungen/größe\" has the character '/', Kafka takes a-z, A-Z, 0-9, '.', \
             '_' and '-'"
        );
        assert_eq!(
            rejected(&"x".repeat(250)),
            "topic has 250 characters, Kafka takes at most 249"
        );
        for topic in [".", ".."] {
            assert!(rejected(topic).contains("a name that Kafka does not take"));
        }
        for topic in [" ", "ö", "a b", "a\nb", "\u{1F980}"] {
            assert!(rejected(topic).contains("has the character"), "{topic:?}");
        }
    }

    /// The message of a record, as a consumer reads it.
    fn decoded(record: &Record<'_>) -> Message {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let mut message = Message::to(record.topic);
        if let Some(key) = record.key {
            message = message.key(text(key));
        }
        for (name, value) in record.headers() {
            message = match name {
                ID_HEADER => message.id(text(value).parse().unwrap()),
                name => message.header(name, text(value)),
            };
        }
        match record.value {
            Some(value) => message.bytes(value.to_vec()).unwrap(),
            None => message.tombstone().unwrap(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_decoded_is_the_message_or_it_is_rejected_by_the_name_of_the_field(message in any_message()) {
            match encode(&message) {
                Ok(record) => prop_assert_eq!(decoded(&record), message),
                Err(error) => {
                    prop_assert_eq!(error.kind(), PublishErrorKind::Rejected);
                    let named = ["topic", "key", "header", "payload"].iter().any(|field| error.reason().contains(field));
                    prop_assert!(named, "{}", error);
                }
            }
        }
    }
}
