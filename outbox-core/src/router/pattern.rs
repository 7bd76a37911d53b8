//! Which topics a route takes. Pure.

use crate::MAX_TOPIC_BYTES;

/// A topic in which each `*` stands for any characters, also none. Everything else stands for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern(String);

impl Pattern {
    /// The most bytes of a pattern: those of the longest topic.
    pub(super) const MAX_BYTES: usize = MAX_TOPIC_BYTES;

    /// `None`: no topic could match it, or it is longer than it needs to be.
    pub(super) fn new(text: &str) -> Option<Self> {
        let possible = !text.is_empty() && text.len() <= Self::MAX_BYTES && !text.contains('\0');
        possible.then(|| Self(text.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares bytes: no character of UTF-8 begins inside another one, so that is the same as comparing
    /// characters. Takes at most the product of both lengths in steps, whatever the pattern.
    pub(super) fn matches(&self, topic: &str) -> bool {
        let (pattern, topic) = (self.0.as_bytes(), topic.as_bytes());
        let (mut at, mut next) = (0, 0);
        // Where the last `*` is, and up to where it reaches. An earlier one never has to reach further.
        let mut star: Option<(usize, usize)> = None;
        while next < topic.len() {
            match pattern.get(at) {
                Some(b'*') => {
                    star = Some((at, next));
                    at += 1;
                }
                Some(byte) if *byte == topic[next] => {
                    at += 1;
                    next += 1;
                }
                _ => {
                    let Some((place, reach)) = star else {
                        return false;
                    };
                    star = Some((place, reach + 1));
                    at = place + 1;
                    next = reach + 1;
                }
            }
        }
        pattern[at..].iter().all(|byte| *byte == b'*')
    }

    /// Whether every topic that `other` matches is matched by this one too.
    ///
    /// Exact, by reading `other` as a topic: only a `*` of this pattern takes a `*` of that, and then it
    /// takes whatever that one would have stood for.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.matches(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::new(text).unwrap()
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
            ("*",          &["x", "größe", "*"],               &[]),
            ("**",         &["x", "xy"],                       &[]),
            ("größe.*",    &["größe.ü"],                       &["grösse.x", "gr"]),
            (".",          &["."],                             &["x"]),
            ("[a-z]?",     &["[a-z]?"],                        &["ab"]),
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
    fn what_no_topic_matches_is_no_pattern() {
        assert!(Pattern::new("").is_none());
        assert!(Pattern::new("a\0*").is_none());
        assert!(Pattern::new(&"x".repeat(Pattern::MAX_BYTES + 1)).is_none());
        assert!(Pattern::new(&"x".repeat(Pattern::MAX_BYTES)).is_some());
    }

    #[test]
    fn a_hostile_pattern_takes_no_longer() {
        let hostile = pattern(&"*a".repeat(Pattern::MAX_BYTES / 2));
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
