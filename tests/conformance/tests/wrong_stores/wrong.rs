//! A right store around which one thing is done wrong.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use outbox_conformance::store::{Counts, Dead, OpenStore, StoreHarness, Transaction};
use outbox_core::memory::{MemoryStore, MemoryTransaction};
use outbox_core::{
    Claim, ClaimLimits, Claimed, Headers, Message, Outcome, PublishError, Store, StoreError, Uuid,
    async_trait,
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use crate::fault::Fault;

/// Opens stores with a fault, or with none to show that the rest is right.
pub(crate) struct Wrong {
    pub(crate) fault: Option<Fault>,
    pub(crate) patience: Duration,
}

#[async_trait]
impl StoreHarness for Wrong {
    async fn open(&self) -> Box<dyn OpenStore> {
        Box::new(WrongStore {
            fault: self.fault,
            patience: self.patience,
            inner: MemoryStore::new(),
            notes: Arc::default(),
            committed: Arc::default(),
            turn: Arc::new(Semaphore::new(1)),
        })
    }
}

#[derive(Clone)]
struct WrongStore {
    fault: Option<Fault>,
    patience: Duration,
    inner: MemoryStore,
    notes: Arc<Mutex<Notes>>,
    committed: Arc<Notify>,
    turn: Arc<Semaphore>,
}

/// What a fault has to know.
#[derive(Default)]
struct Notes {
    /// What was enqueued, where the store inside holds something else.
    originals: HashMap<Uuid, Message>,
    /// What to add to the counters of the store inside.
    corrections: HashMap<Uuid, (i64, i64)>,
    drawn: u64,
    positions: HashMap<Uuid, u64>,
    last_committed: u64,
    last_delivered: u64,
    /// Committed, and not yet swept up.
    unswept: Vec<Message>,
    claims: usize,
    settles: usize,
    parked_keys: HashSet<String>,
    parked_until: Option<Instant>,
    died: HashMap<Uuid, Message>,
    discarded: HashSet<Uuid>,
    no_longer_halting: Vec<Dead>,
}

impl WrongStore {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().expect("no fault panics")
    }

    /// What the store inside holds for a message.
    fn stored(&self, message: &Message) -> Message {
        match self.fault {
            Some(Fault::ForgetsKeys) => self.disguised(message, None),
            Some(Fault::OneKeyForKeyless) if message.key().is_none() => {
                self.disguised(message, Some("no key".to_owned()))
            }
            Some(Fault::EmptyKeyIsNoKey) if message.key() == Some("") => {
                self.disguised(message, None)
            }
            Some(Fault::DropsAHeader) => rebuilt(message, |parts| {
                let mut headers = Headers::default();
                for (name, value) in parts.headers.iter().skip(1) {
                    headers.insert(name, value).expect("it was valid");
                }
                parts.headers = headers;
            }),
            Some(Fault::PayloadIsText) => rebuilt(message, |parts| {
                parts.payload = parts
                    .payload
                    .as_ref()
                    .map(|bytes| String::from_utf8_lossy(bytes).into_owned().into_bytes());
            }),
            Some(Fault::EmptyIsAbsent) => rebuilt(message, |parts| {
                parts.payload = parts.payload.take().filter(|bytes| !bytes.is_empty());
            }),
            Some(Fault::CutsLongKeys) => rebuilt(message, |parts| {
                if let Some(key) = &mut parts.key {
                    key.truncate(key.floor_char_boundary(8_191));
                }
            }),
            Some(Fault::IgnoresTheDelay) => message
                .clone()
                .with_deliver_after(Duration::ZERO)
                .expect("no delay is valid"),
            Some(Fault::ReplacesTheNilId) => rebuilt(message, |parts| {
                if parts.id.is_nil() {
                    parts.id = Uuid::now_v7();
                }
            }),
            _ => message.clone(),
        }
    }

    /// The message under another key; claims show it as it was.
    fn disguised(&self, message: &Message, key: Option<String>) -> Message {
        let shown = message.clone().with_deliver_after(Duration::ZERO);
        let shown = shown.expect("no delay is valid");
        self.notes().originals.insert(message.id(), shown);
        rebuilt(message, |parts| parts.key = key)
    }

    /// What a claim shows of what the store inside gave.
    fn shown(&self, claimed: &Claimed) -> Claimed {
        let mut notes = self.notes();
        let id = claimed.message.id();
        let (parked, failures) = notes.corrections.get(&id).copied().unwrap_or_default();
        let sum = |count: u32, more: i64| u32::try_from(i64::from(count) + more).unwrap_or(0);
        let mut shown = Claimed {
            message: notes.originals.get(&id).unwrap_or(&claimed.message).clone(),
            parked: sum(claimed.parked, parked),
            failures: sum(claimed.failures, failures),
            crashes: claimed.crashes,
        };
        match self.fault {
            Some(Fault::ForgetsCounters) => (shown.parked, shown.failures) = (0, 0),
            Some(Fault::CountsOnce) => {
                shown.parked = shown.parked.min(1);
                shown.failures = shown.failures.min(1);
            }
            Some(Fault::DropsHeadersOfTheDead) if notes.died.contains_key(&id) => {
                shown.message = rebuilt(&shown.message, |parts| parts.headers = Headers::default());
            }
            _ => {}
        }
        if let Some(key) = shown.message.key() {
            notes.parked_keys.remove(key);
        }
        shown
    }

    async fn claim_inside(
        &self,
        limits: &ClaimLimits,
    ) -> Result<Option<Box<dyn Claim>>, StoreError> {
        let look = ClaimLimits {
            wait: Duration::ZERO,
            ..*limits
        };
        match self.fault {
            Some(Fault::NeverWakes) => match self.inner.claim(&look).await? {
                None => {
                    // wait: the fault is that nothing ends it
                    tokio::time::sleep(limits.wait).await;
                    self.inner.claim(&look).await
                }
                some => Ok(some),
            },
            Some(Fault::WakesOnCommitsOnly) => match self.inner.claim(&look).await? {
                None => {
                    let _ = tokio::time::timeout(limits.wait, self.committed.notified()).await;
                    self.inner.claim(&look).await
                }
                some => Ok(some),
            },
            Some(Fault::KeepsCancelledClaims) => {
                let (answer, call) = oneshot::channel();
                let (inner, limits) = (self.inner.clone(), *limits);
                tokio::spawn(async move {
                    if let Err(claim) = answer.send(inner.claim(&limits).await) {
                        std::mem::forget(claim);
                    }
                });
                call.await.expect("the task answers")
            }
            Some(Fault::SweepsForLateCommits) => match self.inner.claim(&look).await? {
                None => {
                    let unswept = std::mem::take(&mut self.notes().unswept);
                    self.inner.enqueue(&unswept);
                    self.inner.claim(limits).await
                }
                some => Ok(some),
            },
            _ => self.inner.claim(limits).await,
        }
    }

    fn dead_now(&self) -> Vec<(Message, Dead, bool)> {
        let dead = self.inner.dead().into_iter();
        dead.map(|dead| {
            let (id, reason) = (dead.message.id(), dead.error.reason().to_owned());
            (dead.message, Dead { id, reason }, dead.halted)
        })
        .collect()
    }

    fn before_a_decision(&self, ids: &[Uuid]) {
        if !self.is(Fault::AnyDecisionEndsAHalt) {
            return;
        }
        let dead = self.dead_now();
        let (decided, others): (Vec<_>, Vec<_>) = dead
            .into_iter()
            .partition(|(message, _, _)| ids.contains(&message.id()));
        for (message, dead, halt) in others {
            if halt
                && decided
                    .iter()
                    .any(|(other, _, _)| other.key() == message.key())
            {
                self.inner.discard(&[message.id()]);
                self.notes().no_longer_halting.push(dead);
            }
        }
    }
}

#[async_trait]
impl OpenStore for WrongStore {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    async fn begin(&self) -> Box<dyn Transaction> {
        Box::new(WrongTransaction {
            store: self.clone(),
            inner: self.inner.begin(),
            messages: Vec::new(),
            last: 0,
        })
    }

    async fn counts(&self) -> Counts {
        let counts = self.inner.counts();
        Counts {
            waiting: counts.waiting,
            parked: counts.parked,
            dead: counts.dead,
            delayed: counts.delayed,
        }
    }

    async fn dead(&self) -> Vec<Dead> {
        let mut dead: Vec<Dead> = self
            .dead_now()
            .into_iter()
            .map(|(_, dead, _)| dead)
            .collect();
        let notes = self.notes();
        dead.extend(notes.no_longer_halting.iter().cloned());
        dead.retain(|dead| !notes.discarded.contains(&dead.id));
        dead
    }

    async fn replay(&self, ids: &[Uuid]) {
        self.before_a_decision(ids);
        match self.fault {
            Some(Fault::ReplaysAtTheEnd) => {
                for (message, _, _) in self.dead_now() {
                    if ids.contains(&message.id()) {
                        self.inner.discard(&[message.id()]);
                        self.inner.enqueue(&[message]);
                    }
                }
            }
            Some(Fault::ReplaysTwice) => {
                for id in ids {
                    let died = self.notes().died.get(id).cloned();
                    if self.inner.replay(&[*id]) == 0
                        && let Some(message) = died
                    {
                        self.inner.enqueue(&[message]);
                    }
                }
            }
            _ => {
                self.inner.replay(ids);
            }
        }
    }

    async fn cancel(&self, id: Uuid) -> bool {
        self.is(Fault::CancelsNothing) || self.inner.cancel(&[id]) > 0
    }

    async fn discard(&self, ids: &[Uuid]) {
        self.before_a_decision(ids);
        match self.fault {
            Some(Fault::DiscardKeepsTheHalt) => self.notes().discarded.extend(ids),
            _ => {
                self.inner.discard(ids);
            }
        }
    }

    fn one_writer(&self) -> bool {
        self.is(Fault::OneWriterBesideOthers)
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}

struct WrongTransaction {
    store: WrongStore,
    inner: MemoryTransaction,
    messages: Vec<Message>,
    /// The last position drawn.
    last: u64,
}

#[async_trait]
impl Transaction for WrongTransaction {
    async fn enqueue(&mut self, message: &Message) {
        let stored = self.store.stored(message);
        {
            let mut notes = self.store.notes();
            notes.drawn += 1;
            self.last = notes.drawn;
            notes.positions.insert(message.id(), self.last);
        }
        match self.store.fault {
            Some(Fault::ReadsUncommitted) => self.store.inner.enqueue(&[stored]),
            _ => {
                self.inner.enqueue(&stored);
                self.messages.push(stored);
            }
        }
    }

    async fn commit(self: Box<Self>) {
        let Self {
            store,
            inner,
            mut messages,
            last,
        } = *self;
        let (after_delivered, after_committed, during_a_claim, parked_key) = {
            let mut notes = store.notes();
            let after_committed = last < notes.last_committed;
            notes.last_committed = notes.last_committed.max(last);
            let keys: Vec<&str> = messages.iter().filter_map(Message::key).collect();
            (
                last < notes.last_delivered,
                after_committed,
                notes.claims > 0,
                keys.iter().any(|key| notes.parked_keys.contains(*key)),
            )
        };
        match store.fault {
            Some(Fault::LosesLateCommits) if after_delivered => inner.rollback(),
            Some(Fault::SweepsForLateCommits) if after_delivered => {
                store.notes().unswept.append(&mut messages);
                inner.rollback();
            }
            Some(Fault::LosesCommitsDuringAClaim) if during_a_claim => inner.rollback(),
            Some(Fault::ReversesTransactions) => {
                inner.rollback();
                messages.reverse();
                store.inner.enqueue(&messages);
            }
            Some(Fault::LetsNewMessagesPass) if parked_key && !after_committed => {
                inner.rollback();
                let passing: Vec<Message> =
                    messages.iter().map(|m| store.disguised(m, None)).collect();
                store.inner.enqueue(&passing);
            }
            Some(Fault::LetsLateCommitsPass) if parked_key && after_committed => {
                inner.rollback();
                let passing: Vec<Message> =
                    messages.iter().map(|m| store.disguised(m, None)).collect();
                store.inner.enqueue(&passing);
            }
            _ => inner.commit(),
        }
        store.committed.notify_waiters();
    }

    async fn rollback(self: Box<Self>) {
        match self.store.fault {
            Some(Fault::CommitsRollbacks) => self.inner.commit(),
            _ => self.inner.rollback(),
        }
    }
}

#[async_trait]
impl Store for WrongStore {
    async fn claim(&self, limits: &ClaimLimits) -> Result<Option<Box<dyn Claim>>, StoreError> {
        let mut limits = *limits;
        let mut turn = None;
        match self.fault {
            Some(Fault::DoesNotWait) => limits.wait = Duration::ZERO,
            Some(Fault::IgnoresTheNumber) => limits.messages = usize::MAX,
            Some(Fault::IgnoresTheBytes) => limits.bytes = usize::MAX,
            Some(Fault::HoldsForEver) => limits.hold = Duration::MAX,
            Some(Fault::OneFollowerAClaim) if self.inner.counts().parked > 0 => limits.messages = 1,
            Some(Fault::OneClaimAtATime) => {
                let free = self.turn.clone().acquire_owned();
                match tokio::time::timeout(limits.wait, free).await {
                    Ok(permit) => turn = permit.ok(),
                    Err(_) => return Ok(None),
                }
            }
            Some(Fault::ParksEverything) => {
                let until = self.notes().parked_until.filter(|t| *t > Instant::now());
                if let Some(until) = until {
                    let until = until.min(Instant::now() + limits.wait);
                    // wait: the fault is that nothing but the parked message is waited for
                    tokio::time::sleep_until(until).await;
                    return Ok(None);
                }
            }
            _ => {}
        }
        let Some(inner) = self.claim_inside(&limits).await? else {
            return Ok(None);
        };
        let messages: Vec<Claimed> = inner.messages().iter().map(|c| self.shown(c)).collect();
        if self.is(Fault::StopsAtLargerMessages) && messages[0].message.size() > limits.bytes {
            return Ok(None);
        }
        self.notes().claims += 1;
        Ok(Some(Box::new(WrongClaim {
            store: self.clone(),
            inner: Some(inner),
            messages,
            _turn: turn,
        })))
    }
}

struct WrongClaim {
    store: WrongStore,
    inner: Option<Box<dyn Claim>>,
    messages: Vec<Claimed>,
    _turn: Option<OwnedSemaphorePermit>,
}

#[async_trait]
impl Claim for WrongClaim {
    fn messages(&self) -> &[Claimed] {
        &self.messages
    }

    async fn settle(mut self: Box<Self>, mut outcomes: Vec<Outcome>) -> Result<(), StoreError> {
        let inner = self.inner.take().expect("a claim is settled once");
        let store = self.store.clone();
        let count = self.messages.len();
        let right_number = outcomes.len() == count;
        match store.fault {
            Some(Fault::SettlesWhatItGot | Fault::RecordsBeforeItCounts) => {
                outcomes.resize(count, Outcome::Released);
            }
            Some(Fault::LosesSomeSettles) => {
                store.notes().settles += 1;
                if store.notes().settles.is_multiple_of(7) {
                    return Ok(());
                }
            }
            Some(Fault::OverflowsLongParks) => {
                const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);
                if outcomes
                    .iter()
                    .any(|o| matches!(o, Outcome::Park { after, .. } if *after > CENTURY))
                {
                    return Err(StoreError::new("settle", "interval out of range"));
                }
            }
            _ => {}
        }
        if outcomes.len() != count {
            return inner.settle(outcomes).await;
        }
        let again = self.wrong_outcomes(inner.messages().to_vec(), &mut outcomes);
        inner.settle(outcomes).await?;
        for (message, after) in again {
            let inner = store.inner.clone();
            tokio::spawn(async move {
                // wait: the fault is that the message alone is set aside
                tokio::time::sleep(after).await;
                inner.enqueue(&[message]);
            });
        }
        match right_number || store.is(Fault::SettlesWhatItGot) {
            true => Ok(()),
            false => Err(StoreError::new("settle", "a wrong number of outcomes")),
        }
    }
}

impl WrongClaim {
    /// Changes the outcomes as the fault does, and gives what to enqueue again and when.
    fn wrong_outcomes(
        &self,
        inside: Vec<Claimed>,
        outcomes: &mut [Outcome],
    ) -> Vec<(Message, Duration)> {
        let store = &self.store;
        let mut again = Vec::new();
        let last_delivered = outcomes.iter().rposition(|o| *o == Outcome::Delivered);
        let mut first_of_key: HashMap<Option<&str>, Outcome> = HashMap::new();
        for (at, (claimed, outcome)) in self.messages.iter().zip(outcomes).enumerate() {
            let id = claimed.message.id();
            let key = claimed.message.key();
            let before = first_of_key.get(&key).filter(|_| key.is_some()).cloned();
            first_of_key.entry(key).or_insert_with(|| outcome.clone());
            if let Outcome::Dead { .. } = outcome {
                store.notes().died.insert(id, inside[at].message.clone());
            }
            let wrong = match (store.fault, &outcome) {
                (Some(Fault::SettlesARange), _) if Some(at) < last_delivered => Outcome::Delivered,
                (Some(Fault::SettlesKeysAsOne), _) => before.unwrap_or_else(|| outcome.clone()),
                (Some(Fault::CountsReleases), Outcome::Released) => Outcome::Park {
                    after: Duration::ZERO,
                    counted: true,
                    error: PublishError::retryable("released"),
                },
                (Some(Fault::ForgetsHowLong), Outcome::Park { counted, error, .. }) => {
                    Outcome::Park {
                        after: Duration::ZERO,
                        counted: *counted,
                        error: error.clone(),
                    }
                }
                (Some(Fault::CountsEveryPark), Outcome::Park { after, error, .. }) => {
                    Outcome::Park {
                        after: *after,
                        counted: true,
                        error: error.clone(),
                    }
                }
                (Some(Fault::ForgetsFollowers), Outcome::Park { after, counted, .. }) => {
                    again.push((inside[at].message.clone(), *after));
                    let mut notes = store.notes();
                    let correction = notes.corrections.entry(id).or_default();
                    correction.0 += 1;
                    correction.1 += i64::from(*counted);
                    Outcome::Delivered
                }
                (Some(Fault::ParksOnlyFirsts), Outcome::Park { .. }) if before.is_some() => {
                    Outcome::Released
                }
                (Some(Fault::LetsReleasedPass), Outcome::Released)
                    if matches!(before, Some(Outcome::Park { .. })) =>
                {
                    let passing = store.disguised(&claimed.message, None);
                    again.push((passing, Duration::ZERO));
                    Outcome::Delivered
                }
                (Some(Fault::ParksBehindNothing), Outcome::Behind) if before.is_none() => {
                    Outcome::Park {
                        after: Duration::MAX,
                        counted: false,
                        error: PublishError::topic_unavailable("behind nothing"),
                    }
                }
                (Some(Fault::DropsTheDead), Outcome::Dead { .. }) => Outcome::Delivered,
                (Some(Fault::CutsReasons), Outcome::Dead { error, halt }) => Outcome::Dead {
                    error: PublishError::rejected(error.reason().get(..255).unwrap_or("cut")),
                    halt: *halt,
                },
                (Some(Fault::AlwaysHalts), Outcome::Dead { error, .. }) => Outcome::Dead {
                    error: error.clone(),
                    halt: true,
                },
                (Some(Fault::KeepsFollowersOfTheDead), Outcome::Dead { error, halt }) => {
                    Outcome::Dead {
                        error: error.clone(),
                        halt: *halt || claimed.parked > 0,
                    }
                }
                (Some(Fault::NeverHalts), Outcome::Dead { error, .. }) => Outcome::Dead {
                    error: error.clone(),
                    halt: false,
                },
                _ => outcome.clone(),
            };
            let mut notes = store.notes();
            if *outcome == Outcome::Behind && store.is(Fault::ForgetsCountersOfFollowers) {
                notes.forget_counters(&inside[at]);
            }
            if let Outcome::Park { after, .. } = &wrong {
                notes.parked_keys.extend(key.map(str::to_owned));
                let until = Instant::now().checked_add(*after);
                notes.parked_until = notes.parked_until.max(until);
            }
            if wrong == Outcome::Delivered {
                let position = notes.positions.get(&id).copied().unwrap_or_default();
                notes.last_delivered = notes.last_delivered.max(position);
            }
            drop(notes);
            *outcome = wrong;
        }
        again
    }
}

impl Notes {
    fn forget_counters(&mut self, inside: &Claimed) {
        let correction = (-i64::from(inside.parked), -i64::from(inside.failures));
        self.corrections.insert(inside.message.id(), correction);
    }
}

impl Drop for WrongClaim {
    fn drop(&mut self) {
        self.store.notes().claims -= 1;
        let Some(inner) = self.inner.take() else {
            return;
        };
        match self.store.fault {
            Some(Fault::KeepsDroppedClaims) => std::mem::forget(inner),
            Some(Fault::DropForgetsCounters) => {
                for claimed in inner.messages() {
                    self.store.notes().forget_counters(claimed);
                }
            }
            _ => {}
        }
    }
}

/// The parts of a message that faults change.
struct Parts {
    id: Uuid,
    key: Option<String>,
    payload: Option<Vec<u8>>,
    headers: Headers,
}

fn rebuilt(message: &Message, change: impl FnOnce(&mut Parts)) -> Message {
    let mut parts = Parts {
        id: message.id(),
        key: message.key().map(str::to_owned),
        payload: message.payload().map(|bytes| bytes.to_vec()),
        headers: message.headers().clone(),
    };
    change(&mut parts);
    Message::from_parts(
        parts.id,
        message.topic().to_owned(),
        parts.key,
        parts.payload.map(Into::into),
        parts.headers,
    )
    .expect("a change that leaves it valid")
}
