//! Which fault explains a repeat: a copy of a message that had arrived before.
//!
//! A message is published again when nobody has settled it, and that takes a fault while it was under way.
//! So a fault explains no more copies than can have been under way at the relays that it hit, none of a
//! message that was settled long before it, and none that comes long after it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::broker::Says;
use crate::record::{Arrival, Disturbance};
use crate::schedule::{Fault, Link, RELAYS, Whose};

/// What bounds the repeats that come of a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// How many messages a relay has under way.
    pub(crate) under_way: usize,
    /// How many messages a broker has given its consumer without knowing that they arrived.
    pub(crate) given: usize,
    /// How long it may take to settle a message after it arrived.
    pub(crate) batch: Duration,
    /// How long after the end of a fault what was under way is tried again.
    pub(crate) soon: Duration,
    /// How long the database lets a claim live of which it hears nothing.
    pub(crate) claim: Duration,
}

/// What a fault does to messages that are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// They are settled, or not published.
    None,
    /// Those of so many relays may be published again, soon after its end.
    Repeats(usize),
    /// Those of so many relays may be published again, when the database has ended the claims on them.
    RepeatsAfterClaim(usize),
}

fn effect(fault: Fault) -> Effect {
    use Effect::*;
    match fault {
        // It ends with its relay in good order, whatever was under way. Durations are not measured by the
        // clock that jumps.
        Fault::StopRelay(_) | Fault::JumpClock(_) => None,
        Fault::KillRelay(_) => Repeats(1),
        // What it holds is free when its claims have ended, or when it goes on.
        Fault::FreezeRelay(_) => RepeatsAfterClaim(1),
        // Answers are lost.
        Fault::KillBroker | Fault::StopBroker | Fault::FreezeBroker => Repeats(RELAYS),
        Fault::FillBroker(state) => match state.says {
            // And who is told so knows it.
            Says::No => None,
            Says::Nothing => Repeats(RELAYS),
        },
        // Nothing can be settled.
        Fault::CrashPostgres | Fault::EndSessions | Fault::FillPostgres => Repeats(RELAYS),
        // The database does not see that a connection has ended.
        Fault::Hold(Link::Database, whose) | Fault::Forget(Link::Database, whose) => {
            RepeatsAfterClaim(relays(whose))
        }
        Fault::Hold(Link::Broker, whose)
        | Fault::Forget(Link::Broker, whose)
        | Fault::Reset(_, whose)
        | Fault::Slow(_, whose, _) => Repeats(relays(whose)),
    }
}

fn relays(whose: Whose) -> usize {
    match whose {
        Whose::All => RELAYS,
        Whose::Relay(_) => 1,
    }
}

/// Whether a broker's consumer loses its connection by it, so that the broker gives it again what it had.
fn gives_again(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::KillBroker | Fault::StopBroker | Fault::FreezeBroker
    )
}

/// How far the relays were at any time.
pub(super) struct Progress {
    /// When a message committed, and when all that committed until then had arrived, in that order.
    arrived: Vec<(Duration, Duration)>,
}

impl Progress {
    /// From the times at which each message that arrived committed and arrived for the first time.
    pub(super) fn of(mut messages: Vec<(Duration, Duration)>) -> Self {
        messages.sort_unstable();
        let mut latest = Duration::ZERO;
        for (_, arrived) in &mut messages {
            latest = latest.max(*arrived);
            *arrived = latest;
        }
        Self { arrived: messages }
    }

    /// When everything had arrived that committed until a time, which is not before it.
    fn arrived(&self, committed: Duration) -> Duration {
        let count = self.arrived.partition_point(|it| it.0 <= committed);
        let last = count.checked_sub(1).map(|last| self.arrived[last].1);
        last.unwrap_or_default().max(committed)
    }
}

/// A copy of a message that had arrived before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repeat<'a> {
    pub(super) arrival: &'a Arrival,
    /// When the copy before it arrived.
    pub(super) before: Duration,
}

/// Repeats that something explains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Explained {
    pub(crate) count: usize,
    /// How long after the end of its fault the last of them came.
    pub(crate) latest: Duration,
}

/// What a fault can still explain.
#[derive(Clone)]
struct Reason {
    name: &'static str,
    disturbance: Disturbance,
    /// Until when.
    reach: Duration,
    /// How many copies.
    left: usize,
    /// Whether only those that the broker says to have given before.
    given_again: bool,
}

/// The repeats that a fault explains, by its name, and those that none does.
///
/// Of several faults that explain a copy it is put down to the youngest. Where that leaves copies over, since
/// it uses up the number of a fault for what another explains as well, to the one whose time is over first.
pub(super) fn explain<'a>(
    mut repeats: Vec<Repeat<'a>>,
    disturbances: &[Disturbance],
    progress: &Progress,
    bounds: &Bounds,
) -> (BTreeMap<&'static str, Explained>, Vec<Repeat<'a>>) {
    repeats.sort_by_key(|repeat| repeat.arrival.at);
    let mut reasons = reasons(disturbances, progress, bounds);
    reasons.sort_by_key(|it| (!it.given_again, Reverse(it.disturbance.from)));
    let (explained, unexplained) = put_down(&repeats, reasons.clone(), bounds);
    if unexplained.is_empty() {
        return (explained, unexplained);
    }
    reasons.sort_by_key(|it| (!it.given_again, it.reach));
    put_down(&repeats, reasons, bounds)
}

/// Puts each down to the first of the reasons that explains it.
fn put_down<'a>(
    repeats: &[Repeat<'a>],
    mut reasons: Vec<Reason>,
    bounds: &Bounds,
) -> (BTreeMap<&'static str, Explained>, Vec<Repeat<'a>>) {
    let (mut explained, mut unexplained) = (BTreeMap::new(), Vec::new());
    for repeat in repeats {
        let at = repeat.arrival.at;
        let reason = reasons.iter_mut().find(|reason| {
            let Disturbance { from, .. } = reason.disturbance;
            reason.left > 0
                && (from..=reason.reach).contains(&at)
                // What came longer before it was settled, unless by another fault.
                && from <= repeat.before + bounds.batch
                && (repeat.arrival.redelivered || !reason.given_again)
        });
        let Some(reason) = reason else {
            unexplained.push(*repeat);
            continue;
        };
        reason.left -= 1;
        let Explained { count, latest } = explained.entry(reason.name).or_default();
        *count += 1;
        *latest = (*latest).max(at.saturating_sub(reason.disturbance.until));
    }
    (explained, unexplained)
}

/// A fault's time is over when what committed until soon after it has arrived, and a little later: relays
/// that have much to do, or a broker that takes nothing, put off what is published again as well.
fn reasons(disturbances: &[Disturbance], progress: &Progress, bounds: &Bounds) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for disturbance in disturbances {
        let Disturbance { fault, from, until } = *disturbance;
        let (relays, end) = match effect(fault) {
            Effect::None => continue,
            Effect::Repeats(relays) => (relays, until),
            Effect::RepeatsAfterClaim(relays) => (relays, until.max(from + bounds.claim)),
        };
        let reach = progress.arrived(end + bounds.soon) + bounds.soon;
        let reason = |name, left, given_again| Reason {
            name,
            disturbance: *disturbance,
            reach,
            left,
            given_again,
        };
        reasons.push(reason(fault.kind(), relays * bounds.under_way, false));
        if gives_again(fault) {
            reasons.push(reason("given again by the broker", bounds.given, true));
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::State;
    use crate::record::Content;

    const BOUNDS: Bounds = Bounds {
        under_way: 10,
        given: 5,
        batch: Duration::from_secs(10),
        soon: Duration::from_secs(5),
        claim: Duration::from_secs(30),
    };

    const REFUSES: Fault = Fault::FillBroker(State {
        name: "full",
        says: Says::No,
    });
    const SILENT: Fault = Fault::FillBroker(State {
        name: "alarm",
        says: Says::Nothing,
    });

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn disturbance(fault: Fault, from: u64, until: u64) -> Disturbance {
        let (from, until) = (seconds(from), seconds(until));
        Disturbance { fault, from, until }
    }

    fn copy(at: u64, redelivered: bool) -> Arrival {
        Arrival {
            at: seconds(at),
            id: uuid::Uuid::nil(),
            content: Content::default(),
            partition: 0,
            redelivered,
        }
    }

    /// Everything arrives as soon as it has committed.
    fn quick() -> Progress {
        Progress::of(Vec::new())
    }

    /// How many copies are explained that come at `at`, each of a message whose copy before came at `before`.
    fn explained(disturbances: &[Disturbance], before: u64, at: u64, redelivered: bool) -> usize {
        let arrival = copy(at, redelivered);
        let repeat = Repeat {
            arrival: &arrival,
            before: seconds(before),
        };
        let (explained, unexplained) = explain(vec![repeat; 100], disturbances, &quick(), &BOUNDS);
        let count = explained.values().map(|it| it.count).sum();
        assert_eq!(count + unexplained.len(), 100);
        count
    }

    /// What each fault explains that lasts from 100 s to 102 s: of copies while it lasts, until 10 s after it,
    /// and until 10 s after the claims have ended.
    #[test]
    fn each_fault_explains_what_it_can_cause() {
        let one = Whose::Relay(1);
        for (fault, meanwhile, soon, after_claims) in [
            (Fault::KillRelay(0), 10, 10, 0),
            (Fault::FreezeRelay(0), 10, 10, 10),
            (Fault::StopRelay(0), 0, 0, 0),
            (Fault::JumpClock(5000), 0, 0, 0),
            (Fault::KillBroker, 30, 30, 0),
            (Fault::StopBroker, 30, 30, 0),
            (Fault::FreezeBroker, 30, 30, 0),
            (REFUSES, 0, 0, 0),
            (SILENT, 30, 30, 0),
            (Fault::CrashPostgres, 30, 30, 0),
            (Fault::EndSessions, 30, 30, 0),
            (Fault::FillPostgres, 30, 30, 0),
            (Fault::Reset(Link::Broker, one), 10, 10, 0),
            (Fault::Reset(Link::Database, Whose::All), 30, 30, 0),
            (Fault::Hold(Link::Broker, one), 10, 10, 0),
            (Fault::Hold(Link::Database, Whose::All), 30, 30, 30),
            (Fault::Slow(Link::Broker, one, 100), 10, 10, 0),
            (Fault::Slow(Link::Database, Whose::All, 100), 30, 30, 0),
            (Fault::Forget(Link::Broker, one), 10, 10, 0),
            (Fault::Forget(Link::Database, Whose::All), 30, 30, 30),
        ] {
            let all = [disturbance(fault, 100, 102)];
            assert_eq!(explained(&all, 99, 99, false), 0, "{fault} before it");
            assert_eq!(explained(&all, 99, 101, false), meanwhile, "{fault}");
            assert_eq!(explained(&all, 99, 112, false), soon, "{fault} soon");
            assert_eq!(
                explained(&all, 99, 140, false),
                after_claims,
                "{fault} later"
            );
            assert_eq!(explained(&all, 99, 141, false), 0, "{fault} too late");
        }
    }

    #[test]
    fn a_freeze_that_outlives_the_claims_explains_what_comes_until_soon_after_it() {
        let frozen = [disturbance(Fault::FreezeRelay(0), 100, 136)];
        assert_eq!(explained(&frozen, 99, 146, false), 10);
        assert_eq!(explained(&frozen, 99, 147, false), 0);
    }

    #[test]
    fn no_fault_explains_a_copy_of_what_was_settled_before_it() {
        let killed = [disturbance(Fault::KillRelay(0), 100, 102)];
        assert_eq!(explained(&killed, 90, 101, false), 10);
        assert_eq!(explained(&killed, 89, 101, false), 0);
    }

    #[test]
    fn what_is_put_off_comes_soon_after_what_committed_meanwhile() {
        let killed = [disturbance(Fault::KillRelay(0), 100, 101)];
        let arrival = copy(135, false);
        let repeat = Repeat {
            arrival: &arrival,
            before: seconds(99),
        };
        let is_explained = |messages: &[(u64, u64)]| {
            let messages = messages.iter().map(|it| (seconds(it.0), seconds(it.1)));
            let progress = Progress::of(messages.collect());
            explain(vec![repeat], &killed, &progress, &BOUNDS)
                .1
                .is_empty()
        };
        assert!(!is_explained(&[(98, 99), (106, 107), (107, 131)]));
        assert!(is_explained(&[(98, 99), (106, 130), (107, 131)]));
        assert!(is_explained(&[(98, 130), (106, 107), (107, 131)]));
        assert!(!is_explained(&[(98, 129), (106, 107), (107, 131)]));
    }

    #[test]
    fn of_two_faults_the_youngest_is_named_that_has_something_left() {
        let all = [
            disturbance(Fault::FreezeRelay(0), 100, 101),
            disturbance(Fault::KillRelay(1), 105, 106),
        ];
        let arrivals = [copy(107, false), copy(108, false)];
        let repeat = |arrival| Repeat {
            arrival,
            before: seconds(104),
        };
        let one = |latest| Explained {
            count: 1,
            latest: seconds(latest),
        };
        let repeats = arrivals.iter().map(repeat).collect();
        let bounds = Bounds {
            under_way: 1,
            ..BOUNDS
        };
        let (explained, unexplained) = explain(repeats, &all, &quick(), &bounds);
        assert!(unexplained.is_empty());
        let expected = [("relay frozen", one(7)), ("relay killed", one(1))];
        assert_eq!(explained, BTreeMap::from(expected));
    }

    #[test]
    fn no_fault_is_used_up_by_what_another_explains_as_well() {
        // The freeze explains all of them, and the kill the first half.
        let all = [
            disturbance(Fault::FreezeRelay(0), 101, 103),
            disturbance(Fault::KillRelay(1), 100, 101),
        ];
        let (early, late) = (copy(107, false), copy(120, false));
        let repeats = [&early, &late].map(|arrival| Repeat {
            arrival,
            before: seconds(104),
        });
        let repeats: Vec<_> = repeats.iter().flat_map(|it| [*it; 10]).collect();
        let (explained, unexplained) = explain(repeats, &all, &quick(), &BOUNDS);
        assert!(unexplained.is_empty(), "{explained:?}");
    }

    #[test]
    fn what_a_broker_gives_again_takes_a_fault_of_the_broker_and_has_a_bound() {
        let killed = [disturbance(Fault::KillBroker, 100, 102)];
        // Five of the consumer's, and thirty of the relays'.
        assert_eq!(explained(&killed, 99, 103, true), 35);
        assert_eq!(explained(&killed, 99, 103, false), 30);
        assert_eq!(explained(&killed, 99, 113, true), 0);
        assert_eq!(explained(&[], 99, 103, true), 0);
        let relay = [disturbance(Fault::KillRelay(0), 100, 102)];
        assert_eq!(explained(&relay, 99, 103, true), 10);
    }
}
