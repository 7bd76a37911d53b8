//! How a phase is measured, and what is made of several measurements.

use std::time::Instant;

use serde::Serialize;

use crate::{Result, memory};

/// What one phase did.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Measured {
    pub(crate) messages_per_second: f64,
    pub(crate) seconds: f64,
    /// The peak of this process's resident memory during the phase.
    pub(crate) peak_memory_bytes: Option<u64>,
    /// What the server wrote to its log meanwhile, where that was asked for.
    pub(crate) wal_bytes_per_message: Option<f64>,
}

impl Measured {
    pub(crate) fn peak_mib(&self) -> f64 {
        self.peak_memory_bytes.unwrap_or_default() as f64 / 1024.0 / 1024.0
    }
}

/// One phase's time and memory.
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        memory::forget_peak();
        Self(Instant::now())
    }

    /// How much it was so far, for a number of messages that is known later.
    pub(crate) fn elapsed(&self) -> Elapsed {
        Elapsed {
            seconds: self.0.elapsed().as_secs_f64(),
            peak_memory_bytes: memory::peak(),
        }
    }

    pub(crate) fn stop(self, messages: u64) -> Measured {
        self.elapsed().of(messages)
    }
}

pub(crate) struct Elapsed {
    pub(crate) seconds: f64,
    peak_memory_bytes: Option<u64>,
}

impl Elapsed {
    pub(crate) fn of(self, messages: u64) -> Measured {
        Measured {
            messages_per_second: messages as f64 / self.seconds,
            seconds: self.seconds,
            peak_memory_bytes: self.peak_memory_bytes,
            wal_bytes_per_message: None,
        }
    }
}

/// The middle one, or the mean of the two in the middle.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        1 => Some(values[middle]),
        _ => Some((values.get(middle.checked_sub(1)?)? + values.get(middle)?) / 2.0),
    }
}

/// Fails a phase that has another number of messages than it should.
pub(crate) fn all(found: u64, wanted: u64, what: &str) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(format!("{found} of {wanted} messages {what}").into())
}

/// Fails a phase that has left something behind.
pub(crate) fn none_left(rows: u64) -> Result<()> {
    if rows == 0 {
        return Ok(());
    }
    Err(format!("{rows} messages are left in the table").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
        assert_eq!(median([].into_iter()), None);
    }
}
