//! The clock of a run, what is said while it runs, and when what was broken.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::record::Disturbance;
use crate::schedule::Fault;

pub(crate) struct Timeline {
    start: Instant,
    date: SystemTime,
    disturbances: Mutex<Vec<Disturbance>>,
}

impl Timeline {
    /// Begins now.
    pub(crate) fn begin() -> Self {
        Self {
            start: Instant::now(),
            date: SystemTime::now(),
            disturbances: Mutex::default(),
        }
    }

    /// The time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The time from the start to a date of this host's clock, in seconds since 1970.
    pub(crate) fn at(&self, date: f64) -> Duration {
        let start = self.date.duration_since(SystemTime::UNIX_EPOCH);
        let since = date - start.unwrap_or_default().as_secs_f64();
        Duration::try_from_secs_f64(since).unwrap_or_default()
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

    pub(crate) fn broken(&self, fault: Fault, from: Duration) {
        let until = self.now();
        self.lock().push(Disturbance { fault, from, until });
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
