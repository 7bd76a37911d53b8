//! Publishes the messages of one claim, wave by wave and within its time.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use tokio::time::{Instant, sleep, sleep_until};

use super::config::Settings;
#[cfg(feature = "otel")]
use super::span::PublishSpan;
use super::stop::Stop;
use crate::order::{Conclusion, Plan, Rules, WaveEnd};
use crate::{Answer, Claimed, Delivery, PublishErrorKind, Publisher};

/// What the broker answered to the messages of one claim, in numbers.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) waves: u64,
    pub(super) panics: u64,
    pub(super) confirmed: u64,
    pub(super) broker_unavailable: u64,
    pub(super) topic_unavailable: u64,
    pub(super) retryable: u64,
    pub(super) rejected: u64,
    pub(super) unanswered: u64,
    /// Whether something was answered that only a broker answers.
    pub(super) heard_from_broker: bool,
}

impl Tally {
    /// Takes the answers of one wave, each with whether it may be that the message was not sent.
    fn wave<'a>(&mut self, answers: impl Iterator<Item = (&'a Answer, bool)>, end: WaveEnd) {
        self.waves += 1;
        self.panics += u64::from(end == WaveEnd::Panicked);
        for (answer, is_behind) in answers {
            if is_behind && answer.get().is_none() {
                continue;
            }
            self.heard_from_broker |= match answer.get() {
                None => false,
                Some(Ok(())) => true,
                Some(Err(error)) => error.is_brokers_answer(),
            };
            *match answer.get() {
                None => &mut self.unanswered,
                Some(Ok(())) => &mut self.confirmed,
                Some(Err(error)) => match error.kind() {
                    PublishErrorKind::BrokerUnavailable => &mut self.broker_unavailable,
                    PublishErrorKind::TopicUnavailable => &mut self.topic_unavailable,
                    PublishErrorKind::Retryable => &mut self.retryable,
                    PublishErrorKind::Rejected => &mut self.rejected,
                },
            } += 1;
        }
    }
}

pub(super) struct Published {
    pub(super) conclusion: Conclusion,
    pub(super) tally: Tally,
}

pub(super) async fn publish(
    settings: &Settings,
    publisher: &dyn Publisher,
    claimed: &[Claimed],
    stop: &Stop,
) -> Published {
    let start = Instant::now();
    let deadline = start + settings.publish_timeout;
    // A wave that could not be answered in time would look like a failure of its messages.
    let last_start = start + settings.publish_timeout / 2;
    let answers: Vec<Answer> = claimed.iter().map(|_| Answer::new()).collect();
    let mut tally = Tally::default();
    let mut plan = Plan::new(
        Rules {
            order: settings.order,
            on_dead: settings.on_dead,
            chains: publisher.chains_keys(),
            crash_limit: settings.crash_limit,
            retry: &*settings.retry,
        },
        claimed,
    );
    loop {
        if stop.requested() || Instant::now() > last_start {
            break;
        }
        let Some(wave) = plan.next_wave() else { break };
        let batch: Vec<Delivery<'_>> = wave
            .iter()
            .map(|&index| {
                let delivery =
                    Delivery::new(&claimed[index].message, &answers[index]).until(deadline);
                match plan.is_chained(index) {
                    true => delivery.chained(),
                    false => delivery,
                }
            })
            .collect();
        let call = publish_wave(settings, publisher, &batch, deadline, stop);
        #[cfg(feature = "otel")]
        let span = PublishSpan::start(&batch);
        #[cfg(feature = "otel")]
        let call = span.around(call);
        let end = call.await;
        drop(batch);
        let answered = wave.iter().map(|&index| &answers[index]);
        #[cfg(feature = "otel")]
        span.end(answered.clone());
        let behind = wave.iter().map(|&index| plan.is_behind(index));
        tally.wave(answered.clone().zip(behind), end);
        plan.absorb(&wave, answered.map(|answer| answer.get().cloned()), end);
    }
    Published {
        conclusion: plan.conclude(),
        tally,
    }
}

async fn publish_wave(
    settings: &Settings,
    publisher: &dyn Publisher,
    batch: &[Delivery<'_>],
    deadline: Instant,
    stop: &Stop,
) -> WaveEnd {
    // The call is inside the caught future: an implementation by hand may panic before it returns one.
    let published = AssertUnwindSafe(async { publisher.publish(batch).await }).catch_unwind();
    tokio::select! {
        biased;
        done = published => match done {
            Ok(()) => WaveEnd::Returned,
            Err(_) => {
                tracing::error!(messages = batch.len(), "the publisher panicked");
                WaveEnd::Panicked
            }
        },
        () = sleep_until(deadline) => WaveEnd::TimedOut,
        () = async {
            stop.wait().await;
            sleep(settings.stop_grace).await;
        } => WaveEnd::Stopped,
    }
}
