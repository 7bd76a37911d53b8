//! What the names of an outbox's tables begin with, and the statements that are written for it.

use std::borrow::Cow;

/// The longest prefix, in bytes.
pub const MAX_PREFIX_BYTES: usize = 64;

/// A prefix that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "prefix {prefix:?}: must be a lowercase letter or underscore and then lowercase letters, digits and \
     underscores, at most {MAX_PREFIX_BYTES} bytes, and not begin with `sqlite_`"
)]
pub struct InvalidPrefix {
    prefix: String,
}

/// The prefix of one outbox. Needs no quoting anywhere, by construction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prefix(Cow<'static, str>);

impl Prefix {
    pub(crate) const DEFAULT: Self = Self(Cow::Borrowed("outbox_"));

    pub(crate) fn new(prefix: impl Into<String>) -> Result<Self, InvalidPrefix> {
        let prefix = prefix.into();
        let mut bytes = prefix.bytes();
        let valid = prefix.len() <= MAX_PREFIX_BYTES
            && bytes
                .next()
                .is_some_and(|first| first.is_ascii_lowercase() || first == b'_')
            && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            && !prefix.starts_with("sqlite_");
        if valid {
            Ok(Self(prefix.into()))
        } else {
            Err(InvalidPrefix { prefix })
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// A statement of ours, with this prefix in place of `{prefix}`.
    pub(crate) fn sql(&self, statement: &str) -> String {
        statement.replace("{prefix}", &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_no_quotes_is_accepted() {
        let longest = "x".repeat(MAX_PREFIX_BYTES);
        for prefix in ["outbox_", "_", "a1_b", "order", &longest] {
            let accepted = Prefix::new(prefix).map(|accepted| accepted.as_str() == prefix);
            assert_eq!(accepted, Ok(true));
        }
    }

    #[test]
    fn everything_else_is_refused_and_named() {
        let too_long = "x".repeat(MAX_PREFIX_BYTES + 1);
        for prefix in [
            "", "1a", "Outbox_", "a-b", "a b", "a\"b", "a'b", "a.b", "a;b", "{prefix}", "é",
            "sqlite_", "sqlite_a", &too_long,
        ] {
            let error = Prefix::new(prefix).unwrap_err();
            assert!(
                error.to_string().contains(&format!("{prefix:?}")),
                "{error}"
            );
        }
    }

    #[test]
    fn the_prefix_is_put_wherever_it_is_missing() {
        let prefix = Prefix::new("billing_").unwrap();
        assert_eq!(prefix.sql("{prefix}a, {prefix}b"), "billing_a, billing_b");
        assert_eq!(Prefix::DEFAULT.sql("{prefix}a"), "outbox_a");
    }
}
