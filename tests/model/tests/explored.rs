//! Small sizes are explored fully: what is promised holds in every state, and each mistake is found.

#![allow(clippy::unwrap_used)]

use std::time::Instant;

use Op::{Abort, Commit, Enqueue, RolledBack, Write};
use outbox_model::{Mutation, Op, Setup, Violation, explore};

/// What is explored, by name. All messages are of one key.
fn setups() -> Vec<(&'static str, Setup)> {
    let late = vec![
        vec![Enqueue, Commit],
        vec![Enqueue, Commit, Enqueue, Commit],
    ];
    let basic = Setup {
        producers: late.clone(),
        workers: vec![0],
        limit: 2,
        losses: 0,
        releases: 0,
        crashes: 0,
        statements: false,
        mutation: None,
    };
    let two_workers = Setup {
        workers: vec![0, 0],
        statements: true,
        ..basic.clone()
    };
    vec![
        ("one worker", basic.clone()),
        (
            "one worker, one message a claim, three producers",
            Setup {
                producers: vec![vec![Enqueue, Commit]; 3],
                limit: 1,
                ..basic.clone()
            },
        ),
        (
            "aborts, savepoints and releases",
            Setup {
                producers: vec![
                    vec![Write, RolledBack, Enqueue, Enqueue, Commit],
                    vec![Enqueue, Abort, Enqueue, Commit],
                ],
                releases: 1,
                limit: 1,
                ..basic.clone()
            },
        ),
        (
            "two workers in the middle of statements",
            Setup {
                producers: vec![vec![Enqueue, Commit]; 2],
                statements: false,
                ..two_workers.clone()
            },
        ),
        ("two workers", two_workers.clone()),
        (
            "two stores",
            Setup {
                workers: vec![0, 1],
                ..two_workers.clone()
            },
        ),
        (
            "two workers that lose connections",
            Setup {
                producers: vec![vec![Enqueue, Commit]; 2],
                losses: 1,
                ..two_workers.clone()
            },
        ),
        (
            "a server that crashes",
            Setup {
                statements: true,
                crashes: 1,
                losses: 1,
                ..basic.clone()
            },
        ),
    ]
}

#[test]
fn nothing_is_lost_or_out_of_order_in_any_course_of_events() {
    for (name, setup) in setups() {
        let start = Instant::now();
        let explored = explore(&setup);
        println!(
            "{name}: {} states, {} steps, depth {}, {:.1} s",
            explored.states,
            explored.transitions,
            explored.depth,
            start.elapsed().as_secs_f64()
        );
        assert_eq!(explored.counterexample, None, "{name}");
    }
}

/// Where each mistake shows.
fn setup_for(mutation: Mutation) -> &'static str {
    match mutation {
        Mutation::NoBound
        | Mutation::ForgetsAboveXmax
        | Mutation::MarkOfALaterSequence
        | Mutation::PositionBeforeXid
        | Mutation::FloorPassesOpenTransactions => "one worker",
        Mutation::ForgetsTheLimit => "one worker, one message a claim, three producers",
        Mutation::ReadsWithTheSnapshotOfTheLock => "two workers in the middle of statements",
        Mutation::NoLock | Mutation::SettlesForTheLatestLook => "two workers",
        Mutation::AbortedSettleClears => "two workers that lose connections",
        Mutation::RemembersThroughACrash => "a server that crashes",
    }
}

#[test]
fn each_mistake_breaks_a_promise_in_some_course_of_events() {
    let setups = setups();
    for mutation in Mutation::ALL {
        let name = setup_for(mutation);
        let (_, setup) = setups.iter().find(|(it, _)| *it == name).unwrap();
        let setup = Setup {
            mutation: Some(mutation),
            ..setup.clone()
        };
        let explored = explore(&setup);
        let Some((way, violation)) = explored.counterexample else {
            panic!("{mutation:?} breaks nothing in {} states", explored.states);
        };
        println!("{mutation:?}, {name}: {violation} after {way:?}");
        let expected = match mutation {
            Mutation::ReadsWithTheSnapshotOfTheLock | Mutation::NoLock => {
                matches!(violation, Violation::Repeated(_))
            }
            _ => matches!(violation, Violation::Lost(_) | Violation::OutOfOrder(..)),
        };
        assert!(expected, "{mutation:?}: {violation}");
    }
}
