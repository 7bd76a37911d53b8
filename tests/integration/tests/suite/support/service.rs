//! The servers that tests may stop, kill and freeze.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use outbox_conformance::process::signal;

/// One of the faulty servers, for this test alone, whichever process or checkout the others run in. It
/// is put back, up and answering, when this is dropped.
pub(crate) struct Service {
    name: &'static str,
    /// Locked as long as it is open.
    _lock: File,
}

impl Service {
    pub(crate) async fn take(name: &'static str) -> Self {
        let lock = tokio::task::spawn_blocking(move || {
            // The script makes the folder.
            run("start", name);
            let file = File::create(folder().join(name).join("tests.lock")).expect("a lock file");
            file.lock().expect("a lock");
            // Whoever had it before may have been killed before it put it back.
            put_back(name);
            file
        });
        Self {
            name,
            _lock: lock.await.expect("the lock"),
        }
    }

    pub(crate) async fn start(&self) {
        self.run("start").await;
    }

    pub(crate) async fn stop(&self) {
        self.run("stop").await;
    }

    pub(crate) async fn restart(&self) {
        self.run("restart").await;
    }

    /// A crash: no shutdown, no flush.
    pub(crate) async fn kill(&self) {
        self.run("kill").await;
    }

    /// A Postgres comes back as a standby, which takes no writes until it is promoted.
    pub(crate) async fn restart_as_standby(&self) {
        self.stop().await;
        std::fs::write(standby_signal(self.name), "").expect("a file in its data");
        self.start().await;
    }

    /// It keeps its connections and answers nothing.
    pub(crate) fn freeze(&self) {
        signal(self.pid().expect("a server that runs"), "STOP");
    }

    pub(crate) fn thaw(&self) {
        signal(self.pid().expect("a server that runs"), "CONT");
    }

    async fn run(&self, command: &'static str) {
        let name = self.name;
        tokio::task::spawn_blocking(move || run(command, name))
            .await
            .expect("scripts/services");
    }

    fn pid(&self) -> Option<u32> {
        let pid = std::fs::read_to_string(folder().join(self.name).join("pid")).ok()?;
        pid.trim().parse().ok()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            signal(pid, "CONT");
        }
        put_back(self.name);
    }
}

/// The file that makes a standby of a Postgres when it starts; the server removes it when it is promoted.
fn standby_signal(name: &str) -> PathBuf {
    folder().join(name).join("data/standby.signal")
}

/// Has it up and, a Postgres, take writes.
fn put_back(name: &str) {
    let was_standby = std::fs::remove_file(standby_signal(name)).is_ok();
    run(if was_standby { "restart" } else { "start" }, name);
}

fn script() -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../scripts/services"
    ))
}

/// Where the script keeps its servers.
fn folder() -> PathBuf {
    std::env::var_os("OUTBOX_SERVICES_DIR").map_or_else(
        || {
            PathBuf::from(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../target/services"
            ))
        },
        PathBuf::from,
    )
}

fn run(command: &str, name: &str) {
    let output = Command::new(script())
        .args([command, name])
        .output()
        .expect("scripts/services");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command} {name}: {said}");
}
