//! Keys and the ids by which a reader finds them.

use std::collections::HashMap;
use std::fmt;

use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305};

/// The longest id of a key, in bytes.
pub const MAX_KEY_ID_BYTES: usize = 64;

/// A secret of 256 bits and the id that is written beside what it encrypts.
#[derive(Clone)]
pub struct Key {
    id: String,
    pub(crate) cipher: XChaCha20Poly1305,
}

impl Key {
    /// Joins a secret and its id. The id is not secret, and never stands for another secret later.
    ///
    /// # Errors
    ///
    /// [`InvalidKeyId`]: it is empty or longer than [`MAX_KEY_ID_BYTES`], or has other characters than
    /// letters, digits, `.`, `_` and `-`.
    pub fn new(id: impl Into<String>, secret: &[u8; 32]) -> Result<Self, InvalidKeyId> {
        let id = id.into();
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if id.is_empty() || id.len() > MAX_KEY_ID_BYTES || !id.bytes().all(is_plain) {
            return Err(InvalidKeyId { id });
        }
        Ok(Self {
            id,
            cipher: XChaCha20Poly1305::new(secret.into()),
        })
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// An id that no key can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "key id {id:?}: must be 1 to {MAX_KEY_ID_BYTES} letters, digits, dots, underscores and hyphens"
)]
pub struct InvalidKeyId {
    id: String,
}

/// The keys that a reader has: while keys are changed, the old one and the new one.
#[derive(Clone, Debug, Default)]
pub struct KeyRing {
    keys: HashMap<String, Key>,
}

impl KeyRing {
    /// A ring of these keys. Of two with one id the last one stays.
    pub fn new(keys: impl IntoIterator<Item = Key>) -> Self {
        Self {
            keys: keys.into_iter().map(|key| (key.id.clone(), key)).collect(),
        }
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Key> {
        self.keys.get(id)
    }
}
