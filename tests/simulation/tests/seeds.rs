//! A thousand seeds, each in both keyed modes and some without order.
//!
//! `OUTBOX_SEEDS=N` runs N seeds instead; `OUTBOX_SEED=K` runs the seed K alone and prints what happened.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use outbox_core::OrderMode;
use outbox_simulation::{Report, Setup, Stats, run};

const SEEDS: u64 = 1000;
const MODES: [OrderMode; 3] = [
    OrderMode::PerKey,
    OrderMode::PerKeyPipelined,
    OrderMode::Unordered,
];

#[derive(Default)]
struct Sum {
    runs: u64,
    runs_out_of_order: u64,
    stats: Stats,
}

fn main() -> ExitCode {
    match (number("OUTBOX_SEED"), number("OUTBOX_SEEDS")) {
        (Some(seed), _) => replay(seed),
        (None, seeds) => all(seeds.unwrap_or(SEEDS)),
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is {text:?}, which is not a number")))
}

fn replay(seed: u64) -> ExitCode {
    let mut kept = true;
    for order in MODES {
        let mut setup = Setup::new(seed, order);
        setup.trace = true;
        println!("seed {seed}, {order:?}");
        let report = run(setup);
        for line in &report.trace {
            println!("{line}");
        }
        kept &= report.violations.is_empty();
        tell(seed, order, &report);
    }
    result(kept)
}

fn all(seeds: u64) -> ExitCode {
    let start = Instant::now();
    let next = AtomicU64::new(0);
    let sums: Mutex<[Sum; 3]> = Mutex::default();
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
                    for (index, order) in MODES.into_iter().enumerate() {
                        // Without order there is less to break.
                        if order == OrderMode::Unordered && !seed.is_multiple_of(10) {
                            continue;
                        }
                        let report = run(Setup::new(seed, order));
                        if !report.violations.is_empty() {
                            tell(seed, order, &report);
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
    println!("  took {:.1} s", start.elapsed().as_secs_f64());
    if let Some(seed) = failed.iter().min() {
        println!(
            "  FAILED: {} runs; OUTBOX_SEED={seed} replays one",
            failed.len()
        );
    }
    result(failed.is_empty())
}

fn tell(seed: u64, order: OrderMode, report: &Report) {
    for violation in &report.violations {
        println!("seed {seed}, {order:?}: {violation}");
    }
}

fn summarize(seeds: u64, sums: &[Sum; 3]) {
    println!("simulation of {seeds} seeds");
    let mut total = Stats::default();
    for (sum, order) in sums.iter().zip(MODES) {
        let stats = &sum.stats;
        total.add(stats);
        println!(
            "  {order:?}: {} runs, {} messages committed and {} rolled back, {} seen late, {} copies, \
             {} dead; first copies out of order in {} runs ({} of {} pairs)",
            sum.runs,
            stats.committed,
            stats.rolled_back,
            stats.late,
            stats.copies,
            stats.dead,
            sum.runs_out_of_order,
            stats.first_copies_out_of_order,
            stats.ordered_pairs,
        );
    }
    println!("  faults:");
    for (fault, count) in &total.faults {
        println!("    {count:>8} {fault}");
    }
}

fn result(kept: bool) -> ExitCode {
    match kept {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
