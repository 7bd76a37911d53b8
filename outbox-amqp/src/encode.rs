//! What a message becomes on the wire: a pure mapping.
//!
//! | message | AMQP |
//! | --- | --- |
//! | topic | exchange and routing key, as [`Routing`] says |
//! | key | header `outbox-key`, text; absent = no header, empty = empty |
//! | payload | body; absent = empty body and header `outbox-tombstone`, the boolean true |
//! | message id | property `message_id`, hyphenated lowercase hexadecimal text |
//! | headers | headers, text (AMQP's long string); `content-type` also the property of that name, where it fits |
//! | – | property `delivery_mode` 2, persistent |
//!
//! Consumers in any language read this, so a change here is a change of the wire contract.

use std::collections::BTreeMap;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use outbox_core::{Message, PublishError, Uuid};

use crate::config::Routing;

/// The header that holds the key.
pub const KEY_HEADER: &str = "outbox-key";

/// The header, a boolean, that tells an absent payload from an empty one.
pub const TOMBSTONE_HEADER: &str = "outbox-tombstone";

/// The header that is a property of AMQP too.
pub const CONTENT_TYPE_HEADER: &str = "content-type";

/// The longest exchange name, routing key and header name, in bytes: AMQP's short string.
pub const MAX_NAME_BYTES: usize = 255;

/// Headers by which a publisher routes a message to more queues. As text the server refuses them,
/// together with all that is on the channel.
const ROUTING_HEADERS: [&str; 2] = ["CC", "BCC"];

/// The length of a message id as text.
const ID_BYTES: usize = 36;

/// The bytes of a content header frame beside its table of headers: frame, class, weight, body size,
/// flags, delivery mode, message id, and the length of the table.
const FRAME_BYTES: usize = 8 + 2 + 2 + 8 + 2 + 1 + (1 + ID_BYTES) + 4;

/// The bytes of an entry of the table of headers beside its name and text: a length, a type, a length.
const ENTRY_BYTES: usize = 1 + 1 + 4;

/// What the server said that it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The largest frame, in bytes.
    pub(crate) frame_max: usize,
    /// The largest payload, in bytes, once the server has named it.
    pub(crate) payload: Option<usize>,
}

/// A message in the client's words.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Bytes,
    /// The bytes of all headers on the wire.
    headers_size: usize,
}

impl Record {
    /// The bytes on the wire, but for a few of framing.
    pub(crate) fn size(&self) -> usize {
        self.body.len() + self.headers_size
    }
}

/// The exchange and the routing key of a message.
pub(crate) fn route<'a>(message: &'a Message, routing: &'a Routing) -> (&'a str, &'a str) {
    match routing {
        Routing::Queue => ("", message.topic()),
        Routing::Exchange(exchange) => (exchange, message.topic()),
        Routing::ExchangePerTopic => (message.topic(), message.key().unwrap_or_default()),
    }
}

/// Maps a message, or rejects it when AMQP or the server cannot carry it.
pub(crate) fn encode(
    message: &Message,
    routing: &Routing,
    limits: Limits,
) -> Result<Record, PublishError> {
    let (exchange, routing_key) = route(message, routing);
    if routing.topic_is_a_name() && has_line_break(message.topic()) {
        return Err(PublishError::rejected(format!(
            "topic {:?} has a line break, which RabbitMQ takes out of the names of queues and \
             exchanges",
            message.topic()
        )));
    }
    let body = message.payload().cloned().unwrap_or_default();
    if let Some(limit) = limits.payload
        && body.len() > limit
    {
        return Err(PublishError::rejected(format!(
            "payload has {} bytes, the server's max_message_size is {limit}",
            body.len()
        )));
    }

    let mut table = BTreeMap::new();
    for (name, value) in message.headers() {
        if ROUTING_HEADERS.contains(&name) {
            return Err(PublishError::rejected(format!(
                "header {name:?} has a meaning of its own in RabbitMQ, which does not take it as text"
            )));
        }
        table.insert(short("header name", name)?, text(value));
    }
    if let Some(key) = message.key() {
        table.insert(short("header name", KEY_HEADER)?, text(key));
    }
    if message.payload().is_none() {
        table.insert(
            short("header name", TOMBSTONE_HEADER)?,
            AMQPValue::Boolean(true),
        );
    }

    // It stays a header too; what does not fit a property is only that.
    let content_type = message.headers().get(CONTENT_TYPE_HEADER);
    let content_type = content_type.and_then(|text| ShortString::try_new(text).ok());

    let headers_size = FRAME_BYTES
        + content_type
            .as_ref()
            .map_or(0, |text| 1 + text.as_str().len())
        + message.headers().size()
        + message.headers().len() * ENTRY_BYTES
        + message
            .key()
            .map_or(0, |key| KEY_HEADER.len() + ENTRY_BYTES + key.len())
        + message
            .payload()
            .map_or(TOMBSTONE_HEADER.len() + 1 + 1 + 1, |_| 0);
    if headers_size > limits.frame_max {
        return Err(PublishError::rejected(format!(
            "headers and key have {headers_size} bytes on the wire, the limit is one frame, \
             frame_max, of {} bytes",
            limits.frame_max
        )));
    }

    let mut properties = BasicProperties::default()
        .with_message_id(short("message id", message.id().hyphenated().to_string())?)
        .with_delivery_mode(2)
        .with_headers(FieldTable::from(table));
    if let Some(content_type) = content_type {
        properties = properties.with_content_type(content_type);
    }

    Ok(Record {
        exchange: short("topic", exchange)?,
        // A topic has as many bytes at most as a routing key, so only a key can be too long.
        routing_key: short("key, which is the routing key,", routing_key)?,
        properties,
        body,
        headers_size,
    })
}

/// Whether there is a character that RabbitMQ takes out of a name when it is declared.
pub(crate) fn has_line_break(name: &str) -> bool {
    name.contains(['\r', '\n'])
}

/// The message id in the properties of a message that came back.
pub(crate) fn message_id(properties: &BasicProperties) -> Option<Uuid> {
    properties.message_id().as_ref()?.as_str().parse().ok()
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

/// The client's own conversion panics on what is too long.
fn short(field: &str, value: impl Into<String>) -> Result<ShortString, PublishError> {
    let value = value.into();
    let bytes = value.len();
    ShortString::try_new(value).map_err(|_| {
        PublishError::rejected(format!(
            "{field} has {bytes} bytes, AMQP takes at most {MAX_NAME_BYTES}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use outbox_conformance::messages::any_message;
    use outbox_core::PublishErrorKind;
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        frame_max: 131_072,
        payload: None,
    };

    fn encoded(message: &Message) -> Record {
        encode(message, &Routing::Queue, LIMITS).unwrap()
    }

    fn rejected(message: &Message, routing: &Routing, limits: Limits) -> String {
        let error = encode(message, routing, limits).expect_err("AMQP cannot carry it");
        assert_eq!(error.kind(), PublishErrorKind::Rejected);
        error.reason().to_owned()
    }

    fn headers(record: &Record) -> Vec<(&str, &AMQPValue)> {
        record
            .properties
            .headers()
            .as_ref()
            .expect("a table")
            .into_iter()
            .map(|(name, value)| (name.as_str(), value))
            .collect()
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
        let record = encoded(&message);
        assert_eq!(record.exchange.as_str(), "");
        assert_eq!(record.routing_key.as_str(), "orders.placed");
        assert_eq!(record.body, "hello");
        assert_eq!(record.properties.delivery_mode(), &Some(2));
        assert_eq!(
            record.properties.message_id(),
            &Some("0192e4a0-0000-7000-8000-00abcdef0123".into())
        );
        assert_eq!(message_id(&record.properties), Some(id));
        assert_eq!(
            headers(&record),
            [("outbox-key", &text("42")), ("trace", &text("abc"))]
        );
    }

    #[test]
    fn a_content_type_is_a_property_too() {
        let fits = "application/cloudevents+json; charset=UTF-8";
        let too_long = "x".repeat(MAX_NAME_BYTES + 1);
        for (content_type, property) in [(fits, Some(fits.into())), (&too_long, None)] {
            let message = Message::to("t").header("content-type", content_type);
            let record = encoded(&message.bytes("x").unwrap());
            assert_eq!(record.properties.content_type(), &property);
            assert_eq!(headers(&record), [("content-type", &text(content_type))]);
        }
        let none = encoded(&Message::to("t").bytes("x").unwrap());
        assert_eq!(none.properties.content_type(), &None);
    }

    #[test]
    fn a_topic_is_routed_as_configured() {
        let message = Message::to("orders.placed").key("42").tombstone().unwrap();
        let no_key = Message::to("orders.placed").tombstone().unwrap();
        let shop = Routing::Exchange("shop".to_owned());
        for (message, routing, expected) in [
            (&message, &Routing::Queue, ("", "orders.placed")),
            (&message, &shop, ("shop", "orders.placed")),
            (
                &message,
                &Routing::ExchangePerTopic,
                ("orders.placed", "42"),
            ),
            (&no_key, &Routing::ExchangePerTopic, ("orders.placed", "")),
        ] {
            assert_eq!(route(message, routing), expected);
            let record = encode(message, routing, LIMITS).unwrap();
            assert_eq!(
                (record.exchange.as_str(), record.routing_key.as_str()),
                expected
            );
        }
    }

    #[test]
    fn empty_and_absent_are_kept_apart() {
        let absent = encoded(&Message::to("t").tombstone().unwrap());
        assert_eq!(absent.body, "");
        assert_eq!(
            headers(&absent),
            [("outbox-tombstone", &AMQPValue::Boolean(true))]
        );

        let empty = encoded(&Message::to("t").key("").bytes("").unwrap());
        assert_eq!(empty.body, "");
        assert_eq!(headers(&empty), [("outbox-key", &text(""))]);
    }

    #[test]
    fn headers_of_any_text_pass() {
        let message = Message::to("t")
            .key("schlüssel")
            .header("größe in m²", "\u{1F980}\r\n\t")
            .header("n".repeat(255), "")
            .bytes("")
            .unwrap();
        let record = encoded(&message);
        assert_eq!(
            headers(&record),
            [
                ("größe in m²", &text("\u{1F980}\r\n\t")),
                ("n".repeat(255).as_str(), &text("")),
                ("outbox-key", &text("schlüssel")),
            ]
        );
    }

    #[test]
    fn what_a_short_string_cannot_hold_is_rejected_by_name() {
        let message = Message::to("t").key("k".repeat(256)).bytes("").unwrap();
        assert_eq!(encoded(&message).routing_key.as_str(), "t");
        assert_eq!(
            rejected(&message, &Routing::ExchangePerTopic, LIMITS),
            "key, which is the routing key, has 256 bytes, AMQP takes at most 255"
        );
    }

    #[test]
    fn a_name_that_nothing_can_have_is_rejected() {
        for topic in ["line\nbreak", "line\rbreak"] {
            let message = Message::to(topic).tombstone().unwrap();
            for routing in [Routing::Queue, Routing::ExchangePerTopic] {
                let expected = format!(
                    "topic {topic:?} has a line break, which RabbitMQ takes out of the names of \
                     queues and exchanges"
                );
                assert_eq!(rejected(&message, &routing, LIMITS), expected);
            }
            let routing = Routing::Exchange("shop".to_owned());
            let record = encode(&message, &routing, LIMITS).unwrap();
            assert_eq!(record.routing_key.as_str(), topic);
        }
    }

    #[test]
    fn headers_that_route_are_rejected_by_name() {
        for name in ["CC", "BCC"] {
            let message = Message::to("t").header(name, "q").bytes("").unwrap();
            assert_eq!(
                rejected(&message, &Routing::Queue, LIMITS),
                format!(
                    "header {name:?} has a meaning of its own in RabbitMQ, which does not take it as text"
                )
            );
        }
        let message = Message::to("t").header("cc", "q").bytes("").unwrap();
        assert_eq!(headers(&encoded(&message)), [("cc", &text("q"))]);
    }

    #[test]
    fn headers_have_to_fit_into_one_frame() {
        let message = Message::to("t")
            .key("k".repeat(65_536))
            .header("h", "v".repeat(65_535))
            .bytes("")
            .unwrap();
        assert_eq!(
            rejected(&message, &Routing::Queue, LIMITS),
            "headers and key have 131158 bytes on the wire, the limit is one frame, frame_max, of \
             131072 bytes"
        );
    }

    /// The limit is exact only if our count is the client's.
    #[test]
    fn the_bytes_of_headers_are_those_that_the_client_writes() {
        for message in [
            Message::to("t").bytes("payload").unwrap(),
            Message::to("t").key("k").tombstone().unwrap(),
            Message::to("t")
                .key("schlüssel")
                .header("größe in m²", "\u{1F980}")
                .header("empty", "")
                .bytes("")
                .unwrap(),
        ] {
            let record = encoded(&message);
            let properties = lapin::protocol::basic::gen_properties(&record.properties);
            let written = properties(Vec::new().into()).expect("written");
            // Frame type, channel, length and end; class, weight and body size.
            let framing = 1 + 2 + 4 + 1 + 2 + 2 + 8;
            assert_eq!(
                record.size() - record.body.len(),
                written.write.len() + framing
            );
        }
    }

    #[test]
    fn a_payload_over_the_servers_limit_is_rejected_with_both_sizes() {
        let message = Message::to("t").bytes("12345").unwrap();
        let limits = |payload| Limits {
            payload: Some(payload),
            ..LIMITS
        };
        assert!(encode(&message, &Routing::Queue, limits(5)).is_ok());
        assert_eq!(
            rejected(&message, &Routing::Queue, limits(4)),
            "payload has 5 bytes, the server's max_message_size is 4"
        );
    }

    /// The message of a record, as a consumer of its queue reads it.
    fn decoded(record: &Record) -> Message {
        let mut message =
            Message::to(record.routing_key.as_str()).id(message_id(&record.properties).unwrap());
        let mut is_tombstone = false;
        for (name, value) in headers(record) {
            match (name, value) {
                (TOMBSTONE_HEADER, AMQPValue::Boolean(true)) => is_tombstone = true,
                (name, AMQPValue::LongString(text)) => {
                    let text = String::from_utf8(text.as_bytes().to_vec()).unwrap();
                    message = match name {
                        KEY_HEADER => message.key(text),
                        name => message.header(name, text),
                    };
                }
                other => panic!("no such header is written: {other:?}"),
            }
        }
        match is_tombstone {
            true => message.tombstone().unwrap(),
            false => message.bytes(record.body.clone()).unwrap(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_decoded_is_the_message_or_it_is_rejected_by_the_name_of_the_field(message in any_message()) {
            match encode(&message, &Routing::Queue, LIMITS) {
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
