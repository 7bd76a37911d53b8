//! The word to stop, from the relay to its workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Shared by its clones. Not tokio's `watch`, which wakes who waits in a random order: a simulated run
/// must be repeatable.
#[derive(Clone, Default)]
pub(super) struct Stop(Arc<Inner>);

#[derive(Default)]
struct Inner {
    requested: AtomicBool,
    request: Notify,
}

impl Stop {
    pub(super) fn request(&self) {
        self.0.requested.store(true, Ordering::Release);
        self.0.request.notify_waiters();
    }

    pub(super) fn requested(&self) -> bool {
        self.0.requested.load(Ordering::Acquire)
    }

    pub(super) async fn wait(&self) {
        // Made before the look, so that a request between look and wait is not missed.
        let request = self.0.request.notified();
        if !self.requested() {
            request.await;
        }
    }

    /// The result of `work`, unless the request comes first: then `work` is dropped.
    pub(super) async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.wait() => None,
            done = work => Some(done),
        }
    }
}
