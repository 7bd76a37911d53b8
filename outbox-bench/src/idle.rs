//! What a relay costs that has nothing to do.
//!
//! A relay process runs on an empty outbox: one that is woken, and one that polls only. Its connections go
//! through a proxy of this process, which counts the requests that the server is asked to answer: simple
//! queries, and what is sent up to a synchronisation. Rows written are those that the server has counted in
//! the tables of the outbox. Processor time is that of the relay's process, and of the server's processes for it
//! where they run on this machine. The first seconds, in which it goes to sleep, do not count.
//!
//! Not here: an idle relay's broker connection. Its publisher has none.
//!
//! Goal: a relay that is woken asks at most 60 times a minute, writes nothing, and takes at most half a percent of
//! one core together with its server.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use sqlx::{AssertSqlSafe, Row as _};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::Result;
use crate::process::{self, Process};
use crate::relay::new_outbox;
use crate::report::Outcome;
use crate::setup::Database;

/// How long a relay has to go to sleep.
const BEFORE: Duration = Duration::from_secs(3);

/// Measures what a relay costs that has nothing to do.
#[derive(clap::Args, Serialize)]
pub(crate) struct Args {
    /// For how long, each way to find messages.
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u32).range(5..=86_400))]
    seconds: u32,
}

/// What one relay did.
#[derive(Serialize)]
struct Row {
    finds: &'static str,
    requests_per_minute: f64,
    rows_written: i64,
    relay_cpu_percent: Option<f64>,
    server_cpu_percent: Option<f64>,
}

#[derive(Serialize)]
struct Report {
    args: Args,
    rows: Vec<Row>,
}

pub(crate) async fn run(args: Args, database: &Database) -> Result<Outcome> {
    println!("an empty outbox, {} s each\n", args.seconds);
    let mut rows = Vec::new();
    for polling in [false, true] {
        let row = database
            .with_schema(async |schema| measure(&args, polling, database, schema).await)
            .await?;
        row.print();
        rows.push(row);
    }
    let woken = &rows[0];
    let cpu = woken.relay_cpu_percent.zip(woken.server_cpu_percent);
    let (requests, written) = (woken.requests_per_minute, woken.rows_written as f64);
    Ok(Outcome::of(&Report { args, rows })?
        .at_most("woken: requests a minute", Some(requests), 60.0)
        .at_most("woken: rows written", Some(written), 0.0)
        .at_most(
            "woken: processor time of relay and server, % of a core",
            cpu.map(|(relay, server)| relay + server),
            0.5,
        ))
}

impl Row {
    fn print(&self) {
        let percent = |it: Option<f64>| it.map_or("?".to_owned(), |it| format!("{it:.3}"));
        println!(
            "{:<8} {:>6.1} requests a minute  {} rows written  processor: relay {} %, server {} %",
            self.finds,
            self.requests_per_minute,
            self.rows_written,
            percent(self.relay_cpu_percent),
            percent(self.server_cpu_percent),
        );
    }
}

async fn measure(args: &Args, polling: bool, database: &Database, schema: &str) -> Result<Row> {
    new_outbox(database, schema).await?;
    let proxy = Proxy::start(database).await?;
    let how = process::Args {
        at: Some(proxy.address),
        polling,
        ..process::Args::new(database, schema)
    };
    let mut relay = Process::start(&how, |_| {}).await?;
    relay.go().await?;
    tokio::time::sleep(BEFORE).await;

    let sessions = sessions(database, schema).await?;
    if sessions.is_empty() {
        return Err("the relay has no session".into());
    }
    let relays = [relay.pid()?];
    let asked = proxy.asked();
    let written = written(database, schema).await?;
    let (relay_cpu, server_cpu) = (processor_time(&relays), processor_time(&sessions));
    let start = Instant::now();
    tokio::time::sleep(Duration::from_secs(args.seconds.into())).await;
    let took = start.elapsed().as_secs_f64();
    let percent = |before: Option<Duration>, pids: &[u32]| {
        let more = processor_time(pids)?.checked_sub(before?)?;
        Some(more.as_secs_f64() / took * 100.0)
    };
    let row = Row {
        finds: if polling { "polling" } else { "woken" },
        relay_cpu_percent: percent(relay_cpu, &relays),
        server_cpu_percent: percent(server_cpu, &sessions),
        requests_per_minute: (proxy.asked() - asked) as f64 / took * 60.0,
        rows_written: self::written(database, schema).await? - written,
    };
    relay.stop().await?;
    Ok(row)
}

/// The server's processes that serve the relay.
async fn sessions(database: &Database, schema: &str) -> Result<Vec<u32>> {
    let rows = sqlx::query("SELECT pid FROM pg_stat_activity WHERE application_name LIKE $1")
        .bind(format!("outbox relay {schema}%"))
        .fetch_all(&database.pool)
        .await?;
    rows.iter()
        .map(|row| Ok(row.try_get::<i32, _>(0)?.unsigned_abs()))
        .collect()
}

async fn written(database: &Database, schema: &str) -> Result<i64> {
    let statement = format!(
        "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint
           FROM pg_stat_all_tables WHERE schemaname = '{schema}'"
    );
    let row = sqlx::query(AssertSqlSafe(statement))
        .fetch_one(&database.pool)
        .await?;
    Ok(row.try_get(0)?)
}

/// What the threads of some processes have had of the processors; `None` where that cannot be read.
fn processor_time(pids: &[u32]) -> Option<Duration> {
    let mut nanos = 0;
    for pid in pids {
        for task in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
            let schedule = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            nanos += schedule.split(' ').next()?.parse::<u64>().ok()?;
        }
    }
    Some(Duration::from_nanos(nanos))
}

/// Between the relay and the server, counting. Ends when it is dropped.
struct Proxy {
    address: SocketAddr,
    requests: Arc<AtomicU64>,
    _connections: JoinSet<()>,
}

impl Proxy {
    async fn start(database: &Database) -> Result<Self> {
        let options = database.pool.connect_options();
        let server = format!("{}:{}", options.get_host(), options.get_port());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, requests) = (listener.local_addr()?, Arc::<AtomicU64>::default());
        let (counter, mut connections) = (Arc::clone(&requests), JoinSet::new());
        connections.spawn(async move {
            let mut pipes = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                pipes.spawn(pipe(client, server.clone(), Arc::clone(&counter)));
            }
        });
        Ok(Self {
            address,
            requests,
            _connections: connections,
        })
    }

    fn asked(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

/// Both directions of a connection, until one of them ends.
async fn pipe(client: TcpStream, server: String, requests: Arc<AtomicU64>) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let asked = async {
        let (mut frames, mut some) = (Frames::default(), [0; 8192]);
        loop {
            let read = from_client.read(&mut some).await?;
            frames.take(&some[..read], |kind| {
                if matches!(kind, b'Q' | b'S') {
                    requests.fetch_add(1, Ordering::Relaxed);
                }
            });
            to_server.write_all(&some[..read]).await?;
            if read == 0 {
                return Ok::<(), std::io::Error>(());
            }
        }
    };
    let answered = async {
        let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
    };
    tokio::select! {
        _ = asked => {}
        () = answered => {}
    }
}

/// The kinds of the messages that a client of Postgres sends, in whatever pieces they come.
#[derive(Default)]
struct Frames {
    /// The beginning of a message: its kind, which the first one does not have, and its length.
    head: Vec<u8>,
    started: bool,
    /// What is still to come of the message.
    rest: usize,
}

impl Frames {
    fn take(&mut self, mut bytes: &[u8], mut seen: impl FnMut(u8)) {
        while !bytes.is_empty() {
            let skipped = self.rest.min(bytes.len());
            bytes = &bytes[skipped..];
            self.rest -= skipped;
            let Some((&byte, more)) = bytes.split_first() else {
                return;
            };
            bytes = more;
            self.head.push(byte);
            let kind = usize::from(self.started);
            if let Some(&[a, b, c, d]) = self.head.get(kind..kind + 4) {
                self.rest = (u32::from_be_bytes([a, b, c, d]) as usize).saturating_sub(4);
                if self.started {
                    seen(self.head[0]);
                }
                self.started = true;
                self.head.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart_in_whatever_pieces_they_come() {
        let mut stream = vec![0, 0, 0, 9, 0, 3, 0, 0, b'Q'];
        for (kind, body) in [(b'Q', "select"), (b'S', ""), (b'X', "S")] {
            stream.push(kind);
            stream.extend((body.len() as u32 + 4).to_be_bytes());
            stream.extend(body.bytes());
        }
        for piece in 1..=stream.len() {
            let (mut frames, mut kinds) = (Frames::default(), Vec::new());
            for bytes in stream.chunks(piece) {
                frames.take(bytes, |kind| kinds.push(kind));
            }
            assert_eq!(kinds, b"QSX", "in pieces of {piece}");
        }
    }

    #[test]
    fn the_processor_time_of_this_process_grows() {
        let pid = [std::process::id()];
        if let Some(before) = processor_time(&pid) {
            let mut sum = 0u64;
            while processor_time(&pid) == Some(before) {
                sum = sum.wrapping_add(std::hint::black_box(1));
            }
            assert!(processor_time(&pid) > Some(before), "{sum}");
        }
    }
}
