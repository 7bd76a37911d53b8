//! What is told of a run: where and when it was made, what was measured, and whether that is what was to
//! be shown.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use sqlx::Row;

use crate::plot::Plot;
use crate::setup::Database;
use crate::{Result, all};

/// Everything of a run; its JSON is what `plot` reads.
#[derive(Serialize)]
pub(crate) struct Document {
    run: Run,
    scenarios: Vec<Entry>,
}

/// One scenario of a run.
#[derive(Serialize)]
struct Entry {
    command: String,
    seconds: f64,
    error: Option<String>,
    #[serde(flatten)]
    outcome: Outcome,
}

/// What a scenario found.
#[derive(Default, Serialize)]
pub(crate) struct Outcome {
    measured: Value,
    goals: Vec<Goal>,
    plots: Vec<Plot>,
}

/// What a scenario was to show.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Goal {
    what: String,
    /// Absent where it could not be measured.
    value: Option<f64>,
    #[serde(flatten)]
    bound: Bound,
    met: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Outcome {
    pub(crate) fn of(measured: &impl Serialize) -> Result<Self> {
        Ok(Self {
            measured: serde_json::to_value(measured)?,
            ..Self::default()
        })
    }

    #[must_use]
    pub(crate) fn at_least(self, what: impl Into<String>, value: Option<f64>, goal: f64) -> Self {
        self.goal(what.into(), value, Bound::AtLeast(goal))
    }

    #[must_use]
    pub(crate) fn at_most(self, what: impl Into<String>, value: Option<f64>, goal: f64) -> Self {
        self.goal(what.into(), value, Bound::AtMost(goal))
    }

    fn goal(mut self, what: String, value: Option<f64>, bound: Bound) -> Self {
        let met = value.is_some_and(|value| match bound {
            Bound::AtLeast(goal) => value >= goal,
            Bound::AtMost(goal) => value <= goal,
        });
        self.goals.push(Goal {
            what,
            value,
            bound,
            met,
        });
        self
    }

    #[must_use]
    pub(crate) fn plot(mut self, plot: Plot) -> Self {
        self.plots.push(plot);
        self
    }
}

impl Document {
    pub(crate) fn new(run: Run) -> Self {
        run.print();
        Self {
            run,
            scenarios: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, command: String, took: Duration, outcome: Result<Outcome>) {
        let (outcome, error) = match outcome {
            Ok(outcome) => (outcome, None),
            Err(error) => {
                println!("FAILED: {error}");
                (Outcome::default(), Some(error.to_string()))
            }
        };
        self.scenarios.push(Entry {
            command,
            seconds: took.as_secs_f64(),
            error,
            outcome,
        });
    }

    /// One line for each goal.
    pub(crate) fn print_goals(&self) {
        for entry in &self.scenarios {
            println!("\n{}  ({:.0} s)", entry.command, entry.seconds);
            if let Some(error) = &entry.error {
                println!("  FAILED: {error}");
            }
            for goal in &entry.outcome.goals {
                let (sign, bound) = match goal.bound {
                    Bound::AtLeast(bound) => ("≥", bound),
                    Bound::AtMost(bound) => ("≤", bound),
                };
                println!(
                    "  {:<58} {:>10}   goal {sign} {:<8} {}",
                    goal.what,
                    goal.value.map_or("none".to_owned(), number),
                    number(bound),
                    if goal.met { "met" } else { "MISSED" },
                );
            }
        }
    }

    /// Writes the JSON, where that is wanted.
    pub(crate) fn write(&self, file: Option<&Path>) -> Result<()> {
        let Some(file) = file else { return Ok(()) };
        let mut json = serde_json::to_string_pretty(self)?;
        json.push('\n');
        fs::write(file, json).map_err(|error| format!("{}: {error}", file.display()).into())
    }

    /// An error where a scenario failed. A goal that is missed is none.
    pub(crate) fn failures(&self) -> Result<()> {
        let failed = |entry: &&Entry| entry.error.is_some();
        match self.scenarios.iter().filter(failed).count() {
            0 => Ok(()),
            some => Err(format!("{some} of {} scenarios failed", self.scenarios.len()).into()),
        }
    }
}

/// With as many decimals as say something.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => format!("{value:.0}"),
        middle if middle >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

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
    outbox: &'static str,
    optimised: bool,
    postgres: String,
    librdkafka: String,
}

impl Run {
    pub(crate) async fn describe(database: &Database) -> Result<Self> {
        let row = sqlx::query(
            "SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI \"UTC\"'),
                    current_setting('server_version')",
        )
        .fetch_one(&database.pool)
        .await?;
        let kib: f64 = after("/proc/meminfo", "MemTotal:")
            .trim_end_matches(" kB")
            .parse()
            .unwrap_or_default();
        Ok(Self {
            date: row.try_get(0)?,
            command: format!("{} {}", env!("CARGO_PKG_NAME"), all::given()),
            cores: std::thread::available_parallelism()?.get(),
            processor: after("/proc/cpuinfo", "model name"),
            memory_gib: (kib / 1024.0 / 102.4).round() / 10.0,
            load_before: fs::read_to_string("/proc/loadavg")
                .unwrap_or_default()
                .split_whitespace()
                .next()
                .unwrap_or_default()
                .to_owned(),
            outbox: env!("CARGO_PKG_VERSION"),
            optimised: !cfg!(debug_assertions),
            postgres: row.try_get(1)?,
            librdkafka: rdkafka::util::get_rdkafka_version().1,
        })
    }

    fn print(&self) {
        println!("{}, {}", self.date, self.command);
        println!(
            "{} cores, {}, {} GiB, load {} before",
            self.cores, self.processor, self.memory_gib, self.load_before
        );
        println!(
            "outbox {}, Postgres {}, librdkafka {}",
            self.outbox, self.postgres, self.librdkafka
        );
        if !self.optimised {
            println!("NOT OPTIMISED: build with --release");
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_met_at_its_bound_and_never_by_what_was_not_measured() {
        let outcome = Outcome::default()
            .at_least("a", Some(0.95), 0.95)
            .at_least("b", Some(0.94), 0.95)
            .at_most("c", Some(2.0), 2.0)
            .at_most("d", Some(2.1), 2.0)
            .at_most("e", Some(f64::NAN), 2.0)
            .at_least("f", None, 0.0);
        let met: Vec<bool> = outcome.goals.iter().map(|goal| goal.met).collect();
        assert_eq!(met, [true, false, true, false, false, false]);
    }

    #[test]
    fn a_number_has_the_decimals_that_say_something() {
        assert_eq!(
            [0.946, 12.0, 345.67, 56789.1].map(number),
            ["0.95", "12.00", "345.7", "56789"]
        );
    }
}
