//! What was delivered and is kept: the days that are made ahead, and dropped when they are old.
//!
//! That a settle keeps a message is in `settle.rs`; how days are made and dropped in the function
//! `keep_delivered` of the migration. Here is when.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use sqlx::Row as _;

use crate::session::SessionError;
use crate::store::Shared;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// The longest that may be set, in days.
const MAX_DAYS: u32 = 3650;

/// How often days are made and dropped. Two are made ahead.
const EVERY: Duration = Duration::from_secs(3600);
/// And after a failure, such as a dump that reads a day that is to be dropped.
const AFTER_FAILURE: Duration = Duration::from_secs(60);

/// A time for which nothing can be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("keep_delivered_for is {given:?}, allowed is 1 day to {MAX_DAYS} days")]
pub struct InvalidRetention {
    given: Duration,
}

pub(crate) fn check(given: Duration) -> Result<(), InvalidRetention> {
    match (DAY..=DAY * MAX_DAYS).contains(&given) {
        true => Ok(()),
        false => Err(InvalidRetention { given }),
    }
}

/// When the days are looked after next; at once unless it is known.
#[derive(Debug, Default)]
pub(crate) struct Turn(Option<Instant>);

impl Turn {
    /// Takes the turn, when it is time. Another one comes soon, unless this one ends well.
    fn take(&mut self) -> bool {
        let now = Instant::now();
        let is_time = self.0.is_none_or(|next| next <= now);
        if is_time {
            self.0 = Some(now + AFTER_FAILURE);
        }
        is_time
    }

    fn done(&mut self) {
        self.0 = Some(Instant::now() + EVERY);
    }
}

impl Shared {
    /// Makes and drops days, when something is kept and it is time. The first time all claims wait for it, since
    /// what they settle before today is made has to be moved.
    pub(crate) async fn look_after_kept(&self) {
        let Some(age) = self.options.keep_delivered_for else {
            return;
        };
        let first = self.first_days.get_or_init(|| self.take_turn(age));
        first.await;
        self.take_turn(age).await;
    }

    /// A failure is told, and tried again: a settle needs no day of its own.
    async fn take_turn(&self, age: Duration) {
        if !self.turn(Turn::take) {
            return;
        }
        match self.make_and_drop_days(age).await {
            Ok(true) => self.turn(Turn::done),
            // A day was dropped and there may be another, somebody reads what is to be dropped or made, or there are
            // more old messages without a day.
            Ok(false) => tracing::info!(
                "days of delivered messages are left to make or to drop, in a minute"
            ),
            Err(error) => tracing::warn!(
                %error,
                "days of delivered messages were not made or dropped; tried again in a minute"
            ),
        }
    }

    /// Whether nothing is left to do.
    async fn make_and_drop_days(&self, age: Duration) -> Result<bool, SessionError> {
        let mut session = self.session().await?;
        let row = self
            .statements
            .keep_delivered
            .query()
            .bind(i64::try_from(age.as_micros()).unwrap_or(i64::MAX))
            .fetch_one(&mut session.connection)
            .await?;
        self.put_back(session);
        Ok(row.try_get(0)?)
    }

    fn turn<T>(&self, with: impl FnOnce(&mut Turn) -> T) -> T {
        with(
            &mut self
                .retention
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_kept_is_refused_with_the_limits() {
        assert_eq!(check(DAY), Ok(()));
        assert_eq!(check(DAY * MAX_DAYS), Ok(()));
        let error = check(Duration::from_secs(3600)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "keep_delivered_for is 3600s, allowed is 1 day to 3650 days"
        );
        assert!(check(DAY * (MAX_DAYS + 1)).is_err());
    }

    #[test]
    fn a_turn_is_taken_once_and_comes_again() {
        let mut turn = Turn::default();
        assert!(turn.take());
        assert!(!turn.take());
        turn.0 = Some(Instant::now());
        assert!(turn.take());
        turn.done();
        assert!(!turn.take());
    }
}
