//! When delayed messages are looked for, and where among them. Pure.
//!
//! They are enqueued in the order of their times, so what is due next lies at a *floor*, and the poll asks
//! from there. The entries of moved rows stay in the index until vacuum may remove them, and a scan from
//! the beginning would walk over all of them.
//!
//! A transaction that stays open for longer than its message is delayed commits below the floor. The floor is
//! kept a second behind for it, and when any transaction has ended since, which snapshots tell, a *pass* goes over
//! what lies below: at most once a second and a twentieth of the time, and every minute where none are used.
//! Usually that is one short call. Where it takes too long, behind a great many entries that vacuum may not
//! remove, it goes in slices of time.
//!
//! What a session failed with is not forgotten here: a server that took a move back gives its rows to the next
//! pass, as it does those of a late commit.

use std::time::{Duration, Instant};

/// Delayed messages that one call enqueues, and their bytes.
pub(crate) const MOST_MESSAGES: i32 = 1_000;
pub(crate) const MOST_BYTES: i64 = 16 * 1024 * 1024;

/// How far the floor is kept behind, in microseconds: usual transactions are shorter.
const LAG: i64 = 1_000_000;
/// The time between two passes.
const EVERY: Duration = Duration::from_secs(1);
/// And where no delayed message was seen for this long: an idle relay sends next to nothing.
const UNUSED: Duration = Duration::from_secs(60);
const EVERY_UNUSED: Duration = Duration::from_secs(60);
/// A call of a pass that took a second is followed by so many seconds without one.
const REST: u32 = 20;
/// A call of a pass that takes longer is cut off, and the next one is for a shorter time.
const SLICE: Duration = Duration::from_millis(500);
/// After a call that was as quick as this, the next one is for a longer time.
const QUICK: Duration = Duration::from_millis(100);
/// What a slice begins with, and the shortest, in microseconds. The shortest is not cut off.
const FIRST_WIDTH: i64 = 60 * 1_000_000;
const LEAST_WIDTH: i64 = 1_000;
/// The pause while another relay is at it, or another transaction holds what is due.
const BUSY: Duration = Duration::from_millis(5);
/// The pause after a call that failed.
const FAILED: Duration = Duration::from_secs(10);
/// A time of the database that never comes: in the year 5138.
const NEVER: i64 = 100_000_000_000_000_000;

/// A place among the delayed messages: microseconds since the epoch, and the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cursor {
    pub(crate) micros: i64,
    pub(crate) number: i64,
}

impl Cursor {
    /// Before everything of this time.
    const fn at(micros: i64) -> Self {
        Self { micros, number: 0 }
    }
}

/// A call that enqueues what is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Above here; `None`: from the beginning.
    pub(crate) since: Option<Cursor>,
    /// Below this time, in microseconds since the epoch.
    pub(crate) before: i64,
    /// Cut off after so long; `None`: as any statement.
    pub(crate) timeout: Option<Duration>,
    of_a_pass: bool,
}

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stepped {
    /// Another relay is at it.
    Busy,
    Moved {
        messages: i32,
        /// The last one that was enqueued, where there may be more.
        last: Option<Cursor>,
        /// The database's time, in microseconds since the epoch.
        clock: i64,
    },
    /// It was cut off.
    TimedOut,
    Failed,
}

/// What a poll means for delayed messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Next {
    /// There is a call to make at once.
    pub(crate) now: bool,
    /// Microseconds until the next message is due, or until a call may be made.
    pub(crate) due_in: Option<i64>,
}

/// What a store knows about delayed messages.
#[derive(Debug)]
pub(crate) struct Delays {
    /// Below it nothing is due, but for late commits. `None` until the first pass is through.
    floor: Option<Cursor>,
    /// The last poll saw something due.
    due: bool,
    /// No call before.
    paused_until: Instant,
    pass: Option<Pass>,
    /// The snapshot of the poll before the last pass: nothing that it sees is left below the floor.
    base: String,
    /// No call of a pass before.
    rest_until: Instant,
    /// When a poll last saw a delayed message.
    seen: Option<Instant>,
    /// Up to here a call from the beginning was quick enough.
    quiet: i64,
    /// How long a slice is above that.
    width: i64,
}

/// What lies below the floor is looked through.
#[derive(Debug)]
struct Pass {
    /// Up to here.
    until: i64,
    /// So far it is done.
    from: Option<Cursor>,
    /// Of the last call.
    began: Instant,
}

impl Delays {
    pub(crate) fn new(at: Instant) -> Self {
        Self {
            floor: None,
            due: false,
            paused_until: at,
            pass: None,
            base: String::new(),
            rest_until: at,
            seen: None,
            quiet: NEVER,
            width: FIRST_WIDTH,
        }
    }

    /// Where a poll asks for the next message; `None`: at its own time, since the first pass is not through.
    pub(crate) fn floor(&self) -> Option<Cursor> {
        self.floor
    }

    /// A poll at the database's time `now` saw the next message due at `next`, in its snapshot.
    pub(crate) fn polled(
        &mut self,
        now: i64,
        next: Option<i64>,
        snapshot: &str,
        at: Instant,
    ) -> Next {
        if next.is_some() {
            self.seen = Some(at);
        }
        self.due = self.floor.is_some() && next.is_some_and(|next| next <= now);
        if let Some(floor) = self.floor {
            if floor.micros > now {
                // The database's clock was set back, or this is another server.
                self.floor = Some(Cursor::at(now - LAG));
            }
            self.raise(Cursor::at(next.map_or(now, |next| next.min(now)) - LAG));
        }
        let wanted = self.floor.is_none() || (at >= self.rest_until && self.base != snapshot);
        if self.pass.is_none() && wanted {
            self.base = snapshot.to_owned();
            self.pass = Some(Pass {
                until: self.floor.map_or(now, |floor| floor.micros),
                from: None,
                began: at,
            });
        }
        let until = |time: Instant| {
            let micros = time.saturating_duration_since(at).as_micros();
            i64::try_from(micros).unwrap_or(i64::MAX)
        };
        let call_in = match (self.due, &self.pass) {
            (true, _) => Some(until(self.paused_until)),
            (false, Some(_)) => Some(until(self.paused_until.max(self.rest_until))),
            (false, None) => None,
        };
        let next_in = next.map(|next| next - now).filter(|&wait| wait > 0);
        Next {
            now: call_in == Some(0),
            due_in: call_in.into_iter().chain(next_in).min(),
        }
    }

    /// The next call, if it is time for one. Another call of this gives no more until that one is done.
    pub(crate) fn step(&mut self, at: Instant) -> Option<Step> {
        if at < self.paused_until {
            return None;
        }
        if self.due {
            self.due = false;
            return Some(Step {
                since: self.floor,
                before: NEVER,
                timeout: None,
                of_a_pass: false,
            });
        }
        let pass = self.pass.as_mut().filter(|_| at >= self.rest_until)?;
        pass.began = at;
        // For others, in case this call is dropped half-way.
        self.rest_until = at + SLICE * 2;
        Some(Step {
            since: pass.from,
            before: match pass.from {
                None => pass.until.min(self.quiet),
                Some(from) => pass.until.min(from.micros.saturating_add(self.width)),
            },
            timeout: (pass.from.is_none() || self.width > LEAST_WIDTH).then_some(SLICE),
            of_a_pass: true,
        })
    }

    pub(crate) fn stepped(&mut self, step: &Step, stepped: Stepped, at: Instant) {
        match stepped {
            Stepped::Busy => self.paused_until = at + BUSY,
            Stepped::Failed => self.paused_until = at + FAILED,
            Stepped::TimedOut if !step.of_a_pass => self.paused_until = at + FAILED,
            Stepped::Moved {
                messages,
                last,
                clock,
            } if !step.of_a_pass => {
                self.due |= last.is_some();
                if messages == 0 {
                    // A transaction that is about to cancel what is due may stay open.
                    self.paused_until = at + BUSY;
                }
                self.raise(last.unwrap_or(Cursor::at(clock - LAG)));
            }
            Stepped::Moved { .. } | Stepped::TimedOut => self.passed(step, stepped, at),
        }
    }

    fn passed(&mut self, step: &Step, stepped: Stepped, at: Instant) {
        let Some(pass) = self.pass.as_mut().filter(|pass| pass.from == step.since) else {
            return;
        };
        let took = at.saturating_duration_since(pass.began);
        // Nothing is delivered before the first one is through.
        let mut rest = match self.floor {
            Some(_) => took * REST,
            None => Duration::ZERO,
        };
        match stepped {
            Stepped::Moved {
                last: Some(last), ..
            } => {
                pass.from = Some(last);
                rest = Duration::ZERO;
            }
            Stepped::Moved { .. } if step.before >= pass.until => {
                self.floor = self.floor.or(Some(Cursor::at(pass.until - LAG)));
                self.pass = None;
                let is_used = self.seen.is_some_and(|seen| at < seen + UNUSED);
                rest = rest.max(if is_used { EVERY } else { EVERY_UNUSED });
            }
            Stepped::Moved { .. } => {
                pass.from = Some(Cursor::at(step.before));
                if took < QUICK {
                    self.width = self.width.saturating_mul(2);
                }
            }
            _ if pass.from.is_none() => {
                let back = (pass.until - step.before).max(FIRST_WIDTH / 4);
                self.quiet = pass.until - back.saturating_mul(4);
            }
            _ => self.width = (self.width / 4).max(LEAST_WIDTH),
        }
        self.rest_until = at + rest;
    }

    fn raise(&mut self, floor: Cursor) {
        self.floor = self.floor.max(Some(floor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;
    const MOVED: Stepped = Stepped::Moved {
        messages: 0,
        last: None,
        clock: 1_000 * SECOND,
    };

    /// One that has gone over everything at 1000 s, in the snapshot `a`.
    fn begun(at: Instant) -> Delays {
        let mut delays = Delays::new(at);
        assert_eq!(delays.step(at), None, "no time of the database is known");
        let next = delays.polled(1_000 * SECOND, None, "a", at);
        assert!(next.now);
        let step = delays.step(at).unwrap();
        assert_eq!((step.since, step.before), (None, 1_000 * SECOND));
        assert_eq!(delays.step(at), None, "it is under way");
        delays.stepped(&step, MOVED, at);
        assert_eq!(delays.floor(), Some(Cursor::at(999 * SECOND)));
        delays
    }

    #[test]
    fn an_idle_store_makes_no_call() {
        let at = Instant::now();
        let mut delays = begun(at);
        for second in 1..100 {
            let at = at + Duration::from_secs(second as u64);
            let now = (1_000 + second) * SECOND;
            assert_eq!(delays.polled(now, None, "a", at), Next::default());
            assert_eq!(delays.step(at), None);
            assert_eq!(delays.floor(), Some(Cursor::at(now - LAG)));
        }
    }

    #[test]
    fn what_is_due_is_moved_from_the_floor_and_the_rest_after_it() {
        let at = Instant::now();
        let mut delays = begun(at);
        let next = delays.polled(1_010 * SECOND, Some(1_015 * SECOND), "a", at);
        assert_eq!((next.now, next.due_in), (false, Some(5 * SECOND)));
        let next = delays.polled(1_015 * SECOND, Some(1_015 * SECOND), "a", at);
        assert!(next.now);
        let step = delays.step(at).unwrap();
        assert_eq!(step.since, Some(Cursor::at(1_014 * SECOND)));
        let last = Cursor {
            micros: 1_015 * SECOND,
            number: 7,
        };
        let more = Stepped::Moved {
            messages: 7,
            last: Some(last),
            clock: 1_016 * SECOND,
        };
        delays.stepped(&step, more, at);
        let step = delays.step(at).unwrap();
        assert_eq!(step.since, Some(last));
        delays.stepped(&step, Stepped::Busy, at);
        assert_eq!(delays.step(at + BUSY), None, "the next poll says so");
        let next = delays.polled(1_016 * SECOND, Some(1_015 * SECOND), "a", at);
        assert_eq!((next.now, next.due_in), (false, Some(5_000)));
        assert!(delays.step(at).is_none());
        assert!(delays.step(at + BUSY).is_some());
    }

    #[test]
    fn what_ended_since_is_looked_for_below_the_floor() {
        let at = Instant::now();
        let mut delays = begun(at);
        assert!(
            !delays.polled(1_000 * SECOND, None, "b", at).now,
            "too soon"
        );
        let at = at + EVERY_UNUSED;
        assert!(delays.polled(1_001 * SECOND, None, "b", at).now);
        let step = delays.step(at).unwrap();
        assert_eq!((step.since, step.before), (None, 1_000 * SECOND));
        delays.stepped(&step, MOVED, at);
        let at = at + EVERY_UNUSED;
        assert!(!delays.polled(1_002 * SECOND, None, "b", at).now);
        assert!(delays.polled(1_002 * SECOND, None, "c", at).now);
    }

    #[test]
    fn what_another_transaction_holds_is_not_asked_for_in_a_loop() {
        let at = Instant::now();
        let mut delays = begun(at);
        let poll =
            |delays: &mut Delays, at| delays.polled(1_010 * SECOND, Some(1_010 * SECOND), "a", at);
        assert!(poll(&mut delays, at).now);
        let step = delays.step(at).unwrap();
        let none = Stepped::Moved {
            messages: 0,
            last: None,
            clock: 1_010 * SECOND,
        };
        delays.stepped(&step, none, at);
        let next = poll(&mut delays, at);
        assert_eq!((next.now, next.due_in), (false, Some(5_000)));
        assert_eq!(delays.step(at), None);
        assert!(delays.step(at + BUSY).is_some());
    }

    #[test]
    fn a_clock_that_is_set_back_takes_the_floor_with_it() {
        let at = Instant::now();
        let mut delays = begun(at);
        delays.polled(5_000 * SECOND, None, "a", at);
        delays.polled(2_000 * SECOND, Some(2_500 * SECOND), "a", at);
        assert_eq!(delays.floor(), Some(Cursor::at(1_999 * SECOND)));
    }

    /// A server that scans `density` seconds of the database's time in one of ours, from 500 s on.
    fn pass(delays: &mut Delays, snapshot: &str, mut at: Instant, density: u32) -> (u32, Instant) {
        let mut calls = 0;
        loop {
            let next = delays.polled(1_000 * SECOND, None, snapshot, at);
            let Some(step) = delays.step(at) else {
                match next.due_in {
                    Some(wait) => at += Duration::from_micros(wait.unsigned_abs()),
                    None => return (calls, at),
                }
                continue;
            };
            calls += 1;
            assert!(calls < 10_000);
            let since = step.since.map_or(0, |since| since.micros).max(500 * SECOND);
            let micros = (step.before - since).max(0).unsigned_abs();
            let takes = Duration::from_micros(micros) / density;
            let answer = match step.timeout {
                Some(timeout) if takes > timeout => Stepped::TimedOut,
                _ => MOVED,
            };
            at += takes.min(step.timeout.unwrap_or(takes));
            delays.stepped(&step, answer, at);
        }
    }

    #[test]
    fn a_pass_that_is_too_long_goes_in_slices_and_rests() {
        let start = Instant::now();
        let mut delays = begun(start);
        // 500 s take 50 s of scanning.
        let (calls, end) = pass(&mut delays, "b", start + EVERY_UNUSED, 10);
        assert!((100..2_000).contains(&calls), "{calls}");
        let took = end - start;
        assert!(took > Duration::from_secs(50) * REST, "{took:?}");
        assert!(took < Duration::from_secs(200) * REST, "{took:?}");
        // Nothing holds vacuum back any more.
        let (calls, _) = pass(&mut delays, "c", end + EVERY_UNUSED, 1_000_000);
        assert!(calls < 40, "{calls}");
    }

    #[test]
    fn a_first_pass_does_not_rest() {
        let start = Instant::now();
        let mut delays = Delays::new(start);
        let (_, end) = pass(&mut delays, "a", start, 10);
        assert!(end - start < Duration::from_secs(300), "{:?}", end - start);
        assert_eq!(delays.floor(), Some(Cursor::at(999 * SECOND)));
    }

    #[test]
    fn a_backlog_is_moved_without_rest() {
        let at = Instant::now();
        let mut delays = Delays::new(at);
        delays.polled(1_000 * SECOND, None, "a", at);
        for number in 1..100 {
            let step = delays.step(at).unwrap();
            let last = Cursor {
                micros: 500 * SECOND,
                number,
            };
            let more = Stepped::Moved {
                messages: 1,
                last: Some(last),
                clock: 1_000 * SECOND,
            };
            delays.stepped(&step, more, at);
            assert_eq!(delays.step(at).map(|step| step.since), Some(Some(last)));
            delays.rest_until = at;
        }
    }
}
