//! A relay in a process of its own: this program, started again.
//!
//! It says `ready`, begins with the first line that it is given, tells what it publishes, and stops when its
//! input ends; so it also stops when the process that started it has died. Its publisher confirms at once,
//! or after a delay.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outbox_core::{Delivery, Publisher, Relay, async_trait};
use outbox_postgres::Outbox;
use sqlx::postgres::PgSslMode;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::Result;
use crate::setup::{Database, PATIENCE, server};

/// How often a process tells how much it has published, at most.
const TELL: Duration = Duration::from_millis(10);

#[derive(Clone, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    pub(crate) database: String,
    #[arg(long)]
    pub(crate) schema: String,
    /// Where the server is, if not where the environment says.
    #[arg(long)]
    pub(crate) at: Option<SocketAddr>,
    #[arg(long, default_value_t = 4)]
    pub(crate) workers: usize,
    #[arg(long, default_value_t = 1000)]
    pub(crate) batch: usize,
    /// How long a publisher call takes.
    #[arg(long, default_value_t = 0)]
    pub(crate) delay_ms: u64,
    /// Tells the id of each message, and not their number.
    #[arg(long)]
    pub(crate) each: bool,
    #[arg(long)]
    pub(crate) polling: bool,
}

impl Args {
    pub(crate) fn new(database: &Database, schema: &str) -> Self {
        let options = database.pool.connect_options();
        Self {
            database: options.get_database().unwrap_or_default().to_owned(),
            schema: schema.to_owned(),
            at: None,
            workers: 4,
            batch: 1000,
            delay_ms: 0,
            each: false,
            polling: false,
        }
    }

    fn words(&self) -> Vec<String> {
        let mut words: Vec<String> = [
            ("--database", self.database.clone()),
            ("--schema", self.schema.clone()),
            ("--workers", self.workers.to_string()),
            ("--batch", self.batch.to_string()),
            ("--delay-ms", self.delay_ms.to_string()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect();
        if let Some(at) = self.at {
            words.extend(["--at".to_owned(), at.to_string()]);
        }
        for (given, name) in [(self.each, "--each"), (self.polling, "--polling")] {
            words.extend(given.then(|| name.to_owned()));
        }
        words
    }
}

/// The process itself.
pub(crate) async fn run(args: Args) -> Result<()> {
    let mut options = server()?.database(&args.database);
    if let Some(at) = args.at {
        options = options
            .host(&at.ip().to_string())
            .port(at.port())
            .ssl_mode(PgSslMode::Disable);
    }
    let database = Database::at(options);
    let outbox = Outbox::in_schema(&args.schema)?;
    let store = outbox.store(&database.pool);
    let store = match args.polling {
        true => store.through_pooler(),
        false => store,
    };
    let published = Arc::new(Published::default());
    let publisher = Telling {
        delay: Duration::from_millis(args.delay_ms),
        each: args.each,
        published: Arc::clone(&published),
    };
    let relay = Relay::builder(store, publisher)
        .workers(args.workers)
        .batch_messages(args.batch)
        .build()?;
    let mut input = tokio::io::stdin();
    tell("ready")?;
    input.read_u8().await?;
    let tell_total = || tell(&published.total.load(Ordering::Relaxed).to_string());
    relay
        .run_until(async {
            let mut end = [0];
            let telling = async {
                loop {
                    published.more.notified().await;
                    if tell_total().is_err() {
                        return;
                    }
                    tokio::time::sleep(TELL).await;
                }
            };
            tokio::select! {
                _ = input.read(&mut end) => {}
                () = telling => {}
            }
        })
        .await;
    if !args.each {
        tell_total()?;
    }
    // What still reads the input would hold the runtime.
    std::process::exit(0);
}

fn tell(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// What is to be told. A process that publishes nothing tells nothing, and so costs nothing.
#[derive(Default)]
struct Published {
    total: AtomicU64,
    more: Notify,
}

/// Confirms, and tells so.
struct Telling {
    delay: Duration,
    each: bool,
    published: Arc<Published>,
}

#[async_trait]
impl Publisher for Telling {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        for delivery in batch {
            delivery.report(Ok(()));
        }
        if self.each {
            let ids = batch.iter().map(|it| it.message().id().to_string());
            // When nobody listens any more the process is about to stop.
            let _ = tell(&ids.collect::<Vec<_>>().join(" "));
        } else {
            let some = batch.len() as u64;
            self.published.total.fetch_add(some, Ordering::Relaxed);
            self.published.more.notify_one();
        }
    }
}

/// Such a process, seen from the one that started it. Killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    reader: JoinHandle<()>,
}

impl Process {
    /// Starts one, and waits until it is ready. Its lines go to `heard`.
    pub(crate) async fn start(
        args: &Args,
        heard: impl FnMut(Told) + Send + 'static,
    ) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("relay-process")
            .args(args.words())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = input.zip(output).ok_or("a process without pipes")?;
        let mut lines = BufReader::new(output).lines();
        let first = tokio::time::timeout(PATIENCE, lines.next_line()).await??;
        if first.as_deref() != Some("ready") {
            return Err("a relay process did not start".into());
        }
        let reader = tokio::spawn(read(lines, heard));
        Ok(Self {
            child,
            input,
            reader,
        })
    }

    pub(crate) async fn go(&mut self) -> Result<()> {
        Ok(self.input.write_all(b"\n").await?)
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        Ok(self.child.id().ok_or("the process has ended")?)
    }

    /// Ends it at once, as `kill -9` does.
    pub(crate) async fn kill(mut self) -> Result<()> {
        self.child.kill().await?;
        Ok(self.reader.await?)
    }

    /// Has it settle what was confirmed, and end.
    pub(crate) async fn stop(self) -> Result<()> {
        let Self {
            mut child,
            input,
            reader,
        } = self;
        drop(input);
        let status = tokio::time::timeout(PATIENCE, child.wait()).await??;
        reader.await?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("a relay process ended with {status}").into()),
        }
    }
}

/// What a process tells.
pub(crate) enum Told {
    /// So many in all.
    Published(u64),
    /// These, now.
    Each(Vec<Uuid>),
}

async fn read(mut lines: Lines<BufReader<ChildStdout>>, mut heard: impl FnMut(Told)) {
    // A line that was cut off by a kill is none.
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(told) = parse(&line) {
            heard(told);
        }
    }
}

fn parse(line: &str) -> Option<Told> {
    if let Ok(total) = line.parse() {
        return Some(Told::Published(total));
    }
    let ids = line.split(' ').filter_map(|id| id.parse().ok());
    let ids: Vec<Uuid> = ids.collect();
    (!ids.is_empty()).then_some(Told::Each(ids))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_understood_and_what_was_cut_off_is_left_out() {
        assert!(matches!(parse("1234"), Some(Told::Published(1234))));
        let (one, two) = (Uuid::now_v7(), Uuid::now_v7());
        let line = format!("{one} {two}");
        assert!(matches!(parse(&line), Some(Told::Each(ids)) if ids == [one, two]));
        let cut = &line[..50];
        assert!(matches!(parse(cut), Some(Told::Each(ids)) if ids == [one]));
        assert!(parse("").is_none());
    }
}
