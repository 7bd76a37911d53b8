//! Measures the outbox, as ratios within one run.

fn main() {}
