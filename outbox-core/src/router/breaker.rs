//! Whether one broker is called, and with how much: pure, so that time and chance come from outside.
//!
//! | the broker is | a call | ends in |
//! | --- | --- | --- |
//! | there | goes, with at most a *part* of its messages after an outage | away, if it says so or hangs |
//! | away | is refused until the pause is over; then one at a time goes, with one message (a *trial*) | there, if the broker answered; else a longer pause |
//!
//! Only a trial says whether an outage goes on: what calls say that began before it changes nothing.

use std::time::Duration;

use tokio::time::Instant;

use crate::retry::doubled;

/// The messages of a trial.
const TRIAL: usize = 1;
/// How much more goes after each success. Not twice as much, as in the relay: what the relay leaves out it
/// releases, what is left out here is parked once more.
const GROWTH: usize = 8;

pub(super) struct Breaker {
    backoff_first: Duration,
    backoff_longest: Duration,
    state: State,
}

enum State {
    There { part: usize },
    Away(Outage),
}

struct Outage {
    since: Instant,
    reason: String,
    tries: u32,
    retry_at: Instant,
    /// A call finds out now.
    trying: bool,
}

/// What a call may do.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Admitted {
    /// How many messages it may send, the first ones.
    pub(super) part: usize,
    pub(super) trial: bool,
}

/// What a call found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    There,
    /// The reason.
    Away(String),
    /// It was dropped, or everything it heard needs no broker to be said.
    Nothing,
}

/// What is to be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    Began,
    Ended { lasted: Duration },
}

impl Breaker {
    pub(super) fn new(backoff_first: Duration, backoff_longest: Duration) -> Self {
        Self {
            backoff_first,
            backoff_longest,
            state: State::There { part: usize::MAX },
        }
    }

    /// Why a call would be refused now.
    pub(super) fn refusal(&self, now: Instant) -> Option<&str> {
        match &self.state {
            State::Away(outage) if outage.trying || now < outage.retry_at => Some(&outage.reason),
            _ => None,
        }
    }

    /// Lets a call go, unless there is a [`refusal`](Self::refusal). It is told what the call
    /// [`found`](Self::found), once.
    pub(super) fn admit(&mut self, now: Instant) -> Result<Admitted, &str> {
        match &mut self.state {
            State::There { part } => Ok(Admitted {
                part: *part,
                trial: false,
            }),
            State::Away(outage) if !outage.trying && outage.retry_at <= now => {
                outage.trying = true;
                Ok(Admitted {
                    part: TRIAL,
                    trial: true,
                })
            }
            State::Away(outage) => Err(&outage.reason),
        }
    }

    /// `jitter`, 0 to 1, takes up to half of a pause away.
    pub(super) fn found(
        &mut self,
        trial: bool,
        found: Found,
        now: Instant,
        jitter: f64,
    ) -> Option<Change> {
        let pause = |tries| doubled(self.backoff_first, self.backoff_longest, tries, jitter);
        match (&mut self.state, found) {
            (State::There { part }, Found::There) => {
                *part = part.saturating_mul(GROWTH);
                None
            }
            (State::There { .. }, Found::Away(reason)) => {
                self.state = State::Away(Outage {
                    since: now,
                    reason,
                    tries: 0,
                    retry_at: now + pause(0),
                    trying: false,
                });
                Some(Change::Began)
            }
            (State::Away(outage), Found::There) if trial => {
                let lasted = now - outage.since;
                self.state = State::There {
                    part: TRIAL * GROWTH,
                };
                Some(Change::Ended { lasted })
            }
            (State::Away(outage), Found::Away(reason)) if trial => {
                outage.reason = reason;
                outage.tries = outage.tries.saturating_add(1);
                outage.retry_at = now + pause(outage.tries);
                outage.trying = false;
                None
            }
            (State::Away(outage), Found::Nothing) if trial => {
                outage.trying = false;
                None
            }
            (State::Away(_), _) | (State::There { .. }, Found::Nothing) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(200);
    const LONGEST: Duration = Duration::from_secs(1);

    struct Course {
        breaker: Breaker,
        now: Instant,
    }

    impl Course {
        fn new() -> Self {
            Self {
                breaker: Breaker::new(FIRST, LONGEST),
                now: Instant::now(),
            }
        }

        fn after(&mut self, time: Duration) -> &mut Self {
            self.now += time;
            self
        }

        /// The size of what may go; `None` is a refusal.
        fn admitted(&mut self) -> Option<Admitted> {
            let refused = self.breaker.refusal(self.now).is_some();
            let admitted = self.breaker.admit(self.now).ok();
            assert_eq!(refused, admitted.is_none());
            admitted
        }

        fn found(&mut self, trial: bool, found: Found) -> Option<Change> {
            self.breaker.found(trial, found, self.now, 0.0)
        }

        fn away(&mut self, trial: bool) -> Option<Change> {
            self.found(trial, Found::Away("refused".to_owned()))
        }
    }

    const TRIAL_CALL: Option<Admitted> = Some(Admitted {
        part: 1,
        trial: true,
    });

    fn part(part: usize) -> Option<Admitted> {
        Some(Admitted { part, trial: false })
    }

    #[test]
    fn a_broker_that_is_there_gets_everything() {
        let mut course = Course::new();
        for _ in 0..3 {
            assert_eq!(course.admitted(), part(usize::MAX));
            assert_eq!(course.found(false, Found::There), None);
            assert_eq!(course.found(false, Found::Nothing), None);
        }
    }

    #[test]
    fn an_outage_refuses_until_its_pause_is_over_and_then_tries_with_one_call() {
        let mut course = Course::new();
        assert_eq!(course.away(false), Some(Change::Began));
        assert_eq!(course.breaker.refusal(course.now), Some("refused"));
        course.after(FIRST - Duration::from_millis(1));
        assert_eq!(course.admitted(), None);
        course.after(Duration::from_millis(1));
        assert_eq!(course.admitted(), TRIAL_CALL);
        // While that one finds out, others are refused, however long it takes.
        course.after(LONGEST * 10);
        assert_eq!(course.admitted(), None);
        let lasted = FIRST + LONGEST * 10;
        assert_eq!(
            course.found(true, Found::There),
            Some(Change::Ended { lasted })
        );
        assert_eq!(course.admitted(), part(8));
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_with_the_next_outage() {
        let mut course = Course::new();
        let mut pauses = Vec::new();
        for outage in 0..2 {
            course.away(false);
            for _ in 0..5 {
                let start = course.now;
                while course.admitted().is_none() {
                    course.after(Duration::from_millis(100));
                }
                pauses.push((course.now - start).as_millis());
                assert_eq!(course.away(true), None);
            }
            course.after(LONGEST).admitted();
            assert!(course.found(true, Found::There).is_some(), "{outage}");
        }
        let each = [200, 400, 800, 1000, 1000];
        assert_eq!(pauses, [each, each].concat());
    }

    #[test]
    fn jitter_takes_up_to_half_of_a_pause_away() {
        let mut breaker = Breaker::new(FIRST, LONGEST);
        let now = Instant::now();
        breaker.found(false, Found::Away("refused".to_owned()), now, 1.0);
        let half = now + FIRST / 2;
        assert!(breaker.refusal(half - Duration::from_millis(1)).is_some());
        assert!(breaker.refusal(half).is_none());
    }

    #[test]
    fn the_part_grows_with_each_success_until_it_is_everything() {
        let mut course = Course::new();
        course.away(false);
        course.after(FIRST).admitted();
        course.found(true, Found::There);
        let mut parts = Vec::new();
        for _ in 0..30 {
            parts.push(course.admitted().unwrap().part);
            course.found(false, Found::There);
        }
        assert_eq!(parts[..4], [8, 64, 512, 4096]);
        assert_eq!(parts[29], usize::MAX);
    }

    #[test]
    fn only_a_trial_says_whether_an_outage_goes_on() {
        let mut course = Course::new();
        course.away(false);
        // Calls that began before it.
        assert_eq!(course.found(false, Found::There), None);
        assert_eq!(course.away(false), None);
        assert_eq!(course.admitted(), None);
        assert_eq!(course.after(FIRST).admitted(), TRIAL_CALL);
        assert_eq!(course.found(false, Found::There), None);
        assert_eq!(course.admitted(), None);
    }

    #[test]
    fn a_trial_that_found_nothing_makes_room_for_the_next() {
        let mut course = Course::new();
        course.away(false);
        assert_eq!(course.after(FIRST).admitted(), TRIAL_CALL);
        assert_eq!(course.found(true, Found::Nothing), None);
        assert_eq!(course.admitted(), TRIAL_CALL);
    }
}
