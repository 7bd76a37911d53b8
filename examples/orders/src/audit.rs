//! What arrived, held against what was committed: pure, so that its own tests can break it.

use std::collections::{HashMap, HashSet};
use std::fmt;

use outbox::Uuid;

use crate::Event;

/// What the comparison found. Displayed, it is one line.
#[derive(Debug, PartialEq, Eq)]
pub struct Audit {
    /// Committed orders.
    pub committed: usize,
    /// Those of which every message arrived as it was written.
    pub delivered: usize,
    /// Messages that arrived and that the database does not know.
    pub from_rolled_back: usize,
    /// Keys of committed messages.
    pub keys: usize,
    /// Those of which a first copy arrived after a first copy of higher sequence.
    pub keys_out_of_order: usize,
    /// Copies after the first, which at-least-once delivery allows.
    pub repeats: usize,
}

impl Audit {
    /// Whether the promise was kept.
    pub fn passed(&self) -> bool {
        self.delivered == self.committed
            && self.from_rolled_back == 0
            && self.keys_out_of_order == 0
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} committed, {} delivered, {} lost, {} from rolled-back transactions, ",
            self.committed,
            self.delivered,
            self.committed - self.delivered,
            self.from_rolled_back,
        )?;
        match self.keys_out_of_order {
            0 => write!(f, "order kept for {} keys", self.keys),
            broken => write!(f, "order broken for {broken} of {} keys", self.keys),
        }
    }
}

/// Compares the committed messages with what was read, in the order in which it was read.
///
/// A message that arrived under the id of a committed one but not as it was written is no delivery of
/// it, so that its order counts as lost.
pub fn audit(committed: &[Event], read: &[Event]) -> Audit {
    let by_id: HashMap<Uuid, &Event> = committed.iter().map(|event| (event.id, event)).collect();
    let mut arrived = HashSet::new();
    let mut last_of_key: HashMap<&str, i64> = HashMap::new();
    let mut out_of_order = HashSet::new();
    let mut from_rolled_back = 0;
    let mut repeats = 0;
    for event in read {
        match by_id.get(&event.id) {
            None => from_rolled_back += 1,
            Some(written) if *written != event => {}
            Some(_) if !arrived.insert(event.id) => repeats += 1,
            Some(_) => {
                let last = last_of_key.entry(&event.key).or_default();
                if event.sequence < *last {
                    out_of_order.insert(&event.key);
                }
                *last = event.sequence.max(*last);
            }
        }
    }
    let orders: HashSet<i64> = committed.iter().map(|event| event.order).collect();
    let lost: HashSet<i64> = committed
        .iter()
        .filter(|event| !arrived.contains(&event.id))
        .map(|event| event.order)
        .collect();
    let keys: HashSet<&str> = committed.iter().map(|event| event.key.as_str()).collect();
    Audit {
        committed: orders.len(),
        delivered: orders.len() - lost.len(),
        from_rolled_back,
        keys: keys.len(),
        keys_out_of_order: out_of_order.len(),
        repeats,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: u128, order: i64, key: &str, sequence: i64) -> Event {
        Event {
            id: Uuid::from_u128(id),
            order,
            key: key.to_owned(),
            sequence,
        }
    }

    /// Two orders of one customer, the second with two messages, and one of another.
    fn committed() -> Vec<Event> {
        vec![
            event(1, 1, "ada", 1),
            event(2, 2, "ada", 2),
            event(3, 2, "ada", 3),
            event(4, 3, "bob", 1),
        ]
    }

    #[test]
    fn everything_once_and_in_order_passes() {
        let found = audit(&committed(), &committed());
        assert!(found.passed());
        assert_eq!(
            found.to_string(),
            "3 committed, 3 delivered, 0 lost, 0 from rolled-back transactions, order kept for 2 keys"
        );
    }

    #[test]
    fn keys_may_overtake_each_other() {
        let mut read = committed();
        read.rotate_right(1);
        assert!(audit(&committed(), &read).passed());
    }

    #[test]
    fn an_order_with_a_lost_message_is_lost() {
        let mut read = committed();
        read.remove(2);
        let found = audit(&committed(), &read);
        assert!(!found.passed());
        assert_eq!(
            found.to_string(),
            "3 committed, 2 delivered, 1 lost, 0 from rolled-back transactions, order kept for 2 keys"
        );
    }

    #[test]
    fn nothing_read_is_everything_lost() {
        let found = audit(&committed(), &[]);
        assert!(!found.passed());
        assert_eq!((found.delivered, found.committed), (0, 3));
    }

    #[test]
    fn a_message_that_was_altered_is_lost() {
        for altered in [
            event(4, 3, "eve", 1),
            event(4, 3, "bob", 2),
            event(4, 9, "bob", 1),
        ] {
            let mut read = committed();
            read[3] = altered;
            let found = audit(&committed(), &read);
            assert!(!found.passed());
            assert_eq!((found.delivered, found.from_rolled_back), (2, 0));
        }
    }

    #[test]
    fn a_message_that_the_database_does_not_know_was_rolled_back() {
        let mut read = committed();
        read.push(event(5, 3, "bob", 2));
        let found = audit(&committed(), &read);
        assert!(!found.passed());
        assert_eq!(
            found.to_string(),
            "3 committed, 3 delivered, 0 lost, 1 from rolled-back transactions, order kept for 2 keys"
        );
    }

    #[test]
    fn a_reordered_key_is_found() {
        let mut read = committed();
        read.swap(0, 1);
        let found = audit(&committed(), &read);
        assert!(!found.passed());
        assert_eq!(
            found.to_string(),
            "3 committed, 3 delivered, 0 lost, 0 from rolled-back transactions, \
             order broken for 1 of 2 keys"
        );
    }

    #[test]
    fn repeats_are_counted_and_may_come_out_of_place() {
        let mut read = committed();
        read.extend([event(1, 1, "ada", 1), event(1, 1, "ada", 1)]);
        let found = audit(&committed(), &read);
        assert!(found.passed());
        assert_eq!(found.repeats, 2);
    }

    #[test]
    fn a_repeat_does_not_stand_in_for_a_lost_message() {
        let mut read = committed();
        read[2] = read[1].clone();
        let found = audit(&committed(), &read);
        assert!(!found.passed());
        assert_eq!((found.delivered, found.repeats), (2, 1));
    }
}
