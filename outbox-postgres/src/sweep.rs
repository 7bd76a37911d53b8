//! Reads lanes from zero now and then, for rows that no mark can speak of: those of a restored dump,
//! or with a position that was made by hand. One lane at a time and at most a twentieth of the time,
//! after a start and then every hour.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::scan::{LANES, Scan};

const EVERY: Duration = Duration::from_secs(3600);
/// A sweep that took a second is followed by so many seconds without one.
const REST: u32 = 20;

/// Which lane is swept next, shared by the sessions of a store.
pub(crate) struct Sweep(Mutex<Turn>);

struct Turn {
    lane: usize,
    at: Instant,
    /// A session has the lane; it may be lost with its session.
    assigned: Option<Instant>,
}

/// A lane that was assigned and not swept in this time goes to another session.
const LOST: Duration = Duration::from_secs(60);

impl Sweep {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Turn {
            lane: 0,
            at: Instant::now(),
            assigned: None,
        }))
    }

    /// Has a session sweep the lane whose time has come.
    pub(crate) fn assign(&self, scan: &mut Scan) {
        let mut turn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = turn.assigned.is_none_or(|since| since.elapsed() > LOST);
        if Instant::now() >= turn.at && free {
            turn.assigned = Some(Instant::now());
            scan.sweep(turn.lane);
        }
    }

    /// A session has swept a lane, which took so long.
    pub(crate) fn done(&self, lane: usize, took: Duration) {
        let mut turn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lane != turn.lane {
            return;
        }
        turn.assigned = None;
        turn.lane = (lane + 1) % LANES;
        let rest = if turn.lane == 0 { EVERY } else { took * REST };
        turn.at = Instant::now() + rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_swept_in_turn_and_rest_after_the_last() {
        let sweep = Sweep::new();
        for lane in 0..LANES {
            let mut scan = Scan::new(0, 1, "2:2:".into(), String::new());
            sweep.assign(&mut scan);
            assert!(scan.sweeping(lane));
            // Another session does not sweep the same lane at the same time.
            let mut other = Scan::new(0, 1, "2:2:".into(), String::new());
            sweep.assign(&mut other);
            assert!(!other.sweeping(lane));
            sweep.done(lane, Duration::ZERO);
        }
        let mut scan = Scan::new(0, 1, "2:2:".into(), String::new());
        sweep.assign(&mut scan);
        assert!((0..LANES).all(|lane| !scan.sweeping(lane)));
    }
}
