//! A seed that fails, fails again: the same seed gives the same run.

use outbox_core::OrderMode;
use outbox_simulation::{Setup, run};

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..10 {
        for order in [OrderMode::PerKey, OrderMode::PerKeyPipelined] {
            let setup = Setup {
                trace: true,
                ..Setup::new(seed, order)
            };
            let (once, again) = (run(setup).trace, run(setup).trace);
            assert!(once.len() > 100);
            assert!(
                once == again,
                "seed {seed} in {order:?} took another course"
            );
        }
    }
}

#[test]
fn different_seeds_give_different_runs() {
    let trace = |seed| {
        let setup = Setup {
            trace: true,
            ..Setup::new(seed, OrderMode::PerKey)
        };
        run(setup).trace
    };
    assert_ne!(trace(1), trace(2));
}
