//! What the relay tells: names of metrics, and the one place that writes them. The table is in
//! `relay.rs`.

use std::time::Duration;

use metrics::{Unit, counter, gauge, histogram};

use super::batch::Tally;
use crate::{Outcome, PublishErrorKind};

const CLAIMED: &str = "outbox_messages_claimed_total";
const PUBLISHED: &str = "outbox_messages_published_total";
const FAILURES: &str = "outbox_publish_failures_total";
const PANICS: &str = "outbox_publisher_panics_total";
const DELIVERED: &str = "outbox_messages_delivered_total";
const PARKED: &str = "outbox_messages_parked_total";
const DEAD: &str = "outbox_messages_dead_total";
const RELEASED: &str = "outbox_messages_released_total";
const STORE_ERRORS: &str = "outbox_store_errors_total";
const BATCH_MESSAGES: &str = "outbox_batch_messages";
const BATCH_WAVES: &str = "outbox_batch_waves";
const CLAIM_SECONDS: &str = "outbox_claim_seconds";
const PUBLISH_SECONDS: &str = "outbox_publish_seconds";
const SETTLE_SECONDS: &str = "outbox_settle_seconds";
const OUTAGE: &str = "outbox_outage";
const BROKER_OUTAGE: &str = "outbox_broker_outage";

/// Says what each metric is, to a recorder that wants to know, and begins the counters: one that is not
/// there yet hides its first step from a rate.
pub(super) fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_counter!(CLAIMED, "Messages claimed");
    describe_counter!(PUBLISHED, "Messages that the broker confirmed");
    describe_counter!(FAILURES, "Answers other than a confirmation, by kind");
    describe_counter!(PANICS, "Panics of the publisher");
    describe_counter!(DELIVERED, "Messages settled as delivered");
    describe_counter!(PARKED, "Messages parked, or put behind a parked one");
    describe_counter!(DEAD, "Messages given up");
    describe_counter!(RELEASED, "Messages released");
    describe_counter!(STORE_ERRORS, "Errors of the store");
    describe_histogram!(BATCH_MESSAGES, Unit::Count, "Messages of one claim");
    describe_histogram!(BATCH_WAVES, Unit::Count, "Waves of one claim");
    describe_histogram!(CLAIM_SECONDS, Unit::Seconds, "One claim, waiting included");
    describe_histogram!(PUBLISH_SECONDS, Unit::Seconds, "Publishing of one claim");
    describe_histogram!(SETTLE_SECONDS, Unit::Seconds, "Settling of one claim");
    describe_gauge!(OUTAGE, "1 in an outage, 0 otherwise");
    describe_gauge!(BROKER_OUTAGE, "1 in an outage of this broker, 0 otherwise");
    gauge!(OUTAGE).set(0.0);
    for name in [
        CLAIMED, PUBLISHED, PANICS, DELIVERED, PARKED, DEAD, RELEASED,
    ] {
        counter!(name).increment(0);
    }
    for doing in ["claim", "settle"] {
        counter!(STORE_ERRORS, "doing" => doing).increment(0);
    }
    for (kind, none) in failures(&Tally::default()) {
        counter!(FAILURES, "kind" => kind).increment(none);
    }
}

/// The answers other than a confirmation, by kind.
fn failures(tally: &Tally) -> [(&'static str, u64); 5] {
    [
        (
            PublishErrorKind::BrokerUnavailable.as_str(),
            tally.broker_unavailable,
        ),
        (
            PublishErrorKind::TopicUnavailable.as_str(),
            tally.topic_unavailable,
        ),
        (PublishErrorKind::Retryable.as_str(), tally.retryable),
        (PublishErrorKind::Rejected.as_str(), tally.rejected),
        ("unanswered", tally.unanswered),
    ]
}

pub(super) fn claimed(messages: usize, took: Duration) {
    counter!(CLAIMED).increment(messages as u64);
    histogram!(BATCH_MESSAGES).record(messages as f64);
    histogram!(CLAIM_SECONDS).record(took.as_secs_f64());
}

pub(super) fn published(tally: &Tally, took: Duration) {
    counter!(PUBLISHED).increment(tally.confirmed);
    for (kind, count) in failures(tally) {
        if count > 0 {
            counter!(FAILURES, "kind" => kind).increment(count);
        }
    }
    if tally.panics > 0 {
        counter!(PANICS).increment(tally.panics);
    }
    histogram!(BATCH_WAVES).record(tally.waves as f64);
    histogram!(PUBLISH_SECONDS).record(took.as_secs_f64());
}

/// How many messages had which outcome.
#[derive(Default)]
pub(super) struct Outcomes {
    delivered: u64,
    parked: u64,
    dead: u64,
    released: u64,
}

impl Outcomes {
    pub(super) fn count(outcomes: &[Outcome]) -> Self {
        let mut counts = Self::default();
        for outcome in outcomes {
            *match outcome {
                Outcome::Delivered => &mut counts.delivered,
                Outcome::Park { .. } | Outcome::Behind => &mut counts.parked,
                Outcome::Dead { .. } => &mut counts.dead,
                Outcome::Released => &mut counts.released,
            } += 1;
        }
        counts
    }
}

/// Only what the store has recorded counts.
pub(super) fn settled(outcomes: &Outcomes, took: Duration) {
    counter!(DELIVERED).increment(outcomes.delivered);
    counter!(PARKED).increment(outcomes.parked);
    counter!(DEAD).increment(outcomes.dead);
    counter!(RELEASED).increment(outcomes.released);
    histogram!(SETTLE_SECONDS).record(took.as_secs_f64());
}

pub(super) fn store_error(doing: &'static str) {
    counter!(STORE_ERRORS, "doing" => doing).increment(1);
}

pub(super) fn outage(on: bool) {
    gauge!(OUTAGE).set(if on { 1.0 } else { 0.0 });
}

/// Of one broker behind a router.
pub(crate) fn broker_outage(broker: &str, on: bool) {
    gauge!(BROKER_OUTAGE, "broker" => broker.to_owned()).set(if on { 1.0 } else { 0.0 });
}

/// A panic that a router caught, so that the relay does not see it.
pub(crate) fn publisher_panicked() {
    counter!(PANICS).increment(1);
}
