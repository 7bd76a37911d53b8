//! Typed messages: a Rust type that knows its topic, its key and the version of its schema.
//!
//! Nothing is derived and nothing is registered. How a value becomes a payload is one line of the type's own
//! ([`Event::encode`]), which ends a [`MessageBuilder`] as for any other message.

use crate::{InvalidMessage, Message, MessageBuilder};

/// The header that says which version of its schema an event has.
pub const SCHEMA_VERSION_HEADER: &str = "schema-version";

/// A type whose values are messages, made by [`Message::event`].
///
/// ```
/// use outbox_core::{Event, InvalidMessage, Message, MessageBuilder};
///
/// #[derive(serde::Serialize)]
/// struct OrderPlaced {
///     order: u64,
///     cents: u64,
/// }
///
/// impl Event for OrderPlaced {
///     const TOPIC: &'static str = "orders.placed";
///     const VERSION: u32 = 2;
///
///     fn key(&self) -> Option<String> {
///         Some(self.order.to_string())
///     }
///
///     fn encode(&self, message: MessageBuilder) -> Result<Message, InvalidMessage> {
///         message.json(self)
///     }
/// }
///
/// let message = Message::event(&OrderPlaced { order: 7, cents: 1250 })?;
/// assert_eq!((message.topic(), message.key()), ("orders.placed", Some("7")));
/// assert_eq!(message.headers().get("schema-version"), Some("2"));
/// # Ok::<(), InvalidMessage>(())
/// ```
pub trait Event {
    /// Where its messages go.
    const TOPIC: &'static str;
    /// The version of the payload's schema, which consumers find in the header `schema-version`. It goes up
    /// with a change that a consumer of the version before cannot read.
    const VERSION: u32;

    /// The ordering key; `None` asks for no order.
    fn key(&self) -> Option<String>;

    /// Ends the message, which has its topic, key and version: `message.json(self)`, or
    /// [`bytes`](MessageBuilder::bytes) of another encoding. It may give the message an
    /// [`id`](MessageBuilder::id) and more headers too.
    ///
    /// There is no default, since it would ask every type to implement serde's `Serialize`.
    ///
    /// # Errors
    ///
    /// [`InvalidMessage`]: what the builder answers, or [`InvalidMessage::Encoding`] for an encoding that
    /// fails.
    fn encode(&self, message: MessageBuilder) -> Result<Message, InvalidMessage>;
}

impl Message {
    /// The message of a typed value.
    ///
    /// # Errors
    ///
    /// [`InvalidMessage`]: a limit that is broken, or a value that cannot be encoded.
    pub fn event<E: Event + ?Sized>(event: &E) -> Result<Self, InvalidMessage> {
        let mut message =
            Message::to(E::TOPIC).header(SCHEMA_VERSION_HEADER, E::VERSION.to_string());
        if let Some(key) = event.key() {
            message = message.key(key);
        }
        event.encode(message)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    struct Reading {
        sensor: Option<u16>,
        value: f32,
    }

    impl Event for Reading {
        const TOPIC: &'static str = "readings";
        const VERSION: u32 = 1;

        fn key(&self) -> Option<String> {
            self.sensor.map(|sensor| sensor.to_string())
        }

        fn encode(&self, message: MessageBuilder) -> Result<Message, InvalidMessage> {
            if self.value.is_nan() {
                return Err(InvalidMessage::encoding("a reading is a number"));
            }
            let message = message.id(Uuid::from_u128(7)).header("unit", "K");
            message.bytes(self.value.to_be_bytes().to_vec())
        }
    }

    #[test]
    fn a_value_is_encoded_as_its_type_says() {
        let message = Message::event(&Reading {
            sensor: Some(3),
            value: 1.5,
        });
        let expected = Message::to("readings")
            .id(Uuid::from_u128(7))
            .key(3)
            .header("schema-version", "1")
            .header("unit", "K")
            .bytes(vec![0x3f, 0xc0, 0, 0]);
        assert_eq!(message, expected);
    }

    #[test]
    fn a_key_may_be_absent_and_an_encoding_may_fail() {
        let message = Message::event(&Reading {
            sensor: None,
            value: 0.0,
        });
        assert_eq!(message.unwrap().key(), None);
        let failed = Message::event(&Reading {
            sensor: None,
            value: f32::NAN,
        });
        let reason = failed.unwrap_err().to_string();
        assert_eq!(reason, "payload cannot be encoded: a reading is a number");
    }
}
