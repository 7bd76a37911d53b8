//! Programs, processes and signals, by what every Linux has.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use tokio::process::Child;

use crate::Result;

/// A command whose process is killed when this process ends, however that ends.
pub(crate) fn guarded(user: Option<&str>) -> tokio::process::Command {
    let mut command = tokio::process::Command::new("setpriv");
    if let Some(user) = user {
        let (user, group) = (format!("--reuid={user}"), format!("--regid={user}"));
        command.args([user, group]).arg("--clear-groups");
    }
    command
        .args(["--pdeathsig=KILL", "--"])
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Starts it with its output at the end of a file.
pub(crate) fn start(mut command: tokio::process::Command, log: &Path) -> Result<Child> {
    let log = File::options().create(true).append(true).open(log)?;
    Ok(command.stdout(log.try_clone()?).stderr(log).spawn()?)
}

/// Runs a program to its end; an error with what it said unless it succeeded.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<()> {
    output(program, arguments).map(drop)
}

/// What a program writes to its standard output; an error as with [`run`].
pub(crate) fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout)?);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {}: {said}", arguments.join(" ")).into())
}

/// Sends a signal to a process that we started. A shell has `kill` wherever there is one.
pub(crate) fn signal(pid: u32, name: &str) -> Result<()> {
    run("sh", &["-c", &format!("kill -{name} {pid}")])
}

/// The memory that is resident, in bytes.
pub(crate) fn memory(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// Whether this process is root, whom Postgres refuses.
pub(crate) fn is_root() -> bool {
    let own = std::fs::metadata("/proc/self");
    own.is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}
