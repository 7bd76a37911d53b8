//! A Redis of one test alone, which the test may configure, fill, freeze and kill.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outbox_core::Uuid;
use redis::{Client, Value};

use super::{PATIENCE, ask, until};

/// It ends, and its folder goes, when it is dropped.
pub(crate) struct Server {
    folder: PathBuf,
    settings: Vec<String>,
    port: u16,
    process: Child,
}

impl Server {
    /// Starts a server with settings as on its command line, and waits until it answers.
    pub(crate) fn start(settings: &[&str]) -> Self {
        let name = Uuid::now_v7().simple().to_string();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(folder.join("data")).expect("a folder");
        let settings: Vec<String> = settings.iter().map(|&it| it.to_owned()).collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let port = free_port();
            let process = launch(&folder, port, &settings);
            let mut server = Self {
                folder: folder.clone(),
                settings: settings.clone(),
                port,
                process,
            };
            if server.answers_before(deadline) {
                return server;
            }
            // Somebody else took the port first; the folder stays for the next attempt.
            server.folder = PathBuf::new();
            assert!(Instant::now() < deadline, "redis-server does not start");
        }
    }

    /// Over its socket.
    pub(crate) fn client(&self) -> Client {
        self.client_as("")
    }

    /// Over its socket, logged in: `user=…&pass=…`.
    pub(crate) fn client_as(&self, login: &str) -> Client {
        let socket = self.folder.join("socket");
        let url = format!("unix://{}?{login}", socket.display());
        Client::open(url).expect("an address that the client takes")
    }

    /// Over TCP.
    pub(crate) fn tcp_client(&self) -> Client {
        let url = format!("redis://{}/", self.address());
        Client::open(url).expect("an address that the client takes")
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Takes the folder away that it saves its data in, and waits until it has noticed. It then takes no
    /// writes, as long as it is told to save.
    pub(crate) async fn fail_to_save(&self) {
        std::fs::remove_dir_all(self.folder.join("data")).expect("its folder goes");
        ask(&self.client(), &["CONFIG", "SET", "save", "3600 1"]).await;
        ask(&self.client(), &["BGSAVE"]).await;
        until("the save fails", async || {
            let info = ask(&self.client(), &["INFO", "persistence"]).await;
            format!("{info:?}").contains("rdb_last_bgsave_status:err")
        })
        .await;
    }

    /// No shutdown, no flush.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("it ran");
        self.process.wait().expect("it has ended");
    }

    /// Starts it again after [`kill`](Self::kill).
    pub(crate) fn start_again(&mut self) {
        self.process = launch(&self.folder, self.port, &self.settings);
        let deadline = Instant::now() + PATIENCE;
        assert!(self.answers_before(deadline), "redis-server does not start");
    }

    /// Starts it again after [`kill`](Self::kill) with more settings, so that it loads its data slowly,
    /// and waits until it says so.
    pub(crate) fn start_loading(&mut self, delay: &[&str]) {
        // In bytes: how often it looks up from loading.
        let looks_up = ["--loading-process-events-interval-bytes", "1024"];
        let settings = delay.iter().chain(&looks_up);
        self.settings.extend(settings.map(|&it| it.to_owned()));
        self.process = launch(&self.folder, self.port, &self.settings);
        let deadline = Instant::now() + PATIENCE;
        while self.ping() != Some(Err("LOADING".to_owned())) {
            assert!(Instant::now() < deadline, "redis-server loads no data");
            // wait: asked again until the deadline
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether it is ready before it ends.
    fn answers_before(&mut self, deadline: Instant) -> bool {
        while Instant::now() < deadline {
            if self.process.try_wait().expect("a child").is_some() {
                return false;
            }
            match self.ping() {
                Some(Err(code)) if code == "LOADING" => {}
                Some(_) => return true,
                None => {}
            }
            // wait: asked again until the deadline
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// Its answer, or the code of its refusal: it wants a password, or loads its data.
    fn ping(&self) -> Option<Result<(), String>> {
        let mut connection = self.client().get_connection().ok()?;
        match redis::cmd("PING").query::<Value>(&mut connection) {
            Ok(_) => Some(Ok(())),
            Err(error) => Some(Err(error.code()?.to_owned())),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended, and then there is nothing to do.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if self.folder != PathBuf::new() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

fn launch(folder: &Path, port: u16, settings: &[String]) -> Child {
    let log = std::fs::File::create(folder.join("log")).expect("a log");
    Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
        .args(["--unixsocket", &folder.join("socket").display().to_string()])
        .args(["--dir", &folder.join("data").display().to_string()])
        .args(["--save", ""])
        .args(settings)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is installed by `scripts/services install`")
}

/// A port where nothing listens.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}
