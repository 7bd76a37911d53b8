//! A thousand seeds, each in both keyed modes and some without order. `PerKey` with waves and with chains.
//!
//! `OUTBOX_SEEDS=N` runs N seeds instead; `OUTBOX_SEED=K` runs the seed K alone and prints what happened.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use outbox_core::OrderMode;
use outbox_simulation::{Report, Setup, Stats, run};

const SEEDS: u64 = 1000;
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

#[derive(Default)]
struct Sum {
    runs: u64,
    runs_out_of_order: u64,
    stats: Stats,
}

#[test]
fn every_promise_is_kept() {
    let failed = match (number("OUTBOX_SEED"), number("OUTBOX_SEEDS")) {
        (Some(seed), _) => replay(seed),
        (None, seeds) => all(seeds.unwrap_or(SEEDS)),
    };
    assert_eq!(
        failed, 0,
        "runs broke a promise; what they broke is said above"
    );
}

/// The summary is wanted when all is well too, so it goes around the capture of the test harness.
fn say(line: impl Display) {
    writeln!(io::stdout(), "{line}").expect("the output is open");
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is {text:?}, which is not a number")))
}

fn replay(seed: u64) -> usize {
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

fn all(seeds: u64) -> usize {
    let start = Instant::now();
    let next = AtomicU64::new(0);
    let sums: Mutex<[Sum; MODES.len()]> = Mutex::default();
    let failed: Mutex<Vec<u64>> = Mutex::default();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
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
    summarize(seeds, &sums);
    say(format_args!(
        "  took {:.1} s",
        start.elapsed().as_secs_f64()
    ));
    if let Some(seed) = failed.iter().min() {
        let count = failed.len();
        say(format_args!(
            "  FAILED: {count} runs; OUTBOX_SEED={seed} replays one"
        ));
    }
    failed.len()
}

fn name((order, chains): (OrderMode, bool)) -> String {
    let with = if chains { " in chains" } else { "" };
    format!("{order:?}{with}")
}

fn tell(seed: u64, mode: (OrderMode, bool), report: &Report) {
    for violation in &report.violations {
        say(format_args!("seed {seed}, {}: {violation}", name(mode)));
    }
}

fn summarize(seeds: u64, sums: &[Sum; MODES.len()]) {
    say(format_args!("simulation of {seeds} seeds"));
    let mut total = Stats::default();
    for (sum, mode) in sums.iter().zip(MODES) {
        let stats = &sum.stats;
        total.add(stats);
        say(format_args!(
            "  {}: {} runs, {} messages committed and {} rolled back, {} seen late, {} copies, \
             {} dead; first copies out of order in {} runs ({} of {} pairs)",
            name(mode),
            sum.runs,
            stats.committed,
            stats.rolled_back,
            stats.late,
            stats.copies,
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
