//! Deliberately wrong stores, each of which must fail the cases written for it.
//!
//! A test is named by the wrong store and the case: `ForgetsKeys::fails::claims_share_no_key`. The
//! case must fail for the reason that the table gives, not because something else went wrong. Beside
//! that, every case must be in the table, and the store must pass all cases without a fault.
#![allow(non_snake_case)]

mod fault;
#[macro_use]
#[path = "../support/mod.rs"]
mod support;
mod wrong;

use std::time::Duration;

use outbox_conformance::store;

use fault::Fault;
use wrong::Wrong;

faults! {
    DoesNotWait {
        an_empty_outbox_is_waited_for: "the answer that there is nothing\" came after",
    }
    NeverWakes {
        a_commit_ends_the_wait: "a commit did not end the wait",
    }
    WakesOnCommitsOnly {
        a_delayed_message_comes_when_it_is_due: "a delayed message did not end the wait",
        a_due_message_ends_the_wait: "a due message did not end the wait",
        the_end_of_another_claim_ends_the_wait: "the end of a claim did not end the wait",
    }
    IgnoresTheNumber {
        a_claim_keeps_to_the_number: "a claim holds 30 messages, the limit is 3",
    }
    IgnoresTheBytes {
        a_claim_keeps_to_the_bytes: "bytes together, the limit is 2500",
    }
    StopsAtLargerMessages {
        a_larger_message_goes_alone: "1 of 3 messages came in time",
    }
    ForgetsKeys {
        claims_share_no_key: "two claims hold key",
        followers_return_in_order: "a message of a parked key\" came after",
    }
    OneClaimAtATime {
        claims_go_side_by_side: "nothing to claim came in time",
    }
    KeepsDroppedClaims {
        a_dropped_claim_is_released: "nothing to claim came in time",
    }
    KeepsCancelledClaims {
        a_cancelled_call_holds_nothing: "0 of 5 messages came in time",
    }
    HoldsForEver {
        an_overdue_claim_is_taken_away: "an overdue claim kept its messages",
    }

    IgnoresTheDelay {
        a_delayed_message_comes_when_it_is_due: "of one delayed message",
        a_delayed_message_holds_nothing_up: "more messages came than there are",
        delayed_messages_come_in_the_order_of_their_times: "left: [\"d\", \"b\"",
    }
    CancelsNothing {
        a_cancelled_message_never_comes: "it was cancelled",
    }

    ReadsUncommitted {
        uncommitted_is_not_claimed: "came and should not have",
        rolled_back_is_never_claimed: "more messages came than there are",
    }
    CommitsRollbacks {
        rolled_back_is_never_claimed: "more messages came than there are",
        a_rolled_back_delay_never_comes: "left: [\"rolled back\"]",
    }
    LosesLateCommits {
        a_late_commit_is_delivered: "0 of 1 messages came in time",
        a_delay_that_commits_late_is_delivered: "0 of 1 messages came in time",
        a_late_commit_comes_before_what_was_enqueued_after_it: "1 of 2 messages came in time: [\"after\"]",
    }
    SweepsForLateCommits {
        a_late_commit_comes_before_what_was_enqueued_after_it: "got [\"after\", \"late\"]",
    }
    OneWriterBesideOthers {
        a_late_commit_is_delivered: "committed while another one was open",
        a_late_commit_comes_before_what_was_enqueued_after_it: "committed while another one was open",
        late_commits_wait_behind_a_parked_one: "committed while another one was open",
    }
    LosesCommitsDuringAClaim {
        a_commit_during_a_claim_keeps_the_order: "1 of 3 messages came in time",
        what_is_enqueued_after_a_message_was_due_comes_after_it: "1 of 2 messages came in time",
    }
    ReversesTransactions {
        a_transaction_keeps_the_order_of_its_statements: "got [\"49\", \"48\"",
    }

    SettlesARange {
        each_message_gets_its_own_outcome: "dead messages and reasons",
        each_message_of_one_key_gets_its_own_outcome: "0 of 2 messages came in time",
    }
    SettlesKeysAsOne {
        each_message_of_one_key_gets_its_own_outcome: "more messages came than there are",
    }
    SettlesWhatItGot {
        a_wrong_number_of_outcomes_records_nothing: "0 outcomes were taken for 3 messages",
    }
    RecordsBeforeItCounts {
        a_wrong_number_of_outcomes_records_nothing: "the last claim had [\"1\", \"2\"]",
    }
    LosesSomeSettles {
        many_claimers_settle_each_message_once: " times",
        many_claimers_get_a_delayed_message_once: "how often",
    }
    CountsReleases {
        released_changes_nothing: "parked and failures of \"first\"",
    }

    ParksEverything {
        a_parked_message_delays_only_its_key: "0 of 400 messages came in time",
    }
    ForgetsHowLong {
        a_parked_message_comes_back_when_due: "a parked message\" came after",
    }
    ForgetsCounters {
        a_parked_message_comes_back_when_due: "parked and failures of",
    }
    CountsOnce {
        each_park_is_counted: "parked and failures of",
    }
    CountsEveryPark {
        an_uncounted_park_counts_no_failure: "parked and failures of",
    }
    OverflowsLongParks {
        a_park_has_no_longest_time: "interval out of range",
    }
    ForgetsFollowers {
        followers_return_in_order: "a message of a parked key\" came after",
        two_parked_of_one_key_return_in_order: "got [\"k 1\", \"k 0\"]",
        order_is_kept_through_failures: "expected [\"k0 0\", \"k0 1\"",
    }
    OneFollowerAClaim {
        many_followers_return_in_batches: "101 claims of up to 7 for 101 messages",
    }
    LetsNewMessagesPass {
        a_delayed_message_waits_behind_a_parked_one: "left: [\"delayed\", \"head\"]",
        new_messages_wait_behind_a_parked_one: "expected [\"k 0\"], got [\"k 2\"]",
    }
    LetsLateCommitsPass {
        late_commits_wait_behind_a_parked_one: "got [\"late\", \"head\"",
    }
    ParksOnlyFirsts {
        a_message_in_the_middle_is_parked: "a parked message\" came after",
    }
    LetsReleasedPass {
        released_followers_wait_behind_a_parked_one: "a message of a parked key\" came after",
    }
    ForgetsCountersOfFollowers {
        a_follower_keeps_its_counters: "parked and failures of \"k 1\"",
    }
    ParksBehindNothing {
        behind_nothing_is_released: "0 of 2 messages came in time",
    }
    DropForgetsCounters {
        a_dropped_claim_of_parked_messages_is_released: "parked and failures of \"k 0\"",
    }
    KeepsFollowersOfTheDead {
        followers_go_on_when_their_head_dies: "0 of 2 messages came in time",
    }
    OneKeyForKeyless {
        keyless_messages_park_alone: "0 of 300 messages came in time",
        a_halt_without_a_key_halts_nothing: "0 of 1 messages came in time",
    }
    EmptyKeyIsNoKey {
        an_empty_key_is_a_key: "more messages came than there are",
    }

    DropsTheDead {
        a_dead_message_is_kept_with_its_reason: "dead messages and reasons",
    }
    CutsReasons {
        a_dead_message_is_kept_with_its_reason: "dead messages and reasons",
    }
    AlwaysHalts {
        a_dead_message_lets_its_key_go_on: "0 of 2 messages came in time",
    }
    NeverHalts {
        a_halted_key_waits_for_a_replay: "more messages came than there are",
    }
    DiscardKeepsTheHalt {
        a_halted_key_waits_for_a_discard: "0 of 2 messages came in time",
    }
    AnyDecisionEndsAHalt {
        another_decision_does_not_end_a_halt: "[\"3\"] came and should not have",
    }
    ReplaysAtTheEnd {
        a_replayed_message_returns_to_its_place: "got [\"1\", \"2\", \"0\"]",
    }
    ReplaysTwice {
        two_replays_return_it_once: "got [\"0\", \"0\", \"0\"]",
    }

    DropsAHeader {
        text_comes_back_unchanged: "came back as",
        any_message_comes_back_unchanged: "came back as",
    }
    PayloadIsText {
        bytes_come_back_unchanged: "came back as",
    }
    EmptyIsAbsent {
        empty_is_not_absent: "came back as",
    }
    CutsLongKeys {
        large_fields_come_back_unchanged: "came back as",
    }
    ReplacesTheNilId {
        given_ids_come_back_unchanged: "never came",
    }
    DropsHeadersOfTheDead {
        set_aside_comes_back_unchanged: "headers: Headers({}), deliver_after",
    }
}

/// A wrong store keeps a case waiting: no longer than a right one needs many times over.
const PATIENCE: Duration = Duration::from_secs(1);

fn must_fail(fault: Fault, case: &str, reason: &str) {
    let case = store::case(case).expect("the name of a case");
    let wrong = Wrong {
        fault: Some(fault),
        patience: PATIENCE,
    };
    support::failed_for(reason, case.check(wrong));
}

#[test]
fn every_case_catches_a_wrong_store() {
    support::all_catch_something(store::CASES.iter().map(|case| case.name()), CAUGHT);
}

mod without_a_fault {
    use super::{Duration, Wrong};

    outbox_conformance::store_suite!(Wrong {
        fault: None,
        patience: Duration::from_secs(15),
    });
}
