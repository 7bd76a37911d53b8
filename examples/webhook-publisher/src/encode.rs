//! What a message becomes on the wire: a pure mapping.
//!
//! | message | request |
//! | --- | --- |
//! | payload | body; absent = no body and `outbox-tombstone: true`, empty = no body |
//! | message id | `outbox-id`, hyphenated lowercase hexadecimal text |
//! | topic | `outbox-topic` |
//! | key | `outbox-key`; absent = no such header, empty = an empty one |
//! | header | `outbox-header-` and its name |
//! | headers of an event of CloudEvents | also by their own names, as in its HTTP binding |
//!
//! HTTP takes little in a header: no control character, no text that all servers read alike beyond
//! ASCII, no space at the end, and in a name no difference between `a` and `A`. So whatever HTTP might
//! change is percent-encoded, which every language can undo, and everything else is as it was.
//!
//! Receivers in any language read this, so a change here is a change of the wire contract.

use std::fmt;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::HeaderName;
use hyper::{Request, Uri};
use outbox_core::{Message, PublishError};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};

/// The header that holds the message id.
pub const ID_HEADER: &str = "outbox-id";
/// The header that holds the topic.
pub const TOPIC_HEADER: &str = "outbox-topic";
/// The header that holds the key; without it there was none.
pub const KEY_HEADER: &str = "outbox-key";
/// The header that says `true` where the payload is absent and not empty.
pub const TOMBSTONE_HEADER: &str = "outbox-tombstone";
/// What stands before the name of each of the message's own headers. The application cannot have
/// one that begins so, and none of HTTP's does.
pub const HEADER_PREFIX: &str = "outbox-header-";

/// What is encoded in a value, beside everything that is not ASCII.
const VALUE: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// What is encoded in a name: what HTTP takes in none, and capitals, which it does not keep.
const NAME: &AsciiSet = &{
    let mut set = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');
    let mut capital = b'A';
    while capital <= b'Z' {
        set = set.add(capital);
        capital += 1;
    }
    set
};

/// Maps a message, or rejects it when HTTP cannot carry it.
pub(crate) fn encode(url: &Uri, message: &Message) -> Result<Request<Full<Bytes>>, PublishError> {
    let mut request = Request::post(url)
        .header(ID_HEADER, message.id().hyphenated().to_string())
        .header(TOPIC_HEADER, value(message.topic()));
    if let Some(key) = message.key() {
        request = request.header(KEY_HEADER, value(key));
    }
    if message.payload().is_none() {
        request = request.header(TOMBSTONE_HEADER, "true");
    }
    for (name, text) in message.headers() {
        let field = format!("{HEADER_PREFIX}{}", utf8_percent_encode(name, NAME));
        let field = HeaderName::try_from(field)
            .map_err(|error| rejected(format_args!("header {name:?}"), &error))?;
        request = request.header(field, value(text));
    }
    for (name, text) in event_headers(message) {
        request = request.header(name, text);
    }
    request
        .body(Full::new(message.payload().cloned().unwrap_or_default()))
        .map_err(|error| rejected("the message", &error))
}

/// What makes the request an event for receivers that know CloudEvents and not the outbox: in binary mode its
/// attributes, which are encoded for HTTP already, and in both modes the content type.
fn event_headers(message: &Message) -> impl Iterator<Item = (&str, &str)> {
    let headers = message.headers();
    let is_structured = headers
        .get("content-type")
        .is_some_and(|it| it.starts_with("application/cloudevents"));
    let is_event = is_structured || headers.get("ce-specversion").is_some();
    let of_event = move |(name, _): &(&str, &str)| {
        is_event && (*name == "content-type" || name.starts_with("ce-"))
    };
    headers.iter().filter(of_event)
}

fn value(text: &str) -> String {
    utf8_percent_encode(text, VALUE).to_string()
}

fn rejected(what: impl fmt::Display, error: &dyn fmt::Display) -> PublishError {
    PublishError::rejected(format!("HTTP cannot carry {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use outbox_core::Uuid;
    use outbox_core::cloudevents::{Binding, CloudEvent};

    use super::*;

    fn headers(message: &Message) -> Vec<(String, String)> {
        let url = Uri::from_static("http://127.0.0.1/events");
        let request = encode(&url, message).unwrap();
        assert_eq!((request.method().as_str(), request.uri()), ("POST", &url));
        let headers = request.headers().iter();
        headers
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    const ID: Uuid = Uuid::from_u128(0x0192_E4A0_0000_7000_8000_00AB_CDEF_0123);

    #[test]
    fn every_part_has_its_place() {
        let message = Message::to("orders.placed")
            .id(ID)
            .key("customer 7")
            .header("content-type", "application/json; charset=utf-8")
            .bytes("{}")
            .unwrap();
        assert_eq!(
            headers(&message),
            pairs(&[
                ("outbox-id", "0192e4a0-0000-7000-8000-00abcdef0123"),
                ("outbox-topic", "orders.placed"),
                ("outbox-key", "customer%207"),
                (
                    "outbox-header-content-type",
                    "application/json;%20charset=utf-8"
                ),
            ])
        );
    }

    #[test]
    fn an_event_is_one_for_whoever_knows_cloudevents() {
        let event = || CloudEvent::new("/orders", "order.placed").subject("7 €");
        let sent = |message: Message| {
            let mut sent = headers(&message);
            sent.retain(|(name, _)| !name.starts_with("outbox-"));
            sent
        };
        let binary = event().text("text/plain", "seven");
        let binary = binary.binary(Binding::Http, Message::to("t").id(ID).header("a", "b"));
        assert_eq!(
            sent(binary.unwrap()),
            pairs(&[
                ("ce-id", "0192e4a0-0000-7000-8000-00abcdef0123"),
                ("ce-source", "/orders"),
                ("ce-specversion", "1.0"),
                ("ce-subject", "7%20%E2%82%AC"),
                ("ce-type", "order.placed"),
                ("content-type", "text/plain"),
            ])
        );
        let structured = event().structured(Message::to("t")).unwrap();
        let content_type = "application/cloudevents+json; charset=UTF-8";
        assert_eq!(sent(structured), pairs(&[("content-type", content_type)]));
    }

    #[test]
    fn empty_and_absent_are_kept_apart() {
        let names = |message: Message| -> Vec<String> {
            headers(&message)
                .into_iter()
                .map(|(name, _)| name)
                .collect()
        };
        let absent = Message::to("t").tombstone().unwrap();
        assert_eq!(names(absent), [ID_HEADER, TOPIC_HEADER, TOMBSTONE_HEADER]);
        let empty = Message::to("t").key("").bytes("").unwrap();
        assert_eq!(names(empty), [ID_HEADER, TOPIC_HEADER, KEY_HEADER]);
    }

    #[test]
    fn what_http_would_change_is_encoded() {
        let message = Message::to("größe/100%")
            .id(ID)
            .header("Trace Id", " a\r\nb\t")
            .header("trace%20id", "\u{1F980}")
            .tombstone()
            .unwrap();
        assert_eq!(
            headers(&message)[1..],
            pairs(&[
                ("outbox-topic", "gr%C3%B6%C3%9Fe/100%25"),
                ("outbox-tombstone", "true"),
                ("outbox-header-%54race%20%49d", "%20a%0D%0Ab%09"),
                ("outbox-header-trace%2520id", "%F0%9F%A6%80"),
            ])
        );
    }

    #[test]
    fn the_longest_of_everything_passes() {
        let message = Message::to("ö".repeat(127))
            .key("ö".repeat(32_000))
            .header("\u{1F980}".repeat(60), "\n".repeat(60_000))
            .tombstone()
            .unwrap();
        assert_eq!(headers(&message).len(), 5);
    }
}
