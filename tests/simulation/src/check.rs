//! What is promised, and whether it was kept.
//!
//! Enqueue order is the order of enqueues that happen one after another: the second began after the
//! first had committed, or in the same transaction after it. Between concurrent transactions there is
//! none, so that the promises are about pairs and not about a sequence.

use std::fmt;

use outbox_core::{OnDead, OrderMode};

use crate::world::{Fate, World};

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A committed message was neither delivered nor given up.
    Lost {
        /// The message.
        message: String,
    },
    /// A message was taken that was not committed.
    NotCommitted {
        /// The message.
        message: String,
    },
    /// A message was taken before its delay was over.
    TooEarly {
        /// The message.
        message: String,
    },
    /// A message was taken that was cancelled.
    Cancelled {
        /// The message.
        message: String,
    },
    /// A message was recorded as delivered that the broker never took.
    NeverTaken {
        /// The message.
        message: String,
    },
    /// A message that the broker refuses for good was recorded as anything but dead.
    PoisonDelivered {
        /// The message.
        message: String,
    },
    /// A message was given up without having failed often enough.
    DeadTooEarly {
        /// The message.
        message: String,
        /// Its own failures.
        own: u32,
    },
    /// More failures were counted than the message had of its own: an outage or a stop counted.
    CountedTooMuch {
        /// The message.
        message: String,
        /// What was counted.
        counted: u32,
        /// Its own failures.
        own: u32,
    },
    /// The first copy of the second message was taken before the first copy of the first one.
    FirstCopies {
        /// What was enqueued first.
        first: String,
        /// What was enqueued second.
        second: String,
    },
    /// The second message was not sent again after the first one.
    NotSentAgain {
        /// What was enqueued first.
        first: String,
        /// What was enqueued second.
        second: String,
    },
    /// The last copy of the second message was taken before the last copy of the first one, although
    /// no connection and no claim outlived its time.
    LastCopies {
        /// What was enqueued first.
        first: String,
        /// What was enqueued second.
        second: String,
    },
    /// A message was taken while a dead one before it halted its key.
    NotHalted {
        /// The dead one.
        first: String,
        /// What was taken.
        second: String,
    },
    /// Without faults the outbox did not become empty.
    Stuck,
    /// A relay took longer to stop than its settings allow.
    SlowStop {
        /// How long it took, in milliseconds.
        millis: u128,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Looks at the whole run, with the promises of `order`.
pub(crate) fn check(world: &World, order: OrderMode) {
    let mut broken = Vec::new();
    let mut state = world.lock();
    let fates: Vec<&Fate> = state.fates.values().collect();
    for fate in &fates {
        broken.extend(alone(fate));
    }
    let (mut pairs, mut first_copies, mut dead, mut replayed) = (0, 0, 0, 0);
    for first in &fates {
        dead += u64::from(first.dead.is_some());
        replayed += u64::from(first.replayed);
        for second in &fates {
            if !is_before(first, second) {
                continue;
            }
            pairs += 1;
            first_copies += u64::from(first_copies_out_of_order(world, first, second));
            broken.extend(together(world, order, first, second));
        }
    }
    state.stats.ordered_pairs = pairs;
    state.stats.first_copies_out_of_order = first_copies;
    state.stats.dead = dead;
    state.stats.replayed = replayed;
    drop(state);
    for violation in broken {
        world.violation(violation);
    }
}

fn alone(fate: &Fate) -> Option<Violation> {
    let message = fate.name.clone();
    // That nothing of the others was taken is checked when something is taken.
    fate.committed?;
    if fate.cancelled {
        return None;
    }
    let done = fate.delivered.is_some() || fate.dead.is_some();
    let taken = !fate.copies.is_empty();
    if !done || (fate.dead.is_none() && !taken) {
        return Some(Violation::Lost { message });
    }
    (fate.poison && (taken || fate.delivered.is_some()))
        .then_some(Violation::PoisonDelivered { message })
}

/// Whether enqueue order puts `first` before `second`.
///
/// A delayed message is enqueued by a relay, when it is due and committed or somewhat later. So it comes after
/// what was visible until then, and before what is enqueued once a claim has had it. Two of them come in the
/// order of their times, unless the first one's transaction ended after its time.
fn is_before(first: &Fate, second: &Fate) -> bool {
    let same_key = first.key.is_some() && first.key == second.key;
    let (Some(committed), Some(second_committed)) = (first.committed, second.committed) else {
        return false;
    };
    same_key
        && match (first.due, second.due) {
            (None, None) => {
                let same_transaction =
                    first.transaction == second.transaction && first.enqueued < second.enqueued;
                committed < second.enqueued || same_transaction
            }
            (None, Some(due)) => {
                committed <= second_committed || first.committed_at.is_some_and(|at| at < due)
            }
            (Some(_), None) => first.claimed.is_some_and(|at| at < second.enqueued),
            (Some(due), Some(second_due)) => {
                first.committed_at.is_some_and(|at| at < due)
                    && (due, first.enqueued) < (second_due, second.enqueued)
            }
        }
}

/// A dead message stands for itself: what a connection held of it may arrive when the key has gone on. So
/// does one that a person put back, unless the key waited for it.
fn first_copies_out_of_order(world: &World, first: &Fate, second: &Fate) -> bool {
    let alone = first.dead.is_some() || (first.replayed && world.on_dead == OnDead::Continue);
    match (first.copies.first(), second.copies.first()) {
        (Some(first_taken), Some(second_taken)) => !alone && second_taken < first_taken,
        _ => false,
    }
}

fn together(world: &World, order: OrderMode, first: &Fate, second: &Fate) -> Option<Violation> {
    let names = || (first.name.clone(), second.name.clone());
    match order {
        OrderMode::PerKey => {
            if first_copies_out_of_order(world, first, second) {
                let (first, second) = names();
                return Some(Violation::FirstCopies { first, second });
            }
            // A dead message that was never taken was never confirmed to any relay either.
            let halts = world.on_dead == OnDead::HaltKey && first.copies.is_empty();
            if let (true, Some(_), Some(&taken)) = (halts, first.dead, second.copies.first())
                && first.discarded.is_none_or(|discarded| taken < discarded)
            {
                let (first, second) = names();
                return Some(Violation::NotHalted { first, second });
            }
        }
        OrderMode::PerKeyPipelined => {
            let (Some(taken), Some(again)) = (first.copies.first(), second.copies.last()) else {
                return None;
            };
            // A dead message is not sent again, and nothing is sent again after it.
            let given_up = |fate: &Fate| fate.dead.is_some() || fate.replayed;
            if given_up(first) || given_up(second) {
                return None;
            }
            // Between two brokers there is no such promise.
            if first.broker != second.broker {
                return None;
            }
            if again < taken {
                let (first, second) = names();
                return Some(Violation::NotSentAgain { first, second });
            }
            let nothing_outlives = !world.rates.remnants && world.rates.cut == 0;
            if nothing_outlives && second.copies.last() < first.copies.last() {
                let (first, second) = names();
                return Some(Violation::LastCopies { first, second });
            }
        }
        OrderMode::Unordered => {}
    }
    None
}
