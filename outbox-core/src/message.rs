//! What travels: a message that is valid by construction.
//!
//! Every limit is a named constant and is checked when a message is made, by [`MessageBuilder`] in an
//! application and by [`Message::from_parts`] in a store. What a particular broker cannot carry is
//! not known here: its adapter refuses it with [`Rejected`](crate::PublishErrorKind::Rejected).

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use uuid::Uuid;

/// The longest topic, in bytes of UTF-8: what an AMQP short string holds.
pub const MAX_TOPIC_BYTES: usize = 255;
/// The longest key, in bytes of UTF-8.
pub const MAX_KEY_BYTES: usize = 65_536;
/// The largest payload, in bytes. Most brokers are configured far below it.
pub const MAX_PAYLOAD_BYTES: usize = 128 * 1024 * 1024;
/// The largest number of headers of one message.
pub const MAX_HEADERS: usize = 128;
/// The longest header name, in bytes of UTF-8.
pub const MAX_HEADER_NAME_BYTES: usize = 255;
/// The largest sum of the bytes of all header names and values of one message.
pub const MAX_HEADERS_BYTES: usize = 65_536;
/// The longest time that a message can be delayed by: 366 days, so that a year fits.
pub const MAX_DELAY: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// Header names that begin so, in any case, belong to the outbox.
pub const RESERVED_HEADER_PREFIX: &str = "outbox-";

/// What the application wants delivered.
///
/// ```
/// use outbox_core::Message;
///
/// # #[derive(serde::Serialize)] struct Order { id: u64 }
/// # let order = Order { id: 7 };
/// let message = Message::to("orders.placed").key(order.id).json(&order)?;
/// assert_eq!(message.key(), Some("7"));
/// # Ok::<(), outbox_core::InvalidMessage>(())
/// ```
///
/// Cloning is cheap in the payload, which is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    id: Uuid,
    topic: String,
    key: Option<String>,
    payload: Option<Bytes>,
    headers: Headers,
    deliver_after: Duration,
}

impl Message {
    /// Starts a message to `topic`; a payload method of the builder ends it.
    pub fn to(topic: impl Into<String>) -> MessageBuilder {
        MessageBuilder {
            id: None,
            topic: topic.into(),
            key: None,
            headers: Ok(Headers::default()),
            deliver_after: Duration::ZERO,
        }
    }

    /// Puts a message together from its parts, as a store does with what it has read.
    ///
    /// # Errors
    ///
    /// Names the field and the limit that it breaks.
    pub fn from_parts(
        id: Uuid,
        topic: String,
        key: Option<String>,
        payload: Option<Bytes>,
        headers: Headers,
    ) -> Result<Self, InvalidMessage> {
        check_text("topic", &topic, MAX_TOPIC_BYTES)?;
        if topic.is_empty() {
            return Err(InvalidMessage::Empty { field: "topic" });
        }
        if let Some(key) = &key {
            check_text("key", key, MAX_KEY_BYTES)?;
        }
        if let Some(payload) = &payload {
            check_size("payload", payload.len(), MAX_PAYLOAD_BYTES)?;
        }
        Ok(Self {
            id,
            topic,
            key,
            payload,
            headers,
            deliver_after: Duration::ZERO,
        })
    }

    /// Tells repeats apart: the same in every copy that is delivered.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Where it goes, in the application's words.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The ordering key. An empty key is a key; `None` asks for no order.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// The payload. An empty one is not an absent one; `None` is a tombstone.
    pub fn payload(&self) -> Option<&Bytes> {
        self.payload.as_ref()
    }

    /// The headers, unique by name and in no particular order.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// How long after it is enqueued it is delivered at the earliest; zero: as soon as it can be.
    ///
    /// It speaks of the enqueue alone, and no broker sees it: of a message that a store gives back it is zero.
    pub fn deliver_after(&self) -> Duration {
        self.deliver_after
    }

    /// The same message with another delay, as of [`MessageBuilder::deliver_after`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use outbox_core::Message;
    /// let reminder = Message::to("reminders").key(7).bytes("seven")?;
    /// let reminder = reminder.with_deliver_after(Duration::from_secs(24 * 60 * 60))?;
    /// # assert_eq!(reminder.deliver_after(), Duration::from_secs(86_400));
    /// # Ok::<(), outbox_core::InvalidMessage>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidMessage::DelayTooLong`]: more than [`MAX_DELAY`].
    pub fn with_deliver_after(mut self, delay: Duration) -> Result<Self, InvalidMessage> {
        self.deliver_after = check_delay(delay)?;
        Ok(self)
    }

    /// Of a message that became due.
    pub(crate) fn clear_delay(&mut self) {
        self.deliver_after = Duration::ZERO;
    }

    /// The same message in the making again: with its id, topic, key, headers and delay, and without its
    /// payload. For a publisher that wraps another one and hands on something else than was enqueued.
    ///
    /// ```
    /// # use outbox_core::Message;
    /// let message = Message::to("orders.placed").key(7).bytes("seven")?;
    /// let changed = message.to_builder().header("encoding", "upper").bytes("SEVEN")?;
    /// assert_eq!(changed.id(), message.id());
    /// # Ok::<(), outbox_core::InvalidMessage>(())
    /// ```
    pub fn to_builder(&self) -> MessageBuilder {
        MessageBuilder {
            id: Some(self.id),
            topic: self.topic.clone(),
            key: self.key.clone(),
            headers: Ok(self.headers.clone()),
            deliver_after: self.deliver_after,
        }
    }

    /// The same message with the context of the current span in its headers `traceparent` and `tracestate`,
    /// by [W3C Trace Context](https://www.w3.org/TR/trace-context/). Consumers go on with that trace, and the
    /// relay's span links to that span. With the feature `otel`.
    ///
    /// The current span is that of `opentelemetry::Context::current()`, which `tracing-opentelemetry` makes of
    /// the current span of `tracing`. Without a current span, where the message has one of the two headers
    /// already, in any case of its letters, or where the limits leave no room for them, nothing is added.
    ///
    /// ```
    /// # use outbox_core::Message;
    /// let message = Message::to("orders.placed").key(7).bytes("seven")?.with_current_trace();
    /// # assert!(message.headers().is_empty());
    /// # Ok::<(), outbox_core::InvalidMessage>(())
    /// ```
    #[cfg(feature = "otel")]
    #[must_use]
    pub fn with_current_trace(mut self) -> Self {
        crate::trace::write(&mut self.headers);
        self
    }

    /// The bytes of topic, key, payload and headers together: what limits by bytes count.
    pub fn size(&self) -> usize {
        self.topic.len()
            + self.key.as_ref().map_or(0, String::len)
            + self.payload.as_ref().map_or(0, Bytes::len)
            + self.headers.size()
    }
}

/// A message in the making, from [`Message::to`] or [`Message::to_builder`].
///
/// Limits are checked by the method that ends it.
#[derive(Clone, Debug)]
#[must_use = "a message is made by `json`, `bytes` or `tombstone`"]
pub struct MessageBuilder {
    pub(crate) id: Option<Uuid>,
    topic: String,
    key: Option<String>,
    headers: Result<Headers, InvalidMessage>,
    deliver_after: Duration,
}

impl MessageBuilder {
    /// Gives the message id, for an application that has one of its own. Without it the id is a new
    /// UUIDv7.
    pub fn id(mut self, id: Uuid) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets the ordering key: messages of one key keep their order, across topics.
    pub fn key(mut self, key: impl ToString) -> Self {
        self.key = Some(key.to_string());
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if let Ok(headers) = &mut self.headers
            && let Err(error) = headers.insert(name, value)
        {
            self.headers = Err(error);
        }
        self
    }

    /// Delivers it so long after it is enqueued, on the database's clock, and not earlier; at most
    /// [`MAX_DELAY`]. Zero is at once. A part of a microsecond counts as a whole one.
    ///
    /// Its place in the order of its key is that of the moment when it is due: until then it holds nothing
    /// up, and what is enqueued meanwhile goes first.
    pub fn deliver_after(mut self, delay: Duration) -> Self {
        self.deliver_after = delay;
        self
    }

    /// Ends the message with `payload` as JSON.
    ///
    /// # Errors
    ///
    /// [`InvalidMessage`]: a limit that is broken, or a value that serde cannot write as JSON.
    pub fn json<T: Serialize + ?Sized>(self, payload: &T) -> Result<Message, InvalidMessage> {
        let bytes = serde_json::to_vec(payload).map_err(|error| InvalidMessage::Json {
            reason: error.to_string(),
        })?;
        self.build(Some(bytes.into()))
    }

    /// Ends the message with `payload` as it is.
    ///
    /// # Errors
    ///
    /// [`InvalidMessage`]: a limit that is broken.
    pub fn bytes(self, payload: impl Into<Bytes>) -> Result<Message, InvalidMessage> {
        self.build(Some(payload.into()))
    }

    /// Ends the message without a payload, which on a compacted Kafka topic deletes the key.
    ///
    /// # Errors
    ///
    /// [`InvalidMessage`]: a limit that is broken.
    pub fn tombstone(self) -> Result<Message, InvalidMessage> {
        self.build(None)
    }

    fn build(self, payload: Option<Bytes>) -> Result<Message, InvalidMessage> {
        Message::from_parts(
            self.id.unwrap_or_else(Uuid::now_v7),
            self.topic,
            self.key,
            payload,
            self.headers?,
        )?
        .with_deliver_after(self.deliver_after)
    }
}

/// Headers: text by name, unique, without NUL, in no particular order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// Adds a header.
    ///
    /// # Errors
    ///
    /// [`InvalidMessage`]: a name that is empty, reserved, too long or there already, a NUL, or more
    /// than the headers of one message may take. Nothing is added then.
    pub fn insert(
        &mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<(), InvalidMessage> {
        let (name, value) = (name.into(), value.into());
        if name.is_empty() {
            return Err(InvalidMessage::Empty {
                field: "header name",
            });
        }
        check_text("header name", &name, MAX_HEADER_NAME_BYTES)?;
        if name
            .get(..RESERVED_HEADER_PREFIX.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(RESERVED_HEADER_PREFIX))
        {
            return Err(InvalidMessage::HeaderReserved { name });
        }
        if value.contains('\0') {
            return Err(InvalidMessage::HeaderNul { name });
        }
        if self.0.contains_key(&name) {
            return Err(InvalidMessage::HeaderTwice { name });
        }
        check_count("headers", self.0.len() + 1, MAX_HEADERS)?;
        check_size(
            "headers",
            self.size() + name.len() + value.len(),
            MAX_HEADERS_BYTES,
        )?;
        self.0.insert(name, value);
        Ok(())
    }

    /// The value of one header.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All headers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.into_iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes of all names and values together.
    pub fn size(&self) -> usize {
        self.0
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum()
    }

    /// The text of a JSON object, as stores keep it; `None` where there are no headers.
    pub fn to_json(&self) -> Option<String> {
        if self.is_empty() {
            return None;
        }
        let object: serde_json::Map<String, serde_json::Value> = self
            .iter()
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        Some(serde_json::Value::Object(object).to_string())
    }

    /// From the text of a JSON object whose values are text.
    ///
    /// # Errors
    ///
    /// [`InvalidMessage`]: the text is not such an object, or a message cannot have such headers.
    pub fn from_json(json: &str) -> Result<Self, InvalidMessage> {
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json)
            .map_err(|error| InvalidMessage::HeadersJson {
                reason: error.to_string(),
            })?;
        let mut headers = Self::default();
        for (name, value) in object {
            let serde_json::Value::String(value) = value else {
                return Err(InvalidMessage::HeaderNotText { name });
            };
            headers.insert(name, value)?;
        }
        Ok(headers)
    }
}

impl<'a> IntoIterator for &'a Headers {
    type Item = (&'a str, &'a str);
    type IntoIter = std::iter::Map<
        btree_map::Iter<'a, String, String>,
        fn((&'a String, &'a String)) -> (&'a str, &'a str),
    >;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(|(name, value)| (name, value))
    }
}

/// Why a message cannot be made. Each names the field and the limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMessage {
    /// A field that may not be empty is.
    #[error("{field} is empty")]
    Empty {
        /// The field.
        field: &'static str,
    },
    /// A field has too many bytes.
    #[error("{field} has {bytes} bytes, the limit is {limit}")]
    TooLong {
        /// The field.
        field: &'static str,
        /// What it has.
        bytes: usize,
        /// What it may have.
        limit: usize,
    },
    /// A field has too many entries.
    #[error("{field}: {count} given, the limit is {limit}")]
    TooMany {
        /// The field.
        field: &'static str,
        /// What it has.
        count: usize,
        /// What it may have.
        limit: usize,
    },
    /// The delay is too long.
    #[error(
        "deliver_after is {} s, the limit is {} s (366 days)",
        .delay.as_secs(),
        MAX_DELAY.as_secs()
    )]
    DelayTooLong {
        /// What was asked for.
        delay: Duration,
    },
    /// A text field holds a NUL character, which Postgres cannot store in text.
    #[error("{field} holds a NUL character")]
    Nul {
        /// The field.
        field: &'static str,
    },
    /// A header's value holds a NUL character.
    #[error("header {name:?} holds a NUL character")]
    HeaderNul {
        /// The header's name.
        name: String,
    },
    /// A header was given twice.
    #[error("header {name:?} is given twice")]
    HeaderTwice {
        /// The header's name.
        name: String,
    },
    /// A header name belongs to the outbox.
    #[error("header {name:?}: names that begin with `outbox-` are reserved")]
    HeaderReserved {
        /// The header's name.
        name: String,
    },
    /// The headers cannot be read as a JSON object.
    #[error("headers: {reason}")]
    HeadersJson {
        /// What serde says.
        reason: String,
    },
    /// A header's value in JSON is not a string.
    #[error("header {name:?} is not text")]
    HeaderNotText {
        /// The header's name.
        name: String,
    },
    /// A value cannot be encoded as its type says, from [`InvalidMessage::encoding`].
    #[error("payload cannot be encoded: {reason}")]
    Encoding {
        /// What the encoding says.
        reason: String,
    },
    /// An attribute that an event of CloudEvents cannot have.
    #[error("attribute {attribute:?} {reason}")]
    CloudEvent {
        /// Its name.
        attribute: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The payload cannot be written as JSON.
    #[error("payload is not JSON: {reason}")]
    Json {
        /// What serde says.
        reason: String,
    },
}

impl InvalidMessage {
    /// For an encoding of one's own that fails ([`Event::encode`](crate::Event::encode)).
    pub fn encoding(reason: impl std::fmt::Display) -> Self {
        Self::Encoding {
            reason: reason.to_string(),
        }
    }
}

fn check_delay(delay: Duration) -> Result<Duration, InvalidMessage> {
    if delay > MAX_DELAY {
        return Err(InvalidMessage::DelayTooLong { delay });
    }
    let below_micros = u64::from(delay.subsec_nanos() % 1_000);
    Ok(match below_micros {
        0 => delay,
        nanos => delay + Duration::from_nanos(1_000 - nanos),
    })
}

fn check_text(field: &'static str, text: &str, limit: usize) -> Result<(), InvalidMessage> {
    check_size(field, text.len(), limit)?;
    if text.contains('\0') {
        return Err(InvalidMessage::Nul { field });
    }
    Ok(())
}

fn check_size(field: &'static str, bytes: usize, limit: usize) -> Result<(), InvalidMessage> {
    if bytes > limit {
        return Err(InvalidMessage::TooLong {
            field,
            bytes,
            limit,
        });
    }
    Ok(())
}

fn check_count(field: &'static str, count: usize, limit: usize) -> Result<(), InvalidMessage> {
    if count > limit {
        return Err(InvalidMessage::TooMany {
            field,
            count,
            limit,
        });
    }
    Ok(())
}

#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_in_json_are_the_same_headers() {
        let mut headers = Headers::default();
        assert_eq!(headers.to_json(), None);
        headers.insert("trace", "a\"b").unwrap();
        headers.insert("größe", "").unwrap();
        let json = headers.to_json().unwrap();
        assert_eq!(json, r#"{"größe":"","trace":"a\"b"}"#);
        assert_eq!(Headers::from_json(&json), Ok(headers));
    }

    #[test]
    fn a_delay_is_at_most_a_year_and_counts_whole_microseconds() {
        let delayed = |delay| Message::to("t").deliver_after(delay).bytes("x");
        let after = |delay| delayed(delay).unwrap().deliver_after();
        assert_eq!(after(Duration::ZERO), Duration::ZERO);
        assert_eq!(after(Duration::from_nanos(1)), Duration::from_micros(1));
        assert_eq!(after(MAX_DELAY), MAX_DELAY);
        let too_long = delayed(MAX_DELAY + Duration::from_secs(1)).unwrap_err();
        assert_eq!(
            too_long.to_string(),
            "deliver_after is 31622401 s, the limit is 31622400 s (366 days)"
        );
        let again = delayed(MAX_DELAY).unwrap().to_builder().tombstone();
        assert_eq!(again.unwrap().deliver_after(), MAX_DELAY);
    }

    #[test]
    fn json_that_is_no_headers_is_refused_with_the_reason() {
        let refused = |json| Headers::from_json(json).unwrap_err().to_string();
        assert!(refused("[1]").starts_with("headers: invalid type"));
        assert_eq!(refused(r#"{"n": 7}"#), "header \"n\" is not text");
        assert!(refused(r#"{"outbox-id": "x"}"#).contains("reserved"));
    }
}
