//! A check that nobody checks passes everything: each broken promise must be noticed, and by its name.

use outbox_core::{OnDead, OrderMode};
use outbox_simulation::{Mutant, Setup, Violation, run};

/// Within so many seeds each mistake has to be noticed.
const SEEDS: u64 = 60;

/// Runs seeds until one breaks a promise in the expected way.
fn notice(what: &str, setup: impl Fn(u64) -> Setup, expected: impl Fn(&Violation) -> bool) {
    let noticed = (0..SEEDS).find(|&seed| run(setup(seed)).violations.iter().any(&expected));
    assert!(noticed.is_some(), "{what} was not noticed in {SEEDS} seeds");
}

fn mutant(mutant: Mutant, expected: impl Fn(&Violation) -> bool) {
    let setup = |seed| Setup {
        mutant: Some(mutant),
        ..Setup::new(seed, OrderMode::PerKey)
    };
    notice(&format!("{mutant:?}"), setup, expected);
}

fn mode(order: OrderMode, promise: OrderMode, expected: impl Fn(&Violation) -> bool) {
    let setup = |seed| Setup {
        promise,
        ..Setup::new(seed, order)
    };
    notice(&format!("{order:?} for {promise:?}"), setup, expected);
}

#[test]
fn whole_batches_do_not_keep_the_first_copies_in_order() {
    mode(OrderMode::PerKeyPipelined, OrderMode::PerKey, |violation| {
        matches!(violation, Violation::FirstCopies { .. })
    });
}

#[test]
fn a_publisher_that_only_says_that_it_chains() {
    let setup = |seed| Setup {
        chains: true,
        mutant: Some(Mutant::BreaksChains),
        ..Setup::new(seed, OrderMode::PerKey)
    };
    notice("BreaksChains", setup, |violation| {
        matches!(violation, Violation::FirstCopies { .. })
    });
}

#[test]
fn without_order_nothing_is_sent_again_after_a_failure() {
    mode(
        OrderMode::Unordered,
        OrderMode::PerKeyPipelined,
        |violation| matches!(violation, Violation::NotSentAgain { .. }),
    );
    mode(
        OrderMode::Unordered,
        OrderMode::PerKeyPipelined,
        |violation| matches!(violation, Violation::LastCopies { .. }),
    );
}

#[test]
fn a_confirmation_before_the_broker_took_the_message() {
    mutant(Mutant::ConfirmsEarly, |violation| {
        matches!(violation, Violation::NeverTaken { .. })
    });
}

#[test]
fn an_outage_that_counts() {
    mutant(Mutant::BlamesTheMessage, |violation| {
        matches!(violation, Violation::CountedTooMuch { .. })
    });
}

#[test]
fn a_message_given_up_too_early() {
    mutant(Mutant::GivesUpEarly, |violation| {
        matches!(violation, Violation::DeadTooEarly { .. })
    });
}

#[test]
fn a_claim_with_a_key_in_another_order() {
    mutant(Mutant::ReordersAKey, |violation| {
        matches!(violation, Violation::FirstCopies { .. })
    });
}

#[test]
fn a_settle_that_takes_all_for_delivered() {
    mutant(Mutant::SettlesARange, |violation| {
        matches!(violation, Violation::NeverTaken { .. })
    });
}

#[test]
fn a_late_commit_that_is_forgotten() {
    mutant(Mutant::ForgetsLateCommits, |violation| {
        matches!(violation, Violation::Lost { .. })
    });
}

#[test]
fn an_uncommitted_message_that_is_delivered() {
    mutant(Mutant::ReadsUncommitted, |violation| {
        matches!(violation, Violation::NotCommitted { .. })
    });
}

#[test]
fn a_halted_key_that_goes_on() {
    let setup = |seed| Setup {
        mutant: Some(Mutant::ForgetsHalts),
        on_dead: Some(OnDead::HaltKey),
        ..Setup::new(seed, OrderMode::PerKey)
    };
    notice("ForgetsHalts", setup, |violation| {
        matches!(violation, Violation::NotHalted { .. })
    });
}

#[test]
fn a_replayed_message_that_goes_behind_its_key() {
    let setup = |seed| Setup {
        mutant: Some(Mutant::ReplaysBehind),
        on_dead: Some(OnDead::HaltKey),
        ..Setup::new(seed, OrderMode::PerKey)
    };
    notice("ReplaysBehind", setup, |violation| {
        matches!(violation, Violation::FirstCopies { .. })
    });
}

#[test]
fn a_delayed_message_that_is_forgotten() {
    mutant(Mutant::ForgetsDelayed, |violation| {
        matches!(violation, Violation::Lost { .. })
    });
}

#[test]
fn a_delayed_message_before_its_time() {
    mutant(Mutant::DeliversEarly, |violation| {
        matches!(violation, Violation::TooEarly { .. })
    });
}

#[test]
fn delayed_messages_in_another_order_than_that_of_their_times() {
    mutant(Mutant::ReversesDelays, |violation| {
        matches!(violation, Violation::FirstCopies { .. })
    });
}

#[test]
fn a_cancelled_message_that_is_delivered() {
    mutant(Mutant::CancelsInVain, |violation| {
        matches!(violation, Violation::Cancelled { .. })
    });
}

#[test]
fn a_claim_that_nobody_settled_taken_for_delivered() {
    mutant(Mutant::DropsAsDelivered, |violation| {
        matches!(violation, Violation::Lost { .. })
    });
}
