//! Deliberately wrong publishers, each of which must fail the cases written for it.
//!
//! A test is named by the wrong publisher and the case: `DropsTheKey::fails::every_field_arrives`.
//! The case must fail for the reason that the table gives, not because something else went wrong.
//! Beside that, every case must be in the table, and the publisher must pass all cases without a fault.
#![allow(non_snake_case)]

mod fault;
#[macro_use]
#[path = "../support/mod.rs"]
mod support;
mod wrong;

use std::time::Duration;

use outbox_conformance::publisher;

use fault::Fault;
use wrong::Wrong;

faults! {
    HangsOnNothing {
        an_empty_batch_is_done_at_once: "publishing 0 messages did not come back",
    }
    NeverReportsOne {
        every_message_is_answered: "nothing was reported about message 49 of 50",
    }
    ConfirmsBeforeTheBroker {
        a_confirmed_message_is_at_the_broker: "how many messages arrived",
    }
    LosesOne {
        every_message_is_answered: "how many messages arrived",
        ten_thousand_are_confirmed: "how many messages arrived",
    }
    ReportsAtTheEnd {
        answers_do_not_wait_for_the_batch: "were all reported at its end",
    }
    FailsWhenItsQueueIsFull {
        ten_thousand_are_confirmed: "message 5000 of 10000 was not confirmed: retryable",
    }
    RefusesLargeBatches {
        large_messages_are_confirmed: "message 0 of 12 was not confirmed: retryable",
    }
    OneCallAtATime {
        calls_go_side_by_side: "a call at the same time as others",
    }
    ReportsWhenWritten {
        a_dropped_call_keeps_what_was_reported: "and is not at the broker",
    }
    BreaksWhenDropped {
        a_dropped_call_keeps_what_was_reported: "nothing was reported about \"the first message after",
    }

    ReordersABatch {
        a_key_keeps_its_order_in_a_batch: "arrived in this order: [\"message 0\", \"message 7\"",
    }
    SwapsBatches {
        a_key_keeps_its_order_over_batches: "arrived in this order: [\"message 6\"",
    }
    EmptyKeyGoesAnywhere {
        an_empty_key_is_a_key: "arrived in this order: [\"message 0\", \"message 2\"",
    }

    DropsAHeader {
        every_field_arrives: "headers of {\"order\":7}",
    }
    DropsTheKey {
        every_field_arrives: "key of {\"order\":7}",
        any_messages_arrive_or_are_rejected: "key of ",
        a_key_keeps_its_order_in_a_batch: "arrived in this order: []",
    }
    ReplacesTheId {
        every_field_arrives: "message 0, {\"order\":7}, did not arrive",
    }
    PayloadIsText {
        every_byte_arrives: "payload of",
    }
    EndsPayloadsAtNul {
        every_byte_arrives: "payload of",
    }
    EmptyPayloadIsAbsent {
        empty_is_not_absent: "payload of",
    }
    AbsentPayloadIsEmpty {
        empty_is_not_absent: "payload of",
    }
    EmptyKeyIsAbsent {
        empty_is_not_absent: "key of",
        an_empty_key_is_a_key: "arrived in this order: []",
    }
    KeysAreAscii {
        text_of_any_script_arrives: "key of schlüssel",
    }
    NewIdForARepeat {
        a_repeat_has_the_same_id: "id of repeated",
    }
    PanicsOnOddHeaders {
        odd_headers_arrive_or_are_rejected: "a header with a control character",
    }
    DropsOddHeaders {
        odd_headers_arrive_or_are_rejected: "headers of",
    }
    TrimsHeaders {
        odd_headers_arrive_or_are_rejected: "headers of header-1",
    }
    HeaderNamesIgnoreCase {
        odd_headers_arrive_or_are_rejected: "headers of both",
    }
    DoesNotNameTheHeader {
        odd_headers_arrive_or_are_rejected: "is not named in the reason \"a header is invalid\"",
    }
    CutsHeaders {
        many_headers_arrive_or_are_rejected: "headers of many headers",
    }
    ReplacesOddCharactersInTopics {
        odd_topics_take_messages_or_are_rejected: "with the reason \"no such topic\"",
    }
    TakesImpossibleTopicsForMissing {
        odd_topics_take_messages_or_are_rejected: "kind of the failure of",
        an_impossible_topic_fails_alone: "kind of the failure of",
    }
    CutsLongKeys {
        a_long_key_arrives_or_is_rejected: "key of long key",
    }

    FailsTheBatch {
        a_missing_topic_fails_alone: "the message at place 1 beside bad ones was not confirmed",
        a_too_large_message_fails_alone: "the message at place 1 beside bad ones was not confirmed",
    }
    StopsAtTheFirstFailure {
        a_missing_topic_fails_alone: "nothing was reported about the message at place 1",
        a_batch_of_failures_is_answered: "nothing was reported about message 1",
    }
    AnswersForTheNeighbour {
        a_missing_topic_fails_alone: "the bad message at place 0 was confirmed",
    }
    DropsUnroutable {
        a_missing_topic_fails_alone: "the bad message at place 0 was confirmed",
        a_missing_topic_goes_on_when_it_is_created: "was confirmed",
    }
    RemembersMissingTopics {
        a_missing_topic_goes_on_when_it_is_created: "a topic that was created takes no messages",
    }
    TakesTooLargeForTransient {
        a_too_large_message_fails_alone: "kind of the failure of",
    }
    ValidatesTheBatch {
        an_impossible_topic_fails_alone: "the message at place 1 beside bad ones was not confirmed",
    }
    BreaksAfterFailures {
        a_batch_of_failures_is_answered: "nothing was reported about message 0 of 1",
    }

    IgnoresChains {
        a_chain_ends_at_a_refused_message: "behind the bad message of its key, was confirmed",
        a_chain_ends_at_what_cannot_be_sent: "behind the bad message of its key, was confirmed",
    }
    StopsEveryKey {
        a_chain_ends_at_a_refused_message: "beside or before a bad message",
    }
    ConfirmsBehindAFailure {
        a_chain_ends_at_a_refused_message: "behind the bad message of its key, was confirmed",
    }
    NeverGoesOn {
        a_chain_ends_at_a_refused_message: "what was behind the bad message, in the next call",
    }
    PartsAChain {
        a_chain_is_confirmed_in_order: "arrived in this order: [\"message 3\"",
        a_chain_that_is_cut_off_is_a_prefix: "which is no prefix of",
    }
    HidesThatItChains {
        a_chain_is_confirmed_in_order: "whether the publisher says that it chains",
    }
}

/// A wrong publisher keeps a case waiting: no longer than a right one needs many times over.
const PATIENCE: Duration = Duration::from_secs(3);

fn must_fail(fault: Fault, case: &str, reason: &str) {
    let case = publisher::case(case).expect("the name of a case");
    let wrong = Wrong {
        fault: Some(fault),
        patience: PATIENCE,
    };
    support::failed_for(reason, case.check(wrong));
}

#[test]
fn every_case_catches_a_wrong_publisher() {
    support::all_catch_something(publisher::CASES.iter().map(|case| case.name()), CAUGHT);
}

/// The page for who writes a publisher tells of these mistakes, each with a case that catches it.
#[test]
fn the_page_names_mistakes_that_are_caught() {
    // At run time: in a build folder that checkouts share, another one may have built this.
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    let page = std::fs::read_to_string(format!("{folder}/../../docs/write-a-publisher.md"))
        .expect("the page");
    let (_, table) = page.split_once("| mistake |").expect("a table of mistakes");
    let in_backticks = |cell: &str| -> Vec<String> {
        cell.split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    };
    let rows = table.lines().skip(2).filter(|line| line.starts_with('|'));
    for row in rows.clone() {
        let cells: Vec<&str> = row.split('|').collect();
        let case = in_backticks(cells[3]);
        for fault in in_backticks(cells[1]) {
            assert!(
                case.len() == 1 && CAUGHT.contains(&(&fault, &case[0])),
                "{fault} is not caught by {case:?}"
            );
        }
    }
    assert!(rows.count() > 10, "the table is not where it was");
}

mod without_a_fault {
    use super::{Duration, Wrong};

    outbox_conformance::publisher_suite!(Wrong {
        fault: None,
        patience: Duration::from_secs(30),
    });
}
