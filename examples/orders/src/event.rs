//! A message as the service writes it and as a consumer reads it.

use outbox::Uuid;
use serde::{Deserialize, Serialize};

use crate::Error;

/// The payload of a message, as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub struct Payload {
    /// The order that it speaks of.
    pub order: i64,
    /// What happened to the order.
    pub what: String,
    /// The place among the messages of the customer, from 1.
    pub sequence: i64,
}

/// A message, as the database has it and as the consumer has read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The message id.
    pub id: Uuid,
    /// The order that it speaks of.
    pub order: i64,
    /// The ordering key: the customer.
    pub key: String,
    /// The place among the messages of its key, from 1.
    pub sequence: i64,
}

impl Event {
    /// Decodes what a consumer found under the wire names of the message id, the key and the payload.
    ///
    /// # Errors
    /// When one of them is not as the service writes it.
    pub fn decode(id: &[u8], key: &[u8], payload: &[u8]) -> Result<Self, Error> {
        let payload: Payload = serde_json::from_slice(payload)?;
        Ok(Self {
            id: Uuid::try_parse_ascii(id)?,
            order: payload.order,
            key: str::from_utf8(key)?.to_owned(),
            sequence: payload.sequence,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_service_writes_is_read() {
        let payload = Payload {
            order: 7,
            what: "order placed".to_owned(),
            sequence: 3,
        };
        let id = Uuid::from_u128(1);
        let json = serde_json::to_vec(&payload).unwrap();
        let event = Event::decode(id.to_string().as_bytes(), b"ada", &json).unwrap();
        assert_eq!((event.id, event.order, event.sequence), (id, 7, 3));
        assert_eq!(event.key, "ada");
    }

    #[test]
    fn anything_else_is_refused() {
        let id = Uuid::from_u128(1).to_string();
        let json = br#"{"order": 1, "what": "", "sequence": 1}"#;
        assert!(Event::decode(id.as_bytes(), b"ada", json).is_ok());
        assert!(Event::decode(b"1", b"ada", json).is_err());
        assert!(Event::decode(id.as_bytes(), b"\xff", json).is_err());
        assert!(Event::decode(id.as_bytes(), b"ada", b"").is_err());
    }
}
