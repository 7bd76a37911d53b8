//! Processes that a test has started, or found: relays and servers. The suites do not need it.

use std::fs;
use std::process::Command;

/// Sends a signal, such as `TERM`, by the shell's own `kill`, which there is wherever there is a shell.
///
/// # Panics
///
/// When there is no such process, or it belongs to somebody else.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("sh")
        .args(["-c", &format!("kill -{name} {pid}")])
        .status()
        .expect("a shell");
    assert!(status.success(), "kill -{name} {pid}");
}

/// The most memory that was resident so far, in bytes.
///
/// # Panics
///
/// When there is no such process.
pub fn peak_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process that runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib: u64 = kib.expect("VmHWM").parse().expect("a number");
    kib * 1024
}
