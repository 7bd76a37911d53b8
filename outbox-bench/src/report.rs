//! Where and when a run was made: what every scenario tells beside its own numbers.

use std::fs;
use std::path::Path;

use serde::Serialize;
use sqlx::Row;

use crate::Result;
use crate::setup::Database;

/// Where and when a run was made.
#[derive(Serialize)]
pub(crate) struct Run {
    date: String,
    command: String,
    cores: usize,
    processor: String,
    memory_gib: f64,
    /// The run queue before it began: that of a machine that does nothing else is near zero.
    load_before: String,
    /// Transactions of others in the database, prepared ones among them, that were a minute old
    /// before it began. While they last nobody can remove what was deleted.
    old_transactions: i64,
    outbox: &'static str,
    optimised: bool,
    postgres: String,
    librdkafka: String,
}

impl Run {
    pub(crate) async fn describe(database: &Database) -> Result<Self> {
        let row = sqlx::query(
            "SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI \"UTC\"'),
                    current_setting('server_version'),
                    (SELECT count(*) FROM pg_prepared_xacts
                      WHERE database = current_database()
                        AND prepared < now() - interval '1 minute')
                    + (SELECT count(*) FROM pg_stat_activity
                        WHERE datname = current_database()
                          AND xact_start < now() - interval '1 minute')",
        )
        .fetch_one(&database.pool)
        .await?;
        let program = env!("CARGO_PKG_NAME").to_owned();
        let command: Vec<String> = [program]
            .into_iter()
            .chain(std::env::args().skip(1))
            .collect();
        let kib: f64 = after("/proc/meminfo", "MemTotal:")
            .trim_end_matches(" kB")
            .parse()
            .unwrap_or_default();
        Ok(Self {
            date: row.try_get(0)?,
            command: command.join(" "),
            cores: std::thread::available_parallelism()?.get(),
            processor: after("/proc/cpuinfo", "model name"),
            memory_gib: (kib / 1024.0 / 102.4).round() / 10.0,
            load_before: fs::read_to_string("/proc/loadavg")
                .unwrap_or_default()
                .split_whitespace()
                .next()
                .unwrap_or_default()
                .to_owned(),
            old_transactions: row.try_get(2)?,
            outbox: env!("CARGO_PKG_VERSION"),
            optimised: !cfg!(debug_assertions),
            postgres: row.try_get(1)?,
            librdkafka: rdkafka::util::get_rdkafka_version().1,
        })
    }

    pub(crate) fn print(&self) {
        println!("{}, {}", self.date, self.command);
        println!(
            "{} cores, {}, {} GiB, load {} before",
            self.cores, self.processor, self.memory_gib, self.load_before
        );
        println!(
            "outbox {}, Postgres {}, librdkafka {}",
            self.outbox, self.postgres, self.librdkafka
        );
        if self.old_transactions > 0 {
            println!(
                "{} OLD TRANSACTIONS IN THE DATABASE: deleted rows pile up, which slows the reference",
                self.old_transactions
            );
        }
        if !self.optimised {
            println!("NOT OPTIMISED: build with --release");
        }
    }
}

/// Writes what was measured as JSON, where that is wanted.
pub(crate) fn write_json(file: Option<&Path>, report: &impl Serialize) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    let mut json = serde_json::to_string_pretty(report)?;
    json.push('\n');
    fs::write(file, json).map_err(|error| format!("{}: {error}", file.display()).into())
}

/// What a line of a file of the kernel says behind its name.
fn after(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default()
        .trim_start_matches([' ', '\t', ':'])
        .trim()
        .to_owned()
}
