//! The log of a relay: text for a terminal, JSON for a collector, on standard error.

use std::io::{IsTerminal as _, stderr};

use tracing_subscriber::EnvFilter;

use crate::settings::{InvalidSettings, Log, LogFormat};

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
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr);
    if json {
        log.json().flatten_event(true).init();
    } else {
        log.with_ansi(terminal).init();
    }
    Ok(())
}
