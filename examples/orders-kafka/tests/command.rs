//! Runs the program as a person does: small runs side by side, wrong arguments, servers that are away.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Nothing listens there.
const NO_POSTGRES: &str = "postgres://somebody:secret@127.0.0.1:1/orders";
const NO_KAFKA: &str = "127.0.0.1:1";

fn start(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_orders-kafka"))
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn run(arguments: &[&str]) -> Output {
    start(arguments).wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

#[test]
fn runs_side_by_side_end_with_the_audit() {
    let runs = ["100", "1"].map(|orders| start(&["--orders", orders]));
    let expected = [
        "100 committed, 100 delivered, 0 lost, 0 from rolled-back transactions, order kept for ",
        "1 committed, 1 delivered, 0 lost, 0 from rolled-back transactions, order kept for 1 keys",
    ];
    for (run, expected) in runs.into_iter().zip(expected) {
        let output = run.wait_with_output().unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{out}{err}");
        let last = out.lines().last().unwrap();
        assert!(last.starts_with(expected), "{last}");
        assert!(err.contains("read back"), "no progress was shown: {err}");
    }
}

#[test]
fn wrong_arguments_end_with_two() {
    for wrong in [
        &["--orders", "0"][..],
        &["--orders", "1000001"],
        &["--orders", "many"],
        &["--order", "10"],
        &["10"],
    ] {
        let output = run(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(text(&output.stderr).contains(wrong[0]), "{wrong:?}");
    }
    assert!(run(&["--help"]).status.success());
}

#[test]
fn a_server_that_is_away_is_named_soon() {
    for (arguments, server) in [
        (
            ["--database-url", NO_POSTGRES],
            "no Postgres at 127.0.0.1:1 ",
        ),
        (["--kafka-brokers", NO_KAFKA], "no Kafka at 127.0.0.1:1 "),
    ] {
        let started = Instant::now();
        let output = run(&arguments);
        let took = started.elapsed();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains(server), "{message}");
        assert!(message.contains("scripts/services up"), "{message}");
        assert!(!message.contains("secret"), "{message}");
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}
