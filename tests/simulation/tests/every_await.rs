//! One thing goes wrong, at each place in turn at which a call waits; and two things, at pairs of them.
//!
//! A small world runs without a fault, which says how many places there are. Then it runs again and again,
//! each time with another fault at another place: none is left to chance.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use outbox_core::{OnDead, OrderMode};
use outbox_simulation::{Fault, Script, Setup, run};

/// Each with whether the publisher chains.
const MODES: [(OrderMode, bool); 4] = [
    (OrderMode::PerKey, false),
    (OrderMode::PerKey, true),
    (OrderMode::PerKeyPipelined, false),
    (OrderMode::Unordered, false),
];

/// Seeds whose worlds have one, two and three brokers.
const SEEDS: [u64; 4] = [1, 2, 3, 4];

/// Of the pairs, each so many-th is run.
const PAIRS: usize = 37;

fn setup(seed: u64, (order, chains): (OrderMode, bool), script: Script) -> Setup {
    Setup {
        chains,
        on_dead: Some(OnDead::HaltKey),
        script: Some(script),
        ..Setup::new(seed, order)
    }
}

/// The points of the small world when nothing goes wrong.
fn points(seed: u64, mode: (OrderMode, bool)) -> u64 {
    let report = run(setup(seed, mode, Script::default()));
    assert_eq!(report.violations, [], "without a fault");
    report.points
}

fn all_scripts(points: u64) -> Vec<(u64, Fault)> {
    (0..points)
        .flat_map(|at| Fault::ALL.map(|fault| (at, fault)))
        .collect()
}

/// Runs all setups, on every processor.
fn none_breaks_a_promise(setups: &[Setup]) {
    let next = AtomicUsize::new(0);
    let broken = Mutex::new(Vec::new());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(setup) = setups.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let violations = run(*setup).violations;
                    if !violations.is_empty() {
                        broken
                            .lock()
                            .expect("no thread panics")
                            .push((*setup, violations));
                    }
                }
            });
        }
    });
    let broken = broken.into_inner().expect("no thread panics");
    assert!(
        broken.is_empty(),
        "{} of {} runs, such as {:?}",
        broken.len(),
        setups.len(),
        broken[0]
    );
}

#[test]
fn a_fault_at_every_place_where_a_call_waits_breaks_no_promise() {
    let mut setups = Vec::new();
    for (seed, mode) in SEEDS
        .into_iter()
        .flat_map(|seed| MODES.map(|mode| (seed, mode)))
    {
        let singles = all_scripts(points(seed, mode));
        assert!(
            singles.len() > 100,
            "{} scripts of seed {seed}",
            singles.len()
        );
        setups.extend(singles.into_iter().map(|first| {
            let script = Script {
                first: Some(first),
                second: None,
            };
            setup(seed, mode, script)
        }));
    }
    none_breaks_a_promise(&setups);
}

#[test]
fn two_faults_break_no_promise() {
    let mut setups = Vec::new();
    for mode in MODES {
        let singles = all_scripts(points(SEEDS[0], mode));
        let pairs = singles.iter().flat_map(|first| {
            let later = singles.iter().filter(|second| second.0 > first.0);
            later.map(|second| Script {
                first: Some(*first),
                second: Some(*second),
            })
        });
        setups.extend(
            pairs
                .step_by(PAIRS)
                .map(|script| setup(SEEDS[0], mode, script)),
        );
    }
    assert!(setups.len() > 100, "{} pairs", setups.len());
    none_breaks_a_promise(&setups);
}
