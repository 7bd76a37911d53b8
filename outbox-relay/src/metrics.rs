//! The metrics of the relay, as Prometheus reads them.
//!
//! What the relay counts by itself is in `outbox-core`; the gauges of the store are here. Nothing is
//! collected where nothing serves it.

use std::sync::Arc;
use std::time::Duration;

use ::metrics::{Unit, describe_gauge, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use outbox_core::admin::Gauges;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::failure::Failure;
use crate::store::Store;

const WAITING: &str = "outbox_waiting_messages";
const PARKED: &str = "outbox_parked_messages";
const DEAD: &str = "outbox_dead_messages";
const DELAYED: &str = "outbox_delayed_messages";
const HELD_KEYS: &str = "outbox_held_keys";
const HALTED_KEYS: &str = "outbox_halted_keys";
const OLDEST_WAITING: &str = "outbox_oldest_waiting_seconds";
const OLDEST_HELD: &str = "outbox_oldest_held_seconds";
const LANES_HELD: &str = "outbox_lanes_held";
const FLOOR_LAG: &str = "outbox_floor_lag";
const PAUSED_TOPICS: &str = "outbox_paused_topics";
const STATUS_UP: &str = "outbox_status_up";

/// A millisecond is a round trip; half a minute is the relay's publish timeout.
const SECONDS: [f64; 13] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0, 30.0,
];
const NUMBERS: [f64; 9] = [
    1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 10_000.0, 100_000.0,
];
/// The exporter keeps each value of a histogram until it is told to sum up.
const UPKEEP: Duration = Duration::from_secs(5);

/// Collects from here on.
pub(crate) fn start() -> Result<PrometheusHandle, Failure> {
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
        .and_then(|builder| {
            builder.set_buckets_for_metric(Matcher::Prefix("outbox_batch_".to_owned()), &NUMBERS)
        })
        .map_err(Failure::of)?
        .build_recorder();
    let handle = recorder.handle();
    ::metrics::set_global_recorder(recorder).map_err(|error| Failure::new(error.to_string()))?;
    describe();
    let upkept = handle.clone();
    tokio::spawn(async move {
        let mut ticks = interval(UPKEEP);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            upkept.run_upkeep();
        }
    });
    Ok(handle)
}

/// How often the store is asked how it stands.
const LOOK: Duration = Duration::from_secs(15);
/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tells how the store stands, now and then, until the process ends.
pub(crate) fn watch(store: Arc<Store>) {
    tokio::spawn(async move {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let up = match timeout(PATIENCE, store.gauges()).await {
                Ok(Ok(gauges)) => {
                    tell(&gauges);
                    gauges.complete
                }
                Ok(Err(error)) => {
                    tracing::debug!(%error, "the store does not say how it stands");
                    false
                }
                Err(_) => false,
            };
            gauge!(STATUS_UP).set(if up { 1.0 } else { 0.0 });
        }
    });
}

fn tell(gauges: &Gauges) {
    let seconds = |age: Option<Duration>| age.unwrap_or_default().as_secs_f64();
    gauge!(WAITING).set(gauges.waiting.number() as f64);
    gauge!(PARKED).set(gauges.parked.number() as f64);
    gauge!(DEAD).set(gauges.dead.number() as f64);
    gauge!(DELAYED).set(gauges.delayed.number() as f64);
    gauge!(HELD_KEYS).set(gauges.held_keys.number() as f64);
    gauge!(HALTED_KEYS).set(gauges.halted_keys.number() as f64);
    gauge!(OLDEST_HELD).set(seconds(gauges.oldest_held));
    gauge!(PAUSED_TOPICS).set(gauges.paused_topics as f64);
    // What was not found in time is not zero.
    if gauges.complete {
        gauge!(OLDEST_WAITING).set(seconds(gauges.oldest_waiting));
    }
    if let Some(lanes) = gauges.lanes_held {
        gauge!(LANES_HELD).set(lanes as f64);
    }
    if let Some(lag) = gauges.floor_lag {
        gauge!(FLOOR_LAG).set(lag as f64);
    }
}

fn describe() {
    describe_gauge!(WAITING, "Messages that were never set aside");
    describe_gauge!(PARKED, "Messages that were set aside");
    describe_gauge!(DEAD, "Messages that were given up");
    describe_gauge!(
        DELAYED,
        "Messages that were enqueued with a delay and are not due yet"
    );
    describe_gauge!(HELD_KEYS, "Keys that are held up behind a parked message");
    describe_gauge!(
        HALTED_KEYS,
        "Keys that wait for a decision about a dead message"
    );
    describe_gauge!(
        OLDEST_WAITING,
        Unit::Seconds,
        "How long the oldest message has waited"
    );
    describe_gauge!(
        OLDEST_HELD,
        Unit::Seconds,
        "How long a key has been held up at most"
    );
    describe_gauge!(LANES_HELD, "Lanes that a relay has claimed");
    describe_gauge!(
        FLOOR_LAG,
        "Positions between the lowest floor and the newest message"
    );
    describe_gauge!(PAUSED_TOPICS, "Topics that a person has paused");
    describe_gauge!(
        STATUS_UP,
        "1: the store said how it stands when it was last asked"
    );
    // Also while the store is waited for.
    gauge!(STATUS_UP).set(0.0);
}
