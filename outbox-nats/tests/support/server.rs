//! Servers of a test's own: with the rights and limits that it needs, and free to be killed and frozen.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::{Client, ConnectOptions};
use outbox_conformance::process::signal;
use outbox_core::Uuid;

use super::PATIENCE;

/// A server, which ends and leaves nothing behind when it is dropped.
pub(crate) struct Server {
    folder: PathBuf,
    port: u16,
    process: Option<Child>,
}

impl Server {
    /// Starts a server with JetStream.
    pub(crate) fn start() -> Self {
        Self::start_with("jetstream: { store_dir: STORE }")
    }

    /// Starts a server with a configuration, in which `STORE` is a folder of its own.
    pub(crate) fn start_with(config: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("nats-{}", Uuid::now_v7().simple()));
        fs::create_dir_all(&folder).expect("a folder");
        let mut server = Self {
            folder,
            port: free_port(),
            process: None,
        };
        server.configure(config);
        server.start_again();
        server
    }

    /// What it starts with when it is started again.
    pub(crate) fn configure(&self, config: &str) {
        let store = self.folder.join("store");
        let config = config.replace("STORE", &format!("\"{}\"", store.display()));
        fs::write(self.folder.join("nats.conf"), config).expect("a configuration");
    }

    /// Gives it another configuration while it runs, which it reads soon.
    pub(crate) fn reload(&self, config: &str) {
        self.configure(config);
        self.signal("HUP");
    }

    /// Lets it go away in good order, as before an upgrade (lame duck mode).
    pub(crate) fn retire(&self) {
        self.signal("USR2");
    }

    /// Waits until it has gone away.
    pub(crate) fn wait_for_end(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let process = self.process.as_mut().expect("a running server");
        while process.try_wait().expect("its state").is_none() {
            assert!(Instant::now() < deadline, "the server does not end");
            // wait: its connections are closed first
            std::thread::sleep(Duration::from_millis(10));
        }
        self.process = None;
    }

    /// Starts it on the same port, with what it has stored.
    pub(crate) fn start_again(&mut self) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))
            .expect("a log");
        let mut process = Command::new("nats-server")
            .args(["--addr", "127.0.0.1", "--port", &self.port.to_string()])
            .arg("--config")
            .arg(self.folder.join("nats.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("nats-server, which `scripts/services install` installs");
        let deadline = Instant::now() + PATIENCE;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        while TcpStream::connect(address).is_err() {
            let ended = process.try_wait().expect("its state");
            let log = || fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            assert!(ended.is_none(), "the server ended: {}", log());
            assert!(Instant::now() < deadline, "no server: {}", log());
            // wait: the server listens when its streams are there
            std::thread::sleep(Duration::from_millis(10));
        }
        self.process = Some(process);
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(crate) fn tls_url(&self) -> String {
        format!("tls://127.0.0.1:{}", self.port)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    pub(crate) async fn connect_as(&self, user: &str) -> Client {
        ConnectOptions::with_user_and_password(user.to_owned(), "secret".to_owned())
            .connect(self.url())
            .await
            .expect("a connection")
    }

    /// Crashes it.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("a process that can be killed");
            process.wait().expect("its end");
        }
    }

    /// Takes its time away until it is thawed: it keeps its connections and says nothing. A signal is
    /// delivered to one thread after the other, so the server may still answer for a moment.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
        let deadline = Instant::now() + PATIENCE;
        while !self.is_frozen() {
            assert!(Instant::now() < deadline, "the server does not stop");
            // wait: every thread has stopped
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether every thread has stopped. The state follows the name, which is in brackets.
    fn is_frozen(&self) -> bool {
        let process = self.process.as_ref().expect("a running server");
        let threads = format!("/proc/{}/task", process.id());
        fs::read_dir(threads).expect("its threads").all(|thread| {
            let stat = thread.expect("a thread").path().join("stat");
            let stat = fs::read_to_string(stat).expect("its state");
            stat.rsplit(") ")
                .next()
                .is_some_and(|state| state.starts_with('T'))
        })
    }

    pub(crate) fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let process = self.process.as_ref().expect("a running server");
        signal(process.id(), name);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A port where nothing listens.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("its address").port()
}
