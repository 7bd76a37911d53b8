//! `outbox config`: the settings in effect.

use crate::failure::Failure;
use crate::settings::{self, Loaded, Settings};

pub(crate) fn run(loaded: &Loaded) -> Result<(), Failure> {
    let settings = Settings::of(loaded)?;
    for line in settings::lines(loaded, &settings).map_err(Failure::of)? {
        println!("{line}");
    }
    Ok(())
}
