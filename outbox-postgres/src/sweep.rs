//! Reads lanes from zero now and then, for rows that no mark can speak of: those of a restored dump,
//! or with a position that was made by hand. One lane at a time and at most a twentieth of the time,
//! after a start and then every hour.

use std::time::{Duration, Instant};

use crate::scan::LANES;

const EVERY: Duration = Duration::from_secs(3600);
/// A sweep that took a second is followed by so many seconds without one.
const REST: u32 = 20;

/// Which lane is swept next.
pub(crate) struct Sweep {
    lane: usize,
    at: Instant,
    /// The lane is marked; that may be forgotten with all that is known of the lanes.
    assigned: Option<Instant>,
}

/// A lane that was assigned and not swept in this time is marked again.
const LOST: Duration = Duration::from_secs(60);

impl Sweep {
    pub(crate) fn new() -> Self {
        Self {
            lane: 0,
            at: Instant::now(),
            assigned: None,
        }
    }

    /// The lane to sweep, when its time has come.
    pub(crate) fn assign(&mut self) -> Option<usize> {
        let free = self.assigned.is_none_or(|since| since.elapsed() > LOST);
        if Instant::now() < self.at || !free {
            return None;
        }
        self.assigned = Some(Instant::now());
        Some(self.lane)
    }

    /// A lane was swept, which took so long.
    pub(crate) fn done(&mut self, lane: usize, took: Duration) {
        if lane != self.lane {
            return;
        }
        self.assigned = None;
        self.lane = (lane + 1) % LANES;
        let rest = if self.lane == 0 { EVERY } else { took * REST };
        self.at = Instant::now() + rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_swept_in_turn_and_rest_after_the_last() {
        let mut sweep = Sweep::new();
        for lane in 0..LANES {
            assert_eq!(sweep.assign(), Some(lane));
            // Not twice at the same time.
            assert_eq!(sweep.assign(), None);
            sweep.done(lane, Duration::ZERO);
        }
        assert_eq!(sweep.assign(), None);
    }
}
