//! One of the parallel loops of a relay: claim, publish, settle, and again.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::Instrument;

use super::batch;
use super::config::Settings;
use super::health::Health;
use super::monitor::{RelayMonitor, Steps};
use super::stop::Stop;
use super::telemetry;
use crate::{Claim, ClaimLimits, Claimed, Outcome, Publisher, Store, StoreError};

/// What the workers of one relay share.
pub(super) struct Shared {
    settings: Settings,
    store: Arc<dyn Store>,
    publisher: Arc<dyn Publisher>,
    health: Arc<Health>,
    steps: Arc<Steps>,
    /// Held by the one worker that waits for messages, or that tries while something is wrong.
    turn: Mutex<()>,
}

impl Shared {
    pub(super) fn new(
        settings: Settings,
        store: Arc<dyn Store>,
        publisher: Arc<dyn Publisher>,
        monitor: RelayMonitor,
    ) -> Self {
        Self {
            settings,
            store,
            publisher,
            health: monitor.health,
            steps: monitor.steps,
            turn: Mutex::new(()),
        }
    }
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    stop: Stop,
}

/// A claim, and the turn as long as it is a probe.
struct Held<'a> {
    claim: Box<dyn Claim>,
    probe: Option<MutexGuard<'a, ()>>,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, stop: Stop) -> Self {
        Self { shared, stop }
    }

    pub(super) async fn run(self) {
        let mut found = false;
        while !self.stop.requested() {
            found = match AssertUnwindSafe(self.step(found)).catch_unwind().await {
                Ok(found) => found,
                // Publisher and store are watched where they are called; the retry policy and what
                // the store gave out are not.
                Err(_) => {
                    let error = StoreError::new("delivery", "a retry policy or a claim panicked");
                    self.failed(&error, true);
                    false
                }
            };
            // A store and a publisher that never wait must not keep the thread for themselves.
            tokio::task::yield_now().await;
        }
    }

    /// Claims one batch, if there is one, and delivers it. Whether there was one.
    async fn step(&self, found: bool) -> bool {
        let Some(Some(held)) = self.stop.or(self.claim(found)).await else {
            return false;
        };
        let messages = held.claim.messages().len();
        let span = tracing::debug_span!("batch", messages, probe = held.probe.is_some());
        self.deliver(held).instrument(span).await;
        true
    }

    /// May be dropped at any await: then nothing is held.
    async fn claim(&self, found: bool) -> Option<Held<'_>> {
        let Shared {
            settings,
            store,
            health,
            steps,
            ..
        } = &*self.shared;
        let mut turn = None;
        let mut probe = false;
        if !found || health.retry_at().is_some() {
            turn = Some(self.shared.turn.lock().await);
            // Asked with the turn in hand: what is wrong may have changed while waiting for it.
            while let Some(retry_at) = health.retry_at() {
                probe = true;
                if retry_at <= Instant::now() {
                    break;
                }
                sleep_until(retry_at).await;
            }
        }
        let limits = ClaimLimits {
            messages: health.batch_messages(),
            bytes: settings.batch_bytes,
            wait: match turn {
                Some(_) => settings.claim_wait,
                None => Duration::ZERO,
            },
            hold: settings.publish_timeout + settings.settle_timeout,
        };
        let start = Instant::now();
        let within = limits.wait + settings.store_timeout;
        let _step = steps.begin(within);
        match bounded("claim", within, async { store.claim(&limits).await }).await {
            Err(error) => {
                self.failed(&error, probe);
                None
            }
            Ok(None) => {
                health.store_answered(probe);
                None
            }
            // An outage that began while this claim waited is tried by a probe, not by a whole batch.
            Ok(Some(_)) if !probe && health.is_outage() => None,
            Ok(Some(claim)) => {
                telemetry::claimed(claim.messages().len(), start.elapsed());
                Some(Held {
                    claim,
                    probe: turn.filter(|_| probe),
                })
            }
        }
    }

    async fn deliver(&self, held: Held<'_>) {
        let Shared {
            settings,
            publisher,
            health,
            steps,
            ..
        } = &*self.shared;
        let Held { claim, probe } = held;
        let _step = steps.begin(settings.publish_timeout + settings.settle_timeout);
        let start = Instant::now();
        let published = batch::publish(settings, &**publisher, claim.messages(), &self.stop).await;
        telemetry::published(&published.tally, start.elapsed());
        tracing::debug!(tally = ?published.tally, "published");
        let conclusion = published.conclusion;
        match &conclusion.outage {
            Some(outage) => health.broker_is_away(outage, probe.is_some()),
            None if published.tally.heard_from_broker => {
                health.broker_answered(probe.is_some());
            }
            None => health.broker_not_heard(probe.is_some()),
        }
        log_failures(claim.messages(), &conclusion.outcomes);
        let counts = telemetry::Outcomes::count(&conclusion.outcomes);
        let start = Instant::now();
        let settled = bounded("settle", settings.settle_timeout, async {
            claim.settle(conclusion.outcomes).await
        });
        match settled.await {
            Ok(()) => {
                telemetry::settled(&counts, start.elapsed());
                health.store_answered(probe.is_some());
            }
            Err(error) => self.failed(&error, probe.is_some()),
        }
    }

    fn failed(&self, error: &StoreError, probe: bool) {
        telemetry::store_error(error.doing());
        self.shared.health.store_failed(error, probe);
    }
}

/// The result of a call into the store, which may neither take longer than `within` nor panic.
async fn bounded<T>(
    doing: &'static str,
    within: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match timeout(within, AssertUnwindSafe(call).catch_unwind()).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(StoreError::new(doing, "the store panicked")),
        Err(_) => Err(StoreError::new(
            doing,
            format!("no answer within {within:?}"),
        )),
    }
}

fn log_failures(claimed: &[Claimed], outcomes: &[Outcome]) {
    for (claimed, outcome) in claimed.iter().zip(outcomes) {
        let message = &claimed.message;
        match outcome {
            Outcome::Dead { error, halt } => tracing::warn!(
                id = %message.id(),
                topic = message.topic(),
                kind = %error.kind(),
                reason = error.reason(),
                halt,
                "a message is given up",
            ),
            Outcome::Park {
                error,
                after,
                counted,
            } => tracing::debug!(
                id = %message.id(),
                topic = message.topic(),
                kind = %error.kind(),
                reason = error.reason(),
                after = after.as_secs_f64(),
                counted,
                "a message is parked",
            ),
            Outcome::Delivered | Outcome::Behind | Outcome::Released => {}
        }
    }
}
