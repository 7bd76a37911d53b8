//! What the relay tells through `metrics`, as sums by name and label.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit};

#[derive(Default)]
pub(crate) struct Recorder {
    described: Mutex<BTreeSet<String>>,
    counters: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    gauges: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    histograms: Mutex<BTreeMap<String, Arc<Sum>>>,
}

#[derive(Default)]
struct Sum(Mutex<f64>);

impl HistogramFn for Sum {
    fn record(&self, value: f64) {
        *self.0.lock().unwrap() += value;
    }
}

impl Recorder {
    pub(crate) fn described(&self) -> BTreeSet<String> {
        self.described.lock().unwrap().clone()
    }

    /// The names of everything that was told, without labels.
    pub(crate) fn told(&self) -> BTreeSet<String> {
        let counters = self.counters.lock().unwrap();
        let gauges = self.gauges.lock().unwrap();
        let histograms = self.histograms.lock().unwrap();
        let names = counters
            .keys()
            .chain(gauges.keys())
            .chain(histograms.keys());
        names
            .map(|name| name.split(' ').next().unwrap().to_owned())
            .collect()
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let counters = self.counters.lock().unwrap();
        counters
            .get(name)
            .map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    pub(crate) fn gauge(&self, name: &str) -> Option<f64> {
        let gauges = self.gauges.lock().unwrap();
        let bits = gauges.get(name)?.load(Ordering::Relaxed);
        Some(f64::from_bits(bits))
    }

    pub(crate) fn sum(&self, name: &str) -> Option<f64> {
        let histograms = self.histograms.lock().unwrap();
        Some(*histograms.get(name)?.0.lock().unwrap())
    }

    fn describe(&self, name: &KeyName) {
        let mut described = self.described.lock().unwrap();
        described.insert(name.as_str().to_owned());
    }
}

/// Such as `outbox_store_errors_total doing=claim`.
fn name(key: &Key) -> String {
    let labels = key
        .labels()
        .map(|label| format!(" {}={}", label.key(), label.value()));
    key.name().to_owned() + &labels.collect::<String>()
}

impl metrics::Recorder for Recorder {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&key);
    }

    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&key);
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&key);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut counters = self.counters.lock().unwrap();
        Counter::from_arc(Arc::clone(counters.entry(name(key)).or_default()))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let mut gauges = self.gauges.lock().unwrap();
        Gauge::from_arc(Arc::clone(gauges.entry(name(key)).or_default()))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let mut histograms = self.histograms.lock().unwrap();
        Histogram::from_arc(Arc::clone(histograms.entry(name(key)).or_default()))
    }
}
