//! The store in memory behind the faults that a database and the way to it have.

use std::sync::{Arc, Mutex};

use outbox_core::memory::MemoryStore;
use outbox_core::{Claim, ClaimLimits, Claimed, Outcome, Store, StoreError, async_trait};
use tokio::time::sleep;

use crate::check::Violation;
use crate::point::{Failed, Life, Point};
use crate::world::{Mutant, World};

pub(crate) struct SimStore {
    pub(crate) world: Arc<World>,
    pub(crate) inner: MemoryStore,
    pub(crate) life: Arc<Life>,
}

struct SimClaim {
    world: Arc<World>,
    life: Arc<Life>,
    messages: Vec<Claimed>,
    /// For each message, its place in the claim of the store behind.
    places: Vec<usize>,
    /// Empty once the claim has ended, by whoever ended it.
    inner: Arc<Mutex<Option<Box<dyn Claim>>>>,
}

#[async_trait]
impl Store for SimStore {
    async fn claim(&self, limits: &ClaimLimits) -> Result<Option<Box<dyn Claim>>, StoreError> {
        let world = &self.world;
        sleep(world.moment(2)).await;
        let gone = |Failed| StoreError::new("claim", "the database is gone");
        world.reach(Point::Claim, &self.life).await.map_err(gone)?;
        let Some(inner) = self.inner.claim(limits).await? else {
            return Ok(None);
        };
        world
            .reach(Point::Claimed, &self.life)
            .await
            .map_err(gone)?;
        let messages = inner.messages();
        world.trace(|| {
            let names = world.names(messages.iter().map(|claimed| &claimed.message));
            format!("claim     {names}")
        });
        self.note_claimed(messages);
        self.check_failures(messages);
        let places: Vec<usize> = match world.is(Mutant::ReordersAKey) {
            true => (0..messages.len()).rev().collect(),
            false => (0..messages.len()).collect(),
        };
        let messages = places
            .iter()
            .map(|&place| messages[place].clone())
            .collect();
        let inner = Arc::new(Mutex::new(Some(inner)));
        if world.goes_wrong("claim to be cut", world.rates.cut) {
            tokio::spawn(cut(Arc::clone(world), Arc::clone(&inner)));
        }
        Ok(Some(Box::new(SimClaim {
            world: Arc::clone(world),
            life: Arc::clone(&self.life),
            messages,
            places,
            inner,
        })))
    }
}

impl SimStore {
    fn note_claimed(&self, messages: &[Claimed]) {
        let mut state = self.world.lock();
        for claimed in messages {
            let step = state.step();
            state.fate(&claimed.message).claimed.get_or_insert(step);
        }
    }

    /// What is counted must have happened.
    fn check_failures(&self, messages: &[Claimed]) {
        for claimed in messages {
            let (name, own) = {
                let mut state = self.world.lock();
                let fate = state.fate(&claimed.message);
                (fate.name.clone(), fate.own_failures())
            };
            if claimed.failures > own {
                self.world.violation(Violation::CountedTooMuch {
                    message: name,
                    counted: claimed.failures,
                    own,
                });
            }
        }
    }
}

/// Ends the claim as a server does that has not heard from its client for too long.
async fn cut(world: Arc<World>, inner: Arc<Mutex<Option<Box<dyn Claim>>>>) {
    sleep(world.moment(60)).await;
    let claim = inner.lock().unwrap().take();
    if let Some(claim) = claim {
        world.fault("claim cut");
        world.trace(|| {
            let names = world.names(claim.messages().iter().map(|claimed| &claimed.message));
            format!("cut       {names}")
        });
    }
}

#[async_trait]
impl Claim for SimClaim {
    fn messages(&self) -> &[Claimed] {
        &self.messages
    }

    async fn settle(self: Box<Self>, outcomes: Vec<Outcome>) -> Result<(), StoreError> {
        let world = &self.world;
        sleep(world.moment(3)).await;
        let gone = |Failed| StoreError::new("settle", "the database is gone");
        world.reach(Point::Settle, &self.life).await.map_err(gone)?;
        let inner = self.inner.lock().unwrap().take();
        let Some(inner) = inner else {
            world.trace(|| "settle    refused".to_owned());
            return Err(StoreError::new("settle", "the server has ended the claim"));
        };
        self.record(inner, outcomes).await?;
        world.reach(Point::Settled, &self.life).await.map_err(gone)
    }
}

impl SimClaim {
    async fn record(
        &self,
        inner: Box<dyn Claim>,
        mut outcomes: Vec<Outcome>,
    ) -> Result<(), StoreError> {
        let world = &self.world;
        world.trace(|| {
            let state = world.lock();
            let outcomes: Vec<String> = self
                .messages
                .iter()
                .zip(&outcomes)
                .map(|(claimed, outcome)| {
                    format!(
                        "{} {}",
                        state.fates[&claimed.message.id()].name,
                        word(outcome)
                    )
                })
                .collect();
            format!("settle    {}", outcomes.join(", "))
        });
        if world.is(Mutant::SettlesARange) {
            outcomes.fill(Outcome::Delivered);
        }
        if world.is(Mutant::ForgetsHalts) {
            for outcome in &mut outcomes {
                if let Outcome::Dead { halt, .. } = outcome {
                    *halt = false;
                }
            }
        }
        for (claimed, outcome) in self.messages.iter().zip(&outcomes) {
            self.note(claimed, outcome);
        }
        let mut placed: Vec<(usize, Outcome)> = self.places.iter().copied().zip(outcomes).collect();
        placed.sort_by_key(|(place, _)| *place);
        let outcomes = placed.into_iter().map(|(_, outcome)| outcome).collect();
        inner.settle(outcomes).await
    }

    fn note(&self, claimed: &Claimed, outcome: &Outcome) {
        let world = &self.world;
        let mut state = world.lock();
        let step = state.step();
        let fate = state.fate(&claimed.message);
        let name = fate.name.clone();
        let own = fate.own_failures();
        let violation = match outcome {
            Outcome::Delivered => {
                fate.delivered = Some(step);
                fate.copies
                    .is_empty()
                    .then_some(Violation::NeverTaken { message: name })
            }
            Outcome::Dead { .. } => {
                fate.dead = Some(step);
                let deserved = fate.poison || own >= world.max_failures;
                (!deserved).then_some(Violation::DeadTooEarly { message: name, own })
            }
            Outcome::Park { counted, .. } => {
                let allowed = claimed.failures + u32::from(*counted) <= own;
                (!allowed).then_some(Violation::CountedTooMuch {
                    message: name,
                    counted: claimed.failures + 1,
                    own,
                })
            }
            Outcome::Behind | Outcome::Released => None,
        };
        drop(state);
        if let Some(violation) = violation {
            world.violation(violation);
        }
    }
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Delivered => "delivered",
        Outcome::Park { counted: true, .. } => "parked, counted",
        Outcome::Park { counted: false, .. } => "parked",
        Outcome::Behind => "behind",
        Outcome::Dead { halt: true, .. } => "dead, halted",
        Outcome::Dead { halt: false, .. } => "dead",
        Outcome::Released => "released",
    }
}

impl Drop for SimClaim {
    fn drop(&mut self) {
        // Also when a cut is still to come: a claim ends once.
        let inner = self.inner.lock().unwrap().take();
        if let Some(inner) = inner
            && self.world.is(Mutant::DropsAsDelivered)
        {
            let all = vec![Outcome::Delivered; inner.messages().len()];
            tokio::spawn(inner.settle(all));
        }
    }
}
