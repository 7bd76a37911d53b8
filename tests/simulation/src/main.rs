//! Runs seeds that nobody has run before, or one again.
//!
//!     cargo run -p outbox-simulation -- --seeds 10000
//!     cargo run -p outbox-simulation -- --seed 7

use std::env;
use std::process::ExitCode;

use outbox_simulation::{replay, run_all};

/// Fresh seeds begin anywhere below this; the tests have the first thousands.
const FRESH: u64 = 1_000_000_000_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let failed = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--seeds", many] => many.parse().ok().map(|many: u64| {
            let first = fastrand::u64(..FRESH);
            run_all(first..first.saturating_add(many))
        }),
        ["--seed", seed] => seed.parse().ok().map(replay),
        _ => None,
    };
    match failed {
        Some(0) => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
        None => {
            eprintln!(
                "usage: --seeds NUMBER, for so many fresh ones, or --seed SEED, to replay one"
            );
            ExitCode::from(2)
        }
    }
}
