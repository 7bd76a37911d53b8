//! More relays: what they deliver together, how they share it, and how soon one takes over from another.
//!
//! Each relay is a process of its own with four workers and a publisher that confirms at once; it says every
//! 10 ms how much it has published.
//!
//! * A backlog is delivered by 1, 2, 4 and 8 of them. It counts from the moment when all are told to begin
//!   until the last message is published; the shares are those at that moment. One alone has four workers, so
//!   this is about what more relays cost, and not about what they gain: on few cores they gain nothing.
//! * Two of them deliver what is committed at a steady rate, each publisher call taking a while, so that both
//!   hold something at any time. One gets `SIGKILL`. Takeover is the longest time that a message which was not
//!   acknowledged by then was acknowledged after the kill, or after its own commit if that came later.
//!
//! Not here: processes that are frozen instead of killed, and hosts that are cut off. These are found when the
//! server's time for a claim is over.
//!
//! Goal: no number of relays has less than 0.95 of the throughput of one; every share at least half of an equal
//! one; every takeover within a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Result;
use crate::measure::{all, median, none_left};
use crate::plot::{Axis, Line, Plot};
use crate::process::{self, Process, Told};
use crate::relay::new_outbox;
use crate::report::Outcome;
use crate::setup::{Database, Shape};
use crate::steady::{Steady, Target};
use crate::times::{Percentiles, Taken, Times};

/// A backlog that takes longer has been lost.
const PATIENCE: Duration = Duration::from_secs(300);
/// What a publisher call takes while a relay is killed.
const DELAY_MS: u64 = 20;
/// How long the relays run before one is killed, and how long after it.
const BEFORE: Duration = Duration::from_millis(1500);
const AFTER: u32 = 3;

/// Measures several relay processes on one outbox, and the death of one.
#[derive(clap::Args, Serialize)]
pub(crate) struct Args {
    /// How many relay processes: some numbers, the first of them to be compared with.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8],
          value_parser = clap::value_parser!(u16).range(1..=32))]
    relays: Vec<u16>,
    /// How many messages wait.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1000..))]
    messages: u32,
    #[command(flatten)]
    #[serde(flatten)]
    shape: Shape,
    /// How often everything is measured; every second time backwards. Medians are reported.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// How often a relay is killed.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    takeovers: u16,
    /// How many messages are committed in a second while one is killed.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(8..=100_000))]
    rate: u32,
}

/// One number of relays, once.
#[derive(Serialize)]
struct Row {
    relays: u16,
    messages_per_second: f64,
    shares: Vec<f64>,
}

#[derive(Serialize)]
struct Report {
    args: Args,
    rows: Vec<Row>,
    /// Of the messages in the second before the kills.
    before: Option<Percentiles>,
    takeovers_ms: Vec<f64>,
}

pub(crate) async fn run(args: Args, database: &Database) -> Result<Outcome> {
    println!(
        "{} {}; 4 workers a relay, batch 1000\n",
        args.messages, args.shape
    );
    let mut numbers = args.relays.clone();
    let mut rows = Vec::new();
    for _ in 0..args.rounds {
        for &relays in &numbers {
            let row = database
                .with_schema(async |schema| deliver(&args, relays, database, schema).await)
                .await
                .map_err(|error| format!("{relays} relays: {error}"))?;
            row.print();
            rows.push(row);
        }
        numbers.reverse();
    }
    println!();
    let (mut takeovers_ms, mut before) = (Vec::new(), Vec::new());
    for _ in 0..args.takeovers {
        let (killed, taken) = database
            .with_schema(async |schema| kill_one(&args, database, schema).await)
            .await
            .map_err(|error| format!("takeover: {error}"))?;
        let second = killed.saturating_sub(Duration::from_secs(1))..killed;
        before.extend(
            taken
                .iter()
                .filter(|it| second.contains(&it.at))
                .map(|it| it.took),
        );
        takeovers_ms.push(takeover(&taken, killed).as_secs_f64() * 1000.0);
    }
    let before = Percentiles::new(before);
    println!(
        "takeover after SIGKILL: {} ms; p99 before it {:.0} ms",
        takeovers_ms
            .iter()
            .map(|it| format!("{it:.0}"))
            .collect::<Vec<_>>()
            .join(", "),
        before.map_or(f64::NAN, |it| it.p99_ms),
    );
    let report = Report {
        args,
        rows,
        before,
        takeovers_ms,
    };
    report.outcome()
}

impl Report {
    /// The median over the rounds.
    fn rate(&self, relays: u16) -> Option<f64> {
        let rows = self.rows.iter().filter(|row| row.relays == relays);
        median(rows.map(|row| row.messages_per_second))
    }

    fn outcome(&self) -> Result<Outcome> {
        let mut outcome = Outcome::of(self)?;
        let (&first, more) = self
            .args
            .relays
            .split_first()
            .ok_or("no number of relays")?;
        for &relays in more {
            let rows = self.rows.iter().filter(|row| row.relays == relays);
            let smallest = median(rows.map(Row::smallest_to_equal));
            let ratio = self.rate(relays).zip(self.rate(first));
            outcome = outcome
                .at_least(
                    format!("{relays} relays: throughput / that of {first}"),
                    ratio.map(|(some, one)| some / one),
                    0.95,
                )
                .at_least(
                    format!("{relays} relays: smallest / equal share"),
                    smallest,
                    0.5,
                );
        }
        let longest = self.takeovers_ms.iter().copied().reduce(f64::max);
        let points = self.args.relays.iter();
        let points = points.filter_map(|&relays| Some((f64::from(relays), self.rate(relays)?)));
        Ok(outcome
            .at_most("longest takeover after SIGKILL, ms", longest, 1000.0)
            .plot(Plot {
                name: "scale".to_owned(),
                title: "What relay processes deliver together".to_owned(),
                x: Axis::linear("relay processes"),
                y: Axis::linear("messages/s"),
                lines: vec![Line {
                    name: "all together".to_owned(),
                    points: points.collect(),
                }],
            }))
    }
}

impl Row {
    fn of(published: &[u64], took: Duration) -> Self {
        let total: u64 = published.iter().sum();
        let share = |&it: &u64| it as f64 / total as f64;
        Self {
            relays: published.len() as u16,
            messages_per_second: total as f64 / took.as_secs_f64(),
            shares: published.iter().map(share).collect(),
        }
    }

    fn smallest_to_equal(&self) -> f64 {
        let smallest = self.shares.iter().copied().fold(1.0, f64::min);
        smallest * self.shares.len() as f64
    }

    fn print(&self) {
        let shares = self.shares.iter().map(|it| format!("{it:.3}"));
        println!(
            "{:>2} relays {:>8.0}/s   shares {}",
            self.relays,
            self.messages_per_second,
            shares.collect::<Vec<_>>().join(" "),
        );
    }
}

async fn deliver(args: &Args, relays: u16, database: &Database, schema: &str) -> Result<Row> {
    let workload = args.shape.workload(args.messages.into());
    workload.enqueue(database, schema, None).await?;
    let mut running = Vec::new();
    for _ in 0..relays {
        let published = Arc::new(AtomicU64::new(0));
        let heard = Arc::clone(&published);
        let process = Process::start(&process::Args::new(database, schema), move |told| {
            if let Told::Published(total) = told {
                heard.store(total, Ordering::Relaxed);
            }
        })
        .await?;
        running.push((process, published));
    }
    let start = Instant::now();
    for (process, _) in &mut running {
        process.go().await?;
    }
    let told = || -> Vec<u64> {
        running
            .iter()
            .map(|(_, published)| published.load(Ordering::Relaxed))
            .collect()
    };
    while told().iter().sum::<u64>() < workload.messages && start.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(2)).await; // wait: the poll of a bounded loop
    }
    let row = Row::of(&told(), start.elapsed());
    let mut published = 0;
    for (process, told) in running {
        process.stop().await?;
        published += told.load(Ordering::Relaxed);
    }
    // Repeats, where nothing has failed, would be as wrong as what is missing.
    all(published, workload.messages, "published")?;
    none_left(database.count(&format!("{schema}.message")).await?)?;
    Ok(row)
}

/// When one of two relays was killed, and when each message was acknowledged.
async fn kill_one(
    args: &Args,
    database: &Database,
    schema: &str,
) -> Result<(Duration, Vec<Taken>)> {
    let target = Target::Outbox(new_outbox(database, schema).await?);
    let times = Times::start();
    let mut relays = Vec::new();
    for _ in 0..2 {
        let heard = Arc::clone(&times);
        let how = process::Args {
            each: true,
            delay_ms: DELAY_MS,
            ..process::Args::new(database, schema)
        };
        let mut process = Process::start(&how, move |told| {
            if let Told::Each(ids) = told {
                heard.acknowledged(ids);
            }
        })
        .await?;
        process.go().await?;
        relays.push(process);
    }
    let steady = Steady {
        rate: args.rate,
        seconds: BEFORE.as_secs() as u32 + AFTER,
        together: 1,
        shape: args.shape,
    };
    let [survivor, victim] = <[Process; 2]>::try_from(relays).map_err(|_| "not two relays")?;
    let (produced, killed) =
        tokio::join!(steady.produce(database, &target, "bench", &times), async {
            tokio::time::sleep(BEFORE).await;
            let killed = times.elapsed();
            victim.kill().await.map(|()| killed)
        });
    times.wait_for(produced?.messages).await?;
    survivor.stop().await?;
    Ok((killed?, times.taken()))
}

/// The longest that a message waited after the kill.
fn takeover(taken: &[Taken], killed: Duration) -> Duration {
    let after = taken.iter().filter(|it| it.at > killed);
    after
        .map(|it| it.took.min(it.at - killed))
        .max()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_all_and_the_smallest_is_compared_with_an_equal_one() {
        let row = Row::of(&[100, 300, 400], Duration::from_secs(2));
        assert_eq!(row.messages_per_second, 400.0);
        assert_eq!(row.shares, [0.125, 0.375, 0.5]);
        assert_eq!(row.smallest_to_equal(), 0.375);
        let equal = Row::of(&[5, 5], Duration::from_secs(1));
        assert_eq!(equal.smallest_to_equal(), 1.0);
    }

    #[test]
    fn a_takeover_counts_from_the_kill_or_from_a_later_commit() {
        let ms = Duration::from_millis;
        let of = |at, took| Taken {
            at: ms(at),
            took: ms(took),
        };
        // Long before it; committed before it; committed after it.
        let taken = [of(900, 800), of(1300, 600), of(1800, 250)];
        assert_eq!(takeover(&taken, ms(1000)), ms(300));
        assert_eq!(takeover(&taken, ms(1500)), ms(250));
        assert_eq!(takeover(&taken, ms(2000)), Duration::ZERO);
    }
}
