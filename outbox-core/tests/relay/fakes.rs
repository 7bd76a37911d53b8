//! A store over the one in memory and a broker, both watched and both misbehaving on demand.

use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::memory::{MemoryCounts, MemoryStore};
use outbox_core::{
    Claim, ClaimLimits, Claimed, Delivery, Message, Outcome, PublishError, Publisher, Store,
    StoreError, Uuid, async_trait,
};
use tokio::time::{Instant, sleep};

/// What the store does instead of its work.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Error,
    Hang,
    Panic,
}

impl Fault {
    async fn happen(self, doing: &'static str) -> StoreError {
        match self {
            Self::Error => StoreError::new(doing, "the database is gone"),
            Self::Hang => pending().await,
            Self::Panic => panic!("{doing} panics"),
        }
    }
}

type Faults = Box<dyn FnMut(u32) -> Option<Fault> + Send>;

#[derive(Clone, Default)]
pub(crate) struct FakeStore {
    inner: MemoryStore,
    watch: Arc<Mutex<Watch>>,
}

#[derive(Default)]
struct Watch {
    claims: u32,
    settles: u32,
    at_once: u32,
    most_at_once: u32,
    claim_faults: Option<Faults>,
    settle_faults: Option<Faults>,
    claim_takes: Duration,
    claimed: Vec<Claimed>,
    held: u32,
    hold: Option<Duration>,
    longest_hold: Duration,
    enqueued: Vec<Uuid>,
    settled: HashSet<Uuid>,
}

impl FakeStore {
    pub(crate) fn enqueue(&self, messages: &[Message]) {
        let ids = messages.iter().map(Message::id);
        self.watch.lock().unwrap().enqueued.extend(ids);
        self.inner.enqueue(messages);
    }

    pub(crate) fn counts(&self) -> MemoryCounts {
        self.inner.counts()
    }

    pub(crate) fn fail_claims(&self, faults: impl FnMut(u32) -> Option<Fault> + Send + 'static) {
        self.watch.lock().unwrap().claim_faults = Some(Box::new(faults));
    }

    pub(crate) fn fail_settles(&self, faults: impl FnMut(u32) -> Option<Fault> + Send + 'static) {
        self.watch.lock().unwrap().settle_faults = Some(Box::new(faults));
    }

    pub(crate) fn answer_claims_after(&self, time: Duration) {
        self.watch.lock().unwrap().claim_takes = time;
    }

    pub(crate) fn claims(&self) -> u32 {
        self.watch.lock().unwrap().claims
    }

    pub(crate) fn claims_at_once(&self) -> u32 {
        self.watch.lock().unwrap().at_once
    }

    pub(crate) fn most_claims_at_once(&self) -> u32 {
        self.watch.lock().unwrap().most_at_once
    }

    /// Every message as often as it was claimed, with what it was claimed as.
    pub(crate) fn claimed(&self) -> Vec<Claimed> {
        self.watch.lock().unwrap().claimed.clone()
    }

    /// What was never settled as delivered, in the order of enqueueing.
    pub(crate) fn left(&self) -> Vec<Uuid> {
        let watch = self.watch.lock().unwrap();
        let left = watch.enqueued.iter().copied();
        left.filter(|id| !watch.settled.contains(id)).collect()
    }

    /// How many claims are neither settled nor dropped.
    pub(crate) fn held(&self) -> u32 {
        self.watch.lock().unwrap().held
    }

    /// What the last claim was told.
    pub(crate) fn hold(&self) -> Option<Duration> {
        self.watch.lock().unwrap().hold
    }

    pub(crate) fn longest_hold(&self) -> Duration {
        self.watch.lock().unwrap().longest_hold
    }
}

/// Counts a claim call as long as it runs, also when it is dropped.
struct Running(Arc<Mutex<Watch>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().unwrap().at_once -= 1;
    }
}

#[async_trait]
impl Store for FakeStore {
    async fn claim(&self, limits: &ClaimLimits) -> Result<Option<Box<dyn Claim>>, StoreError> {
        let running = Running(Arc::clone(&self.watch));
        let (fault, takes) = {
            let mut watch = self.watch.lock().unwrap();
            watch.claims += 1;
            watch.at_once += 1;
            watch.most_at_once = watch.most_at_once.max(watch.at_once);
            watch.hold = Some(limits.hold);
            let claims = watch.claims;
            let faults = watch.claim_faults.as_mut();
            (faults.and_then(|faults| faults(claims)), watch.claim_takes)
        };
        if let Some(fault) = fault {
            return Err(fault.happen("claim").await);
        }
        sleep(takes).await; // wait: on the paused clock
        let claim = self.inner.claim(limits).await?;
        drop(running);
        let Some(inner) = claim else { return Ok(None) };
        let mut watch = self.watch.lock().unwrap();
        watch.claimed.extend_from_slice(inner.messages());
        watch.held += 1;
        Ok(Some(Box::new(FakeClaim {
            inner: Some(inner),
            since: Instant::now(),
            watch: Arc::clone(&self.watch),
        })))
    }
}

struct FakeClaim {
    inner: Option<Box<dyn Claim>>,
    since: Instant,
    watch: Arc<Mutex<Watch>>,
}

#[async_trait]
impl Claim for FakeClaim {
    fn messages(&self) -> &[Claimed] {
        self.inner.as_ref().unwrap().messages()
    }

    async fn settle(mut self: Box<Self>, outcomes: Vec<Outcome>) -> Result<(), StoreError> {
        let fault = {
            let mut watch = self.watch.lock().unwrap();
            watch.settles += 1;
            let settles = watch.settles;
            let faults = watch.settle_faults.as_mut();
            faults.and_then(|faults| faults(settles))
        };
        if let Some(fault) = fault {
            return Err(fault.happen("settle").await);
        }
        let inner = self.inner.take().unwrap();
        let delivered: Vec<Uuid> = inner
            .messages()
            .iter()
            .zip(&outcomes)
            .filter(|(_, outcome)| **outcome == Outcome::Delivered)
            .map(|(claimed, _)| claimed.message.id())
            .collect();
        inner.settle(outcomes).await?;
        self.watch.lock().unwrap().settled.extend(delivered);
        Ok(())
    }
}

impl Drop for FakeClaim {
    fn drop(&mut self) {
        let mut watch = self.watch.lock().unwrap();
        watch.held -= 1;
        watch.longest_hold = watch.longest_hold.max(self.since.elapsed());
    }
}

/// What the broker does with one message.
pub(crate) enum Act {
    Answer(Result<(), PublishError>),
    AnswerAfter(Duration),
    FailAfter(Duration, PublishError),
    /// Says nothing about it, and does not return either.
    Hang,
    /// Panics at the first try and confirms at the next.
    PanicOnce,
}

type Script = Box<dyn FnMut(&Message) -> Act + Send>;

#[derive(Clone)]
pub(crate) struct FakeBroker {
    script: Arc<Mutex<Script>>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    batches: Vec<Batch>,
    confirmed: Vec<Uuid>,
    tries: HashMap<Uuid, u32>,
}

#[derive(Clone)]
pub(crate) struct Batch {
    pub(crate) at: Instant,
    pub(crate) messages: Vec<Uuid>,
}

impl Default for FakeBroker {
    fn default() -> Self {
        Self::new(|_| Act::Answer(Ok(())))
    }
}

impl FakeBroker {
    pub(crate) fn new(script: impl FnMut(&Message) -> Act + Send + 'static) -> Self {
        Self {
            script: Arc::new(Mutex::new(Box::new(script))),
            seen: Arc::default(),
        }
    }

    pub(crate) fn batches(&self) -> Vec<Batch> {
        self.seen.lock().unwrap().batches.clone()
    }

    pub(crate) fn confirmed(&self) -> Vec<Uuid> {
        self.seen.lock().unwrap().confirmed.clone()
    }

    fn confirm(&self, delivery: &Delivery<'_>) {
        self.seen
            .lock()
            .unwrap()
            .confirmed
            .push(delivery.message().id());
        delivery.report(Ok(()));
    }
}

#[async_trait]
impl Publisher for FakeBroker {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        self.seen.lock().unwrap().batches.push(Batch {
            at: Instant::now(),
            messages: batch
                .iter()
                .map(|delivery| delivery.message().id())
                .collect(),
        });
        let mut hang = false;
        for delivery in batch {
            let act = (self.script.lock().unwrap())(delivery.message());
            match act {
                Act::Answer(Ok(())) => self.confirm(delivery),
                Act::Answer(error) => delivery.report(error),
                Act::AnswerAfter(time) => {
                    sleep(time).await; // wait: on the paused clock
                    self.confirm(delivery);
                }
                Act::FailAfter(time, error) => {
                    sleep(time).await; // wait: on the paused clock
                    delivery.report(Err(error));
                }
                Act::Hang => hang = true,
                Act::PanicOnce => {
                    let tries = {
                        let mut seen = self.seen.lock().unwrap();
                        let tries = seen.tries.entry(delivery.message().id()).or_default();
                        *tries += 1;
                        *tries
                    };
                    assert!(tries > 1, "the publisher panics");
                    self.confirm(delivery);
                }
            }
        }
        if hang {
            pending::<()>().await;
        }
    }
}
