//! The runs of CI: every broker at the same time, each with servers of its own that are broken by a fixed
//! seed; and relays that break the promise, which the audit must find.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};
use std::thread;

/// Two minutes are what CI has for it: a little more than one to break things, the rest to mend them.
const MINUTES: &str = "--minutes=1.1";
const SEED: &str = "--seed=7";

fn chaos(arguments: &[&str]) -> Output {
    let report = Path::new(env!("CARGO_TARGET_TMPDIR")).join("chaos");
    Command::new(env!("CARGO_BIN_EXE_chaos"))
        .args(arguments)
        .arg("--report")
        .arg(report)
        .output()
        .unwrap()
}

/// The end of what it said, for a failure.
fn said(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    format!("{out}\n{error}")
}

/// A number of the audit.
fn number(said: &str, name: &str) -> u64 {
    let line = said
        .lines()
        .find(|line| line.starts_with(name))
        .expect(name);
    line.split_whitespace().last().unwrap().parse().expect(name)
}

#[test]
fn every_promise_is_kept_at_each_broker_whatever_breaks() {
    let runs = ["kafka", "amqp", "nats", "redis"].map(|broker| {
        let run = move || chaos(&["--broker", broker, MINUTES, SEED, "--rate=120"]);
        (broker, thread::spawn(run))
    });
    let ended = runs.map(|(broker, run)| (broker, run.join().unwrap()));
    for (broker, output) in &ended {
        println!("=== {broker}\n{}", said(output));
    }
    for (broker, output) in &ended {
        assert!(output.status.success(), "{broker}: {}", output.status);
        assert!(number(&said(output), "delivered") > 1_000, "{broker}");
    }
}

#[test]
fn relays_that_settle_before_the_broker_has_answered_lose_messages_and_fail() {
    let output = chaos(&[
        "--broker=redis",
        "--spare-broker",
        "--kills-only",
        "--unsafe-relays",
        "--minutes=0.4",
        SEED,
        "--rate=150",
    ]);
    let said = said(&output);
    println!("{said}");
    assert_eq!(output.status.code(), Some(1));
    assert!(number(&said, "lost") > 0);
    // It is the audit that failed, and nothing else.
    assert!(said.contains("verdict: FAILED"));
    assert!(!said.contains("trouble:"));
}
