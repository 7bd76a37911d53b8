//! A store in memory.
//!
//! Messages of one key form a *line*, in the order of their positions; a message without a key is a
//! line of its own. What can be claimed of a line is its front as far as every message there is due:
//! a parked message, or a dead one that halts, thereby keeps everything behind it. One claim at a time
//! holds a line. That is the whole of the semantics; the rest of this file finds such fronts quickly.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::Instant;
use uuid::Uuid;

use crate::{Claim, ClaimLimits, Claimed, Message, Outcome, PublishError, Store, StoreError};

/// A store in memory, with the semantics of the production store, for one process.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use outbox_core::memory::MemoryStore;
/// use outbox_core::{ClaimLimits, Message, Outcome, Store};
///
/// let store = MemoryStore::new();
/// let mut transaction = store.begin();
/// transaction.enqueue(&Message::to("orders.placed").key(7).json("seven")?);
/// transaction.commit();
///
/// let limits = ClaimLimits {
///     messages: 100,
///     bytes: 1_000_000,
///     wait: Duration::ZERO,
///     hold: Duration::from_secs(30),
/// };
/// let claim = store.claim(&limits).await?.expect("one message waits");
/// assert_eq!(claim.messages()[0].message.key(), Some("7"));
/// claim.settle(vec![Outcome::Delivered]).await?;
/// assert_eq!(store.counts().waiting, 0);
/// # Ok(()) }
/// ```
///
/// Clones share the messages. A claim that is neither settled nor dropped within its `hold` and one
/// second is taken away: its messages can be claimed again, and its settle fails.
#[derive(Clone, Default)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

/// How many messages are in which place, from [`MemoryStore::counts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCounts {
    /// Those that were not set aside, claimed or not.
    pub waiting: usize,
    /// Those set aside until their next try or behind another message, due or not.
    pub parked: usize,
    /// Those given up.
    pub dead: usize,
    /// Those that are not due yet for the first time, or were not moved to the waiting since.
    pub delayed: usize,
}

/// A message that was given up, from [`MemoryStore::dead`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryDead {
    /// The message.
    pub message: Message,
    /// The reason.
    pub error: PublishError,
    /// Whether the later messages of its key wait for a decision.
    pub halted: bool,
    /// How often it had been parked before.
    pub parked: u32,
    /// How many of these were failures.
    pub failures: u32,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a transaction.
    pub fn begin(&self) -> MemoryTransaction {
        MemoryTransaction {
            store: self.clone(),
            messages: Vec::new(),
            delayed: Vec::new(),
        }
    }

    /// Enqueues messages in a transaction of their own, in slice order.
    pub fn enqueue(&self, messages: &[Message]) {
        let mut transaction = self.begin();
        for message in messages {
            transaction.enqueue(message);
        }
        transaction.commit();
    }

    /// How many messages are in which place. Looks at every message.
    pub fn counts(&self) -> MemoryCounts {
        let state = self.lock();
        let mut counts = MemoryCounts {
            delayed: state.delayed.len(),
            ..MemoryCounts::default()
        };
        for entry in state.messages.values() {
            match entry.place {
                Place::Waiting => counts.waiting += 1,
                Place::Parked { .. } => counts.parked += 1,
                Place::Dead { .. } => counts.dead += 1,
            }
        }
        counts
    }

    /// What was given up, in the order of enqueueing. Looks at every message.
    pub fn dead(&self) -> Vec<MemoryDead> {
        self.lock()
            .messages
            .values()
            .filter_map(|entry| match &entry.place {
                Place::Dead { error, halt } => Some(MemoryDead {
                    message: entry.message.clone(),
                    error: error.clone(),
                    halted: *halt,
                    parked: entry.parked,
                    failures: entry.failures,
                }),
                _ => None,
            })
            .collect()
    }

    /// Puts dead messages back to their old place among the messages of their key, due at once, as
    /// if they had never failed. Gives the number of those that were dead.
    pub fn replay(&self, ids: &[Uuid]) -> usize {
        self.decide(ids, |state, position, now| {
            if let Some(entry) = state.messages.get_mut(&position) {
                entry.place = Place::Parked { due: now };
                entry.parked = 0;
                entry.failures = 0;
                let line = entry.line(position);
                state.line(&line).positions.insert(position);
                state.index(&line);
            }
        })
    }

    /// Drops dead messages; a key that one of them halted goes on. Gives the number of those that
    /// were dead.
    pub fn discard(&self, ids: &[Uuid]) -> usize {
        self.decide(ids, |state, position, _| state.remove(position))
    }

    /// Drops delayed messages that did not become due yet. Gives the number of those that were delayed. Looks
    /// at every delayed message.
    pub fn cancel(&self, ids: &[Uuid]) -> usize {
        let mut state = self.lock();
        state.deliver_due(Instant::now());
        let before = state.delayed.len();
        state
            .delayed
            .retain(|_, message| !ids.contains(&message.id()));
        before - state.delayed.len()
    }

    fn decide(&self, ids: &[Uuid], mut decision: impl FnMut(&mut State, u64, Instant)) -> usize {
        let now = Instant::now();
        let ids: BTreeSet<&Uuid> = ids.iter().collect();
        let mut state = self.lock();
        let dead: Vec<u64> = state
            .messages
            .iter()
            .filter(|(_, entry)| matches!(entry.place, Place::Dead { .. }))
            .filter(|(_, entry)| ids.contains(&entry.message.id()))
            .map(|(position, _)| *position)
            .collect();
        for position in &dead {
            decision(&mut state, *position, now);
        }
        drop(state);
        self.shared.changed.notify_waiters();
        dead.len()
    }

    /// No code of a caller runs under the lock, and no step of it can panic half-way.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

/// A transaction that enqueues; dropping it rolls it back.
///
/// As in a database, a message gets its position when it is enqueued and is seen when the
/// transaction commits: two transactions may commit in the other order.
#[must_use = "what is not committed is rolled back"]
#[derive(Debug)]
pub struct MemoryTransaction {
    store: MemoryStore,
    messages: Vec<(u64, Message)>,
    delayed: Vec<((Instant, u64), Message)>,
}

impl MemoryTransaction {
    /// Enqueues one message. A delay counts from now, not from the commit.
    pub fn enqueue(&mut self, message: &Message) {
        let mut state = self.store.lock();
        state.drawn += 1;
        let number = state.drawn;
        match message.deliver_after() {
            Duration::ZERO => self.messages.push((number, message.clone())),
            delay => {
                let due = later(Instant::now(), delay);
                self.delayed.push(((due, number), message.clone()));
            }
        }
    }

    /// What it has enqueued so far, in order and the delayed messages last: for
    /// [`assert_enqueued`](crate::testing::assert_enqueued).
    pub fn enqueued(&self) -> Vec<Message> {
        let messages = self.messages.iter().map(|(_, message)| message);
        let delayed = self.delayed.iter().map(|(_, message)| message);
        messages.chain(delayed).cloned().collect()
    }

    /// Makes the messages visible, all at once.
    pub fn commit(self) {
        let mut state = self.store.lock();
        for (position, message) in self.messages {
            state.insert(position, message);
        }
        state.delayed.extend(self.delayed);
        drop(state);
        self.store.shared.changed.notify_waiters();
    }

    /// Forgets the messages.
    pub fn rollback(self) {}
}

#[async_trait]
impl Store for MemoryStore {
    async fn claim(&self, limits: &ClaimLimits) -> Result<Option<Box<dyn Claim>>, StoreError> {
        let end = later(Instant::now(), limits.wait);
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            // Registered before the look, so that nothing is missed between look and wait.
            changed.as_mut().enable();
            let now = Instant::now();
            let next_change = {
                let mut state = self.lock();
                if let Some((id, positions, messages)) = state.claim(limits, now) {
                    return Ok(Some(Box::new(MemoryClaim {
                        store: self.clone(),
                        id,
                        positions,
                        messages,
                    })));
                }
                state.next_change()
            };
            if now >= end {
                return Ok(None);
            }
            let until = next_change.map_or(end, |next| next.min(end));
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }
}

struct MemoryClaim {
    store: MemoryStore,
    id: u64,
    positions: Vec<u64>,
    messages: Vec<Claimed>,
}

#[async_trait]
impl Claim for MemoryClaim {
    fn messages(&self) -> &[Claimed] {
        &self.messages
    }

    async fn settle(self: Box<Self>, outcomes: Vec<Outcome>) -> Result<(), StoreError> {
        if outcomes.len() != self.positions.len() {
            return Err(StoreError::new(
                "settle",
                format!(
                    "{} outcomes for {} messages",
                    outcomes.len(),
                    self.positions.len()
                ),
            ));
        }
        let now = Instant::now();
        let mut state = self.store.lock();
        state.take_away_overdue(now);
        if !state.claims.contains_key(&self.id) {
            return Err(StoreError::new(
                "settle",
                "the claim was held for too long and taken away",
            ));
        }
        for (position, outcome) in self.positions.iter().zip(outcomes) {
            state.record(*position, outcome, now);
        }
        // The drop of this claim, which follows, ends the hold and wakes who waits.
        Ok(())
    }
}

impl Drop for MemoryClaim {
    fn drop(&mut self) {
        self.store.lock().end_claim(self.id);
        self.store.shared.changed.notify_waiters();
    }
}

/// How long after its `hold` a claim is taken away.
const HOLD_MARGIN: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    /// The last position that was given out.
    drawn: u64,
    /// Messages that wait for their time, by it and by when they were enqueued. They have no place in an
    /// order yet.
    delayed: BTreeMap<(Instant, u64), Message>,
    /// Every other message by its position. One map and one place each, so that none is in two.
    messages: BTreeMap<u64, Entry>,
    lines: HashMap<LineId, Line>,
    /// The lines that a claim may take from now, by the position of their front.
    ready: BTreeSet<(u64, LineId)>,
    /// The lines whose front is due later.
    later: BTreeSet<(Instant, LineId)>,
    claims: BTreeMap<u64, Held>,
    last_claim: u64,
}

struct Entry {
    message: Message,
    parked: u32,
    failures: u32,
    place: Place,
}

enum Place {
    Waiting,
    Parked { due: Instant },
    Dead { error: PublishError, halt: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum LineId {
    Key(Arc<str>),
    Alone(u64),
}

#[derive(Default)]
struct Line {
    /// What waits here in order, and the dead messages that halt it.
    positions: BTreeSet<u64>,
    held: bool,
    listed: Option<Listed>,
}

/// In which index of the state a line stands, and where.
#[derive(Clone, Copy)]
enum Listed {
    Ready(u64),
    Later(Instant),
}

struct Held {
    until: Instant,
    lines: Vec<LineId>,
}

impl Entry {
    fn line(&self, position: u64) -> LineId {
        match self.message.key() {
            Some(key) => LineId::Key(key.into()),
            None => LineId::Alone(position),
        }
    }

    /// When it may be claimed: `None` is never.
    fn due(&self) -> Option<Due> {
        match self.place {
            Place::Waiting => Some(Due::Always),
            Place::Parked { due } => Some(Due::From(due)),
            Place::Dead { .. } => None,
        }
    }
}

enum Due {
    Always,
    From(Instant),
}

impl Due {
    fn is_past(&self, now: Instant) -> bool {
        match self {
            Self::Always => true,
            Self::From(due) => *due <= now,
        }
    }
}

impl State {
    fn line(&mut self, id: &LineId) -> &mut Line {
        self.lines.entry(id.clone()).or_default()
    }

    fn insert(&mut self, position: u64, message: Message) {
        let entry = Entry {
            message,
            parked: 0,
            failures: 0,
            place: Place::Waiting,
        };
        let line = entry.line(position);
        self.messages.insert(position, entry);
        self.line(&line).positions.insert(position);
        self.index(&line);
    }

    /// Enqueues the delayed messages that are due, at the end of the order.
    fn deliver_due(&mut self, now: Instant) {
        while let Some(first) = self.delayed.first_entry()
            && first.key().0 <= now
        {
            // What a broker gets, and a store gives back, has no delay.
            let mut message = first.remove();
            message.clear_delay();
            self.drawn += 1;
            self.insert(self.drawn, message);
        }
    }

    /// Lists a line where its front belongs, after any change to it.
    fn index(&mut self, id: &LineId) {
        let Some(line) = self.lines.get_mut(id) else {
            return;
        };
        match line.listed.take() {
            Some(Listed::Ready(position)) => {
                self.ready.remove(&(position, id.clone()));
            }
            Some(Listed::Later(due)) => {
                self.later.remove(&(due, id.clone()));
            }
            None => {}
        }
        if line.held {
            return;
        }
        let Some(&front) = line.positions.first() else {
            self.lines.remove(id);
            return;
        };
        match self.messages.get(&front).and_then(Entry::due) {
            Some(Due::Always) => {
                line.listed = Some(Listed::Ready(front));
                self.ready.insert((front, id.clone()));
            }
            Some(Due::From(due)) => {
                line.listed = Some(Listed::Later(due));
                self.later.insert((due, id.clone()));
            }
            None => {}
        }
    }

    /// When, of itself, something may become claimable.
    fn next_change(&self) -> Option<Instant> {
        let due = self.later.first().map(|(due, _)| *due);
        let delayed = self.delayed.first_key_value().map(|((due, _), _)| *due);
        let overdue = self.claims.values().map(|held| held.until).min();
        due.into_iter().chain(delayed).chain(overdue).min()
    }

    fn claim(
        &mut self,
        limits: &ClaimLimits,
        now: Instant,
    ) -> Option<(u64, Vec<u64>, Vec<Claimed>)> {
        self.take_away_overdue(now);
        self.deliver_due(now);
        self.list_what_became_due(now);
        let mut positions = Vec::new();
        let mut claimed = Vec::new();
        let mut lines = Vec::new();
        let mut bytes = 0;
        // What is oldest goes first: a line that gave its front is listed again with the next one.
        while claimed.len() < limits.messages.max(1)
            && let Some((position, id)) = self.ready.first().cloned()
            && let Some(entry) = self.messages.get(&position)
            && let Some(line) = self.lines.get_mut(&id)
        {
            let size = entry.message.size();
            if !claimed.is_empty() && bytes + size > limits.bytes {
                break;
            }
            bytes += size;
            positions.push(position);
            claimed.push(Claimed {
                message: entry.message.clone(),
                parked: entry.parked,
                failures: entry.failures,
                // Nothing in memory outlives the process.
                crashes: 0,
            });
            if !line.held {
                line.held = true;
                lines.push(id.clone());
            }
            self.ready.pop_first();
            line.listed = None;
            if let Some(&next) = line.positions.range(position + 1..).next()
                && let Some(due) = self.messages.get(&next).and_then(Entry::due)
                && due.is_past(now)
            {
                line.listed = Some(Listed::Ready(next));
                self.ready.insert((next, id));
            }
        }
        for id in &lines {
            self.index(id);
        }
        if claimed.is_empty() {
            return None;
        }
        self.last_claim += 1;
        let until = later(later(now, limits.hold), HOLD_MARGIN);
        self.claims.insert(self.last_claim, Held { until, lines });
        Some((self.last_claim, positions, claimed))
    }

    fn list_what_became_due(&mut self, now: Instant) {
        while let Some((due, _)) = self.later.first()
            && *due <= now
            && let Some((_, id)) = self.later.pop_first()
            && let Some(line) = self.lines.get_mut(&id)
            && let Some(&front) = line.positions.first()
        {
            line.listed = Some(Listed::Ready(front));
            self.ready.insert((front, id));
        }
    }

    fn take_away_overdue(&mut self, now: Instant) {
        let overdue: Vec<u64> = self
            .claims
            .iter()
            .filter(|(_, held)| held.until <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in overdue {
            self.end_claim(id);
        }
    }

    fn end_claim(&mut self, id: u64) {
        let Some(held) = self.claims.remove(&id) else {
            return;
        };
        for id in held.lines {
            self.line(&id).held = false;
            self.index(&id);
        }
    }

    /// Records what became of a message that a claim holds. Its line is listed again when the claim
    /// ends.
    fn record(&mut self, position: u64, outcome: Outcome, now: Instant) {
        let Some(entry) = self.messages.get_mut(&position) else {
            return;
        };
        match outcome {
            Outcome::Delivered => self.remove(position),
            Outcome::Park { after, counted, .. } => {
                entry.parked = entry.parked.saturating_add(1);
                entry.failures = entry.failures.saturating_add(u32::from(counted));
                entry.place = Place::Parked {
                    due: later(now, after),
                };
            }
            Outcome::Behind => {
                let line = entry.line(position);
                let blocked = self.lines.get(&line).is_some_and(|line| {
                    line.positions.range(..position).any(|front| {
                        self.messages
                            .get(front)
                            .is_some_and(|entry| !matches!(entry.place, Place::Waiting))
                    })
                });
                // What blocks it stands in front of it: it needs no time of its own.
                if blocked && let Some(entry) = self.messages.get_mut(&position) {
                    entry.place = Place::Parked { due: now };
                }
            }
            Outcome::Dead { error, halt } => {
                let line = entry.line(position);
                entry.place = Place::Dead { error, halt };
                if !halt {
                    self.line(&line).positions.remove(&position);
                }
            }
            Outcome::Released => {}
        }
    }

    /// Takes a message out of the outbox.
    fn remove(&mut self, position: u64) {
        let Some(entry) = self.messages.remove(&position) else {
            return;
        };
        let id = entry.line(position);
        if let Some(line) = self.lines.get_mut(&id) {
            line.positions.remove(&position);
            self.index(&id);
        }
    }
}

/// `start` and `wait`, or as far ahead as no caller will see.
fn later(start: Instant, wait: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    start.checked_add(wait.min(FAR)).unwrap_or(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ClaimLimits = ClaimLimits {
        messages: 10,
        bytes: 1_000,
        wait: Duration::ZERO,
        hold: Duration::from_secs(30),
    };

    fn message(key: &str) -> Message {
        Message::to("t").key(key).tombstone().unwrap()
    }

    fn park(after: Duration) -> Outcome {
        Outcome::Park {
            after,
            counted: true,
            error: PublishError::retryable("not now"),
        }
    }

    /// Lines, indexes and claims are emptied with the messages: what is delivered leaves nothing.
    #[tokio::test(start_paused = true)]
    async fn nothing_remains_of_what_was_delivered() {
        let store = MemoryStore::new();
        let keyless = Message::to("t").tombstone().unwrap();
        store.enqueue(&[message("a"), message("a"), message("b"), keyless]);
        let claim = store.claim(&LIMITS).await.unwrap().unwrap();
        assert_eq!(claim.messages().len(), 4);
        let outcomes = vec![
            park(Duration::from_secs(5)),
            Outcome::Behind,
            Outcome::Delivered,
            Outcome::Delivered,
        ];
        claim.settle(outcomes).await.unwrap();
        let limits = ClaimLimits {
            wait: Duration::from_secs(60),
            ..LIMITS
        };
        let start = Instant::now();
        let claim = store.claim(&limits).await.unwrap().unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        assert_eq!(claim.messages().len(), 2);
        claim.settle(vec![Outcome::Delivered; 2]).await.unwrap();
        let state = store.lock();
        assert!(state.messages.is_empty());
        assert!(state.lines.is_empty());
        assert!(state.ready.is_empty());
        assert!(state.later.is_empty());
        assert!(state.claims.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_delayed_message_ends_the_wait_when_it_is_due() {
        let store = MemoryStore::new();
        let delay = Duration::from_secs(3_600);
        let delayed = message("a").with_deliver_after(delay).unwrap();
        let other = message("a").with_deliver_after(delay).unwrap();
        store.enqueue(&[delayed.clone(), other.clone()]);
        assert_eq!(store.counts().delayed, 2);
        assert_eq!(store.cancel(&[other.id(), other.id()]), 1);
        let limits = ClaimLimits {
            wait: delay * 2,
            ..LIMITS
        };
        let start = Instant::now();
        let claim = store.claim(&limits).await.unwrap().unwrap();
        assert_eq!(start.elapsed(), delay);
        assert_eq!(store.cancel(&[delayed.id()]), 0, "it is due");
        let [claimed] = claim.messages() else {
            panic!("{} messages", claim.messages().len());
        };
        assert_eq!(claimed.message.id(), delayed.id());
        assert_eq!(claimed.message.deliver_after(), Duration::ZERO);
        claim.settle(vec![Outcome::Delivered]).await.unwrap();
        assert_eq!(store.counts(), MemoryCounts::default());
    }

    #[tokio::test(start_paused = true)]
    async fn an_overdue_claim_wakes_the_one_that_waits() {
        let store = MemoryStore::new();
        store.enqueue(&[message("a")]);
        let overdue = store.claim(&LIMITS).await.unwrap().unwrap();
        let limits = ClaimLimits {
            wait: Duration::from_secs(600),
            ..LIMITS
        };
        let start = Instant::now();
        let claim = store.claim(&limits).await.unwrap().unwrap();
        assert_eq!(start.elapsed(), LIMITS.hold + HOLD_MARGIN);
        assert!(overdue.settle(vec![Outcome::Delivered]).await.is_err());
        claim.settle(vec![Outcome::Delivered]).await.unwrap();
        assert_eq!(store.counts(), MemoryCounts::default());
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_fronts_go_first() {
        let store = MemoryStore::new();
        let all = [message("a"), message("b"), message("a"), message("c")];
        store.enqueue(&all);
        let limits = ClaimLimits {
            messages: 3,
            ..LIMITS
        };
        let claim = store.claim(&limits).await.unwrap().unwrap();
        let claimed: Vec<_> = claim.messages().iter().map(|c| &c.message).collect();
        assert_eq!(claimed, [&all[0], &all[1], &all[2]]);
    }
}
