//! How long each message took from its commit to its acknowledgement.
//!
//! A message's time begins when the commit has returned to the producer, and ends when the publisher's
//! call for its batch has: never too early. One that was acknowledged before its producer heard of the commit
//! took no time. A repeat changes nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outbox_core::{Delivery, Publisher, async_trait};
use serde::Serialize;
use uuid::Uuid;

use crate::Result;
use crate::measure::all;
use crate::setup::PATIENCE;

/// What is known of the messages: whichever of its two ends a message has had, and the times of those that
/// had both.
pub(crate) struct Times {
    start: Instant,
    ends: Mutex<HashMap<Uuid, End>>,
    taken: Mutex<Vec<Taken>>,
}

enum End {
    Committed(Instant),
    Acknowledged(Instant),
}

/// One message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// When it was acknowledged, after the start.
    pub(crate) at: Duration,
    /// How long after its commit that was.
    pub(crate) took: Duration,
}

impl Times {
    pub(crate) fn start() -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            ends: Mutex::default(),
            taken: Mutex::default(),
        })
    }

    /// How long ago the start was.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn committed(&self, ids: impl IntoIterator<Item = Uuid>) {
        let now = Instant::now();
        let mut ends = lock(&self.ends);
        for id in ids {
            match ends.remove(&id) {
                Some(End::Acknowledged(at)) => self.take(at, Duration::ZERO),
                _ => drop(ends.insert(id, End::Committed(now))),
            }
        }
    }

    pub(crate) fn acknowledged(&self, ids: impl IntoIterator<Item = Uuid>) {
        let now = Instant::now();
        let mut ends = lock(&self.ends);
        for id in ids {
            match ends.remove(&id) {
                Some(End::Committed(at)) => self.take(now, now - at),
                _ => drop(ends.insert(id, End::Acknowledged(now))),
            }
        }
    }

    fn take(&self, acknowledged: Instant, took: Duration) {
        let at = acknowledged - self.start;
        lock(&self.taken).push(Taken { at, took });
    }

    /// Waits until so many messages have had both ends, and fails when they have not after a while.
    pub(crate) async fn wait_for(&self, messages: u64) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let found = lock(&self.taken).len() as u64;
            if found >= messages || Instant::now() >= end {
                return all(found, messages, "acknowledged");
            }
            tokio::time::sleep(Duration::from_millis(5)).await; // wait: the poll of a bounded loop
        }
    }

    /// What was taken so far.
    pub(crate) fn taken(&self) -> Vec<Taken> {
        lock(&self.taken).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes when the call of a publisher for a batch has returned.
pub(crate) struct Acknowledged {
    pub(crate) publisher: Arc<dyn Publisher>,
    pub(crate) times: Arc<Times>,
}

#[async_trait]
impl Publisher for Acknowledged {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        self.publisher.publish(batch).await;
        let ids = batch.iter().map(|delivery| delivery.message().id());
        self.times.acknowledged(ids);
    }

    fn chains_keys(&self) -> bool {
        self.publisher.chains_keys()
    }
}

/// Of times; none is invented, each is one that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) of: usize,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) longest_ms: f64,
}

impl Percentiles {
    /// By nearest rank: at least so many percent of the times are not longer. `None` where there are none.
    pub(crate) fn new(times: impl IntoIterator<Item = Duration>) -> Option<Self> {
        let mut times: Vec<Duration> = times.into_iter().collect();
        times.sort_unstable();
        let at = |percent: usize| {
            let rank = (times.len() * percent).div_ceil(100).max(1);
            Some(times.get(rank - 1)?.as_secs_f64() * 1000.0)
        };
        Some(Self {
            of: times.len(),
            p50_ms: at(50)?,
            p99_ms: at(99)?,
            longest_ms: at(100)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_time_whichever_end_comes_first_and_only_once() {
        let times = Times::start();
        let (first, second) = (Uuid::now_v7(), Uuid::now_v7());
        times.committed([first]);
        std::thread::yield_now();
        times.acknowledged([second, first]);
        times.committed([second]);
        times.acknowledged([first]);
        let taken = times.taken();
        assert_eq!(taken.len(), 2);
        assert!(taken[0].took > Duration::ZERO, "{taken:?}");
        assert_eq!(taken[1].took, Duration::ZERO);
        assert!(taken[0].at >= taken[0].took);
    }

    #[test]
    fn percentiles_are_times_that_were_taken() {
        let of = |times: std::ops::RangeInclusive<u64>| {
            let it = Percentiles::new(times.rev().map(Duration::from_millis)).unwrap();
            (it.of, it.p50_ms, it.p99_ms, it.longest_ms)
        };
        assert_eq!(of(1..=100), (100, 50.0, 99.0, 100.0));
        assert_eq!(of(1..=200), (200, 100.0, 198.0, 200.0));
        assert_eq!(of(1..=3), (3, 2.0, 3.0, 3.0));
        assert_eq!(of(7..=7), (1, 7.0, 7.0, 7.0));
        assert_eq!(Percentiles::new([]), None);
    }
}
