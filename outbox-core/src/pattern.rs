//! Which topics are meant: one, or all that look alike.

use std::fmt;
use std::str::FromStr;

use crate::MAX_TOPIC_BYTES;

/// A topic in which each `*` stands for any characters, also none: `orders.placed`, `orders.*`, `*`.
/// Everything else stands for itself.
///
/// ```
/// use outbox_core::TopicPattern;
///
/// let orders: TopicPattern = "orders.*".parse()?;
/// assert!(orders.matches("orders.placed") && orders.matches("orders.placed.eu"));
/// assert!(!orders.matches("orders"));
/// # Ok::<(), outbox_core::InvalidPattern>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPattern(String);

/// Not a pattern of topics: no topic could match it, or it is longer than any topic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("topic pattern {pattern:?}: must be 1 to {MAX_TOPIC_BYTES} bytes without NUL")]
pub struct InvalidPattern {
    pattern: String,
}

impl TopicPattern {
    /// Whether `topic` is meant.
    pub fn matches(&self, topic: &str) -> bool {
        let mut literals = self.literals();
        let Some(mut rest) = literals.next().and_then(|first| topic.strip_prefix(first)) else {
            return false;
        };
        let Some(last) = literals.next_back() else {
            return rest.is_empty();
        };
        // The first place is as good as any: it leaves the most for those that follow.
        for literal in literals {
            match rest.split_once(literal) {
                Some((_, behind)) => rest = behind,
                None => return false,
            }
        }
        rest.ends_with(last)
    }

    /// What stands between the `*`, from the first on: one for a pattern without any.
    pub fn literals(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('*')
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TopicPattern {
    type Err = InvalidPattern;

    fn from_str(pattern: &str) -> Result<Self, InvalidPattern> {
        if (1..=MAX_TOPIC_BYTES).contains(&pattern.len()) && !pattern.contains('\0') {
            Ok(Self(pattern.to_owned()))
        } else {
            Err(InvalidPattern {
                pattern: pattern.to_owned(),
            })
        }
    }
}

impl fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_star_stands_for_any_characters() {
        for (pattern, matched, others) in [
            ("a", &["a"][..], &["ab", "A", "ba"][..]),
            ("a*", &["a", "ab", "a*"], &["ba"]),
            ("*", &["x", "é"], &[]),
            ("é*", &["één"], &["e"]),
            (
                "*.placed",
                &["orders.placed", ".placed"],
                &["placed", "a.placed.b"],
            ),
            (
                "a*b*c",
                &["abc", "a.b.b.c", "abbcc"],
                &["acb", "ab", "abca"],
            ),
            ("a*a", &["aa", "aba"], &["a"]),
            ("a%_\\", &["a%_\\"], &["abc\\"]),
        ] {
            let pattern: TopicPattern = pattern.parse().unwrap();
            for topic in matched {
                assert!(pattern.matches(topic), "{pattern} should match {topic}");
            }
            for topic in others {
                assert!(
                    !pattern.matches(topic),
                    "{pattern} should not match {topic}"
                );
            }
        }
    }

    #[test]
    fn what_no_topic_matches_is_refused_by_name() {
        let longest = "x".repeat(MAX_TOPIC_BYTES);
        assert!(longest.parse::<TopicPattern>().is_ok());
        for text in ["", "a\0", &format!("{longest}x")] {
            let error = text.parse::<TopicPattern>().unwrap_err();
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }
}
