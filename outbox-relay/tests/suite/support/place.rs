//! The program as a process, and what surrounds it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, fs};

use outbox_conformance::address;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

/// The longest that anything here may take: the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// `host:port` of a URL.
pub(crate) fn authority(url: &str) -> &str {
    let rest = url.split_once("://").expect("a scheme").1;
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

/// A name that no other test has, in this run or another.
pub(crate) fn name(prefix: &str) -> String {
    format!("{prefix}_{}", Uuid::now_v7().simple())
}

/// Polls until `condition` gives something.
pub(crate) async fn wait_for<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        // wait: what is waited for happens in another process.
        sleep(Duration::from_millis(20)).await;
    }
}

/// A directory for one program's files, which is its working directory too.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new() -> Self {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name("program"));
        fs::create_dir_all(&place).expect("a directory");
        Self(place)
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    /// Writes `outbox.toml`.
    pub(crate) fn configure(&self, toml: &str) {
        fs::write(self.path("outbox.toml"), toml).expect("a configuration file");
    }

    /// The program with these arguments and variables, and no others of ours.
    fn command(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("OUTBOX_") {
                command.env_remove(name);
            }
        }
        command
            .args(arguments)
            .envs(variables.iter().copied())
            .current_dir(&self.0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs it to its end.
    pub(crate) async fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
        let output = timeout(PATIENCE, self.command(arguments, variables).output()).await;
        let output = output.unwrap_or_else(|_| panic!("{arguments:?} does not end"));
        Ended::of(output.expect("the program starts"))
    }

    /// The same with bytes on its standard input.
    pub(crate) async fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Ended {
        let mut command = self.command(arguments, &[]);
        let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
        let mut stdin = child.stdin.take().expect("its standard input");
        stdin.write_all(input).await.expect("it reads");
        drop(stdin);
        let output = timeout(PATIENCE, child.wait_with_output()).await;
        Ended::of(output.expect("it ends").expect("its output"))
    }

    /// Starts `outbox run` and goes on.
    pub(crate) fn start(&self, variables: &[(&str, &str)]) -> Running {
        self.start_with(&["run"], variables)
    }

    pub(crate) fn start_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Running {
        let mut child = self
            .command(arguments, variables)
            .spawn()
            .expect("it starts");
        let log = Arc::new(Mutex::new(String::new()));
        collect(child.stdout.take().expect("its output"), Arc::clone(&log));
        collect(child.stderr.take().expect("its log"), Arc::clone(&log));
        Running { child, log }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What is left over is in the build directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn collect(from: impl AsyncRead + Unpin + Send + 'static, to: Arc<Mutex<String>>) {
    tokio::spawn(async move {
        let mut lines = BufReader::new(from).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let mut text = to.lock().unwrap();
            text.push_str(&line);
            text.push('\n');
        }
    });
}

/// What a program said and how it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).expect("text"),
            err: String::from_utf8(output.stderr).expect("text"),
        }
    }

    /// Its output, once it has succeeded.
    #[track_caller]
    pub(crate) fn success(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self.out
    }

    /// What it complained of, once it has failed with this code.
    #[track_caller]
    pub(crate) fn failure(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        self.err
    }
}

/// A relay that runs.
pub(crate) struct Running {
    child: Child,
    log: Arc<Mutex<String>>,
}

impl Running {
    /// What it has said so far, on standard output and standard error.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The memory that it has had in use at most, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let pid = self.child.id().expect("it runs");
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kilobytes
            .and_then(|text| text.parse().ok())
            .map(|kb: u64| kb * 1024)
            .expect("a number")
    }

    /// Waits until it has said this.
    pub(crate) async fn says(&self, text: &str) {
        let start = Instant::now();
        while !self.log.lock().unwrap().contains(text) {
            assert!(
                start.elapsed() < PATIENCE,
                "it did not say {text:?}:\n{}",
                self.log()
            );
            // wait: it is another process.
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// How often it has said this.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.log.lock().unwrap().matches(text).count()
    }

    /// Where it serves metrics and health, once it does.
    pub(crate) async fn http(&self) -> String {
        self.says("metrics and health").await;
        let log = self.log();
        let line = log.lines().find(|line| line.contains("metrics and health"));
        let line: serde_json::Value = serde_json::from_str(line.expect("the line")).expect("JSON");
        line["address"].as_str().expect("an address").to_owned()
    }

    pub(crate) async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("it runs");
        let killed = Command::new("sh")
            .args(["-c", &format!("kill -{name} {pid}")])
            .status()
            .await
            .expect("a shell");
        assert!(killed.success(), "kill -{name} {pid}");
    }

    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let ended = timeout(PATIENCE, self.child.wait()).await;
        ended
            .unwrap_or_else(|_| panic!("it does not end:\n{}", self.log()))
            .expect("its status")
    }

    /// Stops it, and gives its whole log.
    pub(crate) async fn stop(mut self) -> String {
        self.signal("TERM").await;
        let status = self.ended().await;
        assert_eq!(status.code(), Some(0), "{}", self.log());
        self.says("the relay has stopped").await;
        self.log()
    }
}

/// Asks for a page: the status and the body.
pub(crate) async fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: outbox\r\nconnection: close\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer))
        .await
        .expect("it answers in time")
        .expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    (status.expect("a status"), body.to_owned())
}

/// The values of all metrics whose name and labels begin so, by both.
pub(crate) fn metrics(page: &str, beginning: &str) -> BTreeMap<String, f64> {
    page.lines()
        .filter(|line| line.starts_with(beginning))
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
        .collect()
}

/// A schema of its own in the test database, dropped at the end.
pub(crate) struct Schema {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) pool: PgPool,
}

impl Schema {
    pub(crate) async fn new() -> Self {
        let url = address("OUTBOX_TEST_POSTGRES_URL");
        let pool = PgPoolOptions::new().max_connections(2).connect(&url).await;
        Self {
            name: name("program"),
            url,
            pool: pool.expect("Postgres"),
        }
    }

    /// `[store]` for it, at another address where one is given.
    pub(crate) fn section(&self, url: Option<&str>) -> String {
        let url = url.unwrap_or(&self.url);
        format!(
            "[store]\nkind = \"postgres\"\nurl = \"{url}\"\nschema = \"{}\"\n",
            self.name
        )
    }

    /// The number that a statement gives, with the schema's name for `{schema}`.
    pub(crate) async fn number(&self, statement: &str) -> i64 {
        let statement = statement.replace("{schema}", &self.name);
        sqlx::query_scalar(sqlx::AssertSqlSafe(statement))
            .fetch_one(&self.pool)
            .await
            .expect("a number")
    }

    /// Messages that are not delivered, wherever they are.
    pub(crate) async fn left(&self) -> i64 {
        self.number(
            "SELECT (SELECT count(*) FROM {schema}.message) + (SELECT count(*) FROM {schema}.parked) \
             + (SELECT count(*) FROM {schema}.dead)",
        )
        .await
    }

    pub(crate) async fn drop(self) {
        let statement = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.name);
        sqlx::query(sqlx::AssertSqlSafe(statement))
            .execute(&self.pool)
            .await
            .expect("it is dropped");
    }
}

/// Writes bytes to a file of the place.
pub(crate) fn write(path: &Path, bytes: &[u8]) {
    let mut file = fs::File::create(path).expect("a file");
    file.write_all(bytes).expect("it is written");
}
