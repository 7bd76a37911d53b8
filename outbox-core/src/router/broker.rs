//! One of several brokers behind a router: calls its publisher within its time and its limits, and keeps
//! what goes wrong there from the others.

use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, sleep_until};

use super::breaker::{Admitted, Breaker, Change, Found};
use super::calls::Calls;
use super::config::BrokerLimits;
use super::heard::Heard;
use crate::relay::telemetry;
use crate::{Delivery, PublishError, Publisher};

/// A call waits for its place until the oldest one in flight has taken so much of a call's time.
const PATIENCE: f64 = 0.25;
/// So much of the time until the caller drops the call may be used: what is said after that is lost.
const OF_CALLERS_TIME: f64 = 0.9;

pub(super) struct Broker {
    name: String,
    publisher: Box<dyn Publisher>,
    limits: BrokerLimits,
    calls: Calls,
    state: Mutex<State>,
}

struct State {
    breaker: Breaker,
    rng: fastrand::Rng,
}

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Returned,
    Panicked,
    TimedOut,
}

impl Broker {
    pub(super) fn new(
        name: String,
        publisher: Box<dyn Publisher>,
        limits: BrokerLimits,
        rng: fastrand::Rng,
    ) -> Self {
        Self {
            calls: Calls::new(limits.calls),
            state: Mutex::new(State {
                breaker: Breaker::new(limits.backoff_first, limits.backoff_longest),
                rng,
            }),
            name,
            publisher,
            limits,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn chains_keys(&self) -> bool {
        self.publisher.chains_keys()
    }

    /// Without limits: there is no other broker to be kept from what goes wrong with this one.
    pub(super) async fn publish_alone(&self, batch: &[Delivery<'_>]) {
        self.publisher.publish(batch).await;
    }

    /// Returns within the call timeout, and before the caller's patience ends. What the publisher says is
    /// heard by the breaker also when this is dropped.
    pub(super) async fn publish(&self, batch: &[Delivery<'_>]) {
        let within = self.time_for(batch);
        let deadline = Instant::now() + within;
        // Asked before the wait for a place as well: nothing waits for a broker that is known to be away.
        if let Some(reason) = self.refusal() {
            return unavailable(batch, reason);
        }
        let Some(_place) = self.calls.place(within.mul_f64(PATIENCE)).await else {
            let calls = self.limits.calls;
            let busy = format!("{} is slow: {calls} calls are in flight", self.name);
            return unavailable(batch, busy);
        };
        let admitted = match self.admit() {
            Ok(admitted) => admitted,
            Err(reason) => return unavailable(batch, reason),
        };
        let (part, rest) = batch.split_at(admitted.part.min(batch.len()));
        if !rest.is_empty() {
            let reason = format!("{} gets little at first after an outage", self.name);
            unavailable(rest, reason);
        }
        self.call(part, &admitted, deadline).await;
    }

    fn time_for(&self, batch: &[Delivery<'_>]) -> Duration {
        let callers = batch.first().and_then(Delivery::deadline);
        let left = callers.map(|deadline| deadline - Instant::now());
        let usable = left.map_or(Duration::MAX, |left| left.mul_f64(OF_CALLERS_TIME));
        usable.min(self.limits.call_timeout)
    }

    async fn call(&self, batch: &[Delivery<'_>], admitted: &Admitted, deadline: Instant) {
        let mut call = Call {
            broker: self,
            heard: Heard::within(batch.first().and_then(Delivery::heard)),
            trial: admitted.trial,
            silence: None,
        };
        let end = self.run(batch, &call.heard, deadline).await;
        let answer = match (call.heard.away(), end) {
            (Some(error), _) => PublishError::topic_unavailable(error.reason()),
            // The relay knows what that means.
            (None, End::Returned) => return,
            (None, End::Panicked) => PublishError::retryable("the publisher panicked"),
            // Something was confirmed, so the broker hangs at these messages.
            (None, End::TimedOut) if call.heard.confirmed() => {
                PublishError::retryable(format!("{} did not answer in time", self.name))
            }
            (None, End::TimedOut) => {
                let reason = format!("{} answered nothing in time", self.name);
                call.silence = Some(reason.clone());
                PublishError::topic_unavailable(reason)
            }
        };
        // What was answered before stays.
        for delivery in batch {
            delivery.report(Err(answer.clone()));
        }
    }

    async fn run(&self, batch: &[Delivery<'_>], heard: &Heard<'_>, deadline: Instant) -> End {
        let batch: Vec<Delivery<'_>> = batch
            .iter()
            .map(|delivery| delivery.one_of_many().heard_by(heard))
            .collect();
        // The call is inside the caught future: an implementation by hand may panic before it returns one.
        let publish = async { self.publisher.publish(&batch).await };
        tokio::select! {
            biased;
            done = AssertUnwindSafe(publish).catch_unwind() => match done {
                Ok(()) => End::Returned,
                Err(_) => {
                    tracing::error!(broker = self.name, messages = batch.len(), "the publisher panicked");
                    telemetry::publisher_panicked();
                    End::Panicked
                }
            },
            () = sleep_until(deadline) => End::TimedOut,
        }
    }

    fn refusal(&self) -> Option<String> {
        let state = self.lock();
        let reason = state.breaker.refusal(Instant::now())?;
        Some(self.is_away(reason))
    }

    fn admit(&self) -> Result<Admitted, String> {
        let mut state = self.lock();
        let admitted = state.breaker.admit(Instant::now());
        admitted.map_err(|reason| self.is_away(reason))
    }

    fn is_away(&self, reason: &str) -> String {
        format!("{} is away, not tried: {reason}", self.name)
    }

    fn found(&self, trial: bool, found: Found) {
        let mut state = self.lock();
        let State { breaker, rng } = &mut *state;
        let broker = self.name.as_str();
        let reason = match &found {
            Found::Away(reason) => reason.clone(),
            Found::There | Found::Nothing => String::new(),
        };
        match breaker.found(trial, found, Instant::now(), rng.f64()) {
            Some(Change::Began) => {
                tracing::warn!(broker, reason, "one of the brokers is away");
                telemetry::broker_outage(broker, true);
            }
            Some(Change::Ended { lasted }) => {
                let seconds = lasted.as_secs_f64();
                tracing::info!(broker, seconds, "one of the brokers is back");
                telemetry::broker_outage(broker, false);
            }
            None => {}
        }
    }

    /// No step under the lock can panic half-way.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call in flight. However it ends, also when it is dropped, the breaker is told what was heard.
struct Call<'a> {
    broker: &'a Broker,
    heard: Heard<'a>,
    trial: bool,
    /// It hung and nothing was confirmed, in words.
    silence: Option<String>,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let found = match (self.heard.away(), self.silence.take()) {
            (Some(error), _) => Found::Away(error.reason().to_owned()),
            (None, Some(silence)) => Found::Away(silence),
            (None, None) if self.heard.anything() => Found::There,
            (None, None) => Found::Nothing,
        };
        self.broker.found(self.trial, found);
    }
}

fn unavailable(batch: &[Delivery<'_>], reason: impl Into<String>) {
    let error = PublishError::topic_unavailable(reason).without_broker();
    for delivery in batch {
        delivery.report(Err(error.clone()));
    }
}
