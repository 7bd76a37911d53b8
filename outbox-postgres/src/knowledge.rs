//! What the sessions of a store know together, and when it is forgotten.
//!
//! What is known is in `scan.rs`, pure; this says whose it is. A server that crashed may have taken
//! settles back, so that rows are there again that were cleared. Every connection is cut by that:
//! whenever a session fails, or another one is opened, all that was known is forgotten.

use std::time::Duration;

use crate::scan::{Poll, Scan, Start, View};
use crate::sweep::Sweep;

pub(crate) struct Knowledge {
    scan: Option<Scan>,
    /// How often it began anew.
    generation: u64,
    sweep: Sweep,
}

impl Knowledge {
    pub(crate) fn new() -> Self {
        Self {
            scan: None,
            generation: 0,
            sweep: Sweep::new(),
        }
    }

    /// Begins anew with what the first statements of a session returned.
    pub(crate) fn begin(&mut self, start: Start) {
        self.generation += 1;
        self.scan = Some(Scan::new(start, self.generation));
    }

    /// A session failed.
    pub(crate) fn forget(&mut self) {
        self.scan = None;
    }

    /// What a claim goes by; `None` after a session has failed.
    pub(crate) fn view(&mut self) -> Option<View> {
        let scan = self.scan.as_mut()?;
        if let Some(lane) = self.sweep.assign() {
            scan.sweep(lane);
        }
        Some(scan.view())
    }

    /// What to make a new mark with, if one is wanted.
    pub(crate) fn stale(&self) -> Option<View> {
        let scan = self.scan.as_ref()?;
        scan.wants_mark().then(|| scan.view())
    }

    pub(crate) fn swept(&mut self, lane: usize, took: Duration) {
        self.sweep.done(lane, took);
    }

    pub(crate) fn polled(&mut self, view: &View, poll: &Poll) {
        self.learn(view, |scan| scan.polled(view, poll));
    }

    pub(crate) fn fresh_xid(&mut self, view: &View, xid: i64) {
        self.learn(view, |scan| scan.own_xid(view, xid));
    }

    pub(crate) fn settled(&mut self, view: &View, lanes: &[(usize, i64)]) {
        self.learn(view, |scan| scan.settled(view, lanes));
    }

    pub(crate) fn due_read(&mut self, view: &View, lane: usize, time: i64) {
        self.learn(view, |scan| scan.due_read(lane, time));
    }

    /// Takes in what a claim has learned, unless all was forgotten since it began.
    fn learn(&mut self, view: &View, learn: impl FnOnce(&mut Scan)) {
        if let Some(scan) = &mut self.scan
            && view.generation() == self.generation
        {
            learn(scan);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Start {
        Start {
            q: 10,
            xid: 100,
            base: "101:101:".into(),
            epoch: String::new(),
        }
    }

    #[test]
    fn what_a_claim_learned_before_all_was_forgotten_is_not_taken_in() {
        let mut knowledge = Knowledge::new();
        assert!(knowledge.view().is_none());
        knowledge.begin(start());
        let first = knowledge.view().unwrap();
        knowledge.settled(&first, &[(3, 250)]);
        assert_eq!(knowledge.view().unwrap().cleared_of(3), 250);

        knowledge.forget();
        assert!(knowledge.view().is_none());
        knowledge.begin(start());
        knowledge.settled(&first, &[(3, 250)]);
        assert_eq!(knowledge.view().unwrap().cleared_of(3), 0);
    }
}
