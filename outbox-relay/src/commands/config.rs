//! `outbox config`: the settings in effect.

use crate::failure::Failure;
use crate::settings::{self, Loaded, Settings};
use crate::terminal;

pub(crate) fn run(loaded: &Loaded) -> Result<(), Failure> {
    let settings = Settings::of(loaded)?;
    let lines = settings::lines(loaded, &settings).map_err(Failure::of)?;
    terminal::print(&(lines.join("\n") + "\n"))
}
