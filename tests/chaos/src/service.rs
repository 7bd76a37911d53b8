//! The broker's server: one of `scripts/services` that is there to be broken.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::{Result, process};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/services");

/// This run's alone, whichever process or checkout the others are in. It is put back, up and answering,
/// when this is dropped.
pub(crate) struct Service {
    name: &'static str,
    _lock: File,
}

impl Service {
    /// Waits until nobody else has it.
    pub(crate) async fn take(name: &'static str) -> Result<Self> {
        tokio::task::spawn_blocking(move || {
            // The script makes the folder.
            run("start", name)?;
            let lock = File::create(folder().join(name).join("tests.lock"))?;
            lock.lock()?;
            // Whoever had it before may have been killed before it put it back.
            run("start", name)?;
            Ok(Self { name, _lock: lock })
        })
        .await?
    }

    pub(crate) async fn start(&self) -> Result<()> {
        self.script("start").await
    }

    pub(crate) async fn stop(&self) -> Result<()> {
        self.script("stop").await
    }

    /// A crash: no shutdown, no flush.
    pub(crate) async fn kill(&self) -> Result<()> {
        self.script("kill").await
    }

    /// It keeps its connections and answers nothing.
    pub(crate) fn freeze(&self) -> Result<()> {
        process::signal(self.pid()?, "STOP")
    }

    pub(crate) fn thaw(&self) -> Result<()> {
        process::signal(self.pid()?, "CONT")
    }

    pub(crate) async fn rabbitmqctl(&self, arguments: &'static [&'static str]) -> Result<()> {
        let name = self.name;
        tokio::task::spawn_blocking(move || {
            process::run(SCRIPT, &[&["rabbitmqctl", name], arguments].concat())
        })
        .await?
    }

    async fn script(&self, command: &'static str) -> Result<()> {
        let name = self.name;
        tokio::task::spawn_blocking(move || run(command, name)).await?
    }

    fn pid(&self) -> Result<u32> {
        Ok(
            std::fs::read_to_string(folder().join(self.name).join("pid"))?
                .trim()
                .parse()?,
        )
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may be down, and then there is nothing to thaw.
        let _ = self.thaw();
        if let Err(error) = run("start", self.name) {
            eprintln!("{}: {error}", self.name);
        }
    }
}

/// The version of a server.
pub(crate) fn version(name: &str) -> Result<String> {
    Ok(process::output(SCRIPT, &["version", name])?
        .trim()
        .to_owned())
}

/// Where the script keeps its servers.
fn folder() -> PathBuf {
    std::env::var_os("OUTBOX_SERVICES_DIR").map_or_else(
        || Path::new(SCRIPT).with_file_name("../target/services"),
        PathBuf::from,
    )
}

fn run(command: &str, name: &str) -> Result<()> {
    process::run(SCRIPT, &[command, name])
}
