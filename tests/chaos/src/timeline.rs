//! The clock of a run, what is said while it runs, and when what was broken.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::record::Disturbance;

pub(crate) struct Timeline {
    start: Instant,
    disturbances: Mutex<Vec<Disturbance>>,
}

impl Timeline {
    /// Begins now.
    pub(crate) fn begin() -> Self {
        Self {
            start: Instant::now(),
            disturbances: Mutex::default(),
        }
    }

    /// The time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The moment so long after the start.
    pub(crate) fn moment(&self, at: Duration) -> tokio::time::Instant {
        (self.start + at).into()
    }

    /// A line with the time before it.
    pub(crate) fn say(&self, what: &str) {
        let tenths = self.now().as_millis() / 100;
        let (minutes, seconds) = (tenths / 600, tenths / 10 % 60);
        println!("{minutes:02}:{seconds:02}.{}  {what}", tenths % 10);
    }

    pub(crate) fn broken(&self, kind: &'static str, from: Duration) {
        let until = self.now();
        self.lock().push(Disturbance { kind, from, until });
    }

    /// In the order of their ends.
    pub(crate) fn disturbances(&self) -> Vec<Disturbance> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Disturbance>> {
        self.disturbances
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
