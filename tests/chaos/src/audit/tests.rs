//! The checker is what everything here rests on, so each fault is put into its input.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use uuid::Uuid;

use super::{Audit, Bounds, Evidence, Explained};
use crate::record::{Arrival, Attempt, Committed, Content, Disturbance, Failures, Left};
use crate::schedule::Fault;

const BOUNDS: Bounds = Bounds {
    under_way: 2,
    given: 1,
    batch: Duration::from_secs(10),
    soon: Duration::from_secs(5),
    claim: Duration::from_secs(30),
};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A run in which three keys with four messages each were delivered, one a second after it was enqueued.
/// Message `i` is number `i / 3 + 1` of key `i % 3`.
struct Run {
    committed: Vec<Committed>,
    attempts: HashMap<Uuid, Attempt>,
    arrivals: Vec<Arrival>,
    disturbances: Vec<Disturbance>,
    left: Left,
    failures: Vec<Failures>,
}

impl Run {
    fn clean() -> Self {
        let content = |i: u64| Content {
            key: Some(format!("key-{}", i % 3)),
            payload: Some(vec![0, 255, i as u8]),
            headers: BTreeMap::from([("kind".to_owned(), i.to_string())]),
        };
        let id = |i: u64| Uuid::from_u128(u128::from(i) + 1);
        Self {
            committed: (0..12)
                .map(|i| Committed {
                    id: id(i),
                    n: i as i64 / 3 + 1,
                    content: content(i),
                })
                .collect(),
            attempts: (0..12)
                .map(|i| {
                    let attempt = Attempt {
                        commit_asked: Some(seconds(i)),
                        commit_answered: Some(seconds(i)),
                    };
                    (id(i), attempt)
                })
                .collect(),
            arrivals: (0..12)
                .map(|i| Arrival {
                    at: seconds(i + 1),
                    id: id(i),
                    content: content(i),
                    partition: (i % 3) as i32,
                    redelivered: false,
                })
                .collect(),
            disturbances: Vec::new(),
            left: Left::default(),
            failures: Vec::new(),
        }
    }

    fn audit(&self) -> Audit {
        Audit::of(&Evidence {
            committed: &self.committed,
            attempts: &self.attempts,
            arrivals: &self.arrivals,
            disturbances: &self.disturbances,
            bounds: BOUNDS,
            left: self.left,
            failures: &self.failures,
        })
    }

    /// Has a message arrive once more, at the end.
    fn repeat(&mut self, index: usize, at: Duration) {
        let mut copy = self.arrivals[index].clone();
        copy.at = at;
        self.arrivals.push(copy);
    }

    fn break_something(&mut self, fault: Fault, from: Duration, until: Duration) {
        self.disturbances.push(Disturbance { fault, from, until });
    }

    /// The names of the only findings.
    #[track_caller]
    fn assert_found(&self, names: &[&str]) -> Audit {
        let audit = self.audit();
        let found: Vec<_> = audit
            .findings()
            .into_iter()
            .filter(|(_, findings)| findings.count > 0)
            .map(|(name, _)| name)
            .collect();
        assert_eq!(found, names, "{audit}");
        assert!(!audit.is_sound(), "{audit}");
        assert!(audit.to_string().ends_with("verdict: FAILED"), "{audit}");
        audit
    }
}

#[test]
fn a_clean_run_passes() {
    let audit = Run::clean().audit();
    assert!(audit.is_sound(), "{audit}");
    assert_eq!((audit.committed, audit.delivered, audit.keys), (12, 12, 3));
    assert!(
        audit
            .to_string()
            .ends_with("verdict: every promise was kept")
    );
}

#[test]
fn a_lost_message_is_found_and_all_that_is_known_of_it_is_said() {
    let mut run = Run::clean();
    let lost = run.arrivals.remove(5).id;
    let audit = run.assert_found(&["lost"]).to_string();
    let said = format!(
        "lost: {lost}: number 2 of key-2, partition 2, commit asked for at 5.000s, answered at 5.000s"
    );
    assert!(audit.contains(&said), "{audit}");

    let mut run = Run::clean();
    run.arrivals.remove(5);
    run.committed[5].content.key = None;
    if let Some(attempt) = run.attempts.get_mut(&lost) {
        attempt.commit_answered = None;
    }
    let audit = run.assert_found(&["lost"]).to_string();
    let said = format!(
        "lost: {lost}: number 2 of no key, partition unknown, commit asked for at 5.000s, answered never"
    );
    assert!(audit.contains(&said), "{audit}");
}

#[test]
fn a_loss_of_everything_is_found() {
    let mut run = Run::clean();
    run.arrivals.clear();
    assert_eq!(run.assert_found(&["lost"]).lost.count, 12);
}

#[test]
fn a_run_in_which_nothing_happened_is_no_success() {
    let mut run = Run::clean();
    run.committed.clear();
    run.attempts.clear();
    run.arrivals.clear();
    assert!(!run.audit().is_sound());
}

#[test]
fn an_altered_payload_is_found() {
    let mut run = Run::clean();
    run.arrivals[4].content.payload = Some(vec![0, 255]);
    run.assert_found(&["altered"]);
}

#[test]
fn a_payload_that_became_absent_is_found() {
    let mut run = Run::clean();
    run.committed[4].content.payload = Some(Vec::new());
    run.arrivals[4].content.payload = None;
    run.assert_found(&["altered"]);
}

#[test]
fn an_altered_header_is_found() {
    let mut run = Run::clean();
    run.arrivals[4].content.headers.clear();
    run.assert_found(&["altered"]);
}

#[test]
fn an_altered_key_is_found() {
    let mut run = Run::clean();
    run.arrivals[4].content.key = Some("key-2".to_owned());
    run.assert_found(&["altered"]);
}

#[test]
fn an_alteration_in_a_repeat_is_found() {
    let mut run = Run::clean();
    run.break_something(Fault::KillRelay(0), seconds(2), seconds(3));
    run.repeat(4, seconds(13));
    run.arrivals[12].content.payload = None;
    run.assert_found(&["altered"]);
}

#[test]
fn a_message_of_a_rolled_back_transaction_is_found() {
    let mut run = Run::clean();
    let id = run.committed.remove(11).id;
    run.attempts.insert(id, Attempt::default());
    let audit = run.assert_found(&["of a transaction that did not commit"]);
    assert!(
        audit.to_string().contains("its transaction did not commit"),
        "{audit}"
    );
}

#[test]
fn a_message_that_nobody_enqueued_is_found() {
    let mut run = Run::clean();
    run.arrivals[11].id = Uuid::from_u128(77);
    let audit = run.assert_found(&["lost", "of a transaction that did not commit"]);
    assert!(audit.to_string().contains("nobody enqueued it"), "{audit}");
}

#[test]
fn a_message_before_its_commit_is_found() {
    let mut run = Run::clean();
    run.arrivals[6].at = seconds(6) - Duration::from_millis(1);
    run.assert_found(&["before its commit"]);
}

#[test]
fn two_messages_of_a_key_in_the_wrong_order_are_found() {
    let mut run = Run::clean();
    let (at_3, at_6) = (run.arrivals[3].at, run.arrivals[6].at);
    run.arrivals.swap(3, 6);
    // At times at which both had committed.
    (run.arrivals[3].at, run.arrivals[6].at) = (at_6, at_6 + at_3);
    assert_eq!(
        run.assert_found(&["first copies out of order"])
            .out_of_order
            .count,
        1
    );
}

#[test]
fn a_late_first_copy_is_found_also_behind_repeats_of_later_ones() {
    let mut run = Run::clean();
    run.break_something(Fault::KillRelay(0), seconds(12), seconds(13));
    let mut late = run.arrivals.remove(3);
    late.at = seconds(20);
    run.repeat(8, seconds(19));
    run.arrivals.push(late);
    run.assert_found(&["first copies out of order"]);
}

#[test]
fn messages_of_different_keys_have_no_order() {
    let mut run = Run::clean();
    let later = seconds(20);
    for arrival in &mut run.arrivals {
        arrival.at = later;
    }
    run.arrivals.sort_by_key(|arrival| arrival.partition);
    assert!(run.audit().is_sound());
}

#[test]
fn messages_without_a_key_have_no_order() {
    let mut run = Run::clean();
    for index in 0..12 {
        run.committed[index].content.key = None;
        run.arrivals[index].content.key = None;
        run.arrivals[index].at = seconds(20);
    }
    run.arrivals.reverse();
    assert!(run.audit().is_sound());
}

#[test]
fn a_number_that_rolled_back_is_no_gap() {
    let mut run = Run::clean();
    let id = run.committed.remove(3).id;
    run.arrivals.remove(3);
    run.attempts.insert(id, Attempt::default());
    assert!(run.audit().is_sound());
}

#[test]
fn a_key_in_two_partitions_is_found() {
    let mut run = Run::clean();
    run.arrivals[9].partition = 7;
    run.assert_found(&["keys in two partitions"]);
}

#[test]
fn a_commit_that_the_database_forgot_is_found() {
    let mut run = Run::clean();
    run.committed.remove(11);
    run.arrivals.remove(11);
    run.assert_found(&["commits that the database forgot"]);
}

#[test]
fn a_commit_whose_answer_was_lost_may_have_happened_or_not() {
    let mut run = Run::clean();
    let id = run.committed[11].id;
    if let Some(attempt) = run.attempts.get_mut(&id) {
        attempt.commit_answered = None;
    }
    assert!(run.audit().is_sound());
    run.committed.remove(11);
    run.arrivals.remove(11);
    assert!(run.audit().is_sound());
}

#[test]
fn a_repeat_is_put_down_to_a_fault_that_can_cause_it() {
    let mut run = Run::clean();
    run.break_something(Fault::KillRelay(0), seconds(8), seconds(9));
    run.break_something(Fault::StopRelay(1), seconds(10), seconds(11));
    run.repeat(9, seconds(14));
    run.repeat(9, seconds(15));
    let audit = run.audit();
    assert!(audit.is_sound(), "{audit}");
    let both = Explained {
        count: 2,
        latest: seconds(6),
    };
    assert_eq!(audit.repeats, BTreeMap::from([("relay killed", both)]));
    assert!(
        audit.to_string().contains("2, up to 6.0 s after it"),
        "{audit}"
    );
}

#[test]
fn a_repeat_that_no_fault_explains_is_found() {
    let mut run = Run::clean();
    run.repeat(9, seconds(14));
    run.assert_found(&["repeats without a reason"]);
    // None can: they come later, are long over, or cause no repeats.
    run.break_something(Fault::KillRelay(0), seconds(15), seconds(16));
    run.break_something(Fault::KillRelay(0), seconds(0), seconds(1));
    run.break_something(Fault::StopRelay(0), seconds(10), seconds(13));
    run.break_something(Fault::JumpClock(1), seconds(10), seconds(13));
    run.assert_found(&["repeats without a reason"]);
}

#[test]
fn more_repeats_than_were_under_way_are_found() {
    let mut run = Run::clean();
    run.break_something(Fault::KillRelay(0), seconds(8), seconds(9));
    for index in 7..10 {
        run.repeat(index, seconds(14));
    }
    let audit = run.assert_found(&["repeats without a reason"]);
    assert_eq!(audit.unexplained.count, 1);
}

#[test]
fn a_repeat_of_a_repeat_is_counted_from_the_copy_before_it() {
    let mut run = Run::clean();
    run.break_something(Fault::KillRelay(0), seconds(8), seconds(9));
    run.break_something(Fault::KillRelay(1), seconds(24), seconds(25));
    run.repeat(9, seconds(14));
    run.repeat(9, seconds(27));
    assert!(run.audit().is_sound());
    // From 10 s to 27 s it would be too long.
    run.arrivals.remove(12);
    run.assert_found(&["repeats without a reason"]);
}

#[test]
fn what_a_broker_gives_its_consumer_again_takes_a_fault_of_the_broker() {
    let mut run = Run::clean();
    run.repeat(9, seconds(14));
    run.arrivals[12].redelivered = true;
    run.assert_found(&["repeats without a reason"]);
    run.break_something(Fault::KillBroker, seconds(11), seconds(12));
    let audit = run.audit();
    assert!(audit.is_sound(), "{audit}");
    assert!(audit.repeats.contains_key("given again by the broker"));
}

#[test]
fn failures_are_told_by_kind_and_reason_and_fail_no_run() {
    let mut run = Run::clean();
    run.failures = vec![Failures {
        kind: "retryable".to_owned(),
        reason: "no".to_owned(),
        count: 3,
        first: seconds(4),
        last: seconds(6),
    }];
    let audit = run.audit();
    assert!(audit.is_sound(), "{audit}");
    let said = audit.to_string();
    assert!(
        said.contains("failures: 3 retryable, from 4.0s to 6.0s: no"),
        "{said}"
    );
}

#[test]
fn what_is_left_in_a_table_is_found() {
    for left in [
        Left {
            waiting: 1,
            ..Left::default()
        },
        Left {
            parked: 1,
            ..Left::default()
        },
        Left {
            dead: 1,
            ..Left::default()
        },
    ] {
        let mut run = Run::clean();
        run.left = left;
        run.assert_found(&[]);
    }
}
