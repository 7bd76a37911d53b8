//! What a run knows: its dice, its faults, and the fate of every message.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use outbox_core::{Message, OnDead, Uuid};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::check::Violation;
use crate::point::{PointRates, Script};
use crate::run::Setup;

/// A mistake that is put into the world on purpose, for the check to notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The publisher reports a confirmation before the broker took the message.
    ConfirmsEarly,
    /// The publisher takes an absent broker for a failure of the message.
    BlamesTheMessage,
    /// The publisher refuses for good what failed for now.
    GivesUpEarly,
    /// The store gives out the messages of one key in another order.
    ReordersAKey,
    /// The store removes every claimed message, whatever its outcome.
    SettlesARange,
    /// The store forgets what becomes visible behind what was already delivered.
    ForgetsLateCommits,
    /// The store shows messages before their transaction ends.
    ReadsUncommitted,
    /// The store lets a key go on that a dead message halts.
    ForgetsHalts,
    /// The publisher says that it chains, and sends what is behind a failure.
    BreaksChains,
    /// A person's replay puts a message behind those of its key that came later.
    ReplaysBehind,
    /// The store takes a claim that was dropped for one that was delivered.
    DropsAsDelivered,
    /// The store forgets some of the delayed messages.
    ForgetsDelayed,
    /// The store delivers delayed messages before their time.
    DeliversEarly,
    /// The store takes the longer of two delays for the shorter one.
    ReversesDelays,
    /// The store says that it cancelled what it then delivers.
    CancelsInVain,
}

/// How often each thing goes wrong in one run, in percent. Zero for most of them in most runs, so that
/// each is also seen without the others.
pub(crate) struct Rates {
    pub(crate) nack: u32,
    pub(crate) topic: u32,
    pub(crate) reject: u32,
    pub(crate) lost_answer: u32,
    pub(crate) taken_and_nacked: u32,
    pub(crate) silence: u32,
    pub(crate) early_return: u32,
    pub(crate) publisher_panic: u32,
    pub(crate) points: PointRates,
    pub(crate) cut: u32,
    pub(crate) kill: u32,
    pub(crate) stop: u32,
    /// Whether what a broken connection held may still arrive.
    pub(crate) remnants: bool,
}

impl Rates {
    /// Nothing goes wrong but what a script says.
    fn none() -> Self {
        Self {
            nack: 0,
            topic: 0,
            reject: 0,
            lost_answer: 0,
            taken_and_nacked: 0,
            silence: 0,
            early_return: 0,
            publisher_panic: 0,
            cut: 0,
            kill: 0,
            stop: 0,
            remnants: true,
            points: PointRates::default(),
        }
    }

    fn draw(rng: &mut fastrand::Rng) -> Self {
        let mut rate = |most: u32| match rng.bool() {
            true => rng.u32(1..=most),
            false => 0,
        };
        Self {
            nack: rate(20),
            topic: rate(10),
            reject: rate(6),
            lost_answer: rate(10),
            taken_and_nacked: rate(5),
            silence: rate(4),
            early_return: rate(5),
            publisher_panic: rate(4),
            cut: rate(40),
            kill: rate(70),
            stop: rate(70),
            remnants: rng.bool(),
            points: PointRates::draw(rng),
        }
    }
}

/// A time during which a broker is away.
pub(crate) struct Outage {
    pub(crate) broker: usize,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
    pub(crate) silent: bool,
}

/// What happened to one message.
#[derive(Debug)]
pub(crate) struct Fate {
    pub(crate) name: String,
    pub(crate) key: Option<String>,
    /// The one that its topic goes to.
    pub(crate) broker: usize,
    pub(crate) transaction: u32,
    /// When it was enqueued and when its transaction ended, in steps of the run.
    pub(crate) enqueued: u64,
    pub(crate) committed: Option<u64>,
    pub(crate) committed_at: Option<Instant>,
    /// When it is due, if it was enqueued with a delay.
    pub(crate) due: Option<Instant>,
    /// When it was first in a claim.
    pub(crate) claimed: Option<u64>,
    /// A person has dropped it before it was due.
    pub(crate) cancelled: bool,
    /// The broker refuses it for good.
    pub(crate) poison: bool,
    pub(crate) copies: Vec<u64>,
    /// How often it was handed to a publisher, and how often the answer to that was no failure of its
    /// own.
    pub(crate) tries: u32,
    pub(crate) excused: u32,
    /// How many of the answers were failures of its own.
    pub(crate) failed: u32,
    /// How many of these a person has forgiven.
    pub(crate) forgiven: u32,
    pub(crate) delivered: Option<u64>,
    /// It is dead, or was and has been discarded.
    pub(crate) dead: Option<u64>,
    /// A person has put it back, perhaps more than once.
    pub(crate) replayed: bool,
    pub(crate) discarded: Option<u64>,
}

impl Fate {
    /// How often it failed, at most, since a person last forgave it: what was not answered may have been a
    /// failure.
    pub(crate) fn own_failures(&self) -> u32 {
        self.tries - self.excused - self.forgiven
    }
}

/// What happened in a run or in many, in numbers.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Messages of transactions that committed.
    pub committed: u64,
    /// Messages of transactions that rolled back.
    pub rolled_back: u64,
    /// Messages that were visible only after one of a higher position had been taken.
    pub late: u64,
    /// What the broker took, repeats included.
    pub copies: u64,
    /// Committed messages that were delayed.
    pub delayed: u64,
    /// Those of them that a person has cancelled.
    pub cancelled: u64,
    /// Messages that were given up and stayed so.
    pub dead: u64,
    /// Messages that a person has put back.
    pub replayed: u64,
    /// Pairs of messages of one key of which one was enqueued after the other had committed.
    pub ordered_pairs: u64,
    /// Pairs of these whose first copies came in the other order.
    pub first_copies_out_of_order: u64,
    /// Faults by kind.
    pub faults: BTreeMap<String, u64>,
}

impl Stats {
    /// Adds the numbers of another run.
    pub fn add(&mut self, other: &Self) {
        self.committed += other.committed;
        self.rolled_back += other.rolled_back;
        self.late += other.late;
        self.copies += other.copies;
        self.delayed += other.delayed;
        self.cancelled += other.cancelled;
        self.dead += other.dead;
        self.replayed += other.replayed;
        self.ordered_pairs += other.ordered_pairs;
        self.first_copies_out_of_order += other.first_copies_out_of_order;
        for (fault, count) in &other.faults {
            *self.faults.entry(fault.clone()).or_default() += count;
        }
    }
}

pub(crate) struct World {
    state: Mutex<State>,
    end: Notify,
    pub(crate) start: Instant,
    pub(crate) rates: Rates,
    /// How many there are; with several the relays publish through a router.
    pub(crate) brokers: usize,
    /// Whether the publisher stops a key at a failure by itself; there is one broker then.
    pub(crate) chains: bool,
    /// All that goes wrong, if that is known before.
    pub(crate) script: Option<Script>,
    pub(crate) outages: Vec<Outage>,
    pub(crate) on_dead: OnDead,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) max_failures: u32,
    trace: bool,
}

pub(crate) struct State {
    pub(crate) rng: fastrand::Rng,
    step: u64,
    /// How many points calls have reached.
    pub(crate) points: u64,
    pub(crate) calm: bool,
    ended: bool,
    pub(crate) fates: BTreeMap<Uuid, Fate>,
    pub(crate) stats: Stats,
    pub(crate) violations: Vec<Violation>,
    pub(crate) trace: Vec<String>,
}

impl World {
    pub(crate) fn new(setup: &Setup) -> Arc<Self> {
        let mut rng = fastrand::Rng::with_seed(setup.seed);
        let rates = match setup.script {
            Some(_) => Rates::none(),
            None => Rates::draw(&mut rng),
        };
        // Behind a router of several none chains.
        let brokers = match rng.u8(0..4) {
            _ if setup.chains => 1,
            0 => 3,
            1 => 2,
            _ => 1,
        };
        let mut outages = Vec::new();
        for broker in 0..brokers {
            let mut at = 0;
            let many = if setup.script.is_some() { 0 } else { 2 };
            for _ in 0..rng.usize(0..=many) {
                let from = at + rng.u64(200..4000);
                at = from + rng.u64(50..3000);
                outages.push(Outage {
                    broker,
                    from: Duration::from_millis(from),
                    to: Duration::from_millis(at),
                    silent: rng.u8(0..4) == 0,
                });
            }
        }
        let drawn = match rng.bool() {
            true => OnDead::Continue,
            false => OnDead::HaltKey,
        };
        let max_failures = rng.u32(2..8);
        Arc::new(Self {
            state: Mutex::new(State {
                rng,
                step: 0,
                points: 0,
                calm: false,
                ended: false,
                fates: BTreeMap::new(),
                stats: Stats::default(),
                violations: Vec::new(),
                trace: Vec::new(),
            }),
            end: Notify::new(),
            start: Instant::now(),
            rates,
            brokers,
            chains: setup.chains,
            outages,
            on_dead: setup.on_dead.unwrap_or(drawn),
            mutant: setup.mutant,
            script: setup.script,
            max_failures,
            trace: setup.trace,
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Ends the run: the relays stop for good.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.end.notify_waiters();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    pub(crate) async fn ended(&self) {
        let end = self.end.notified();
        if !self.has_ended() {
            end.await;
        }
    }

    /// Whether something that goes wrong in so many percent of the cases does now; counted by its name.
    pub(crate) fn goes_wrong(&self, fault: &'static str, percent: u32) -> bool {
        let mut state = self.lock();
        let wrong = !state.calm && state.rng.u32(0..100) < percent;
        if wrong {
            *state.stats.faults.entry(fault.to_owned()).or_default() += 1;
        }
        wrong
    }

    pub(crate) fn fault(&self, fault: &'static str) {
        *self
            .lock()
            .stats
            .faults
            .entry(fault.to_owned())
            .or_default() += 1;
    }

    /// A random time of up to so many milliseconds.
    pub(crate) fn moment(&self, most: u64) -> Duration {
        Duration::from_millis(self.lock().rng.u64(0..=most))
    }

    /// The outage of a broker at this moment.
    pub(crate) fn outage(&self, broker: usize) -> Option<&Outage> {
        let now = self.start.elapsed();
        let calm = self.lock().calm;
        let mut outages = self.outages.iter();
        outages.find(|outage| {
            !calm && outage.broker == broker && outage.from <= now && now < outage.to
        })
    }

    pub(crate) fn violation(&self, violation: Violation) {
        self.trace(|| format!("VIOLATION {violation}"));
        self.lock().violations.push(violation);
    }

    pub(crate) fn trace(&self, line: impl FnOnce() -> String) {
        if self.trace {
            let line = format!("{:>9.3} {}", self.start.elapsed().as_secs_f64(), line());
            self.lock().trace.push(line);
        }
    }

    pub(crate) fn name(&self, message: &Message) -> String {
        self.lock().fates[&message.id()].name.clone()
    }

    pub(crate) fn names<'a>(&self, messages: impl Iterator<Item = &'a Message>) -> String {
        let state = self.lock();
        let names: Vec<&str> = messages
            .map(|message| state.fates[&message.id()].name.as_str())
            .collect();
        names.join(" ")
    }
}

impl State {
    /// The next step; every two things that happen have different ones.
    pub(crate) fn step(&mut self) -> u64 {
        self.step += 1;
        self.step
    }

    pub(crate) fn fate(&mut self, message: &Message) -> &mut Fate {
        self.fates
            .get_mut(&message.id())
            .expect("every message was enqueued")
    }
}
