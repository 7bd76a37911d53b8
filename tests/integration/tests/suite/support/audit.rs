//! The comparison of what a consumer reads with what was committed: computed, never assumed.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::broker::Record;

/// What a consumer got, held against what was committed.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    pub(crate) committed: usize,
    /// Different messages that arrived.
    pub(crate) delivered: usize,
    /// Copies of messages that had arrived before.
    pub(crate) repeats: usize,
    /// Committed, and not there.
    pub(crate) lost: Vec<(String, i64)>,
    /// There, and never committed.
    pub(crate) never_committed: Vec<String>,
    /// First copies that are not the next of their key, or not in its partition.
    pub(crate) out_of_order: Vec<String>,
}

impl Audit {
    /// `committed`: key, number and id of every message; `records` in the order of each partition. The
    /// numbers of each key begin with 1 and have no gaps, and the payload of a message begins with its
    /// number.
    pub(crate) fn new(committed: Vec<(String, i64, Uuid)>, records: &[Record]) -> Self {
        let truth: HashMap<Uuid, (String, i64)> = committed
            .into_iter()
            .map(|(key, n, id)| (id, (key, n)))
            .collect();
        let mut audit = Self {
            committed: truth.len(),
            ..Self::default()
        };
        let mut seen: HashSet<Uuid> = HashSet::new();
        let mut last: HashMap<&str, (i64, i32)> = HashMap::new();
        for record in records {
            let id = record.id;
            let Some((key, n)) = truth.get(&id) else {
                audit.never_committed.push(format!("{id}: {record:?}"));
                continue;
            };
            assert_eq!(record.key.as_ref(), Some(key), "{id}");
            assert_eq!(number(record), *n, "the payload of {id}");
            if !seen.insert(id) {
                audit.repeats += 1;
                continue;
            }
            let (last, partition) = last.entry(key).or_insert((0, record.partition));
            if *n != *last + 1 || *partition != record.partition {
                audit
                    .out_of_order
                    .push(format!("{key}: {n} after {last}, {record:?}"));
            }
            *last = *n;
        }
        audit.delivered = seen.len();
        audit.lost = truth
            .into_iter()
            .filter(|(id, _)| !seen.contains(id))
            .map(|(_, message)| message)
            .collect();
        audit.lost.sort();
        audit
    }

    /// Everything that committed arrived, nothing else did, and first copies in order.
    #[track_caller]
    pub(crate) fn assert_sound(&self) {
        assert!(
            self.lost.is_empty() && self.never_committed.is_empty() && self.out_of_order.is_empty(),
            "{self:#?}"
        );
        assert!(self.delivered > 0, "nothing was delivered: {self:?}");
    }

    /// The same, and not once more than needed.
    #[track_caller]
    pub(crate) fn assert_exactly_once(&self) {
        self.assert_sound();
        assert_eq!(self.repeats, 0, "repeats though nothing failed: {self:?}");
    }
}

fn number(record: &Record) -> i64 {
    let payload = record.payload.as_deref().expect("a payload");
    let payload = std::str::from_utf8(payload).expect("text");
    payload.trim_end().parse().expect("a number")
}

/// The audit is what the other tests rest on, so each fault that it is there for must be seen.
mod catches {
    use std::collections::BTreeMap;

    use super::{Audit, Record};
    use uuid::Uuid;

    fn committed() -> Vec<(String, i64, Uuid)> {
        (1..=3)
            .map(|n: i64| {
                (
                    "key".to_owned(),
                    n,
                    Uuid::from_u128(n.unsigned_abs().into()),
                )
            })
            .collect()
    }

    fn records(ids: &[u128]) -> Vec<Record> {
        ids.iter()
            .map(|&id| Record {
                id: Uuid::from_u128(id),
                key: Some("key".to_owned()),
                payload: Some(id.to_string().into_bytes()),
                headers: BTreeMap::new(),
                partition: 0,
            })
            .collect()
    }

    #[test]
    fn nothing_in_a_clean_delivery() {
        Audit::new(committed(), &records(&[1, 2, 3])).assert_exactly_once();
    }

    #[test]
    fn a_loss() {
        let audit = Audit::new(committed(), &records(&[1, 2]));
        assert_eq!(audit.lost, [("key".to_owned(), 3)]);
    }

    #[test]
    fn a_message_that_never_committed() {
        let audit = Audit::new(committed(), &records(&[1, 2, 3, 4]));
        assert_eq!(audit.never_committed.len(), 1);
    }

    #[test]
    fn first_copies_out_of_order() {
        let audit = Audit::new(committed(), &records(&[2, 1, 3]));
        assert_eq!(audit.out_of_order.len(), 3);
    }

    #[test]
    fn a_key_in_two_partitions() {
        let mut records = records(&[1, 2, 3]);
        records[1].partition = 1;
        assert_eq!(Audit::new(committed(), &records).out_of_order.len(), 1);
    }

    #[test]
    fn repeats_but_takes_them_for_no_disorder() {
        let audit = Audit::new(committed(), &records(&[1, 2, 1, 3, 2]));
        audit.assert_sound();
        assert_eq!(audit.repeats, 2);
    }
}
