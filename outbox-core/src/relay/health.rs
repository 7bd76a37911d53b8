//! What is wrong now, for all workers of one relay: an outage of the broker, trouble with the store.
//!
//! While something is wrong only one worker at a time tries (a *probe*), and only a probe says whether
//! it is still wrong: what other workers report of claims that they had before changes nothing. Each
//! trouble is logged when it begins and when it ends, and not between.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::config::Settings;
use super::telemetry;
use crate::StoreError;
use crate::order::Outage;
use crate::retry::doubled;

pub(super) struct Health {
    state: Mutex<State>,
    batch_messages: usize,
    backoff_first: Duration,
    backoff_longest: Duration,
}

struct State {
    broker: Option<Trouble>,
    store: Option<Trouble>,
    /// How many messages the next claim may have: few in an outage, and more with each success.
    batch_messages: usize,
    rng: fastrand::Rng,
}

struct Trouble {
    since: Instant,
    tries: u32,
    retry_at: Instant,
}

impl Health {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            state: Mutex::new(State {
                broker: None,
                store: None,
                batch_messages: settings.batch_messages,
                rng: settings
                    .seed
                    .map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed),
            }),
            batch_messages: settings.batch_messages,
            backoff_first: settings.backoff_first,
            backoff_longest: settings.backoff_longest,
        }
    }

    /// From when on a probe may try; `None`: nothing is wrong.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        let state = self.lock();
        [&state.broker, &state.store]
            .into_iter()
            .flatten()
            .map(|trouble| trouble.retry_at)
            .max()
    }

    pub(super) fn is_outage(&self) -> bool {
        self.lock().broker.is_some()
    }

    pub(super) fn store_fails(&self) -> bool {
        self.lock().store.is_some()
    }

    pub(super) fn batch_messages(&self) -> usize {
        self.lock().batch_messages
    }

    pub(super) fn broker_is_away(&self, outage: &Outage, probe: bool) {
        let mut state = self.lock();
        let State { broker, rng, .. } = &mut *state;
        match broker {
            None => {
                tracing::warn!(reason = outage.error.reason(), "the broker is away");
                telemetry::outage(true);
                *broker = Some(self.begun(rng));
                state.batch_messages = 1;
            }
            Some(trouble) if probe => {
                self.goes_on(trouble, rng);
                // One message that the broker never answers must not pass for an outage for ever: in
                // a larger batch others are confirmed.
                state.batch_messages = match outage.silence {
                    true => self.doubled_batch(&state),
                    false => 1,
                };
                tracing::debug!(reason = outage.error.reason(), "the broker is still away");
            }
            Some(_) => {}
        }
    }

    pub(super) fn broker_answered(&self, probe: bool) {
        let mut state = self.lock();
        if let Some(trouble) = &state.broker {
            if !probe {
                return;
            }
            let seconds = trouble.since.elapsed().as_secs_f64();
            tracing::info!(seconds, "the broker is back");
            telemetry::outage(false);
            state.broker = None;
        }
        state.batch_messages = self.doubled_batch(&state);
    }

    /// Every message of a claim was refused for good, which an adapter may do by itself, or answered
    /// without the broker, or failed without an answer: it is open whether the broker is there. A larger
    /// batch soon has a message that says so, and messages that are refused do not hold up the others one
    /// probe at a time.
    pub(super) fn broker_not_heard(&self, probe: bool) {
        let mut state = self.lock();
        if probe && state.broker.is_some() {
            state.batch_messages = self.doubled_batch(&state);
        }
    }

    pub(super) fn store_failed(&self, error: &StoreError, probe: bool) {
        let mut state = self.lock();
        let State { store, rng, .. } = &mut *state;
        match store {
            None => {
                tracing::warn!(%error, "the store fails");
                *store = Some(self.begun(rng));
            }
            Some(trouble) => {
                if probe {
                    self.goes_on(trouble, rng);
                }
                tracing::debug!(%error, "the store still fails");
            }
        }
    }

    pub(super) fn store_answered(&self, probe: bool) {
        let mut state = self.lock();
        if probe && let Some(trouble) = state.store.take() {
            let seconds = trouble.since.elapsed().as_secs_f64();
            tracing::info!(seconds, "the store works again");
        }
    }

    fn begun(&self, rng: &mut fastrand::Rng) -> Trouble {
        let now = Instant::now();
        Trouble {
            since: now,
            tries: 0,
            retry_at: now + doubled(self.backoff_first, self.backoff_longest, 0, rng.f64()),
        }
    }

    fn goes_on(&self, trouble: &mut Trouble, rng: &mut fastrand::Rng) {
        trouble.tries = trouble.tries.saturating_add(1);
        let pause = doubled(
            self.backoff_first,
            self.backoff_longest,
            trouble.tries,
            rng.f64(),
        );
        trouble.retry_at = Instant::now() + pause;
    }

    fn doubled_batch(&self, state: &State) -> usize {
        state
            .batch_messages
            .saturating_mul(2)
            .min(self.batch_messages)
    }

    /// No step under the lock can panic half-way.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
