//! When a message is tried again.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::relay::check;
use crate::{Claimed, InvalidConfig, PublishError, PublishErrorKind};

/// When a message is tried again. Pure: the same arguments give the same answer.
pub trait RetryPolicy: Send + Sync + 'static {
    /// How long to park it; `None` gives it up, heeded only where the failure counts
    /// ([`Retryable`](PublishErrorKind::Retryable)).
    ///
    /// `claimed` holds what happened before this failure: at the first one, `parked` and `failures`
    /// are zero.
    fn retry_after(&self, claimed: &Claimed, error: &PublishError) -> Option<Duration>;
}

/// The longest time after a first failure.
const FIRST_LONGEST: Duration = Duration::from_secs(3600);
/// A shorter time would try a failing message in a loop.
const FIRST: RangeInclusive<Duration> = Duration::from_millis(1)..=FIRST_LONGEST;
/// No back-off is longer, whatever is configured: it keeps every sum of times finite.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
const FAILURES: RangeInclusive<u32> = 1..=u32::MAX;

/// Doubles the time from `first` up to `longest`, with jitter, and gives up after `max_failures`.
///
/// The jitter comes from the message id and the number of the try, so that it spreads messages that
/// failed together and is still pure: each time lies between half and the whole of the doubled one.
///
/// By default the last failure comes half an hour to an hour after the first, beside the time that the
/// tries themselves take.
///
/// ```
/// use std::time::Duration;
/// use outbox_core::ExponentialBackoff;
///
/// let patient = ExponentialBackoff::new(
///     ExponentialBackoff::FIRST,
///     Duration::from_secs(3600),
///     ExponentialBackoff::MAX_FAILURES,
/// )?;
/// assert!(ExponentialBackoff::new(Duration::ZERO, Duration::ZERO, 0).is_err());
/// # Ok::<(), outbox_core::InvalidConfig>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExponentialBackoff {
    first: Duration,
    longest: Duration,
    max_failures: u32,
}

impl ExponentialBackoff {
    /// `first` unless set.
    pub const FIRST: Duration = Duration::from_secs(1);
    /// `longest` unless set.
    pub const LONGEST: Duration = Duration::from_secs(300);
    /// `max_failures` unless set.
    pub const MAX_FAILURES: u32 = 20;

    /// A policy whose times, before jitter, begin with `first` (1 ms to 1 h) and grow to `longest`
    /// (`first` to 365 days), and for which the failure of number `max_failures` (at least 1) is the
    /// last.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`] names the first one that breaks its limits.
    pub fn new(
        first: Duration,
        longest: Duration,
        max_failures: u32,
    ) -> Result<Self, InvalidConfig> {
        check("ExponentialBackoff::first", first, FIRST)?;
        check("ExponentialBackoff::longest", longest, first..=LONGEST)?;
        check("ExponentialBackoff::max_failures", max_failures, FAILURES)?;
        Ok(Self {
            first,
            longest,
            max_failures,
        })
    }
}

impl Default for ExponentialBackoff {
    fn default() -> Self {
        Self {
            first: Self::FIRST,
            longest: Self::LONGEST,
            max_failures: Self::MAX_FAILURES,
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

/// `first` doubled `tries` times, at most `longest`, of which `jitter` (0 to 1) takes up to half away.
pub(crate) fn doubled(first: Duration, longest: Duration, tries: u32, jitter: f64) -> Duration {
    // In two steps: from 1 ms to 365 days it takes more doublings than a factor has bits.
    let (some, more) = (tries.min(31), tries.saturating_sub(31).min(31));
    let whole = first
        .saturating_mul(1 << some)
        .saturating_mul(1 << more)
        .min(longest)
        .min(LONGEST);
    // So that rounding leaves it within its bounds.
    let half = whole / 2;
    whole - half.mul_f64(jitter.clamp(0.0, 1.0)).min(half)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Message;

    /// Any first and any longest time that a policy can have.
    fn times() -> impl Strategy<Value = (Duration, Duration)> {
        let first = (1..=FIRST_LONGEST.as_millis() as u64).prop_map(Duration::from_millis);
        let few = (1..=1_000u64).prop_map(Duration::from_millis);
        prop_oneof![first, few].prop_flat_map(|first| {
            let longest = first.as_millis() as u64..=LONGEST.as_millis() as u64;
            (Just(first), longest.prop_map(Duration::from_millis))
        })
    }

    /// Any number, often a small one.
    fn count() -> impl Strategy<Value = u32> {
        prop_oneof![4 => 0..70u32, 1 => any::<u32>()]
    }

    fn errors() -> impl Strategy<Value = PublishError> {
        prop_oneof![
            3 => Just(PublishError::retryable("no")),
            1 => Just(PublishError::topic_unavailable("no")),
            1 => Just(PublishError::broker_unavailable("no")),
            1 => Just(PublishError::rejected("no")),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_schedule_doubles_from_the_first_time_to_the_longest(
            (first, longest) in times(),
            jitter in 0.0..=1.0f64,
        ) {
            let whole = |tries| doubled(first, longest, tries, 0.0);
            prop_assert_eq!(whole(0), first);
            for tries in 0..80 {
                prop_assert_eq!(whole(tries + 1), (whole(tries) * 2).min(longest));
                let jittered = doubled(first, longest, tries, jitter);
                prop_assert!(whole(tries) / 2 <= jittered && jittered <= whole(tries));
            }
            for tries in [80, 1_000, u32::MAX] {
                prop_assert_eq!(whole(tries), longest);
            }
        }

        #[test]
        fn a_policy_gives_up_at_the_last_failure_that_counts_and_never_otherwise(
            (first, longest) in times(),
            max_failures in 1..=u32::MAX,
            near in -2..=2i64,
            (parked, failures) in (count(), count()),
            at_the_end in any::<bool>(),
            id in any::<u128>(),
            error in errors(),
        ) {
            let policy = ExponentialBackoff::new(first, longest, max_failures).unwrap();
            let failures = match at_the_end {
                true => (i64::from(max_failures) + near).clamp(0, u32::MAX.into()) as u32,
                false => failures,
            };
            let message = Message::to("t").id(crate::Uuid::from_u128(id)).tombstone().unwrap();
            let claimed = Claimed { message, parked, failures, crashes: 0 };
            let after = policy.retry_after(&claimed, &error);
            prop_assert_eq!(after, policy.retry_after(&claimed, &error), "not pure");
            let counted = error.kind() == PublishErrorKind::Retryable;
            let is_last = counted && u64::from(failures) + 1 >= u64::from(max_failures);
            prop_assert_eq!(after.is_none(), is_last);
            if let Some(after) = after {
                prop_assert!(first / 2 <= after && after <= longest, "{:?}", after);
            }
        }
    }

    #[test]
    fn what_breaks_its_limits_is_named_with_them() {
        let second = Duration::from_secs(1);
        let year = Duration::from_secs(365 * 24 * 3600);
        for (first, longest, max_failures, expected) in [
            (
                Duration::ZERO,
                second,
                1,
                "ExponentialBackoff::first is 0ns, allowed is 1ms to 3600s",
            ),
            (
                second * 3601,
                year,
                1,
                "ExponentialBackoff::first is 3601s, allowed is 1ms to 3600s",
            ),
            (
                second,
                Duration::ZERO,
                1,
                "ExponentialBackoff::longest is 0ns, allowed is 1s to 31536000s",
            ),
            (
                second,
                year + second,
                1,
                "ExponentialBackoff::longest is 31536001s, allowed is 1s to 31536000s",
            ),
            (
                second,
                second,
                0,
                "ExponentialBackoff::max_failures is 0, allowed is 1 to 4294967295",
            ),
        ] {
            let error = ExponentialBackoff::new(first, longest, max_failures).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        ExponentialBackoff::new(second, second, 1).unwrap();
    }

    #[test]
    fn the_defaults_are_within_their_limits() {
        let given = ExponentialBackoff::new(
            ExponentialBackoff::FIRST,
            ExponentialBackoff::LONGEST,
            ExponentialBackoff::MAX_FAILURES,
        );
        assert_eq!(given, Ok(ExponentialBackoff::default()));
    }
}
