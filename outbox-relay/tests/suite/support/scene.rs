//! An outbox of a test's own, the program that is run on it, and what it answers.

use std::env;
use std::fs;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use outbox_conformance::address;
use outbox_postgres::Outbox;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgPool};
use tokio::process::{Child, Command};
use uuid::Uuid;

/// What a busy machine may need.
const PATIENCE: Duration = Duration::from_secs(60);

/// An outbox in a schema of its own, and the program with a configuration that names it.
pub(crate) struct Scene {
    pub(crate) outbox: Outbox,
    pub(crate) pool: PgPool,
    program: Program,
}

/// What can be done with the program alone.
impl Deref for Scene {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

/// The program, in a folder with a configuration file.
pub(crate) struct Program {
    folder: PathBuf,
}

/// What a command has printed and how it ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs a test on an outbox that no other test uses, and drops it.
pub(crate) async fn with_scene(settings: &str, test: impl AsyncFnOnce(&Scene)) {
    let url = address("OUTBOX_TEST_POSTGRES_URL");
    let name = format!("test_{}", Uuid::now_v7().simple());
    let scene = Scene {
        outbox: Outbox::in_schema(&name).unwrap(),
        pool: PgPool::connect(&url).await.unwrap(),
        program: Program::with(&format!(
            "[store]\nkind = \"postgres\"\nurl = \"{url}\"\nschema = \"{name}\"\n\n{settings}"
        )),
    };
    let tested = AssertUnwindSafe(test(&scene)).catch_unwind().await;
    let drop = format!("SET client_min_messages = warning; DROP SCHEMA IF EXISTS {name} CASCADE");
    let dropped = sqlx::raw_sql(AssertSqlSafe(drop))
        .execute(&scene.pool)
        .await;
    if let Err(panic) = tested {
        resume_unwind(panic);
    }
    dropped.unwrap();
}

impl Program {
    /// With these settings.
    pub(crate) fn with(settings: &str) -> Self {
        let name = Uuid::now_v7().simple().to_string();
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("outbox.toml"), settings).unwrap();
        Self { folder }
    }

    /// Puts a file beside the configuration.
    pub(crate) fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.folder.join(name), content).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        // Those of whoever runs the tests are no settings of theirs.
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("OUTBOX_") {
                command.env_remove(name);
            }
        }
        command
            .args(arguments)
            .current_dir(&self.folder)
            .env("USER", "ada")
            .env_remove("SUDO_USER")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs a command to its end.
    pub(crate) async fn outbox(&self, arguments: &[&str]) -> Answer {
        Answer::of(self.command(arguments).output().await.unwrap())
    }

    /// As [`outbox`](Self::outbox), where it must succeed; what it printed.
    pub(crate) async fn done(&self, arguments: &[&str]) -> String {
        let answer = self.outbox(arguments).await;
        assert_eq!(answer.code, 0, "outbox {arguments:?}: {answer:?}");
        answer.out
    }

    /// As [`done`](Self::done) with `--json`, read.
    pub(crate) async fn json(&self, arguments: &[&str]) -> Value {
        let arguments = [arguments, &["--json"]].concat();
        serde_json::from_str(&self.done(&arguments).await).unwrap()
    }

    /// Runs a command whose reader goes away at once, to its end; its code.
    pub(crate) async fn unread(&self, arguments: &[&str]) -> i32 {
        let mut child = self.command(arguments).spawn().unwrap();
        drop(child.stdout.take());
        let answer = Answer::of(child.wait_with_output().await.unwrap());
        assert_eq!(answer.err, "", "{arguments:?}");
        answer.code
    }

    /// Starts a command that goes on, such as a relay. It ends with its handle.
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // What is left of it is in the target folder.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Scene {
    /// Runs statements, with the schema's name in place of `{schema}`.
    pub(crate) async fn execute(&self, statements: &str) {
        let statements = statements.replace("{schema}", self.outbox.schema());
        sqlx::raw_sql(AssertSqlSafe(statements))
            .execute(&self.pool)
            .await
            .unwrap();
    }

    /// Puts dead messages there as a relay would: their topic, key and error.
    pub(crate) async fn give_up(&self, messages: &[(&str, Option<&str>, &str)]) {
        for (topic, key, error) in messages {
            let statement = "
                INSERT INTO {schema}.dead (position, key_hash, id, topic, key, payload, headers, enqueued_at,
                                           parked, failures, error_kind, error, halted)
                SELECT position, hashtextextended(coalesce($2, position::text), 0), {schema}.new_message_id(),
                       $1, $2, '\\x7b7d', '{\"a\": \"b\"}', clock_timestamp(), 3, 2, 'rejected', $3, false
                  FROM nextval('{schema}.message_position') AS position";
            let statement = statement.replace("{schema}", self.outbox.schema());
            sqlx::query(AssertSqlSafe(statement))
                .bind(topic)
                .bind(key)
                .bind(error)
                .execute(&self.pool)
                .await
                .unwrap();
        }
    }
}

impl Answer {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// A connection to Redis that waits for an answer for as long as a busy machine may need.
pub(crate) async fn redis(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).unwrap();
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap()
}

/// Waits for a condition, and fails when it does not come true.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "did not happen in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await; // wait: the poll
    }
}
