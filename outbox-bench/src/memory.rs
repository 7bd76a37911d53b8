//! The resident memory of this process, as Linux counts it.

use std::fs;

/// Forgets the peak so far. Where the kernel does not do that, the next peak is that of the whole
/// run: too large, never too small.
pub(crate) fn forget_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// The peak of the resident memory since it was last forgotten, in bytes.
pub(crate) fn peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}
