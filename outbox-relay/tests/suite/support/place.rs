//! The program as a process: where it runs, what it says, and how it ends.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{env, fs, io, thread};

use outbox_conformance::process;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::{PATIENCE, name, until};

/// Variables with these beginnings are for the program. Those of whoever runs the tests are not passed on.
const OURS: [&str; 2] = ["OUTBOX_", "OTEL_"];

/// A folder for one program's files, which is its working directory too.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new() -> Self {
        let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name("place"));
        fs::create_dir_all(&place).expect("a folder");
        Self(place)
    }

    /// With these settings.
    pub(crate) fn with(settings: &str) -> Self {
        let place = Self::new();
        place.configure(settings);
        place
    }

    /// Writes `outbox.toml`.
    pub(crate) fn configure(&self, settings: &str) {
        self.write("outbox.toml", settings.as_bytes());
    }

    /// Puts a file beside the configuration.
    pub(crate) fn write(&self, file: &str, content: &[u8]) {
        fs::write(self.path(file), content).expect("it is written");
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    /// The program with these arguments and variables, and no others of ours.
    fn command(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
        let mut command = command(env!("CARGO_BIN_EXE_outbox"));
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if OURS.iter().any(|beginning| text.starts_with(beginning)) {
                command.env_remove(name);
            }
        }
        command
            .args(arguments)
            .env("USER", "ada")
            .env_remove("SUDO_USER")
            .envs(variables.iter().copied())
            .current_dir(&self.0);
        command
    }

    /// Runs it to its end.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Ended {
        self.run_with(arguments, &[]).await
    }

    /// The same with these variables.
    pub(crate) async fn run_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
        Ended::of(self.command(arguments, variables)).await
    }

    /// As [`run`](Self::run), where it must succeed; what it printed.
    pub(crate) async fn done(&self, arguments: &[&str]) -> String {
        self.run(arguments).await.success()
    }

    /// As [`done`](Self::done) with `--json`, read.
    pub(crate) async fn json(&self, arguments: &[&str]) -> Value {
        let arguments = [arguments, &["--json"]].concat();
        serde_json::from_str(&self.done(&arguments).await).expect("JSON")
    }

    /// The status of the outbox in a word.
    pub(crate) async fn verdict(&self) -> String {
        let status = self.json(&["status"]).await;
        status["verdict"].as_str().expect("a word").to_owned()
    }

    /// As [`done`](Self::done), with bytes on its standard input.
    pub(crate) async fn done_with_input(&self, arguments: &[&str], input: &[u8]) -> String {
        let mut command = self.command(arguments, &[]);
        command.stdin(Stdio::piped());
        Ended::of_reading(input, PATIENCE, command).await.success()
    }

    /// As [`run`](Self::run), where the reader of what it prints has gone away.
    pub(crate) async fn unread(&self, arguments: &[&str]) -> Ended {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let mut command = self.command(arguments, &[]);
        command.stdout(writer);
        Ended::of(command).await
    }

    /// Starts a command that goes on, such as a relay. It is killed when it is dropped.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        self.start_with(arguments, &[])
    }

    /// The same with these variables.
    pub(crate) fn start_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Running {
        let started = self.command(arguments, variables).spawn();
        let mut child = started.expect("it starts");
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

/// A program that has nothing to read and is killed when its test is over.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
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

/// What a program has printed, and the code with which it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    /// Runs a [`command`], which must end by itself and in time.
    pub(crate) async fn of(command: Command) -> Self {
        Self::within(PATIENCE, command).await
    }

    /// The same with a time of its own, for what does many things.
    pub(crate) async fn within(time: Duration, command: Command) -> Self {
        Self::of_reading(&[], time, command).await
    }

    async fn of_reading(input: &[u8], time: Duration, mut command: Command) -> Self {
        let mut child = command.spawn().expect("it starts");
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input).await.expect("it reads");
        }
        let arguments: Vec<_> = command.as_std().get_args().collect();
        let ended = timeout(time, child.wait_with_output()).await;
        let output = ended.unwrap_or_else(|_| panic!("{arguments:?} does not end"));
        let output = output.expect("its output");
        let code = output.status.code();
        Self {
            code: code.unwrap_or_else(|| panic!("a signal has ended {arguments:?}: {output:?}")),
            out: String::from_utf8(output.stdout).expect("text"),
            err: String::from_utf8(output.stderr).expect("text"),
        }
    }

    /// Its output, once it has succeeded.
    #[track_caller]
    pub(crate) fn success(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self.out
    }

    /// What it complained of, once it has failed with this code.
    #[track_caller]
    pub(crate) fn failure(self, code: i32) -> String {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        self.err
    }
}

/// A program that goes on. A test that fails shows what it has said.
pub(crate) struct Running {
    child: Child,
    log: Arc<Mutex<String>>,
}

impl Running {
    /// What it has said so far, on standard output and standard error.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until it has said this.
    pub(crate) async fn says(&self, text: &str) {
        until(text, async || self.count(text) > 0).await;
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
        let line: Value = serde_json::from_str(line.expect("the line")).expect("JSON");
        line["address"].as_str().expect("an address").to_owned()
    }

    fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// The most memory that it has had in use, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        process::peak_memory(self.pid())
    }

    pub(crate) fn signal(&self, name: &str) {
        process::signal(self.pid(), name);
    }

    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let ended = timeout(PATIENCE, self.child.wait()).await;
        ended.expect("it ends in time").expect("its status")
    }

    /// Stops it, and gives its whole log.
    pub(crate) async fn stop(mut self) -> String {
        self.signal("TERM");
        let status = self.ended().await;
        assert_eq!(status.code(), Some(0), "{}", self.log());
        self.says("the relay has stopped").await;
        self.log()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- said by {:?}:\n{}---", self.child.id(), self.log());
        }
    }
}
