//! The calls to one broker that are in flight, and a limit to them.
//!
//! A call over the limit waits for a place, but not behind a slow broker: a worker that waits takes
//! nothing to the healthy ones either. Without any wait a busy broker would be taken for a slow one, and its
//! messages parked for nothing. So a call waits until the oldest one in flight is older than the `patience`:
//! behind a broker that hangs only the first ones wait.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

pub(super) struct Calls {
    places: Semaphore,
    in_flight: Mutex<InFlight>,
}

#[derive(Default)]
struct InFlight {
    /// When each call got its place; the number tells those of one moment apart.
    since: BTreeSet<(Instant, u64)>,
    last: u64,
}

/// A call's place, until it is dropped.
pub(super) struct Place<'a> {
    calls: &'a Calls,
    since: (Instant, u64),
    _permit: SemaphorePermit<'a>,
}

impl Calls {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            places: Semaphore::new(limit),
            in_flight: Mutex::default(),
        }
    }

    /// A place, at the latest after `patience`; `None`: there was none. Cancel safe.
    pub(super) async fn place(&self, patience: Duration) -> Option<Place<'_>> {
        let permit = match self.places.try_acquire() {
            Ok(permit) => permit,
            Err(_) => {
                let oldest = self.lock().since.first().map(|(since, _)| *since);
                let until = oldest.unwrap_or_else(Instant::now) + patience;
                timeout_at(until, self.places.acquire()).await.ok()?.ok()?
            }
        };
        let mut in_flight = self.lock();
        in_flight.last += 1;
        let since = (Instant::now(), in_flight.last);
        in_flight.since.insert(since);
        drop(in_flight);
        Some(Place {
            calls: self,
            since,
            _permit: permit,
        })
    }

    /// No step under the lock can panic half-way.
    fn lock(&self) -> MutexGuard<'_, InFlight> {
        self.in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.calls.lock().since.remove(&self.since);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join;
    use tokio::time::sleep;

    const PATIENCE: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_call_over_the_limit_waits_for_a_place_that_comes_soon() {
        let calls = Calls::new(1);
        let place = calls.place(PATIENCE).await.unwrap();
        let start = Instant::now();
        let first = async {
            sleep(Duration::from_millis(900)).await; // wait: on the paused clock
            drop(place);
        };
        let (second, ()) = join(calls.place(PATIENCE), first).await;
        assert!(second.is_some());
        assert_eq!(start.elapsed(), Duration::from_millis(900));
    }

    #[tokio::test(start_paused = true)]
    async fn behind_a_call_that_hangs_only_the_first_ones_wait() {
        let calls = Calls::new(2);
        let _hanging = [
            calls.place(PATIENCE).await.unwrap(),
            calls.place(PATIENCE).await.unwrap(),
        ];
        let start = Instant::now();
        let (third, fourth) = join(calls.place(PATIENCE), calls.place(PATIENCE)).await;
        assert!(third.is_none() && fourth.is_none());
        assert_eq!(start.elapsed(), PATIENCE);
        for _ in 0..100 {
            assert!(calls.place(PATIENCE).await.is_none());
        }
        assert_eq!(start.elapsed(), PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_that_is_given_up_is_free_and_its_time_forgotten() {
        let calls = Calls::new(1);
        for _ in 0..3 {
            let place = calls.place(PATIENCE).await.unwrap();
            // Dropped while it waits: holds nothing.
            let waiting = timeout_at(Instant::now() + PATIENCE / 2, calls.place(PATIENCE)).await;
            assert!(waiting.is_err());
            drop(place);
        }
        assert!(calls.lock().since.is_empty());
    }
}
