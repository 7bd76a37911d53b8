//! The consumer's side: what the inboxes of all stores have in common.
//!
//! An inbox is a table in the consumer's own database, in which it remembers in the transaction of its work
//! which messages it has processed. The inboxes themselves are in the crates of the stores; here are the
//! limits of a consumer's name.

/// The longest name of a consumer, in bytes of UTF-8.
pub const MAX_CONSUMER_BYTES: usize = 255;

/// A name that a consumer cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidConsumer {
    /// It is empty.
    #[error("consumer name is empty")]
    Empty,
    /// It has too many bytes.
    #[error("consumer name has {bytes} bytes, the limit is {MAX_CONSUMER_BYTES}")]
    TooLong {
        /// What it has.
        bytes: usize,
    },
    /// It holds a NUL character, which Postgres cannot store in text.
    #[error("consumer name holds a NUL character")]
    Nul,
}

/// Checks the name of a consumer, as an inbox does with each one that it is given.
///
/// # Errors
///
/// [`InvalidConsumer`]: the limit that it breaks.
pub fn check_consumer(name: &str) -> Result<(), InvalidConsumer> {
    if name.is_empty() {
        Err(InvalidConsumer::Empty)
    } else if name.len() > MAX_CONSUMER_BYTES {
        Err(InvalidConsumer::TooLong { bytes: name.len() })
    } else if name.contains('\0') {
        Err(InvalidConsumer::Nul)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_to_its_limits() {
        let longest = "n".repeat(MAX_CONSUMER_BYTES);
        for good in ["billing", "größe 7\n", &longest] {
            assert_eq!(check_consumer(good), Ok(()));
        }
        let refused = |name: &str| check_consumer(name).unwrap_err().to_string();
        assert_eq!(refused(""), "consumer name is empty");
        assert_eq!(refused("a\0b"), "consumer name holds a NUL character");
        assert_eq!(
            refused(&"ä".repeat(128)),
            "consumer name has 256 bytes, the limit is 255"
        );
    }
}
