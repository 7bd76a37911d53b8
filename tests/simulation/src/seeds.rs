//! Many seeds, each in both keyed modes and some without order, `PerKey` with waves and with chains; or one of
//! them, told line by line.

use std::fmt::Display;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use outbox_core::OrderMode;

use crate::run::{Report, Setup, run};
use crate::world::Stats;

/// Each with whether the publisher chains.
const MODES: [(OrderMode, bool); 4] = [
    (OrderMode::PerKey, false),
    (OrderMode::PerKey, true),
    (OrderMode::PerKeyPipelined, false),
    (OrderMode::Unordered, false),
];

fn setup(seed: u64, (order, chains): (OrderMode, bool)) -> Setup {
    Setup {
        chains,
        ..Setup::new(seed, order)
    }
}

fn name((order, chains): (OrderMode, bool)) -> String {
    let with = if chains { " in chains" } else { "" };
    format!("{order:?}{with}")
}

#[derive(Default)]
struct Sum {
    runs: u64,
    runs_out_of_order: u64,
    stats: Stats,
}

/// Runs one seed in every mode, and prints what happened. How many of the runs broke a promise.
pub fn replay(seed: u64) -> usize {
    let mut failed = 0;
    for mode in MODES {
        let mut setup = setup(seed, mode);
        setup.trace = true;
        say(format_args!("seed {seed}, {}", name(mode)));
        let report = run(setup);
        for line in &report.trace {
            say(line);
        }
        failed += usize::from(!report.violations.is_empty());
        tell(seed, mode, &report);
    }
    failed
}

/// Runs seeds on every processor, and prints what came of it. How many runs broke a promise; what they
/// broke is printed, and the command that replays one of them.
pub fn run_all(seeds: Range<u64>) -> usize {
    let start = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let sums: Mutex<[Sum; MODES.len()]> = Mutex::default();
    let failed: Mutex<Vec<u64>> = Mutex::default();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    for (index, mode) in MODES.into_iter().enumerate() {
                        // Without order there is less to break.
                        if mode.0 == OrderMode::Unordered && !seed.is_multiple_of(10) {
                            continue;
                        }
                        let report = run(setup(seed, mode));
                        if !report.violations.is_empty() {
                            tell(seed, mode, &report);
                            failed.lock().expect("no thread panics").push(seed);
                        }
                        let sum = &mut sums.lock().expect("no thread panics")[index];
                        sum.runs += 1;
                        sum.runs_out_of_order +=
                            u64::from(report.stats.first_copies_out_of_order > 0);
                        sum.stats.add(&report.stats);
                    }
                }
            });
        }
    });
    let sums = sums.into_inner().expect("no thread panics");
    let failed = failed.into_inner().expect("no thread panics");
    summarize(&seeds, &sums);
    let took = start.elapsed().as_secs_f64();
    say(format_args!("  took {took:.1} s"));
    if let Some(seed) = failed.iter().min() {
        let count = failed.len();
        say(format_args!(
            "  FAILED: {count} runs; `cargo run -p outbox-simulation -- --seed {seed}` replays one"
        ));
    }
    failed.len()
}

/// The summary is wanted when all is well too, so it goes around the capture of the test harness.
fn say(line: impl Display) {
    writeln!(io::stdout(), "{line}").expect("the output is open");
}

fn tell(seed: u64, mode: (OrderMode, bool), report: &Report) {
    for violation in &report.violations {
        say(format_args!("seed {seed}, {}: {violation}", name(mode)));
    }
}

fn summarize(seeds: &Range<u64>, sums: &[Sum; MODES.len()]) {
    say(format_args!(
        "simulation of the seeds {} to {}",
        seeds.start,
        seeds.end.saturating_sub(1)
    ));
    let mut total = Stats::default();
    for (sum, mode) in sums.iter().zip(MODES) {
        let stats = &sum.stats;
        total.add(stats);
        say(format_args!(
            "  {}: {} runs, {} messages committed and {} rolled back, {} seen late, {} delayed, \
             {} of them cancelled, {} copies, {} replayed, {} dead; first copies out of order in {} runs ({} of {} pairs)",
            name(mode),
            sum.runs,
            stats.committed,
            stats.rolled_back,
            stats.late,
            stats.delayed,
            stats.cancelled,
            stats.copies,
            stats.replayed,
            stats.dead,
            sum.runs_out_of_order,
            stats.first_copies_out_of_order,
            stats.ordered_pairs,
        ));
    }
    say(format_args!("  faults:"));
    for (fault, count) in &total.faults {
        say(format_args!("    {count:>8} {fault}"));
    }
}
