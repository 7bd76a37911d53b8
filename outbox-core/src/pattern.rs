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

    /// Whether every topic that `other` matches is matched by this one too.
    ///
    /// Exact, by reading `other` as a topic: only a `*` of this pattern takes a `*` of that, and then it
    /// takes whatever that one would have stood for.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.matches(&other.0)
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
    use proptest::prelude::*;

    fn pattern(text: &str) -> TopicPattern {
        text.parse().unwrap()
    }

    #[test]
    fn a_star_is_any_characters_and_all_else_is_itself() {
        #[rustfmt::skip]
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("orders",     &["orders"],                        &["order", "orders.", "Orders", "*"]),
            ("orders.*",   &["orders.placed", "orders.", "orders.eu.placed", "orders.*"], &["orders", "orders/x", "xorders.x"]),
            ("*.placed",   &["orders.placed", ".placed", "a.b.placed", "x.placed.placed"], &["placed", "orders.placed.eu"]),
            ("orders.*.v1", &["orders.a.v1", "orders..v1", "orders.v1.v1"], &["orders.v1", "orders.a.v2", "orders.a.v1.x"]),
            ("*a*b*",      &["ab", "xaxbx", "aab", "bab"],      &["ba", "a", "b", "bbaa"]),
            ("*aab",       &["aaab", "aabaab"],                &["aaba"]),
            ("*",          &["x", "é", "größe", "*"],          &[]),
            ("**",         &["x", "xy"],                       &[]),
            ("größe.*",    &["größe.ü"],                       &["grösse.x", "gr"]),
            (".",          &["."],                             &["x"]),
            ("[a-z]?",     &["[a-z]?"],                        &["ab"]),
            ("a",          &["a"],                             &["ab", "A", "ba"]),
            ("a*",         &["a", "ab", "a*"],                 &["ba"]),
            ("é*",         &["één"],                           &["e"]),
            ("a*b*c",      &["abc", "a.b.b.c", "abbcc"],       &["acb", "ab", "abca"]),
            ("a*a",        &["aa", "aba"],                     &["a"]),
            ("a%_\\",     &["a%_\\"],                        &["abc\\"]),
        ];
        for (text, matched, others) in cases {
            let pattern = pattern(text);
            for topic in *matched {
                assert!(pattern.matches(topic), "{text} should match {topic}");
            }
            for topic in *others {
                assert!(!pattern.matches(topic), "{text} should not match {topic}");
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

    #[test]
    fn a_hostile_pattern_takes_no_longer() {
        let hostile = pattern(&"*a".repeat(MAX_TOPIC_BYTES / 2));
        assert!(!hostile.matches(&"a".repeat(MAX_TOPIC_BYTES / 3)));
        assert!(hostile.matches(&"a".repeat(MAX_TOPIC_BYTES)));
    }

    #[test]
    fn a_pattern_covers_what_it_leaves_nothing_of() {
        for (wide, narrow, covers) in [
            ("*", "orders", true),
            ("*", "*", true),
            ("*", "**", true),
            ("**", "*", true),
            ("orders.*", "orders.placed", true),
            ("orders.*", "orders.*.eu", true),
            ("orders.*", "orders*", false),
            ("orders*", "orders.*", true),
            ("*.eu", "orders.*", false),
            ("orders.*", "*", false),
            ("a*b", "a*c*b", true),
            ("a*c*b", "a*b", false),
        ] {
            let covered = pattern(wide).covers(&pattern(narrow));
            assert_eq!(covered, covers, "{wide} and {narrow}");
        }
    }

    /// What `*` means, in the plainest words.
    fn plainly_matches(pattern: &[u8], topic: &[u8]) -> bool {
        match pattern.split_first() {
            None => topic.is_empty(),
            Some((b'*', rest)) => (0..=topic.len()).any(|n| plainly_matches(rest, &topic[n..])),
            Some((byte, rest)) => topic.first() == Some(byte) && plainly_matches(rest, &topic[1..]),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn matching_is_what_it_says(text in "[ab*]{1,8}", topic in "[ab]{1,10}") {
            let plainly = plainly_matches(text.as_bytes(), topic.as_bytes());
            prop_assert_eq!(pattern(&text).matches(&topic), plainly);
        }

        #[test]
        fn covering_is_matching_all_the_other_does(wide in "[ab*]{1,6}", narrow in "[ab*]{1,6}", fills in prop::collection::vec("[abc]{0,3}", 6)) {
            let covers = pattern(&wide).covers(&pattern(&narrow));
            // `c` is in no pattern, so what a `*` of it reaches only another `*` does.
            let filled = |fill: &dyn Fn(usize) -> String| {
                let mut parts = narrow.split('*');
                let mut topic = parts.next().unwrap_or_default().to_owned();
                for (n, part) in parts.enumerate() {
                    topic += &fill(n);
                    topic += part;
                }
                topic
            };
            prop_assert_eq!(pattern(&wide).matches(&filled(&|_| "c".to_owned())), covers);
            if covers {
                prop_assert!(pattern(&wide).matches(&filled(&|n| fills[n % fills.len()].clone())));
            }
        }
    }
}
