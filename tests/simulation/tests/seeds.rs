//! Thousands of seeds, each in both keyed modes and some without order.
//!
//! `OUTBOX_SEEDS=N` runs the first N instead, `OUTBOX_SEED=K` the seed K alone and prints what happened.
//! Fresh seeds: `cargo run -p outbox-simulation -- --seeds N`.

use outbox_simulation::{replay, run_all};

const SEEDS: u64 = 2000;

#[test]
fn every_promise_is_kept() {
    let failed = match (number("OUTBOX_SEED"), number("OUTBOX_SEEDS")) {
        (Some(seed), _) => replay(seed),
        (None, seeds) => run_all(0..seeds.unwrap_or(SEEDS)),
    };
    assert_eq!(
        failed, 0,
        "runs broke a promise; what they broke is said above"
    );
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is {text:?}, which is not a number")))
}
