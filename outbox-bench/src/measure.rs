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
}

/// One phase's time and memory.
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        memory::forget_peak();
        Self(Instant::now())
    }

    pub(crate) fn stop(self, messages: u64) -> Measured {
        let seconds = self.0.elapsed().as_secs_f64();
        Measured {
            messages_per_second: messages as f64 / seconds,
            seconds,
            peak_memory_bytes: memory::peak(),
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
