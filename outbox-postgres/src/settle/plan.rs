//! What a settle does, worked out from the outcomes before its first statement, without I/O.
//!
//! Every row that a claim holds is named in one of the plan's lists, or stays where it is. What each list
//! means in SQL is in `settle.rs` and the statements that it runs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use outbox_core::{Claimed, Outcome, PublishError, PublishErrorKind};

use crate::claim::{Broken, Counted, DueKey, Follower, Place};

/// A key's next state in `blocked`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) head: i64,
    /// Microseconds; `None` halts the key.
    pub(super) after: Option<i64>,
    pub(super) tried: i64,
    pub(super) parked: i32,
    pub(super) failures: i32,
    pub(super) error: PublishError,
}

/// A message that is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dead {
    pub(super) place: Place,
    pub(super) parked: i32,
    pub(super) failures: i32,
    pub(super) error_kind: &'static str,
    pub(super) error: String,
    pub(super) halted: bool,
}

/// What a settle does, worked out before the first statement.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) delivered: Vec<Place>,
    /// Hot rows that move to `parked`.
    pub(super) park: Vec<Place>,
    pub(super) dead: Vec<Dead>,
    pub(super) block: BTreeMap<i64, Block>,
    /// What was counted for messages that do not stand for their key in `blocked`, or no longer. That
    /// happens without order, and where a late commit parks in front of a head.
    pub(super) counters: Vec<Counted>,
    /// Keys whose head has gone, with a position that nothing parked of the key lies below.
    pub(super) promote: Vec<(i64, i64)>,
    /// Keys that stay blocked as they are, with the position of a late follower that lies below their
    /// head. One for each key: an update from several would take any of them.
    pub(super) lower: BTreeMap<i64, i64>,
    /// Hot rows that stay where they are.
    pub(super) kept: Vec<Place>,
}

impl Plan {
    pub(super) fn new(
        messages: &[Claimed],
        places: &[Place],
        outcomes: Vec<Outcome>,
        followers: &[Follower],
        broken: &[Broken],
        due_keys: &HashMap<i64, DueKey>,
    ) -> Self {
        let mut plan = Self::default();
        // Due keys of which something was released keep their head and stay due.
        let mut untouched: HashSet<i64> = HashSet::new();
        // What stays in `parked`, by its lowest position of each key.
        let mut stays: HashMap<i64, i64> = HashMap::new();
        let mut behind: Vec<Place> = Vec::new();
        for ((claimed, place), outcome) in messages.iter().zip(places).zip(outcomes) {
            if place.is_due() && matches!(outcome, Outcome::Behind | Outcome::Released) {
                let lowest = stays.entry(place.key_hash).or_insert(place.position);
                *lowest = (*lowest).min(place.position);
            }
            match outcome {
                Outcome::Delivered => plan.delivered.push(*place),
                Outcome::Park {
                    after,
                    counted,
                    error,
                } => {
                    plan.park_head(claimed, *place, after, counted, error);
                }
                Outcome::Dead { error, halt } => plan.give_up(claimed, *place, error, halt),
                Outcome::Behind => behind.push(*place),
                Outcome::Released if place.is_due() => {
                    untouched.insert(place.key_hash);
                }
                Outcome::Released => plan.kept.push(*place),
            }
        }
        for broken in broken {
            plan.dead.push(Dead {
                place: broken.place,
                parked: 0,
                failures: 0,
                error_kind: PublishErrorKind::Rejected.as_str(),
                error: format!("cannot be decoded: {}", broken.reason),
                halted: false,
            });
        }
        // Without order a message may be released while a later one of its key is parked: then the later
        // one stands for the key, and the head is still the earlier.
        for (key_hash, block) in &mut plan.block {
            if let Some(&lowest) = stays.get(key_hash) {
                block.head = block.head.min(lowest);
            }
        }
        // Behind a head that this claim parked or halted; else there is nothing to wait behind. What is
        // due lies in `parked` already.
        for place in behind {
            match (place.is_due(), plan.block.get_mut(&place.key_hash)) {
                (true, _) => {}
                (false, Some(block)) => {
                    block.head = block.head.min(place.position);
                    plan.park.push(place);
                }
                (false, None) => plan.kept.push(place),
            }
        }
        let mut heads: HashMap<i64, i64> = due_keys
            .iter()
            .map(|(&key_hash, due)| (key_hash, due.head))
            .collect();
        for follower in followers {
            let place = follower.place;
            plan.park.push(place);
            if let Some(block) = plan.block.get_mut(&place.key_hash) {
                block.head = block.head.min(place.position);
            } else if let Some(head) = heads.get_mut(&place.key_hash) {
                *head = (*head).min(place.position);
            }
            if place.position < follower.head {
                let lowest = plan.lower.entry(place.key_hash);
                let lowest = lowest.or_insert(place.position);
                *lowest = (*lowest).min(place.position);
            }
        }
        for (key_hash, head) in heads {
            if !plan.block.contains_key(&key_hash) && !untouched.contains(&key_hash) {
                plan.promote.push((key_hash, head));
            }
        }
        plan.keep_counters(due_keys, &untouched);
        let settled: HashSet<i64> = plan
            .block
            .keys()
            .copied()
            .chain(plan.promote.iter().map(|(key, _)| *key))
            .collect();
        plan.lower.retain(|key_hash, _| !settled.contains(key_hash));
        plan
    }

    fn park_head(
        &mut self,
        claimed: &Claimed,
        place: Place,
        after: Duration,
        counted: bool,
        error: PublishError,
    ) {
        if !place.is_due() {
            self.park.push(place);
        }
        let block = Block {
            head: place.position,
            after: Some(micros(after)),
            tried: place.position,
            parked: to_i32(claimed.parked.saturating_add(1)),
            failures: to_i32(claimed.failures.saturating_add(u32::from(counted))),
            error,
        };
        if self.block.contains_key(&place.key_hash) {
            self.counters.push(Counted {
                key_hash: place.key_hash,
                position: place.position,
                parked: block.parked,
                failures: block.failures,
            });
        }
        self.block_key(place.key_hash, block);
    }

    /// Writes down in their own rows what was counted for messages that stood for their key until now,
    /// and are still there.
    fn keep_counters(&mut self, due_keys: &HashMap<i64, DueKey>, untouched: &HashSet<i64>) {
        let of = |place: &Place| (place.key_hash, place.position);
        let gone_or_counted: HashSet<(i64, i64)> = self
            .delivered
            .iter()
            .chain(self.dead.iter().map(|dead| &dead.place))
            .map(of)
            .chain(
                self.counters
                    .iter()
                    .map(|counted| (counted.key_hash, counted.position)),
            )
            .collect();
        for (key_hash, tried) in due_keys
            .iter()
            .filter_map(|(key, due)| Some((key, due.tried?)))
        {
            let stands = match self.block.get(key_hash) {
                Some(block) => block.tried == tried.position,
                None => untouched.contains(key_hash),
            };
            if !stands && !gone_or_counted.contains(&(*key_hash, tried.position)) {
                self.counters.push(tried);
            }
        }
    }

    fn give_up(&mut self, claimed: &Claimed, place: Place, error: PublishError, halt: bool) {
        if halt {
            let block = Block {
                head: place.position,
                after: None,
                tried: place.position,
                parked: to_i32(claimed.parked),
                failures: to_i32(claimed.failures.saturating_add(1)),
                error: error.clone(),
            };
            self.block_key(place.key_hash, block);
        }
        self.dead.push(Dead {
            place,
            parked: to_i32(claimed.parked),
            failures: to_i32(claimed.failures.saturating_add(1)),
            error_kind: error.kind().as_str(),
            error: error.reason().to_owned(),
            halted: halt,
        });
    }

    /// A key has one row in `blocked`. Where several of its messages failed, which only happens without
    /// order, the first stands for the key, and a halt outweighs a time.
    fn block_key(&mut self, key_hash: i64, block: Block) {
        self.block
            .entry(key_hash)
            .and_modify(|first| {
                first.head = first.head.min(block.head);
                if block.after.is_none() {
                    first.after = None;
                }
            })
            .or_insert(block);
    }
}

fn micros(time: Duration) -> i64 {
    // A century is longer than any back-off, and a sum that Postgres can hold.
    const CENTURY: i64 = 100 * 365 * 24 * 3600 * 1_000_000;
    i64::try_from(time.as_micros())
        .unwrap_or(CENTURY)
        .min(CENTURY)
}

fn to_i32(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests {
    use outbox_core::Message;

    use super::*;

    const KEY: i64 = 77;
    /// What was counted for the message that stands for the key.
    const TRIED: Counted = Counted {
        key_hash: KEY,
        position: 50,
        parked: 3,
        failures: 2,
    };

    fn park() -> Outcome {
        Outcome::Park {
            after: Duration::ZERO,
            counted: true,
            error: PublishError::retryable("no"),
        }
    }

    /// A claim of the parked messages of a key at these positions, of which the one at 50 stands for it.
    fn counters(outcomes: &[(i64, Outcome)]) -> Vec<Counted> {
        let claimed = |position| Claimed {
            message: Message::to("t").tombstone().unwrap(),
            parked: if position == TRIED.position { 3 } else { 0 },
            failures: if position == TRIED.position { 2 } else { 0 },
            crashes: 0,
        };
        let messages: Vec<Claimed> = outcomes
            .iter()
            .map(|(position, _)| claimed(*position))
            .collect();
        let places: Vec<Place> = outcomes
            .iter()
            .map(|&(position, _)| Place {
                lane: (KEY & 63) as i16,
                key_hash: KEY,
                position,
                hot: None,
            })
            .collect();
        let outcomes = outcomes
            .iter()
            .map(|(_, outcome)| outcome.clone())
            .collect();
        let due = DueKey {
            head: places[0].position,
            tried: Some(TRIED),
        };
        Plan::new(
            &messages,
            &places,
            outcomes,
            &[],
            &[],
            &HashMap::from([(KEY, due)]),
        )
        .counters
    }

    #[test]
    fn a_retry_of_the_head_writes_no_counters_elsewhere() {
        assert_eq!(counters(&[(50, park()), (60, Outcome::Behind)]), []);
        assert_eq!(counters(&[(50, Outcome::Delivered), (60, park())]), []);
        assert_eq!(
            counters(&[(50, Outcome::Released), (60, Outcome::Released)]),
            []
        );
    }

    #[test]
    fn each_failed_message_of_a_key_is_counted() {
        let second = Counted {
            position: 60,
            parked: 1,
            failures: 1,
            ..TRIED
        };
        assert_eq!(counters(&[(50, park()), (60, park())]), [second]);
    }

    #[test]
    fn a_message_that_another_stands_in_front_of_keeps_its_counters() {
        assert_eq!(counters(&[(40, park())]), [TRIED]);
        assert_eq!(counters(&[(40, park()), (50, Outcome::Behind)]), [TRIED]);
        assert_eq!(counters(&[(40, Outcome::Delivered)]), [TRIED]);
        let again = Counted {
            parked: 4,
            failures: 3,
            ..TRIED
        };
        assert_eq!(counters(&[(40, park()), (50, park())]), [again]);
    }

    /// Otherwise no statement would ever read the released one again.
    #[test]
    fn a_key_is_tried_from_what_was_released_in_front_of_what_failed() {
        let claimed = Claimed {
            message: Message::to("t").tombstone().unwrap(),
            parked: 1,
            failures: 1,
            crashes: 0,
        };
        let place = |position| Place {
            lane: (KEY & 63) as i16,
            key_hash: KEY,
            position,
            hot: None,
        };
        let due = DueKey {
            head: 40,
            tried: None,
        };
        let plan = Plan::new(
            &[claimed.clone(), claimed],
            &[place(40), place(50)],
            vec![Outcome::Released, park()],
            &[],
            &[],
            &HashMap::from([(KEY, due)]),
        );
        assert_eq!((plan.block[&KEY].head, plan.block[&KEY].tried), (40, 50));
    }
}
