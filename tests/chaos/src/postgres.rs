//! A Postgres of the run's own, on its own disk where that is possible, to be crashed at will.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sqlx::{Connection as _, PgConnection, PgPool};
use tokio::process::Child;
use tokio::time::{sleep, timeout};

use crate::folder::Folder;
use crate::{Result, process};

/// The programs of Debian's package, by the oldest version that is there.
const VERSIONS: [&str; 5] = ["14", "15", "16", "17", "18"];

/// How long it may take to start or to end on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Small, since the disk is. What is not here is the default, above all `fsync` and `synchronous_commit`.
const SETTINGS: [&str; 6] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=100",
    "shared_buffers=64MB",
    "max_wal_size=48MB",
    "autovacuum_naptime=5s",
];

pub(crate) struct Postgres {
    programs: PathBuf,
    home: PathBuf,
    log: PathBuf,
    disk: Option<PathBuf>,
    port: u16,
    server: Option<Child>,
}

impl Postgres {
    /// Makes the cluster and starts the server. With `disk` it is on a disk of so many MiB, if that can be.
    pub(crate) async fn start(folder: &mut Folder, disk: Option<u64>) -> Result<Self> {
        let programs = VERSIONS
            .iter()
            .map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin")))
            .find(|programs| programs.join("postgres").exists())
            .ok_or("there is no Postgres: run `scripts/services install` first")?;
        let disk = match disk {
            Some(mebibytes) => folder.mount_disk(mebibytes)?,
            None => None,
        };
        let home = disk.as_deref().unwrap_or(folder.path()).join("postgres");
        fs::create_dir(&home)?;
        if process::is_root() {
            process::run("chown", &["postgres:postgres", &home.display().to_string()])?;
        }
        let mut postgres = Self {
            programs,
            home,
            log: folder.path().join("postgres.log"),
            disk,
            port: free_port()?,
            server: None,
        };
        let mut initdb = postgres.command("initdb");
        initdb
            .arg("--pgdata")
            .arg(&postgres.home)
            .args([
                "--username=outbox",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
            ])
            .args(["--no-sync", "--wal-segsize=1"]);
        if !process::start(initdb, &postgres.log)?
            .wait()
            .await?
            .success()
        {
            return Err(format!("initdb: {}", fs::read_to_string(&postgres.log)?).into());
        }
        postgres.up().await?;
        Ok(postgres)
    }

    fn command(&self, program: &str) -> tokio::process::Command {
        let mut command = process::guarded(process::is_root().then_some("postgres"));
        // A folder that its user may enter.
        command.arg(self.programs.join(program)).current_dir("/");
        command
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!(
            "postgres://outbox@127.0.0.1:{}/postgres?sslmode=disable",
            self.port
        )
    }

    pub(crate) fn has_own_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Starts the server where it does not run, and waits until it answers.
    pub(crate) async fn up(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            if self.has_ended()? {
                let mut command = self.command("postgres");
                command
                    .arg("-D")
                    .arg(&self.home)
                    .args(["-p", &self.port.to_string()]);
                for setting in SETTINGS {
                    command.args(["-c", setting]);
                }
                self.server = Some(process::start(command, &self.log)?);
            }
            let connecting = PgConnection::connect(&self.url());
            if let Ok(Ok(connection)) = timeout(Duration::from_secs(2), connecting).await {
                connection.close().await?;
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("Postgres does not answer; its log is {:?}", self.log).into());
            }
            sleep(Duration::from_millis(50)).await; // wait: the poll of a bounded loop
        }
    }

    fn has_ended(&mut self) -> Result<bool> {
        Ok(match &mut self.server {
            Some(server) => server.try_wait()?.is_some(),
            None => true,
        })
    }

    /// An `immediate` shutdown: every session ends where it is, and there is no checkpoint.
    pub(crate) async fn crash(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else {
            return Ok(());
        };
        if let Some(pid) = server.id() {
            process::signal(pid, "QUIT")?;
        }
        timeout(PATIENCE, server.wait()).await??;
        Ok(())
    }

    /// Takes all that is left of its disk.
    pub(crate) fn fill_disk(&self) -> Result<()> {
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        let zeros = format!("cat /dev/zero > '{}'", filling(disk).display());
        match process::run("sh", &["-c", &zeros]) {
            Err(_) => Ok(()),
            Ok(()) => Err("the disk has no end".into()),
        }
    }

    pub(crate) fn free_disk(&self) -> Result<()> {
        match &self.disk {
            Some(disk) => Ok(fs::remove_file(filling(disk))?),
            None => Ok(()),
        }
    }
}

/// The version of the server, without that of its package.
pub(crate) async fn version(pool: &PgPool) -> Result<String> {
    let version: String = sqlx::query_scalar("SHOW server_version")
        .fetch_one(pool)
        .await?;
    Ok(version.split(' ').next().unwrap_or_default().to_owned())
}

fn filling(disk: &Path) -> PathBuf {
    disk.join("filling")
}

/// A port that was free a moment ago, from below the range of outgoing connections: while the server is
/// down nobody must be given its port.
fn free_port() -> Result<u16> {
    let mut random = fastrand::Rng::new();
    for _ in 0..100 {
        let port = random.u16(20_000..25_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err("there is no free port from 20000 to 25000".into())
}
