//! Encrypts payloads before they leave: a publisher that wraps any other one.
//!
//! [`EncryptingPublisher`] gives each message on with its payload encrypted and everything else as it
//! was. A consumer opens it with a [`KeyRing`], by the message's id and a header. Brokers, their
//! operators and their backups never see a payload.
//!
//! | message | what arrives |
//! | --- | --- |
//! | id, topic, key, headers | unchanged, and in the clear |
//! | payload | nonce (24 bytes), ciphertext, tag (16 bytes) |
//! | absent payload | absent: a tombstone says nothing and must stay one |
//! | – | header `encryption`: `xchacha20poly1305; key=` and the id of the key |
//!
//! The cipher is XChaCha20-Poly1305. A nonce is drawn at random each time a message is published, also
//! when it is published again: 192 bits never repeat by chance, while a nonce made from the message id
//! would repeat wherever an application gives two messages one id. The message id is bound as
//! associated data, so that a payload cannot be passed off as that of another message.
//!
//! It does not hide topics, keys, headers or lengths, keep or fetch keys, or encrypt what is stored in
//! the outbox.
//!
//! Where to read next: `publisher.rs` for the wrapping, `seal.rs` for what a message becomes, `key.rs`
//! for keys and their ids, and `docs/write-a-publisher.md` for the contract.

mod key;
mod publisher;
mod seal;

pub use key::{InvalidKeyId, Key, KeyRing, MAX_KEY_ID_BYTES};
pub use publisher::EncryptingPublisher;
pub use seal::{ENCRYPTION_HEADER, OpenError};
