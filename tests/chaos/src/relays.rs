//! Three relays as processes, each with a proxy to the broker and one to the database.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};

use outbox_conformance::proxy::Proxy;
use tokio::process::Child;
use tokio::time::timeout;

use crate::broker::Kind;
use crate::relay::{Arguments, STOP};
use crate::schedule::{CLOCK, Link, RELAYS, Whose};
use crate::{Result, process};

/// libfaketime as `scripts/services install` brings it; the loader finds the folder of the machine's kind.
const FAKETIME: &str = "/usr/$LIB/faketime/libfaketimeMT.so.1";

pub(crate) struct Relays {
    relays: Vec<Relay>,
}

struct Relay {
    number: usize,
    arguments: Vec<String>,
    log: PathBuf,
    /// What the clock of its host shows is in a file.
    clock: Option<PathBuf>,
    to_broker: Proxy,
    to_database: Proxy,
    process: Mutex<Option<Child>>,
}

impl Relays {
    /// Starts them. The broker's server and the database's listen at these ports.
    pub(crate) async fn start(
        folder: &Path,
        kind: Kind,
        broker: u16,
        database: u16,
        hasty: bool,
    ) -> Result<Self> {
        let mut relays = Vec::new();
        for number in 0..RELAYS {
            let to_broker = match kind {
                Kind::Kafka => Proxy::to_kafka(broker).await,
                _ => Proxy::to(format!("127.0.0.1:{broker}")).await,
            };
            let to_database = Proxy::to(format!("127.0.0.1:{database}")).await;
            let url = format!(
                "postgres://outbox@{}/postgres?sslmode=disable&application_name=relay",
                to_database.address()
            );
            let relay = Relay {
                number,
                arguments: Arguments::of(&url, kind, &to_broker.address().to_string(), hasty),
                log: folder.join(format!("relay-{}.log", number + 1)),
                clock: (number == CLOCK).then(|| folder.join("clock")),
                to_broker,
                to_database,
                process: Mutex::default(),
            };
            relay.set_clock(0)?;
            relay.start()?;
            relays.push(relay);
        }
        Ok(Self { relays })
    }

    /// A new process in place of one that has ended.
    pub(crate) fn again(&self, relay: usize) -> Result<()> {
        self.relays[relay].start()
    }

    pub(crate) async fn kill(&self, relay: usize) -> Result<()> {
        self.relays[relay].end("KILL").await.map(drop)
    }

    /// By SIGTERM. It must end in good order, and in time.
    pub(crate) async fn stop(&self, relay: usize) -> Result<()> {
        let status = self.relays[relay].end("TERM").await?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("relay {}: its end: {status}", relay + 1).into()),
        }
    }

    /// Stops each; what was wrong with their ends, or with their running until then.
    pub(crate) async fn stop_all(&self) -> Vec<String> {
        let mut troubles = self.ended();
        for relay in 0..RELAYS {
            if let Err(error) = self.stop(relay).await {
                troubles.push(error.to_string());
            }
        }
        troubles
    }

    pub(crate) fn freeze(&self, relay: usize) -> Result<()> {
        self.relays[relay].signal("STOP")
    }

    pub(crate) fn thaw(&self, relay: usize) -> Result<()> {
        self.relays[relay].signal("CONT")
    }

    /// Sets the clock of one host so many hours off.
    pub(crate) fn set_clock(&self, hours: i32) -> Result<()> {
        self.relays[CLOCK].set_clock(hours)
    }

    pub(crate) fn links(&self, link: Link, whose: Whose) -> impl Iterator<Item = &Proxy> {
        self.relays
            .iter()
            .filter(move |relay| [Whose::All, Whose::Relay(relay.number)].contains(&whose))
            .map(move |relay| match link {
                Link::Broker => &relay.to_broker,
                Link::Database => &relay.to_database,
            })
    }

    /// The resident memory of all, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let pids = self.relays.iter().filter_map(Relay::pid);
        pids.filter_map(process::memory).sum()
    }

    /// The relays that have ended by themselves.
    fn ended(&self) -> Vec<String> {
        let ended = |relay: &&Relay| {
            let mut process = relay.process.lock().unwrap_or_else(PoisonError::into_inner);
            process
                .as_mut()
                .is_some_and(|it| !matches!(it.try_wait(), Ok(None)))
        };
        let ended = self.relays.iter().filter(ended);
        ended
            .map(|relay| format!("relay {} has ended by itself", relay.number + 1))
            .collect()
    }
}

impl Relay {
    fn start(&self) -> Result<()> {
        let mut command = process::guarded(None);
        if let Some(clock) = &self.clock {
            command
                .arg("env")
                .arg(format!("LD_PRELOAD={FAKETIME}"))
                .arg(format!("FAKETIME_TIMESTAMP_FILE={}", clock.display()))
                // It looks into the file once a second.
                .arg("FAKETIME_CACHE_DURATION=1")
                // The clock that measures durations is right on such a host.
                .arg("FAKETIME_DONT_FAKE_MONOTONIC=1");
        }
        command
            .arg(std::env::current_exe()?)
            .args(&self.arguments)
            .stdin(Stdio::null());
        let process = process::start(command, &self.log)?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
        Ok(())
    }

    fn pid(&self) -> Option<u32> {
        self.process
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()?
            .id()
    }

    fn signal(&self, name: &str) -> Result<()> {
        let pid = self.pid().ok_or("a relay that is not there")?;
        process::signal(pid, name)
    }

    async fn end(&self, signal: &str) -> Result<std::process::ExitStatus> {
        let number = self.number + 1;
        let process = self
            .process
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let mut process = process.ok_or("a relay that is not there")?;
        let pid = process
            .id()
            .ok_or_else(|| format!("relay {number} had ended by itself"))?;
        process::signal(pid, signal)?;
        let status = timeout(STOP, process.wait()).await;
        let status =
            status.map_err(|_| format!("relay {number} runs {STOP:?} after SIG{signal}"))??;
        if self.clock.is_some() {
            // What libfaketime leaves behind when it is killed.
            for leftover in ["faketime_shm_", "sem.faketime_sem_"] {
                let _ = std::fs::remove_file(format!("/dev/shm/{leftover}{pid}"));
            }
        }
        Ok(status)
    }

    fn set_clock(&self, hours: i32) -> Result<()> {
        match &self.clock {
            // In one step: it may be read at any time.
            Some(clock) => {
                let new = clock.with_extension("new");
                std::fs::write(&new, format!("{hours:+}h\n"))?;
                Ok(std::fs::rename(new, clock)?)
            }
            None => Ok(()),
        }
    }
}
