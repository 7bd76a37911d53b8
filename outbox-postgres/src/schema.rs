//! The name of the schema that holds an outbox, and the statements that are written for it.

use std::borrow::Cow;

/// The longest schema name, in bytes: Postgres cuts off what is longer.
pub const MAX_SCHEMA_BYTES: usize = 63;

/// A schema name that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "schema {name:?}: a lowercase letter or underscore and then lowercase letters, digits and underscores, \
     at most {MAX_SCHEMA_BYTES} bytes"
)]
pub struct InvalidSchema {
    name: String,
}

/// The schema of one outbox. Needs no quoting anywhere, by construction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schema(Cow<'static, str>);

impl Schema {
    pub(crate) const DEFAULT: Self = Self(Cow::Borrowed("outbox"));

    pub(crate) fn new(name: impl Into<String>) -> Result<Self, InvalidSchema> {
        let name = name.into();
        let mut bytes = name.bytes();
        let valid = name.len() <= MAX_SCHEMA_BYTES
            && bytes
                .next()
                .is_some_and(|first| first.is_ascii_lowercase() || first == b'_')
            && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if valid {
            Ok(Self(name.into()))
        } else {
            Err(InvalidSchema { name })
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// A statement of ours, with the name of this schema in place of `{schema}`.
    pub(crate) fn sql(&self, statement: &str) -> String {
        statement.replace("{schema}", &self.0)
    }
}
