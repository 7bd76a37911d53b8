//! Which fault comes when: drawn from a seed, so that the same seed gives the same faults at the same
//! offsets. It is pure; `faults.rs` carries them out.
//!
//! The kinds are a deck of cards. Each comes once before any comes again, and what is broken already is not
//! broken once more.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

use crate::broker::State;

/// How many relays there are.
pub(crate) const RELAYS: usize = 3;
/// The relay whose host has a clock that can be set.
pub(crate) const CLOCK: usize = 2;

/// The time between two faults, at least and at most; a deck is spread over a short run.
const GAP: (Duration, Duration) = (Duration::from_millis(2500), Duration::from_secs(7));
/// Before the first fault, to see that all is well without.
const CALM: Duration = Duration::from_secs(5);
/// Between the end of a fault and the next of the same thing: a server has to come up, a process less.
const REST: Duration = Duration::from_secs(6);
const SHORT_REST: Duration = Duration::from_secs(1);

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL, and a new process later.
    KillRelay(usize),
    /// SIGSTOP, and SIGCONT later.
    FreezeRelay(usize),
    /// SIGTERM, which must end it in good order, and a new process later.
    StopRelay(usize),
    /// The clock of [`CLOCK`]'s host jumps by so many hours, and back later.
    JumpClock(i32),
    /// A crash of the broker's server: no shutdown, no flush.
    KillBroker,
    /// A shutdown.
    StopBroker,
    /// It keeps its connections and answers nothing.
    FreezeBroker,
    /// It takes no writes, in one of the ways that it has for that.
    FillBroker(State),
    /// An `immediate` shutdown: no checkpoint, so the start recovers from the log.
    CrashPostgres,
    /// The database ends every session, those of the producers too.
    EndSessions,
    /// The disk with its data is full.
    FillPostgres,
    /// Each connection ends with a reset.
    Reset(Link, Whose),
    /// Nothing is passed on; connections stay open, and new ones are taken.
    Hold(Link, Whose),
    /// Each piece that is passed on is late by so many milliseconds.
    Slow(Link, Whose, u64),
    /// The connections that there are pass nothing on any more, not even their end; new ones are served.
    Forget(Link, Whose),
}

/// What a relay's connections lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Broker,
    Database,
}

/// Whose connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    All,
    Relay(usize),
}

/// What is broken by a fault, and by no other at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Relay(usize),
    Clock,
    Broker,
    Postgres,
    Network(Link),
}

impl Fault {
    /// For the audit and the sum of what was survived.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::KillRelay(_) => "relay killed",
            Self::FreezeRelay(_) => "relay frozen",
            Self::StopRelay(_) => "relay stopped",
            Self::JumpClock(_) => "clock jumped",
            Self::KillBroker => "broker killed",
            Self::StopBroker => "broker restarted",
            Self::FreezeBroker => "broker frozen",
            Self::FillBroker(state) => state.name,
            Self::CrashPostgres => "postgres crashed",
            Self::EndSessions => "sessions ended",
            Self::FillPostgres => "postgres disk full",
            Self::Reset(Link::Broker, _) => "broker link reset",
            Self::Reset(Link::Database, _) => "database link reset",
            Self::Hold(Link::Broker, _) => "broker link held",
            Self::Hold(Link::Database, _) => "database link held",
            Self::Slow(Link::Broker, ..) => "broker link slow",
            Self::Slow(Link::Database, ..) => "database link slow",
            Self::Forget(Link::Broker, _) => "broker link half-open",
            Self::Forget(Link::Database, _) => "database link half-open",
        }
    }

    fn target(self) -> Target {
        match self {
            Self::KillRelay(relay) | Self::FreezeRelay(relay) | Self::StopRelay(relay) => {
                Target::Relay(relay)
            }
            Self::JumpClock(_) => Target::Clock,
            Self::KillBroker | Self::StopBroker | Self::FreezeBroker | Self::FillBroker(_) => {
                Target::Broker
            }
            Self::CrashPostgres | Self::EndSessions | Self::FillPostgres => Target::Postgres,
            Self::Reset(link, _)
            | Self::Hold(link, _)
            | Self::Slow(link, ..)
            | Self::Forget(link, _) => Target::Network(link),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        match *self {
            Self::KillRelay(relay) | Self::FreezeRelay(relay) | Self::StopRelay(relay) => {
                write!(f, " ({})", relay + 1)
            }
            Self::JumpClock(hours) => write!(f, " by {hours:+} h (relay {})", CLOCK + 1),
            Self::Reset(_, whose) | Self::Hold(_, whose) | Self::Forget(_, whose) => {
                write!(f, " ({whose})")
            }
            Self::Slow(_, whose, millis) => write!(f, " by {millis} ms ({whose})"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all relays"),
            Self::Relay(relay) => write!(f, "relay {}", relay + 1),
        }
    }
}

/// A fault with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    /// Since the start of the run.
    pub(crate) at: Duration,
    /// How long it lasts.
    pub(crate) lasts: Duration,
    pub(crate) fault: Fault,
}

impl Planned {
    fn end(&self) -> Duration {
        self.at + self.lasts
    }
}

/// What may be broken, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    /// The broker's server is this run's alone.
    pub(crate) broker: bool,
    /// The states in which the broker takes no writes.
    pub(crate) broker_states: &'static [State],
    /// The database's disk can be filled.
    pub(crate) disk: bool,
    /// Only the relays are killed, as often as that goes.
    pub(crate) kills_only: bool,
}

/// The faults of a run that lasts so long. All have ended when it ends.
pub(crate) fn schedule(seed: u64, lasts: Duration, abilities: &Abilities) -> Vec<Planned> {
    let mut rng = Rng::with_seed(seed);
    let mut planned: Vec<Planned> = Vec::new();
    let mut deck: Vec<Planned> = Vec::new();
    let mut at = CALM;
    while at < lasts {
        if deck.is_empty() {
            deck = shuffled(&mut rng, abilities);
        }
        let rest = if abilities.kills_only {
            SHORT_REST
        } else {
            REST
        };
        let is_free = |card: &Planned| {
            let end = at + card.lasts;
            end < lasts
                && planned.iter().all(|other| {
                    other.fault.target() != card.fault.target() || other.end() + rest <= at
                })
        };
        if let Some(index) = deck.iter().position(is_free) {
            let card = deck.remove(index);
            planned.push(Planned { at, ..card });
        }
        at += gap(&mut rng, lasts, abilities);
    }
    planned
}

/// The faults of each target, in their order.
pub(crate) fn by_target(planned: &[Planned]) -> Vec<Vec<Planned>> {
    let mut targets: Vec<(Target, Vec<Planned>)> = Vec::new();
    for planned in planned {
        let target = planned.fault.target();
        match targets.iter_mut().find(|(other, _)| *other == target) {
            Some((_, own)) => own.push(*planned),
            None => targets.push((target, vec![*planned])),
        }
    }
    targets.into_iter().map(|(_, own)| own).collect()
}

/// Half to one and a half of what spreads the deck over four fifths of the run.
fn gap(rng: &mut Rng, lasts: Duration, abilities: &Abilities) -> Duration {
    if abilities.kills_only {
        return Duration::from_millis(rng.u64(500..1500));
    }
    let cards = cards(&mut rng.clone(), abilities).len() as u32;
    let mean = (lasts * 4 / 5 / cards).clamp(GAP.0, GAP.1);
    mean.mul_f64(0.5 + rng.f64())
}

fn shuffled(rng: &mut Rng, abilities: &Abilities) -> Vec<Planned> {
    let mut deck = cards(rng, abilities);
    rng.shuffle(&mut deck);
    deck
}

/// One of each kind.
fn cards(rng: &mut Rng, abilities: &Abilities) -> Vec<Planned> {
    let mut relay = || rng.usize(..RELAYS);
    let mut faults = vec![Fault::KillRelay(relay())];
    if !abilities.kills_only {
        faults.extend([
            Fault::KillRelay(relay()),
            Fault::FreezeRelay(relay()),
            Fault::StopRelay(relay()),
            Fault::CrashPostgres,
            Fault::EndSessions,
        ]);
        if abilities.disk {
            faults.push(Fault::FillPostgres);
        }
        if abilities.broker {
            faults.extend([Fault::KillBroker, Fault::StopBroker, Fault::FreezeBroker]);
            faults.extend(
                abilities
                    .broker_states
                    .iter()
                    .map(|it| Fault::FillBroker(*it)),
            );
        }
        for link in [Link::Broker, Link::Database] {
            let mut whose = || match rng.usize(..=RELAYS) {
                RELAYS => Whose::All,
                relay => Whose::Relay(relay),
            };
            let whose = [whose(), whose(), whose(), whose()];
            faults.extend([
                Fault::Reset(link, whose[0]),
                Fault::Hold(link, whose[1]),
                Fault::Slow(link, whose[2], rng.u64(20..200)),
                Fault::Forget(link, whose[3]),
            ]);
        }
        let hours = *rng.choice(&[-5000, -3, -1, 1, 3, 5000]).unwrap_or(&1);
        faults.push(Fault::JumpClock(hours));
    }
    faults
        .into_iter()
        .map(|fault| Planned {
            at: Duration::ZERO,
            lasts: lasts(rng, fault),
            fault,
        })
        .collect()
}

fn lasts(rng: &mut Rng, fault: Fault) -> Duration {
    let millis = match fault {
        Fault::KillRelay(_) | Fault::StopRelay(_) => 200..3_000,
        // Every other time so long that the database ends what it holds.
        Fault::FreezeRelay(_) if rng.bool() => 32_000..36_000,
        Fault::FreezeRelay(_) => 1_000..6_000,
        Fault::JumpClock(_) => 8_000..15_000,
        Fault::KillBroker | Fault::StopBroker => 100..4_000,
        Fault::FreezeBroker | Fault::FillBroker(_) => 3_000..9_000,
        Fault::CrashPostgres => 100..3_000,
        Fault::FillPostgres => 2_000..6_000,
        Fault::EndSessions | Fault::Reset(..) | Fault::Forget(..) => 1..2,
        Fault::Hold(..) => 2_000..10_000,
        Fault::Slow(..) => 4_000..10_000,
    };
    Duration::from_millis(rng.u64(millis))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::broker::Says;

    const fn state(name: &'static str) -> State {
        State {
            name,
            says: Says::No,
        }
    }

    const FULL: Abilities = Abilities {
        broker: true,
        broker_states: &[state("out of memory"), state("out of disk")],
        disk: true,
        kills_only: false,
    };

    const TARGETS: [Target; RELAYS + 5] = [
        Target::Relay(0),
        Target::Relay(1),
        Target::Relay(2),
        Target::Clock,
        Target::Broker,
        Target::Postgres,
        Target::Network(Link::Broker),
        Target::Network(Link::Database),
    ];

    #[test]
    fn a_seed_gives_the_same_faults_at_the_same_offsets() {
        let minutes = Duration::from_secs(600);
        assert_eq!(schedule(7, minutes, &FULL), schedule(7, minutes, &FULL));
        assert_ne!(schedule(7, minutes, &FULL), schedule(8, minutes, &FULL));
    }

    #[test]
    fn every_kind_comes_in_ten_minutes_of_any_seed() {
        let kinds: BTreeSet<_> = cards(&mut Rng::with_seed(0), &FULL)
            .iter()
            .map(|it| it.fault.kind())
            .collect();
        for seed in 0..200 {
            let planned = schedule(seed, Duration::from_secs(600), &FULL);
            let came: BTreeSet<_> = planned.iter().map(|it| it.fault.kind()).collect();
            assert_eq!(came, kinds, "seed {seed}");
        }
    }

    #[test]
    fn nothing_is_broken_twice_at_a_time_and_all_is_right_at_the_end() {
        for seed in 0..200 {
            let length = Duration::from_secs(80);
            let planned = schedule(seed, length, &FULL);
            assert!(planned.len() > 15, "seed {seed}: {}", planned.len());
            for target in TARGETS {
                let own: Vec<_> = planned
                    .iter()
                    .filter(|it| it.fault.target() == target)
                    .collect();
                for pair in own.windows(2) {
                    assert!(pair[0].end() + REST <= pair[1].at, "seed {seed}: {pair:?}");
                }
            }
            assert!(
                planned.iter().all(|it| it.at >= CALM && it.end() < length),
                "seed {seed}"
            );
        }
    }

    #[test]
    fn what_may_not_be_broken_is_not() {
        let spared = Abilities {
            broker: false,
            disk: false,
            ..FULL
        };
        for planned in schedule(7, Duration::from_secs(600), &spared) {
            assert_ne!(planned.fault.target(), Target::Broker);
            assert_ne!(planned.fault, Fault::FillPostgres);
        }
        let killed = Abilities {
            kills_only: true,
            ..FULL
        };
        let planned = schedule(7, Duration::from_secs(60), &killed);
        assert!(planned.len() > 15);
        assert!(
            planned
                .iter()
                .all(|it| matches!(it.fault, Fault::KillRelay(_)))
        );
    }
}
