//! What the cases are written with: claim and settle with a deadline, and short names.

use std::collections::HashMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::{
    Claim, ClaimLimits, Claimed, Message, Outcome, PublishError, Store, StoreError, Uuid,
};

use super::{Counts, Dead, OpenStore, Transaction};

/// More than any case has, and a wait that a look for nothing can afford.
pub(super) const LIMITS: ClaimLimits = ClaimLimits {
    messages: 1_000,
    bytes: 64 * 1024 * 1024,
    wait: Duration::from_millis(100),
    hold: Duration::from_secs(60),
};

/// So many keys that a store which locks several together has some in every lock.
pub(super) const MANY_KEYS: usize = 400;

/// Longer than any case takes.
pub(super) const LONG: Duration = Duration::from_secs(3_600);

/// How much earlier than asked a store may be, for the grain of its clock.
pub(super) const GRAIN: Duration = Duration::from_millis(20);

/// An open outbox, as the cases use it.
pub struct Outbox {
    open: Box<dyn OpenStore>,
    store: Arc<dyn Store>,
}

impl Outbox {
    pub(super) fn new(open: Box<dyn OpenStore>) -> Self {
        let store = open.store();
        Self { open, store }
    }

    pub(super) async fn close(self) {
        drop(self.store);
        self.open.close().await;
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(super) fn patience(&self) -> Duration {
        self.open.patience()
    }

    pub(super) async fn begin(&self) -> Box<dyn Transaction> {
        self.open.begin().await
    }

    /// Enqueues in one transaction.
    pub(super) async fn enqueue<'a>(&self, messages: impl IntoIterator<Item = &'a Message>) {
        let mut transaction = self.begin().await;
        for message in messages {
            transaction.enqueue(message).await;
        }
        transaction.commit().await;
    }

    /// Enqueues `others` in a transaction of their own while `transaction` is open, and gives that back.
    ///
    /// Where there is one writer at a time, `others` must wait for `transaction` to commit. Then nothing
    /// is late: both are committed, in that order, and there is `None` to go on with.
    pub(super) async fn enqueue_beside(
        &self,
        transaction: Box<dyn Transaction>,
        others: &[Message],
    ) -> Option<Box<dyn Transaction>> {
        if !self.open.one_writer() {
            self.enqueue(others).await;
            return Some(transaction);
        }
        let mut waiting = pin!(self.enqueue(others));
        let early = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
        assert!(
            early.is_err(),
            "a transaction committed while another one was open, and there is one writer"
        );
        transaction.commit().await;
        in_time("commit", self.patience(), waiting).await;
        None
    }

    pub(super) async fn counts(&self) -> Counts {
        self.open.counts().await
    }

    /// What was given up, by message id.
    pub(super) async fn dead(&self) -> Vec<Dead> {
        let mut dead = self.open.dead().await;
        dead.sort_by_key(|dead| dead.id);
        dead
    }

    pub(super) async fn replay(&self, message: &Message) {
        self.open.replay(&[message.id()]).await;
    }

    pub(super) async fn discard(&self, message: &Message) {
        self.open.discard(&[message.id()]).await;
    }

    pub(super) async fn cancel(&self, id: Uuid) -> bool {
        self.open.cancel(id).await
    }

    /// One call, which must come back in time and without an error.
    pub(super) async fn claim(&self, limits: &ClaimLimits) -> Option<Box<dyn Claim>> {
        let claim = in_time(
            "claim",
            limits.wait + self.patience(),
            self.store.claim(limits),
        )
        .await
        .expect("claim");
        if let Some(claim) = &claim {
            check(claim.as_ref(), limits);
        }
        claim
    }

    /// Claims until there is something.
    pub(super) async fn next(&self, limits: &ClaimLimits) -> Box<dyn Claim> {
        let deadline = Instant::now() + self.patience();
        loop {
            if let Some(claim) = self.claim(limits).await {
                return claim;
            }
            assert!(Instant::now() < deadline, "nothing to claim came in time");
        }
    }

    /// Claims until one claim holds exactly these messages of one key, in this order.
    pub(super) async fn next_together(&self, messages: &[&Message]) -> Box<dyn Claim> {
        let deadline = Instant::now() + self.patience();
        loop {
            let claim = self.next(&LIMITS).await;
            let claimed: Vec<&Message> = claim.messages().iter().map(|c| &c.message).collect();
            if claimed == messages {
                return claim;
            }
            assert!(
                Instant::now() < deadline,
                "one key's messages {} were never claimed together, the last claim had {}",
                names(messages.iter().copied()),
                names(claimed),
            );
        }
    }

    /// Claims until `count` messages were settled as `decide` says, and gives them in the order in
    /// which they were claimed. Those that are released count as settled.
    pub(super) async fn work(
        &self,
        limits: &ClaimLimits,
        count: usize,
        mut decide: impl FnMut(&Claimed) -> Outcome,
    ) -> Vec<Claimed> {
        let mut done: Vec<Claimed> = Vec::new();
        let mut deadline = Instant::now() + self.patience();
        while done.len() < count {
            if let Some(claim) = self.claim(limits).await {
                let claimed = claim.messages().to_vec();
                let outcomes = claimed.iter().map(&mut decide).collect();
                self.settle(claim, outcomes).await;
                done.extend(claimed);
                deadline = Instant::now() + self.patience();
            }
            assert!(
                Instant::now() < deadline,
                "{} of {count} messages came in time: {}",
                done.len(),
                names(done.iter().map(|claimed| &claimed.message)),
            );
        }
        assert_eq!(
            done.len(),
            count,
            "more messages came than there are: {}",
            names(done.iter().map(|claimed| &claimed.message)),
        );
        done
    }

    /// Delivers exactly `count` messages and gives them in the order in which they were claimed.
    pub(super) async fn deliver(&self, count: usize) -> Vec<Message> {
        self.deliver_within(&LIMITS, count).await
    }

    pub(super) async fn deliver_within(&self, limits: &ClaimLimits, count: usize) -> Vec<Message> {
        self.work(limits, count, |_| Outcome::Delivered)
            .await
            .into_iter()
            .map(|claimed| claimed.message)
            .collect()
    }

    /// Delivers exactly these messages of one key, as if nothing had ever happened to them.
    pub(super) async fn holds_untouched(&self, all: &[Message]) {
        let claimed = self.work(&LIMITS, all.len(), |_| Outcome::Delivered).await;
        same_order(claimed.iter().map(|claimed| &claimed.message), all);
        counters(&claimed, 0, 0);
        self.is_empty().await;
    }

    pub(super) async fn settle(&self, claim: Box<dyn Claim>, outcomes: Vec<Outcome>) {
        self.try_settle(claim, outcomes).await.expect("settle");
    }

    pub(super) async fn try_settle(
        &self,
        claim: Box<dyn Claim>,
        outcomes: Vec<Outcome>,
    ) -> Result<(), StoreError> {
        in_time("settle", self.patience(), claim.settle(outcomes)).await
    }

    /// Nothing can be claimed.
    pub(super) async fn nothing_comes(&self) {
        if let Some(claim) = self.claim(&LIMITS).await {
            let claimed = claim.messages().iter().map(|claimed| &claimed.message);
            panic!("{} came and should not have", names(claimed));
        }
    }

    /// Every message has left the outbox.
    pub(super) async fn is_empty(&self) {
        self.nothing_comes().await;
        assert_eq!(self.counts().await, Counts::default());
    }
}

/// What holds for every claim, whatever the case is about.
fn check(claim: &dyn Claim, limits: &ClaimLimits) {
    let messages = claim.messages();
    assert!(!messages.is_empty(), "a claim holds nothing");
    assert!(
        messages.len() <= limits.messages,
        "a claim holds {} messages, the limit is {}",
        messages.len(),
        limits.messages,
    );
    let bytes: usize = messages.iter().map(|c| c.message.size()).sum();
    assert!(
        bytes <= limits.bytes || messages.len() == 1,
        "a claim holds {} messages of {bytes} bytes together, the limit is {}",
        messages.len(),
        limits.bytes,
    );
}

async fn in_time<T>(what: &str, within: Duration, call: impl Future<Output = T>) -> T {
    match tokio::time::timeout(within, call).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what} did not come back within {within:?}"),
    }
}

/// A message whose payload says which it is.
pub(super) fn message(key: &str, name: &str) -> Message {
    Message::to("topic")
        .key(key)
        .bytes(name.to_owned())
        .expect("a valid message")
}

pub(super) fn keyless(name: &str) -> Message {
    Message::to("topic")
        .bytes(name.to_owned())
        .expect("a valid message")
}

/// One message for each of [`MANY_KEYS`] keys, none of which is used elsewhere.
pub(super) fn one_for_each_key() -> Vec<Message> {
    (0..MANY_KEYS)
        .map(|n| message(&format!("other-{n}"), &format!("other {n}")))
        .collect()
}

pub(super) fn park(after: Duration) -> Outcome {
    Outcome::Park {
        after,
        counted: true,
        error: PublishError::retryable("not now"),
    }
}

pub(super) fn park_uncounted(after: Duration) -> Outcome {
    Outcome::Park {
        after,
        counted: false,
        error: PublishError::topic_unavailable("no such topic"),
    }
}

pub(super) fn dead(reason: &str) -> Outcome {
    Outcome::Dead {
        error: PublishError::rejected(reason),
        halt: false,
    }
}

pub(super) fn halt(reason: &str) -> Outcome {
    Outcome::Dead {
        error: PublishError::rejected(reason),
        halt: true,
    }
}

pub(super) fn payload(message: &Message) -> String {
    String::from_utf8_lossy(message.payload().map_or(&[], |bytes| bytes.as_ref())).into_owned()
}

/// The messages by what [`message`] named them.
pub(super) fn names<'a>(messages: impl IntoIterator<Item = &'a Message>) -> String {
    let names: Vec<String> = messages.into_iter().map(payload).collect();
    format!("{names:?}")
}

/// The messages are these, in this order.
pub(super) fn same_order<'a>(
    got: impl IntoIterator<Item = &'a Message>,
    expected: impl IntoIterator<Item = &'a Message>,
) {
    let got: Vec<&Message> = got.into_iter().collect();
    let expected: Vec<&Message> = expected.into_iter().collect();
    assert!(
        got == expected,
        "expected {}, got {}",
        names(expected),
        names(got)
    );
}

/// The messages are these, each once, in any order.
pub(super) fn same_set<'a>(
    got: impl IntoIterator<Item = &'a Message>,
    expected: impl IntoIterator<Item = &'a Message>,
) {
    let mut copies: HashMap<Uuid, Vec<&Message>> = HashMap::new();
    for message in got {
        copies.entry(message.id()).or_default().push(message);
    }
    for message in expected {
        match copies.remove(&message.id()).as_deref() {
            None => panic!("{} never came", short(message)),
            Some([copy]) if *copy == message => {}
            Some([copy]) => panic!("{} came back as {}", short(message), short(copy)),
            Some(copies) => panic!("{} came {} times", short(message), copies.len()),
        }
    }
    if let Some(copies) = copies.values().next() {
        panic!("{} came and was never enqueued", short(copies[0]));
    }
}

/// A message in full, but for its length.
fn short(message: &Message) -> String {
    let mut text = format!("{message:?}");
    if text.len() > 1_000 {
        text.truncate(text.floor_char_boundary(1_000));
        text.push('…');
    }
    text
}

/// The counters of each message are these.
pub(super) fn counters(claimed: &[Claimed], parked: u32, failures: u32) {
    for claimed in claimed {
        assert_eq!(
            (claimed.parked, claimed.failures),
            (parked, failures),
            "parked and failures of {:?}",
            payload(&claimed.message),
        );
    }
}

/// The dead messages are these, with these reasons.
pub(super) fn same_dead(got: &[Dead], expected: &[(&Message, &str)]) {
    let mut expected: Vec<(Uuid, &str)> = expected
        .iter()
        .map(|(message, reason)| (message.id(), *reason))
        .collect();
    expected.sort_unstable();
    let got: Vec<(Uuid, &str)> = got.iter().map(|d| (d.id, d.reason.as_str())).collect();
    assert_eq!(got, expected, "dead messages and reasons");
}

/// At least so long passed, but for the grain of clocks.
pub(super) fn not_earlier(since: Instant, least: Duration, what: impl Debug) {
    let passed = since.elapsed();
    assert!(
        passed + GRAIN >= least,
        "{what:?} came after {passed:?}, not {least:?}"
    );
}
