//! The metrics of the relay, as Prometheus reads them.
//!
//! What the relay counts by itself is in `outbox-core`. Nothing is collected where nothing serves it.

use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::time::{MissedTickBehavior, interval};

use crate::failure::Failure;

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
