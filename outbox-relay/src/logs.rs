//! The log of a relay: text for a terminal, JSON for a collector, on standard error.

use std::io::{IsTerminal as _, stderr};

use tracing::Level;
use tracing_subscriber::filter::{FilterExt as _, LevelFilter, filter_fn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, fmt, registry};

use crate::settings::{InvalidSettings, Log, LogFormat};

/// What of a client's own log may hold a password or a payload, and so is never shown, whatever
/// `log.level` says: lapin's frames, the login among them, and the addresses of NATS as they were given.
const SECRET: [(&str, Level); 2] = [("lapin", Level::TRACE), ("async_nats", Level::DEBUG)];

/// Logs from here on, as configured.
pub(crate) fn start(settings: &Log) -> Result<(), InvalidSettings> {
    let filter = EnvFilter::builder()
        .parse(&settings.level)
        .map_err(|error| InvalidSettings::new("log.level", error))?;
    let terminal = stderr().is_terminal();
    let json = match settings.format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    let log = fmt::layer().with_writer(stderr);
    let log = match json {
        true => log.json().flatten_event(true).boxed(),
        false => log.with_ansi(terminal).boxed(),
    };
    let shown = filter_fn(|metadata| !is_secret(metadata.target(), metadata.level()));
    // Leaves the level to the other filter.
    let shown = shown.with_max_level_hint(LevelFilter::TRACE);
    registry().with(log.with_filter(filter.and(shown))).init();
    Ok(())
}

fn is_secret(target: &str, level: &Level) -> bool {
    let of = |client: &str| match target.strip_prefix(client) {
        Some(module) => module.is_empty() || module.starts_with("::"),
        None => false,
    };
    SECRET
        .iter()
        .any(|(client, first)| of(client) && level >= first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_may_not_say_begins_at_its_level() {
        for (target, level, secret) in [
            ("lapin::channels", Level::TRACE, true),
            ("lapin", Level::TRACE, true),
            ("lapin::channels", Level::DEBUG, false),
            ("async_nats::connector", Level::TRACE, true),
            ("async_nats::connector", Level::DEBUG, true),
            ("async_nats", Level::INFO, false),
            ("lapin_of_another_name", Level::TRACE, false),
            ("outbox_core", Level::TRACE, false),
        ] {
            assert_eq!(is_secret(target, &level), secret, "{target} {level}");
        }
    }
}
