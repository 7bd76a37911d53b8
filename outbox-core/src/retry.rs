//! When a message is tried again.

use std::time::Duration;

use crate::{Claimed, PublishError, PublishErrorKind};

/// When a message is tried again. Pure: the same arguments give the same answer.
pub trait RetryPolicy: Send + Sync + 'static {
    /// How long to park it; `None` gives it up, heeded only where the failure counts
    /// ([`Retryable`](PublishErrorKind::Retryable)).
    ///
    /// `claimed` holds what happened before this failure: at the first one, `parked` and `failures`
    /// are zero.
    fn retry_after(&self, claimed: &Claimed, error: &PublishError) -> Option<Duration>;
}

/// Doubles the time from `first` up to `longest`, with jitter, and gives up after `max_failures`.
///
/// The jitter comes from the message id and the number of the try, so that it spreads messages that
/// failed together and is still pure: each time lies between half and the whole of the doubled one.
///
/// The default: first 1 s, longest 5 min, 20 failures. The last comes half an hour to
/// an hour after the first, beside the time that the tries themselves take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExponentialBackoff {
    /// The time after the first failure, before jitter.
    pub first: Duration,
    /// The longest time, before jitter.
    pub longest: Duration,
    /// The failure of this number is the last; at least 1.
    pub max_failures: u32,
}

impl Default for ExponentialBackoff {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(300),
            max_failures: 20,
        }
    }
}

impl RetryPolicy for ExponentialBackoff {
    fn retry_after(&self, claimed: &Claimed, error: &PublishError) -> Option<Duration> {
        let counted = error.kind() == PublishErrorKind::Retryable;
        if counted && claimed.failures.saturating_add(1) >= self.max_failures {
            return None;
        }
        let tries = if counted {
            claimed.failures
        } else {
            claimed.parked
        };
        let id = claimed.message.id().as_u128();
        let seed = (id as u64) ^ ((id >> 64) as u64) ^ u64::from(tries);
        Some(doubled(
            self.first,
            self.longest,
            tries,
            fastrand::Rng::with_seed(seed).f64(),
        ))
    }
}

/// No back-off is longer, whatever is configured: it keeps every sum of times finite.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// `first` doubled `tries` times, at most `longest`, of which `jitter` (0 to 1) takes up to half away.
pub(crate) fn doubled(first: Duration, longest: Duration, tries: u32, jitter: f64) -> Duration {
    let whole = first
        .saturating_mul(1u32.checked_shl(tries).unwrap_or(u32::MAX))
        .min(longest)
        .min(LONGEST);
    whole.mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 2.0)
}
