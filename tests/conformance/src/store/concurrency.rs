//! Many claimers at once, while messages are being enqueued.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use outbox_core::{ClaimLimits, Claimed, Message, Outcome, Uuid};
use tokio::task::JoinSet;

use super::kit::{LIMITS, Outbox, keyless, message, park, same_order, same_set};

const CLAIMERS: usize = 8;
const KEYS: usize = 40;
const ROUNDS: usize = 10;

/// Small batches, so that the claimers meet often.
const FEW: ClaimLimits = ClaimLimits {
    messages: 5,
    ..LIMITS
};

/// Each message is delivered by exactly one claimer, each key in its order.
pub async fn many_claimers_settle_each_message_once(outbox: &Arc<Outbox>) {
    Crowd::new(|_, _| Outcome::Delivered).run(outbox).await;
    outbox.is_empty().await;
}

/// Every third message fails once; what was delivered of each key is in order all the same.
pub async fn order_is_kept_through_failures(outbox: &Arc<Outbox>) {
    let fail_once = |crowd: &Crowd, claimed: &Claimed| match claimed.failures == 0
        && crowd.every_third.contains(&claimed.message.id())
    {
        true => park(Duration::from_millis(10)),
        false => Outcome::Delivered,
    };
    Crowd::new(fail_once).run(outbox).await;
    outbox.is_empty().await;
}

type Decide = fn(&Crowd, &Claimed) -> Outcome;

struct Crowd {
    /// A message for each key, and one without, in each round.
    all: Vec<Message>,
    every_third: HashSet<Uuid>,
    delivered: Mutex<Vec<Message>>,
    decide: Decide,
}

impl Crowd {
    fn new(decide: Decide) -> Arc<Self> {
        let mut all = Vec::new();
        for round in 0..ROUNDS {
            for key in 0..KEYS {
                all.push(message(&format!("k{key}"), &format!("k{key} {round}")));
            }
            all.push(keyless(&format!("keyless {round}")));
        }
        Arc::new(Self {
            every_third: all.iter().step_by(3).map(Message::id).collect(),
            all,
            delivered: Mutex::default(),
            decide,
        })
    }

    /// Enqueues in small transactions and delivers at the same time, until all is delivered: each
    /// message once, each key in its order.
    async fn run(self: Arc<Self>, outbox: &Arc<Outbox>) {
        let mut tasks = JoinSet::new();
        for _ in 0..CLAIMERS {
            let (crowd, outbox) = (self.clone(), outbox.clone());
            tasks.spawn(async move { crowd.deliver(&outbox).await });
        }
        let (crowd, outbox) = (self.clone(), outbox.clone());
        tasks.spawn(async move {
            for part in crowd.all.chunks(KEYS / 4) {
                outbox.enqueue(part).await;
            }
        });
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        let delivered = self.delivered();
        same_set(delivered.iter(), &self.all);
        for key in 0..KEYS {
            let key = format!("k{key}");
            let of_key = |message: &&Message| message.key() == Some(&key);
            same_order(
                delivered.iter().filter(of_key),
                self.all.iter().filter(of_key),
            );
        }
    }

    async fn deliver(&self, outbox: &Outbox) {
        let mut deadline = Instant::now() + outbox.patience();
        while self.delivered().len() < self.all.len() {
            if let Some(claim) = outbox.claim(&FEW).await {
                let outcomes = self.publish(claim.messages()).await;
                outbox.settle(claim, outcomes).await;
                deadline = Instant::now() + outbox.patience();
            }
            assert!(
                Instant::now() < deadline,
                "{} of {} messages were delivered in time",
                self.delivered().len(),
                self.all.len(),
            );
        }
    }

    /// What a relay does: a message of a key is sent when the earlier ones of the claim were.
    async fn publish(&self, claimed: &[Claimed]) -> Vec<Outcome> {
        let mut failed = HashSet::new();
        let mut outcomes = Vec::new();
        for claimed in claimed {
            let key = claimed.message.key();
            if key.is_some() && failed.contains(&key) {
                outcomes.push(Outcome::Behind);
                continue;
            }
            let outcome = (self.decide)(self, claimed);
            match outcome {
                Outcome::Delivered => {
                    self.delivered().push(claimed.message.clone());
                    // The other claimers get their turn between any two messages.
                    tokio::task::yield_now().await;
                }
                _ => {
                    failed.insert(key);
                }
            }
            outcomes.push(outcome);
        }
        outcomes
    }

    fn delivered(&self) -> MutexGuard<'_, Vec<Message>> {
        self.delivered.lock().expect("no claimer panicked")
    }
}
