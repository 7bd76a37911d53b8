//! Which lanes are held, and by which claim: in memory, since one process has all claims.
//!
//! That is what lets a claim last as long as its publishing without a transaction that would keep the
//! application from writing. It vanishes with the process, and then everything can be claimed again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use crate::line::LANES;

/// One claim takes at most so many lanes, so that workers can claim side by side.
const LANES_PER_CLAIM: usize = 8;
/// How long after its `hold` a claim is taken away.
const HOLD_MARGIN: Duration = Duration::from_secs(1);
/// A longer hold is as good as this one, and sums of times stay finite.
const LONGEST_HOLD: Duration = Duration::from_secs(365 * 24 * 3600);

/// The lanes of one store.
#[derive(Default)]
pub(crate) struct Lanes {
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Default)]
struct State {
    claims: HashMap<u64, Held>,
    last_claim: u64,
    /// The lane that is the first to be asked next.
    turn: u32,
    looks: u64,
}

struct Held {
    /// One bit a lane.
    lanes: u64,
    until: Instant,
    /// What is being written down is not taken away.
    settling: bool,
}

/// Lanes that one claim holds. Dropping it frees them.
pub(crate) struct Hold {
    lanes: Arc<Lanes>,
    claim: u64,
}

impl Lanes {
    /// Holds some of the `wanted` lanes, a bit each, that nobody holds; gives them in the order in which
    /// they are to be asked. `None`: all are held, or none is wanted.
    pub(crate) fn take(
        self: &Arc<Self>,
        wanted: u64,
        hold: Duration,
        now: Instant,
    ) -> Option<(Hold, Vec<u32>)> {
        let mut state = self.state();
        state
            .claims
            .retain(|_, held| held.settling || held.until > now);
        let free = wanted & !state.held();
        let turn = state.turn;
        let taken: Vec<u32> = (0..LANES)
            .map(|nth| (turn + nth) % LANES)
            .filter(|lane| free & bit(*lane) != 0)
            .take(LANES_PER_CLAIM)
            .collect();
        if taken.is_empty() {
            return None;
        }
        state.last_claim += 1;
        let claim = state.last_claim;
        let held = Held {
            lanes: taken.iter().fold(0, |lanes, lane| lanes | bit(*lane)),
            until: now + hold.min(LONGEST_HOLD) + HOLD_MARGIN,
            settling: false,
        };
        state.claims.insert(claim, held);
        let hold = Hold {
            lanes: Arc::clone(self),
            claim,
        };
        Some((hold, taken))
    }

    /// Ends when a lane is freed, from when it is enabled.
    pub(crate) fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }

    /// When the next claim is taken away.
    pub(crate) fn next_overdue(&self) -> Option<Instant> {
        let state = self.state();
        let open = state.claims.values().filter(|held| !held.settling);
        open.map(|held| held.until).min()
    }

    /// What is due and what is new take turns in going first, so that neither waits for the other for ever.
    pub(crate) fn due_goes_first(&self) -> bool {
        let mut state = self.state();
        state.looks += 1;
        state.looks.is_multiple_of(2)
    }

    /// No step under the lock can panic half-way.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn held(&self) -> u64 {
        self.claims.values().fold(0, |all, held| all | held.lanes)
    }
}

impl Hold {
    /// Frees all lanes but these, which are in the order in which they were asked.
    pub(crate) fn keep(&self, lanes: &[u32]) {
        let mut state = self.lanes.state();
        if let Some(held) = state.claims.get_mut(&self.claim) {
            held.lanes = lanes.iter().fold(0, |lanes, lane| lanes | bit(*lane));
        }
        if let Some(last) = lanes.last() {
            state.turn = (last + 1) % LANES;
        }
        drop(state);
        self.lanes.freed.notify_waiters();
    }

    /// Keeps the claim from being taken away while it is settled, and gives the time until which that may
    /// be tried. `None`: it has been taken away already.
    pub(crate) fn settling(&self) -> Option<Instant> {
        let mut state = self.lanes.state();
        let held = state.claims.get_mut(&self.claim)?;
        held.settling = true;
        Some(held.until)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.lanes.state().claims.remove(&self.claim);
        self.lanes.freed.notify_waiters();
    }
}

/// The bit of a lane.
pub(crate) fn bit(lane: u32) -> u64 {
    1 << (lane % LANES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Duration = Duration::from_secs(10);
    const ALL: u64 = u64::MAX;

    fn lanes() -> Arc<Lanes> {
        Arc::default()
    }

    #[test]
    fn no_lane_is_held_twice() {
        let (lanes, now) = (lanes(), Instant::now());
        let mut holds = Vec::new();
        let mut seen = Vec::new();
        while let Some((hold, taken)) = lanes.take(ALL, HOLD, now) {
            assert_eq!(taken.len(), LANES_PER_CLAIM);
            seen.extend(taken);
            holds.push(hold);
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..LANES).collect::<Vec<_>>());
        drop(holds);
        assert!(lanes.take(ALL, HOLD, now).is_some());
    }

    #[test]
    fn the_turn_goes_to_the_lane_behind_the_last_that_gave_something() {
        let (lanes, now) = (lanes(), Instant::now());
        let mut first = Vec::new();
        for _ in 0..LANES {
            let (hold, taken) = lanes.take(ALL, HOLD, now).unwrap();
            first.push(taken[0]);
            hold.keep(&taken[..1]);
        }
        assert_eq!(first, (0..LANES).collect::<Vec<_>>());
    }

    #[test]
    fn what_gave_nothing_is_free_at_once() {
        let (lanes, now) = (lanes(), Instant::now());
        let (hold, taken) = lanes.take(0b1111, HOLD, now).unwrap();
        assert_eq!(taken, [0, 1, 2, 3]);
        hold.keep(&[1]);
        let (_other, taken) = lanes.take(0b1111, HOLD, now).unwrap();
        assert_eq!(taken, [2, 3, 0]);
    }

    #[test]
    fn an_overdue_claim_is_taken_away_unless_it_settles() {
        let (lanes, now) = (lanes(), Instant::now());
        let (settles, _) = lanes.take(0b01, HOLD, now).unwrap();
        let (sleeps, _) = lanes.take(0b10, HOLD, now).unwrap();
        assert!(settles.settling().is_some());
        assert_eq!(lanes.next_overdue(), Some(now + HOLD + HOLD_MARGIN));
        let now = now + HOLD + HOLD_MARGIN;
        let (_third, taken) = lanes.take(0b11, HOLD, now).unwrap();
        assert_eq!(taken, [1]);
        assert!(sleeps.settling().is_none());
        drop(sleeps);
        assert!(
            lanes.take(0b11, HOLD, now).is_none(),
            "an old claim freed a new one's lane"
        );
    }

    #[test]
    fn the_longest_hold_is_no_overflow() {
        let now = Instant::now();
        assert!(lanes().take(1, Duration::MAX, now).is_some());
    }
}
