//! Finds the message that ends the process, after a claim has ended without a settle.
//!
//! While nothing goes wrong, nothing is written for it. A claim's lock leaves its transaction id in the
//! lane's row, and the commit log says how that ended; so whoever locks the lane next sees whether the
//! last claim settled. Where it did not, a process may have died of one of its messages. From then on the
//! lane is a *suspect*, which is written into its row, and is claimed by itself and with few messages at
//! a time. When it comes to a single one, its position is written down before it is published: the next
//! claim that ends so with it is a death of that message. The relay gives it up after a number of them.
//!
//! Two things keep innocent messages out of it:
//!
//! * The message that is tried alone is the only one that the process holds: other claims of the store
//!   end first, and none begins. Otherwise a message that ends the process would draw in those that other
//!   workers have in their hands.
//! * A process that is alive says which of its claims did not end by its death: a connection was lost,
//!   the server restarted, a claim was dropped.
//!
//! What is written is in `suspect.sql`, `try_alone.sql`, `settle_suspects.sql` and `survived.sql`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::scan::LANES;

/// A message that is to be tried alone and whose lane another relay holds is left to it for so long:
/// to stop for it what this relay does, again and again, would help nobody.
const LEFT_TO_OTHERS: Duration = Duration::from_secs(1);

/// What the claims of one store have to know of each other.
#[derive(Debug)]
pub(crate) struct Trials(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Looks and claims that have not ended.
    open: usize,
    /// The lane of a message to be tried alone, which waits until nothing is open.
    wanted: Option<usize>,
    not_before: Option<Instant>,
    /// The transaction that holds each lane for this process, as far as it knows.
    held: [Option<i64>; LANES],
    /// Those that ended without a settle.
    lost: BTreeMap<usize, i64>,
}

/// The permission to look and to claim, until it is dropped.
#[derive(Debug)]
pub(crate) struct Pass {
    trials: Arc<Trials>,
    /// The lane with the message to be tried alone: nothing else is open.
    alone: Option<usize>,
    /// The lanes that it holds, with the transaction.
    held: Vec<(usize, i64)>,
}

impl Trials {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            open: 0,
            wanted: None,
            not_before: None,
            held: [None; LANES],
            lost: BTreeMap::new(),
        })))
    }

    /// `None` while a message is tried alone, or waits for that.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Pass> {
        let mut state = self.lock();
        if state.wanted.is_some() && state.open > 0 {
            return None;
        }
        state.open += 1;
        Some(Pass {
            trials: Arc::clone(self),
            alone: state.wanted,
            held: Vec::new(),
        })
    }

    /// Has the next look that begins while nothing is open try a message of this lane alone. Whether it
    /// will.
    pub(crate) fn want(&self, lane: usize) -> bool {
        let mut state = self.lock();
        if state.not_before.is_none_or(|time| time <= Instant::now()) {
            state.wanted.get_or_insert(lane);
        }
        state.wanted.is_some()
    }

    /// Whether this process, which is alive, knows of the transaction as its own.
    pub(crate) fn is_ours(&self, lane: usize, xid: i64) -> bool {
        let state = self.lock();
        state.held[lane] == Some(xid) || state.lost.get(&lane) == Some(&xid)
    }

    /// Claims that ended without a settle and not by a death, which was not said yet.
    pub(crate) fn lost(&self) -> BTreeMap<usize, i64> {
        self.lock().lost.clone()
    }

    /// Of these it was said, but for some lanes.
    pub(crate) fn said(&self, lost: &BTreeMap<usize, i64>, but_for: &[usize]) {
        self.lock()
            .lost
            .retain(|lane, xid| lost.get(lane) != Some(xid) || but_for.contains(lane));
    }

    /// No step under the lock can panic half-way.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn ended(&mut self, lane: usize, xid: i64) {
        // Where the server had ended the claim, another may hold the lane already.
        if self.held[lane] == Some(xid) {
            self.held[lane] = None;
        }
    }
}

impl Pass {
    /// The lane of the message that is tried alone.
    pub(crate) fn alone(&self) -> Option<usize> {
        self.alone
    }

    /// From now on the transaction holds these lanes.
    pub(crate) fn holds(&mut self, xid: i64, lanes: &[usize]) {
        let mut state = self.trials.lock();
        for &lane in lanes {
            state.held[lane] = Some(xid);
        }
        self.held = lanes.iter().map(|&lane| (lane, xid)).collect();
    }

    /// The transaction has committed.
    pub(crate) fn committed(&mut self) {
        let mut state = self.trials.lock();
        for (lane, xid) in self.held.drain(..) {
            state.ended(lane, xid);
        }
    }

    /// The lane of the message that is to be tried alone is held by others.
    pub(crate) fn came_in_vain(&self) {
        self.trials.lock().not_before = Some(Instant::now() + LEFT_TO_OTHERS);
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.trials.lock();
        state.open -= 1;
        if self.alone.is_some() {
            state.wanted = None;
        }
        for (lane, xid) in self.held.drain(..) {
            state.ended(lane, xid);
            state.lost.insert(lane, xid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_tried_alone_when_everything_else_has_ended() {
        let trials = Trials::new();
        let (one, two) = (trials.enter().unwrap(), trials.enter().unwrap());
        assert!(trials.want(7) && trials.want(8));
        assert!(trials.enter().is_none());
        drop(one);
        assert!(trials.enter().is_none());
        drop(two);
        let trial = trials.enter().unwrap();
        assert_eq!(trial.alone(), Some(7));
        assert!(trials.enter().is_none(), "nothing begins beside it");
        drop(trial);
        assert_eq!(trials.enter().unwrap().alone(), None);

        assert!(trials.want(8));
        trials.enter().unwrap().came_in_vain();
        assert!(!trials.want(8));
        assert_eq!(trials.enter().unwrap().alone(), None, "left to others");
    }

    #[test]
    fn what_ended_without_a_commit_in_a_living_process_is_remembered_until_it_was_said() {
        let trials = Trials::new();
        let mut settled = trials.enter().unwrap();
        settled.holds(100, &[1, 2]);
        settled.committed();
        drop(settled);
        assert_eq!(trials.lost(), BTreeMap::new());
        assert!(!trials.is_ours(1, 100));

        let hold = |xid, lanes: &[usize]| trials.enter().unwrap().holds(xid, lanes);
        hold(101, &[3, 4, 5]);
        let saying = trials.lost();
        assert_eq!(saying, BTreeMap::from([(3, 101), (4, 101), (5, 101)]));
        // Lost while it is being said.
        hold(102, &[4]);
        assert!(trials.is_ours(4, 102) && trials.is_ours(5, 101) && !trials.is_ours(5, 102));
        trials.said(&saying, &[5]);
        assert_eq!(trials.lost(), BTreeMap::from([(4, 102), (5, 101)]));
    }
}
