//! A relay as a process.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbox_conformance::process::{self, signal};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::time::timeout;

use super::scene::Scene;

/// Killed when it is dropped. A test that fails shows its log.
pub(crate) struct Relay {
    child: Child,
    log: Arc<Mutex<String>>,
}

impl Relay {
    /// Starts a relay for the scene, with further settings of the form `name=value`.
    pub(crate) fn start(scene: &Scene, settings: &[&str]) -> Self {
        Self::spawn(
            tokio::process::Command::new(env!("CARGO_BIN_EXE_relay")),
            scene,
            settings,
        )
    }

    /// The same on a host whose clock is wrong by so much, in the words of libfaketime, such as `-3h`.
    pub(crate) fn start_with_clock(wrong: &str, scene: &Scene, settings: &[&str]) -> Self {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_relay"));
        command
            .env("LD_PRELOAD", "/usr/$LIB/faketime/libfaketimeMT.so.1")
            .env("FAKETIME", wrong)
            // The clock that measures durations is right on such a host.
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        Self::spawn(command, scene, settings)
    }

    fn spawn(mut command: tokio::process::Command, scene: &Scene, settings: &[&str]) -> Self {
        let mut child = command
            // Its sessions can be told from those of the test.
            .arg(format!(
                "database={}?application_name={}",
                scene.url,
                scene.outbox.schema()
            ))
            .arg(format!("schema={}", scene.outbox.schema()))
            .args(scene.broker.relay_arguments())
            .args(settings)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("a relay process");
        let log = Arc::new(Mutex::new(String::new()));
        let lines = BufReader::new(child.stderr.take().expect("its standard error")).lines();
        tokio::spawn(keep(lines, Arc::clone(&log)));
        Self { child, log }
    }

    pub(crate) fn has_logged(&self, text: &str) -> bool {
        self.times_logged(text) > 0
    }

    pub(crate) fn times_logged(&self, text: &str) -> usize {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.matches(text).count()
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }

    /// The year in which it believes to be; 0 until it has logged something.
    pub(crate) fn year(&self) -> i64 {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.split('-')
            .next()
            .and_then(|year| year.parse().ok())
            .unwrap_or(0)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("a relay that runs")
    }

    pub(crate) fn freeze(&self) {
        signal(self.pid(), "STOP");
    }

    pub(crate) fn thaw(&self) {
        signal(self.pid(), "CONT");
    }

    /// Ends it without a word.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.expect("a relay that runs");
    }

    /// Stops it by SIGTERM. It must end in good order, and within the time.
    pub(crate) async fn stop(mut self, within: Duration) {
        signal(self.pid(), "TERM");
        let status: ExitStatus = timeout(within, self.child.wait())
            .await
            .unwrap_or_else(|_| panic!("the relay still runs {within:?} after SIGTERM"))
            .expect("an exit status");
        assert_eq!(status.code(), Some(0), "the relay's end: {status}");
    }

    /// The most memory that was resident so far, in MiB.
    pub(crate) fn peak_memory(&self) -> u64 {
        process::peak_memory(self.pid()) / (1024 * 1024)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            eprintln!("--- log of relay {:?}:\n{log}---", self.child.id());
        }
    }
}

async fn keep(
    mut lines: tokio::io::Lines<BufReader<tokio::process::ChildStderr>>,
    log: Arc<Mutex<String>>,
) {
    while let Ok(Some(line)) = lines.next_line().await {
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        log.push_str(&line);
        log.push('\n');
    }
}
