//! Every place at which a call into the store or a publisher waits, and what may happen there.
//!
//! At such a place the relay can be late, hear an error, hear nothing until it gives the call up, meet a
//! panic, or die, alone or with all that it holds. Which of these happens is drawn from the seed, or a
//! [`Script`] says it: then it can be tried at each place in turn.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::broker::SIMULATED_PANIC;
use crate::world::World;

/// Where a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The store was asked for messages.
    Claim,
    /// It holds some, and the relay does not know.
    Claimed,
    /// A publisher was called, and nothing is sent.
    Publish,
    /// The broker has answered about a message, and the relay does not know.
    Answer,
    /// Everything is answered, and the publisher has not returned.
    Published,
    /// The store was given the outcomes, and nothing is recorded.
    Settle,
    /// They are recorded, and the relay does not know.
    Settled,
}

impl Point {
    const ALL: [Self; 7] = [
        Self::Claim,
        Self::Claimed,
        Self::Publish,
        Self::Answer,
        Self::Published,
        Self::Settle,
        Self::Settled,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Claim => "before a claim",
            Self::Claimed => "after a claim",
            Self::Publish => "before a wave",
            Self::Answer => "in a wave",
            Self::Published => "after a wave",
            Self::Settle => "before a settle",
            Self::Settled => "after a settle",
        }
    }
}

/// What happens to a call at a [`Point`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It goes on later.
    Delay,
    /// It fails: with an error of the store, or without an answer of the publisher.
    Error,
    /// It never goes on; who waits for it gives it up.
    Silence,
    /// It panics.
    Panic,
    /// The process of the relay dies here.
    Kill,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Delay,
        Self::Error,
        Self::Silence,
        Self::Panic,
        Self::Kill,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Delay => "delayed",
            Self::Error => "failed",
            Self::Silence => "given up",
            Self::Panic => "panicked",
            Self::Kill => "killed",
        }
    }
}

/// What goes wrong, and nothing else: at the n-th point that a run reaches, counted from zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// One fault.
    pub first: Option<(u64, Fault)>,
    /// Another one.
    pub second: Option<(u64, Fault)>,
}

impl Script {
    fn at(self, point: u64) -> Option<Fault> {
        let both = [self.first, self.second];
        let mut here = both.into_iter().flatten().filter(|(at, _)| *at == point);
        here.next().map(|(_, fault)| fault)
    }
}

/// How likely each fault is at each point of a run, in thousandths.
#[derive(Default)]
pub(crate) struct PointRates([[u32; 5]; 7]);

impl PointRates {
    /// Most of them do not happen, so that each is also seen without the others.
    pub(crate) fn draw(rng: &mut fastrand::Rng) -> Self {
        let mut rates = [[0; 5]; 7];
        for point in Point::ALL {
            for fault in Fault::ALL {
                if rng.u8(0..4) == 0 {
                    // Each of the messages of a wave is answered, so here it is often.
                    let most = if point == Point::Answer { 20 } else { 120 };
                    rates[point as usize][fault as usize] = rng.u32(1..=most);
                }
            }
        }
        Self(rates)
    }

    fn hit(&self, point: Point, mut dice: u32) -> Option<Fault> {
        for fault in Fault::ALL {
            let rate = self.0[point as usize][fault as usize];
            if dice < rate {
                return Some(fault);
            }
            dice -= rate;
        }
        None
    }
}

/// One life of a relay's process.
#[derive(Default)]
pub(crate) struct Life {
    over: AtomicBool,
    end: Notify,
}

impl Life {
    /// Has it killed.
    fn kill(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.end.notify_waiters();
    }

    /// Returns when it is to be killed.
    pub(crate) async fn killed(&self) {
        let end = self.end.notified();
        if !self.over.load(Ordering::Relaxed) {
            end.await;
        }
    }
}

/// The call fails.
pub(crate) struct Failed;

impl World {
    /// A call waits here; what it meets.
    pub(crate) async fn reach(&self, point: Point, life: &Life) -> Result<(), Failed> {
        let fault = {
            let mut state = self.lock();
            let number = state.points;
            state.points += 1;
            match self.script {
                Some(script) => script.at(number),
                None if state.calm => None,
                None => {
                    let dice = state.rng.u32(0..1000);
                    self.rates.points.hit(point, dice)
                }
            }
        };
        let Some(fault) = fault else { return Ok(()) };
        self.met(point, fault);
        match fault {
            Fault::Delay => {
                let most = self.lock().rng.u64(1..=600);
                sleep(Duration::from_millis(most)).await;
                Ok(())
            }
            Fault::Error => Err(Failed),
            Fault::Silence => std::future::pending().await,
            Fault::Panic => panic!("{SIMULATED_PANIC}"),
            Fault::Kill => {
                life.kill();
                std::future::pending().await
            }
        }
    }

    fn met(&self, point: Point, fault: Fault) {
        self.trace(|| format!("{} {}", fault.name(), point.name()));
        let name = format!("{} {}", fault.name(), point.name());
        *self.lock().stats.faults.entry(name).or_default() += 1;
    }
}
