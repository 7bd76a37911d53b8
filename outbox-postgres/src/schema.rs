//! The name of the schema that holds an outbox, and the statements that are written for it.

use std::borrow::Cow;

/// The longest schema name, in bytes: Postgres cuts off what is longer.
pub const MAX_SCHEMA_BYTES: usize = 63;

/// The words that Postgres, up to 18, takes for a name only in quotes.
const RESERVED_WORDS: &str = "\
    all analyse analyze and any array as asc asymmetric authorization binary both case \
    cast check collate collation column concurrently constraint create cross \
    current_catalog current_date current_role current_schema current_time \
    current_timestamp current_user default deferrable desc distinct do else end except \
    false fetch for foreign freeze from full grant group having ilike in initially inner \
    intersect into is isnull join lateral leading left like limit localtime \
    localtimestamp natural not notnull null offset on only or order outer overlaps \
    placing primary references returning right select session_user similar some \
    symmetric system_user table tablesample then to trailing true union unique user \
    using variadic verbose when where window with";

/// A schema name that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "schema {name:?}: must be a lowercase letter or underscore and then lowercase letters, digits and \
     underscores, at most {MAX_SCHEMA_BYTES} bytes, no word of SQL, and not begin with `pg_`"
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
            && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            && !name.starts_with("pg_")
            && !RESERVED_WORDS
                .split_ascii_whitespace()
                .any(|word| word == name);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_need_no_quotes_are_accepted() {
        let longest = "x".repeat(MAX_SCHEMA_BYTES);
        for name in ["outbox", "_", "a1_b", "users", "public", &longest] {
            assert_eq!(
                Schema::new(name).map(|schema| schema.name() == name),
                Ok(true)
            );
        }
    }

    #[test]
    fn others_are_refused_by_name() {
        let too_long = "x".repeat(MAX_SCHEMA_BYTES + 1);
        for name in [
            "",
            "1a",
            "Outbox",
            "a-b",
            "a b",
            "a\"b",
            "a'b",
            "a.b",
            "a;b",
            "{schema}",
            "é",
            "pg_outbox",
            "user",
            "order",
            "all",
            "with",
            &too_long,
        ] {
            let error = Schema::new(name).unwrap_err();
            assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
        }
    }

    #[test]
    fn the_name_is_put_wherever_it_is_missing() {
        let schema = Schema::new("billing").unwrap();
        assert_eq!(schema.sql("{schema}.a, {schema}.b"), "billing.a, billing.b");
        assert_eq!(Schema::DEFAULT.sql("{schema}.a"), "outbox.a");
    }
}
