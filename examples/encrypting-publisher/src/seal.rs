//! What a message becomes, and how a reader undoes it: no I/O but the system's random numbers.

use chacha20poly1305::XNonce;
use chacha20poly1305::aead::{Aead as _, Generate as _, Payload};
use outbox_core::{Message, PublishError, Uuid};

use crate::key::{Key, KeyRing};

/// The header that names the cipher and the key.
pub const ENCRYPTION_HEADER: &str = "encryption";

const SCHEME: &str = "xchacha20poly1305";
const NONCE_BYTES: usize = 24;

/// The message with its payload encrypted. One without a payload stays as it is.
pub(crate) fn seal(message: &Message, key: &Key) -> Result<Message, PublishError> {
    let Some(payload) = message.payload() else {
        return Ok(message.clone());
    };
    // Without random numbers no message can be sent now, and later it can.
    let nonce = XNonce::try_generate().map_err(|error| {
        PublishError::retryable(format!("no random numbers: {error}")).without_broker()
    })?;
    let id = message.id();
    let plain = Payload {
        msg: payload,
        aad: id.as_bytes(),
    };
    let sealed = key
        .cipher
        .encrypt(&nonce, plain)
        .map_err(|_| PublishError::rejected("the payload is too large to be encrypted"))?;
    // One that has such a header already, or as many headers as there may be, can never be sent so.
    message
        .to_builder()
        .header(ENCRYPTION_HEADER, format!("{SCHEME}; key={}", key.id()))
        .bytes([nonce.as_slice(), &sealed].concat())
        .map_err(|error| PublishError::rejected(format!("encrypted, {error}")))
}

impl KeyRing {
    /// Opens the payload of a message that has the header [`ENCRYPTION_HEADER`]: `id` is the message
    /// id, `header` that header's value, `payload` what arrived.
    ///
    /// # Errors
    ///
    /// [`OpenError`] says what a reader lacks, or that the payload is not what was sent. It holds
    /// nothing of the payload.
    pub fn open(&self, id: Uuid, header: &str, payload: &[u8]) -> Result<Vec<u8>, OpenError> {
        let (scheme, key_id) = header.split_once("; key=").unwrap_or((header, ""));
        if scheme != SCHEME {
            return Err(OpenError::UnknownScheme {
                scheme: scheme.to_owned(),
            });
        }
        let key = self.get(key_id).ok_or_else(|| OpenError::UnknownKey {
            id: key_id.to_owned(),
        })?;
        let (nonce, sealed) = payload
            .split_first_chunk::<NONCE_BYTES>()
            .ok_or(OpenError::Altered)?;
        let sealed = Payload {
            msg: sealed,
            aad: id.as_bytes(),
        };
        key.cipher
            .decrypt(nonce.into(), sealed)
            .map_err(|_| OpenError::Altered)
    }
}

/// Why a payload cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// It was encrypted in a way that is not known here.
    #[error("encrypted by {scheme:?}, which is not known here")]
    UnknownScheme {
        /// What the header names.
        scheme: String,
    },
    /// The reader has no such key.
    #[error("encrypted with the key {id:?}, which is not in the ring")]
    UnknownKey {
        /// The id of the key.
        id: String,
    },
    /// Payload, message id and key do not belong together.
    #[error("the payload was altered, or belongs to another message id or key")]
    Altered,
}
