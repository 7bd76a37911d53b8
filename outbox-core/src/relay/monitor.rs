//! What a running relay is at, for whoever watches it: a health endpoint, a test.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::config::Settings;
use super::health::Health;

/// A step is bounded by its own timeouts; so much later it is called stuck.
const SLACK: Duration = Duration::from_secs(5);

/// What a relay is at, from [`Relay::monitor`](crate::Relay::monitor). It stays valid while the relay runs, and
/// costs nothing to ask.
#[derive(Clone)]
pub struct RelayMonitor {
    pub(super) health: Arc<Health>,
    pub(super) steps: Arc<Steps>,
}

impl RelayMonitor {
    /// Whether the broker was away when it was last tried.
    pub fn is_outage(&self) -> bool {
        self.health.is_outage()
    }

    /// Whether the store failed when it was last asked.
    pub fn store_fails(&self) -> bool {
        self.health.store_fails()
    }

    /// Whether the workers go on: each has ended what it began within the timeouts of the relay, and the
    /// next thing was begun soon after. An outage and trouble of the store change nothing about that;
    /// `false` means that something blocks, such as a publisher that does not yield, and does so for good.
    pub fn is_live(&self) -> bool {
        self.steps.go_on()
    }
}

impl fmt::Debug for RelayMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayMonitor")
            .field("outage", &self.is_outage())
            .field("store_fails", &self.store_fails())
            .field("live", &self.is_live())
            .finish()
    }
}

/// What the workers have begun and not ended.
pub(super) struct Steps {
    /// One of the workers begins something at least so often.
    within: Duration,
    begun: Mutex<Begun>,
}

struct Begun {
    last: Option<Instant>,
    /// By when each of the steps in progress must have ended.
    ends: Vec<(u64, Instant)>,
    next: u64,
}

/// A step in progress, until it is dropped.
pub(super) struct Step<'a> {
    steps: &'a Steps,
    number: u64,
}

impl Steps {
    pub(super) fn new(settings: &Settings) -> Self {
        let claim = settings.claim_wait + settings.store_timeout;
        let delivery = settings.publish_timeout + settings.settle_timeout;
        Self {
            within: claim + delivery + settings.backoff_longest + SLACK,
            begun: Mutex::new(Begun {
                last: None,
                ends: Vec::new(),
                next: 0,
            }),
        }
    }

    /// Begins a step that ends within so long.
    pub(super) fn begin(&self, within: Duration) -> Step<'_> {
        let now = Instant::now();
        let mut begun = self.lock();
        let number = begun.next;
        begun.next += 1;
        begun.last = Some(now);
        begun.ends.push((number, now + within + SLACK));
        Step {
            steps: self,
            number,
        }
    }

    fn go_on(&self) -> bool {
        let now = Instant::now();
        let begun = self.lock();
        begun.last.is_none_or(|last| now - last <= self.within)
            && begun.ends.iter().all(|(_, end)| now <= *end)
    }

    fn lock(&self) -> MutexGuard<'_, Begun> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        let mut begun = self.steps.lock();
        begun.ends.retain(|(number, _)| *number != self.number);
    }
}
