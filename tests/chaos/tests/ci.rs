//! The runs of CI: every broker at the same time, each with servers of its own that are broken by a fixed
//! seed; and relays that break the promise, which the audit must find.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::{fs, thread};

/// Two minutes are what CI has for it: a little more than one to break things, the rest to mend them.
const MINUTES: &str = "--minutes=1.1";
/// One whose plan for each broker begins with the states of it, before its server is stopped and killed: a
/// Kafka needs half a minute to come back on a busy machine.
const SEED: &str = "--seed=464";

/// The brokers, and the states in which each takes no writes.
const BROKERS: [(&str, &[&str]); 4] = [
    ("kafka", &["kafka topic read-only"]),
    ("amqp", &["rabbitmq memory alarm", "rabbitmq disk alarm"]),
    ("nats", &["nats stream full"]),
    ("redis", &["redis out of memory", "redis without replicas"]),
];

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

/// How many faults were made, of how many, and which.
fn faults(said: &str) -> (u64, u64, &str) {
    let line = said.lines().find_map(|it| it.strip_prefix("faults: "));
    let (counts, kinds) = line.unwrap().split_once(" planned ").unwrap();
    let (made, planned) = counts.split_once(" of ").unwrap();
    (made.parse().unwrap(), planned.parse().unwrap(), kinds)
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

#[test]
fn every_promise_is_kept_at_each_broker_whatever_breaks() {
    let runs = BROKERS.map(|(broker, states)| {
        let run = move || chaos(&["--broker", broker, MINUTES, SEED, "--rate=120"]);
        (broker, states, thread::spawn(run))
    });
    let ended = runs.map(|(broker, states, run)| (broker, states, run.join().unwrap()));
    for (broker, _, output) in &ended {
        println!("=== {broker}\n{}", said(output));
    }
    for (broker, states, output) in &ended {
        let said = said(output);
        assert!(output.status.success(), "{broker}: {}", output.status);
        assert!(number(&said, "delivered") > 1_000, "{broker}");
        let (made, planned, faults) = faults(&said);
        assert!(made * 4 >= planned * 3, "{broker}: {made} of {planned}");
        for state in *states {
            assert!(faults.contains(state), "{broker} without {state}: {faults}");
        }
        // Who is root may mount a disk.
        if is_root() {
            assert!(faults.contains("postgres disk full"), "{broker}: {faults}");
        }
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
    // What it knows is kept, with every message that it says is lost.
    let kept = said
        .lines()
        .find_map(|it| it.strip_prefix("logs, tables and records: "));
    let kept = Path::new(kept.unwrap());
    let lost = said.lines().find_map(|it| it.strip_prefix("lost: "));
    let (id, known) = lost.unwrap().split_once(": ").unwrap();
    assert!(known.contains("commit asked for at"), "{known}");
    let holds = |file: &str| fs::read_to_string(kept.join(file)).unwrap().contains(id);
    assert!(holds("tables/log.enqueued.csv") && holds("attempts.csv"));
    assert!(!holds("arrivals.csv") && !holds("tables/outbox.message.csv"));
    assert!(kept.join("logs/relay-1.log").exists());
    fs::remove_dir_all(kept).unwrap();
}
