//! How looks and decisions go on in steps, for stores: where a look ends and the next one begins, how much is
//! done at a time, and how far a decision is. Pure; the statements are the stores' own.
//!
//! A look goes over rows in the order of a number that each has, a position or what stands for a key, and
//! gives back those that fit. Both have a bound, so that a filter that fits nothing in a million rows takes a
//! hundred short statements and none that is long.

use std::time::Duration;

use super::{DeadFilter, Decided};
use crate::Uuid;

/// So many rows one look goes over at most, so that it is short.
pub const LOOKED_AT: u32 = 10_000;
/// A step decides about so many messages or keys at most.
pub const DECIDED_AT_ONCE: u32 = 4_000;
/// One transaction changes so many rows at most, so that it is in nobody's way for longer.
pub const CHANGED_AT_ONCE: usize = 1_000;
/// One transaction moves so many bytes of payload at most; one larger message goes alone.
const MOVED_AT_ONCE: u64 = 16 * 1024 * 1024;
/// A step looks for so many ids at most.
const IDS_AT_ONCE: usize = 1_000;

/// How many rows a look goes over that gives back up to `limit`: no more than that where all fit.
pub const fn looks_at(all_fit: bool, limit: u32) -> u32 {
    if all_fit { limit } else { LOOKED_AT }
}

/// What one look went over, and what of it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked {
    /// How many rows it went over.
    pub number: u64,
    /// The last of these; `None`: there were none.
    pub last: Option<i64>,
    /// How many of them fit, of which no more are given back than were asked for.
    pub found: usize,
    /// The last that was given back; `None`: none fits.
    pub last_found: Option<i64>,
}

impl Looked {
    /// Behind which row the next look begins, after one that could give back `limit` and go over `bound`
    /// rows, `None`: over any number. `None`: nothing is left.
    pub fn next(&self, limit: u32, bound: Option<u32>) -> Option<i64> {
        let full = self.found >= limit as usize;
        match self.last_found {
            // What was looked at behind the last that was given back is looked at again.
            Some(_) if full && self.last_found < self.last => self.last_found,
            _ if bound.is_some_and(|bound| self.number >= u64::from(bound)) => self.last,
            _ => None,
        }
    }
}

/// Messages by their positions and the bytes of their payloads, as the positions that one transaction each
/// takes.
pub fn portions(messages: impl IntoIterator<Item = (i64, u64)>) -> Vec<Vec<i64>> {
    let mut portions: Vec<Vec<i64>> = Vec::new();
    let mut moved = 0;
    for (position, bytes) in messages {
        moved += bytes;
        match portions.last_mut() {
            Some(last) if moved <= MOVED_AT_ONCE && last.len() < CHANGED_AT_ONCE => {
                last.push(position);
            }
            _ => {
                moved = bytes;
                portions.push(vec![position]);
            }
        }
    }
    portions
}

/// What is done with the dead messages that are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    Count,
    /// They are put back.
    Replay,
    /// They are dropped for good.
    Discard,
}

/// A decision about dead messages, and how far it is.
///
/// It means the messages that are dead when its first step begins, and each of them once. Where they were
/// counted before, it may be those that were dead when the counting began: [`again`](Self::again).
#[derive(Clone, Debug)]
pub struct DeadProgress {
    decision: Decision,
    filter: DeadFilter,
    limit: u64,
    begun: Option<i64>,
    after: i64,
    ids_done: usize,
    over: bool,
    done: Decided,
}

/// What the next step of a decision looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadStep<'a> {
    /// Which messages are meant, but for their ids.
    pub filter: &'a DeadFilter,
    /// The ids that it looks for; `None`: it does not go by ids.
    pub ids: Option<&'a [Uuid]>,
    /// The position behind which it looks.
    pub after: i64,
    /// How many messages it decides about at most.
    pub limit: u32,
    /// When the decision began, if it has: what died later is not meant.
    pub begun: Option<i64>,
}

impl DeadProgress {
    /// Nothing is decided yet.
    pub fn new(decision: Decision, mut filter: DeadFilter) -> Self {
        if let Some(ids) = &mut filter.ids {
            ids.sort_unstable();
            ids.dedup();
        }
        Self {
            decision,
            filter,
            limit: u64::MAX,
            begun: None,
            after: i64::MIN,
            ids_done: 0,
            over: false,
            done: Decided::default(),
        }
    }

    /// It ends after so many messages.
    #[must_use]
    pub fn limit(mut self, messages: u64) -> Self {
        self.limit = messages;
        self
    }

    /// From the beginning, with a decision about no more messages than it has come to: what died after
    /// it began is not meant, so it takes nobody's place.
    #[must_use]
    pub fn again(self, decision: Decision) -> Self {
        Self {
            begun: self.begun,
            ..Self::new(decision, self.filter).limit(self.done.messages)
        }
    }

    /// What is decided.
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// What came of it so far.
    pub fn done(&self) -> Decided {
        self.done
    }

    /// What comes next; `None`: nothing.
    pub fn step(&self) -> Option<DeadStep<'_>> {
        let left = self.limit.saturating_sub(self.done.messages);
        let ids = self.ids();
        if self.over || left == 0 || ids.is_some_and(<[Uuid]>::is_empty) {
            return None;
        }
        Some(DeadStep {
            filter: &self.filter,
            ids,
            after: self.after,
            limit: u32::try_from(left).map_or(DECIDED_AT_ONCE, |left| left.min(DECIDED_AT_ONCE)),
            begun: self.begun,
        })
    }

    /// When the decision began, which is `now` in its first step, on the database's clock and in the
    /// store's unit.
    pub fn begun(&mut self, now: i64) -> i64 {
        *self.begun.get_or_insert(now)
    }

    /// Adds what was decided, and how long ago the youngest of it had died.
    pub fn decided(&mut self, messages: u64, youngest: Option<Duration>) {
        self.done.add(messages, youngest);
    }

    /// Ends a step that went over so many rows, and behind which the next one begins there. Gives back
    /// whether there may be more.
    pub fn looked(&mut self, number: u64, next: Option<i64>) -> bool {
        self.done.looked_at += number;
        match (next, self.ids().map(<[Uuid]>::len)) {
            (Some(next), _) => self.after = next,
            (None, Some(ids)) => {
                self.after = i64::MIN;
                self.ids_done += ids;
            }
            (None, None) => self.over = true,
        }
        self.step().is_some()
    }

    fn ids(&self) -> Option<&[Uuid]> {
        let left = self.filter.ids.as_ref()?.get(self.ids_done..)?;
        Some(&left[..left.len().min(IDS_AT_ONCE)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_goes_on_behind_what_it_has_given_back_or_gone_over() {
        let next = |number, last, found, last_found| {
            let looked = Looked {
                number,
                last,
                found,
                last_found,
            };
            [looked.next(3, Some(10)), looked.next(3, None)]
        };
        assert_eq!(next(0, None, 0, None), [None, None], "nothing there");
        assert_eq!(next(9, Some(90), 2, Some(50)), [None, None], "all seen");
        assert_eq!(next(10, Some(90), 2, Some(50)), [Some(90), None], "bound");
        assert_eq!(next(10, Some(90), 0, None), [Some(90), None], "none fits");
        assert_eq!(next(5, Some(90), 3, Some(50)), [Some(50); 2], "full");
        assert_eq!(next(5, Some(90), 3, Some(90)), [None, None], "just full");
        assert_eq!(next(10, Some(90), 3, Some(90)), [Some(90), None], "both");
    }

    #[test]
    fn a_portion_is_bounded_in_number_and_in_bytes() {
        let half = MOVED_AT_ONCE / 2;
        let messages = [
            (1, half),
            (2, half),
            (3, 1),
            (4, 3 * MOVED_AT_ONCE),
            (5, 0),
            (6, 1),
        ];
        assert_eq!(
            portions(messages),
            [vec![1, 2], vec![3], vec![4], vec![5, 6]]
        );
        let many = portions((0..2_500).map(|position| (position, 0)));
        let lengths: Vec<usize> = many.iter().map(Vec::len).collect();
        assert_eq!(lengths, [1_000, 1_000, 500]);
        assert!(portions([]).is_empty());
    }

    #[test]
    fn a_decision_goes_over_everything_once() {
        let mut progress = DeadProgress::new(Decision::Replay, DeadFilter::all());
        let step = progress.step().unwrap();
        assert_eq!((step.after, step.limit), (i64::MIN, DECIDED_AT_ONCE));
        assert_eq!((step.ids, step.begun), (None, None));
        assert_eq!(progress.begun(7), 7);
        progress.decided(4_000, Some(Duration::from_secs(1)));
        assert!(progress.looked(10_000, Some(500)));
        let step = progress.step().unwrap();
        assert_eq!((step.after, step.begun), (500, Some(7)));
        assert_eq!(progress.begun(9), 7);
        assert!(!progress.looked(3, None));
        assert_eq!(progress.step(), None);
        let done = Decided {
            messages: 4_000,
            looked_at: 10_003,
            youngest: Some(Duration::from_secs(1)),
        };
        assert_eq!(progress.done(), done);
    }

    #[test]
    fn a_decision_ends_at_its_limit() {
        let mut progress = DeadProgress::new(Decision::Replay, DeadFilter::all()).limit(4_001);
        progress.decided(4_000, None);
        assert!(progress.looked(4_000, Some(1)));
        assert_eq!(progress.step().unwrap().limit, 1);
        progress.decided(1, None);
        assert!(!progress.looked(1, Some(2)));
        assert_eq!(
            DeadProgress::new(Decision::Replay, DeadFilter::all())
                .limit(0)
                .step(),
            None
        );
    }

    #[test]
    fn what_was_counted_is_decided_about_as_of_the_counting() {
        let ids = (0..1_500).map(Uuid::from_u128);
        let mut counting = DeadProgress::new(Decision::Count, DeadFilter::ids(ids)).limit(1_200);
        assert_eq!(counting.begun(7), 7);
        counting.decided(1_000, Some(Duration::from_secs(1)));
        assert!(counting.looked(1_000, None));
        counting.decided(100, None);
        assert!(!counting.looked(100, None));

        let mut deciding = counting.again(Decision::Discard);
        assert_eq!(deciding.done(), Decided::default());
        assert_eq!(deciding.decision(), Decision::Discard);
        let step = deciding.step().unwrap();
        assert_eq!((step.begun, step.limit), (Some(7), 1_100));
        assert_eq!(step.ids.map(|ids| ids[0]), Some(Uuid::from_u128(0)));
        assert_eq!(deciding.begun(9), 7);
        assert_eq!(
            DeadProgress::new(Decision::Replay, DeadFilter::all())
                .again(Decision::Replay)
                .step(),
            None,
            "nothing was counted"
        );
    }

    #[test]
    fn ids_are_looked_for_in_portions_and_each_once() {
        let ids = (0..1_500).map(Uuid::from_u128);
        let twice = DeadFilter::ids(ids.clone().rev().chain(ids.clone()));
        let ids: Vec<Uuid> = ids.collect();
        let mut progress = DeadProgress::new(Decision::Replay, twice);
        assert_eq!(progress.step().unwrap().ids, Some(&ids[..1_000]));
        assert!(progress.looked(1_000, Some(70)));
        let step = progress.step().unwrap();
        assert_eq!((step.ids, step.after), (Some(&ids[..1_000]), 70));
        assert!(progress.looked(1_000, None));
        let step = progress.step().unwrap();
        assert_eq!((step.ids, step.after), (Some(&ids[1_000..]), i64::MIN));
        assert!(!progress.looked(500, None));
        assert_eq!(progress.step(), None);
        assert_eq!(
            DeadProgress::new(Decision::Replay, DeadFilter::ids([])).step(),
            None
        );
    }
}
