//! `outbox check`: for monitors. One line and an exit code: 0 all is within the limits, 1 one is exceeded
//! or the database cannot be asked, 2 wrong arguments or configuration.
//!
//! A database that does not answer is 1 and not something of its own: whoever is called has to look, and a
//! monitor that treats unknown codes as warnings must not sleep through it.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use outbox_core::admin::{Count, Status};

use crate::failure::Failure;
use crate::settings::Settings;
use crate::store::Store;
use crate::terminal;
use crate::text::{approximate, count, span};

/// Which limits there are. What is not given is not looked at.
#[derive(Args, Default)]
#[group(required = true, multiple = true)]
pub(crate) struct Arguments {
    /// No message has waited for longer, in the queue or behind a key that is held up
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    max_age: Option<Duration>,
    /// At most so many dead messages
    #[arg(long, value_name = "NUMBER")]
    max_dead: Option<u64>,
    /// At most so many messages in the queue
    #[arg(long, value_name = "NUMBER")]
    max_waiting: Option<u64>,
    /// At most so many messages set aside
    #[arg(long, value_name = "NUMBER")]
    max_parked: Option<u64>,
    /// At most so many keys held up
    #[arg(long, value_name = "NUMBER", alias = "max-blocked")]
    max_held: Option<u64>,
    /// At most so many keys halted behind a dead message
    #[arg(long, value_name = "NUMBER")]
    max_halted: Option<u64>,
    /// At least so many relays are connected; Postgres alone can tell
    #[arg(long, value_name = "NUMBER")]
    min_relays: Option<u64>,
}

pub(crate) async fn run(arguments: Arguments, settings: Settings) -> Result<ExitCode, Failure> {
    let store = Store::ready(&settings.store).await?;
    let status = store.status().await?;
    if arguments.min_relays.is_some() && status.relays.is_none() {
        return Err(Failure::Usage(
            "--min-relays: this store does not show its relays",
        ));
    }
    let exceeded = exceeded(&arguments, &status);
    if exceeded.is_empty() {
        terminal::print(&format!("ok: {}\n", summary(&status)))?;
        return Ok(ExitCode::SUCCESS);
    }
    terminal::print(&format!("exceeded: {}\n", exceeded.join("; ")))?;
    Ok(ExitCode::FAILURE)
}

fn summary(status: &Status) -> String {
    let mut text = format!(
        "waiting {}, parked {}, dead {}",
        approximate(status.waiting),
        approximate(status.parked),
        approximate(status.dead)
    );
    if let Some(age) = status.oldest_waiting_age() {
        text += &format!(", the oldest for {}", span(age));
    }
    text
}

/// What is over its limit, each with both numbers.
fn exceeded(limits: &Arguments, status: &Status) -> Vec<String> {
    let mut exceeded = Vec::new();
    if let Some(limit) = limits.max_age {
        let mut over = |what: &str, age: Option<Duration>| {
            if let Some(age) = age.filter(|age| *age > limit) {
                exceeded.push(format!("{what} {}, limit {}", span(age), span(limit)));
            }
        };
        over("oldest waiting message", status.oldest_waiting_age());
        over("longest held-up key", status.oldest_held_age());
        // There are so many that the oldest was not found in time.
        if !status.complete && status.oldest_waiting.is_none() && status.waiting != Count::Exact(0)
        {
            exceeded.push(format!(
                "oldest waiting message of {} not found in time, limit {}",
                approximate(status.waiting),
                span(limit)
            ));
        }
    }
    for (what, found, limit) in [
        ("dead messages", status.dead, limits.max_dead),
        ("waiting messages", status.waiting, limits.max_waiting),
        ("parked messages", status.parked, limits.max_parked),
        ("held-up keys", status.held_keys, limits.max_held),
        ("halted keys", status.halted_keys, limits.max_halted),
    ] {
        let Some(limit) = limit else { continue };
        // There are more than were counted, and nobody knows how many.
        let is_unknown = matches!(found, Count::AtLeast(number) if number <= limit);
        if is_unknown || found.number() > limit {
            let not_counted = if is_unknown {
                ", not counted further"
            } else {
                ""
            };
            exceeded.push(format!(
                "{what} {}{not_counted}, limit {}",
                approximate(found),
                count(limit)
            ));
        }
    }
    if let (Some(least), Some(relays)) = (limits.min_relays, &status.relays)
        && (relays.len() as u64) < least
    {
        exceeded.push(format!("relays {}, at least {least} wanted", relays.len()));
    }
    exceeded
}

#[cfg(test)]
mod tests {
    use super::super::status::tests::{empty, held, waiting};
    use super::*;

    #[test]
    fn what_is_exceeded_is_named_with_both_numbers() {
        let status = held(waiting(empty(), 1204, 600), "t", "retryable", false).status;
        let limits = Arguments {
            max_age: Some(Duration::from_secs(60)),
            max_dead: Some(0),
            max_waiting: Some(1000),
            max_parked: Some(13),
            max_held: Some(0),
            min_relays: Some(2),
            ..Arguments::default()
        };
        assert_eq!(
            exceeded(&limits, &status),
            [
                "oldest waiting message 10 min, limit 1 min",
                "longest held-up key 3 min 5 s, limit 1 min",
                "waiting messages 1,204, limit 1,000",
                "held-up keys 1, limit 0",
                "relays 1, at least 2 wanted",
            ]
        );
        assert!(exceeded(&Arguments::default(), &status).is_empty());
    }

    #[test]
    fn what_is_not_counted_up_to_the_limit_is_not_taken_for_fine() {
        let mut status = empty().status;
        let found = |status: &Status, limit| {
            let limits = Arguments {
                max_waiting: Some(limit),
                ..Arguments::default()
            };
            exceeded(&limits, status)
        };
        status.waiting = Count::AtLeast(100_000);
        for limit in [100_000, 200_000] {
            let line = format!(
                "waiting messages 100,000+, not counted further, limit {}",
                count(limit)
            );
            assert_eq!(found(&status, limit), [line]);
        }
        assert_eq!(
            found(&status, 99_999),
            ["waiting messages 100,000+, limit 99,999"]
        );
        for waiting in [Count::Exact(100_000), Count::About(100_000)] {
            status.waiting = waiting;
            assert!(found(&status, 100_000).is_empty(), "{waiting:?}");
        }
    }

    #[test]
    fn an_age_that_was_not_found_is_not_taken_for_fine() {
        let mut status = waiting(empty(), 7, 600).status;
        status.waiting = Count::AtLeast(1_000_000);
        status.oldest_waiting = None;
        status.complete = false;
        let limits = Arguments {
            max_age: Some(Duration::from_secs(60)),
            ..Arguments::default()
        };
        assert_eq!(
            exceeded(&limits, &status),
            ["oldest waiting message of 1,000,000+ not found in time, limit 1 min"]
        );
    }
}
