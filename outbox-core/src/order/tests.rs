//! The rules as tables, and as properties over random claims.
//!
//! A claim is a text with one letter for each message, its key (`-`: none); answers and outcomes are
//! texts beside it:
//!
//! - answers: `+` confirmed, `r` retryable, `R` retryable for the last time, `t` topic unavailable,
//!   `x` rejected, `b` broker unavailable, `.` none
//! - outcomes: `D` delivered, `P` parked and counted, `p` parked, `B` behind, `X` dead, `H` dead and
//!   the key halted, `_` released

use std::time::Duration;

use proptest::prelude::*;

use super::{
    Conclusion, OnDead, OrderMode, Outcome, PARK_WHEN_GIVEN_UP_UNCOUNTED, Plan, Rules, WaveEnd,
};
use crate::{Claimed, Message, PublishError, PublishErrorKind, RetryPolicy};
use OnDead::{Continue, HaltKey};
use OrderMode::{PerKey, PerKeyPipelined, Unordered};
use WaveEnd::{Panicked, Returned, Stopped, TimedOut};

const PARKED: Duration = Duration::from_secs(7);
const CRASH_LIMIT: u32 = 3;

/// Gives up where the reason asks for it.
struct Script;

impl RetryPolicy for Script {
    fn retry_after(&self, _: &Claimed, error: &PublishError) -> Option<Duration> {
        (error.reason() != "last").then_some(PARKED)
    }
}

fn claim(keys: &str) -> Vec<Claimed> {
    keys.chars()
        .map(|key| {
            let message = Message::to("topic");
            let message = match key {
                '-' => message,
                key => message.key(key),
            };
            Claimed {
                message: message.tombstone().unwrap(),
                parked: 0,
                failures: 0,
                crashes: 0,
            }
        })
        .collect()
}

fn answer(letter: char) -> Option<Result<(), PublishError>> {
    match letter {
        '.' => None,
        '+' => Some(Ok(())),
        'r' => Some(Err(PublishError::retryable("nack"))),
        'R' => Some(Err(PublishError::retryable("last"))),
        't' => Some(Err(PublishError::topic_unavailable("no leader"))),
        'x' => Some(Err(PublishError::rejected("too large"))),
        'b' => Some(Err(PublishError::broker_unavailable("refused"))),
        other => panic!("no answer {other:?}"),
    }
}

fn letter(outcome: &Outcome) -> char {
    match outcome {
        Outcome::Delivered => 'D',
        Outcome::Park { counted: true, .. } => 'P',
        Outcome::Park { counted: false, .. } => 'p',
        Outcome::Behind => 'B',
        Outcome::Dead { halt: false, .. } => 'X',
        Outcome::Dead { halt: true, .. } => 'H',
        Outcome::Released => '_',
    }
}

struct Course {
    waves: Vec<Vec<usize>>,
    conclusion: Conclusion,
}

impl Course {
    fn outcomes(&self) -> String {
        self.conclusion.outcomes.iter().map(letter).collect()
    }

    fn waves(&self) -> String {
        let waves: Vec<String> = self
            .waves
            .iter()
            .map(|wave| wave.iter().map(ToString::to_string).collect())
            .collect();
        waves.join(" ")
    }

    fn must_be(&self, waves: &str, outcomes: &str, outage: bool, case: &str) {
        assert_eq!(self.waves(), waves, "waves of {case}");
        assert_eq!(self.outcomes(), outcomes, "outcomes of {case}");
        let found = self.conclusion.outage.is_some();
        assert_eq!(found, outage, "outage of {case}");
    }
}

/// Runs a claim to its end; waves after the last one of `ends` return.
fn run(
    order: OrderMode,
    on_dead: OnDead,
    claimed: &[Claimed],
    answers: &str,
    ends: &[WaveEnd],
) -> Course {
    run_with(false, order, on_dead, claimed, answers, ends)
}

/// The same with a publisher that stops a key at a failure, if it `chains`.
fn run_with(
    chains: bool,
    order: OrderMode,
    on_dead: OnDead,
    claimed: &[Claimed],
    answers: &str,
    ends: &[WaveEnd],
) -> Course {
    let answers: Vec<char> = answers.chars().collect();
    assert_eq!(answers.len(), claimed.len());
    let rules = Rules {
        order,
        on_dead,
        chains,
        crash_limit: CRASH_LIMIT,
        retry: &Script,
    };
    let mut plan = Plan::new(rules, claimed);
    let mut waves = Vec::new();
    while let Some(wave) = plan.next_wave() {
        let end = ends.get(waves.len()).copied().unwrap_or(Returned);
        plan.absorb(&wave, wave.iter().map(|&index| answer(answers[index])), end);
        waves.push(wave);
    }
    Course {
        waves,
        conclusion: plan.conclude(),
    }
}

#[test]
fn each_answer_has_its_outcome_in_each_mode() {
    // order, on dead, keys, answers, waves, outcomes, outage
    #[rustfmt::skip]
    let cases = [
        // Everything confirmed: the modes differ in the waves alone.
        (PerKey,          Continue, "aab-a-", "++++++", "0235 1 4", "DDDDDD", false),
        (PerKeyPipelined, Continue, "aab-a-", "++++++", "012345",   "DDDDDD", false),
        (Unordered,       Continue, "aab-a-", "++++++", "012345",   "DDDDDD", false),
        // A failure for now stops its key and no other.
        (PerKey,          Continue, "aaba",   "r+++",   "02",       "PBDB",   false),
        (PerKey,          Continue, "aaab",   "+r++",   "03 1",     "DPBD",   false),
        (PerKeyPipelined, Continue, "aaba",   "r+++",   "0123",     "PBDB",   false),
        (PerKeyPipelined, Continue, "aaba",   "+r+x",   "0123",     "DPDB",   false),
        (Unordered,       Continue, "aaba",   "r+++",   "0123",     "PDDD",   false),
        (PerKey,          Continue, "--",     "r+",     "01",       "PD",     false),
        // A topic that is away does the same and does not count.
        (PerKey,          Continue, "aaba",   "t+++",   "02",       "pBDB",   false),
        (PerKeyPipelined, Continue, "aaba",   "t+r+",   "0123",     "pBPB",   false),
        (Unordered,       Continue, "aa",     "t+",     "01",       "pD",     false),
        // After a dead message its key goes on, in waves with the next claim, or halts.
        (PerKey,          Continue, "aaba",   "x+++",   "02",       "X_D_",   false),
        (PerKey,          HaltKey,  "aaba",   "x+++",   "02",       "HBDB",   false),
        (PerKeyPipelined, Continue, "aaba",   "x+++",   "0123",     "XDDD",   false),
        (PerKeyPipelined, HaltKey,  "aaba",   "x+++",   "0123",     "HBDB",   false),
        (Unordered,       HaltKey,  "aaba",   "x+++",   "0123",     "XDDD",   false),
        // The last failure is death, whether the key goes on or halts.
        (PerKey,          Continue, "aa",     "R+",     "0",        "X_",     false),
        (PerKey,          HaltKey,  "aa",     "R+",     "0",        "HB",     false),
        (PerKeyPipelined, Continue, "aa",     "R+",     "01",       "XD",     false),
        // Dead and then a failure: what is behind the failure waits, what is before it does not.
        (PerKey,          Continue, "aaaa",   "+xr+",   "0 1",      "DX__",   false),
        (PerKeyPipelined, Continue, "aaaa",   "rx++",   "0123",     "PBBB",   false),
        // An outage: what was confirmed is settled, the rest released, nothing counted.
        (PerKey,          Continue, "abcd",   "+brt",   "0123",     "D___",   true),
        (PerKey,          Continue, "aabb",   "+++b",   "02 13",    "DDD_",   true),
        (PerKey,          Continue, "aabbc",  "r++b+",  "024 3",    "__D_D",  true),
        (PerKeyPipelined, Continue, "aaab",   "+b++",   "0123",     "D__D",   true),
        (PerKeyPipelined, Continue, "aaa",    "r+b",    "012",      "___",    true),
        (Unordered,       Continue, "aaa",    "+b+",    "012",      "D_D",    true),
        // In an outage the last failure is none.
        (PerKey,          Continue, "ab",     "Rb",     "01",       "__",     true),
        // What is dead stays dead in an outage.
        (PerKey,          Continue, "ab",     "xb",     "01",       "X_",     true),
        (PerKey,          HaltKey,  "aab",    "x+b",    "02",       "HB_",    true),
        (PerKey,          Continue, "aabb",   "R++b",   "02 3",     "X_D_",   true),
        // Returned without an answer: a failure of the message.
        (PerKey,          Continue, "aab",    ".++",    "02",       "PBD",    false),
        (PerKeyPipelined, Continue, "aab",    ".++",    "012",      "PBD",    false),
        (Unordered,       Continue, "aab",    ".++",    "012",      "PDD",    false),
    ];
    for (order, on_dead, keys, answers, waves, outcomes, outage) in cases {
        let case = format!("{order:?} {on_dead:?} {keys} {answers}");
        let course = run(order, on_dead, &claim(keys), answers, &[]);
        course.must_be(waves, outcomes, outage, &case);
    }
}

#[test]
fn how_a_wave_ends_decides_what_no_answer_means() {
    // order, keys, answers, ends, waves, outcomes, outage
    #[rustfmt::skip]
    let cases: &[(_, _, _, &[WaveEnd], _, _, _)] = &[
        // Silence and nothing confirmed in the whole claim: an outage.
        (PerKey,          "ab-",  "...",  &[TimedOut],           "012",  "___",  true),
        (PerKey,          "ab",   ".r",   &[TimedOut],           "01",   "__",   true),
        (PerKey,          "ab",   ".x",   &[TimedOut],           "01",   "_X",   true),
        (PerKeyPipelined, "aab",  "...",  &[TimedOut],           "012",  "___",  true),
        (Unordered,       "aab",  "...",  &[TimedOut],           "012",  "___",  true),
        // Something confirmed, in this wave or an earlier one: the silent ones failed.
        (PerKey,          "ab",   "+.",   &[TimedOut],           "01",   "DP",   false),
        (PerKey,          "aab",  "+.+",  &[Returned, TimedOut], "02 1", "DPD",  false),
        (PerKeyPipelined, "aaab", "+.++", &[TimedOut],           "0123", "DPBD", false),
        (Unordered,       "aaab", "+.++", &[TimedOut],           "0123", "DPDD", false),
        // Everything answered and still not returned: no silence.
        (PerKey,          "ab",   "rr",   &[TimedOut],           "01",   "PP",   false),
        // Time is up for the whole claim: what was not sent is released, behind a failure it waits.
        (PerKey,          "aabb", "+..+", &[TimedOut],           "02",   "D_PB", false),
        (PerKey,          "aaa",  "++.",  &[Returned, TimedOut], "0 1",  "DD_",  false),
        // A panic is a failure of the unanswered ones, and the other keys go on.
        (PerKey,          "aabb", "++.+", &[Panicked],           "02 1", "DDPB", false),
        (PerKey,          "ab",   "..",   &[Panicked],           "01",   "PP",   false),
        (PerKeyPipelined, "aab",  ".++",  &[Panicked],           "012",  "PBD",  false),
        // Stopped: what was answered counts, the rest is released.
        (PerKey,          "aabc", "++.r", &[Stopped],            "023",  "D__P", false),
        (PerKey,          "aa",   "..",   &[Stopped],            "0",    "__",   false),
        (PerKeyPipelined, "aaab", "+.++", &[Stopped],            "0123", "D__D", false),
        (Unordered,       "aaab", "+.++", &[Stopped],            "0123", "D_DD", false),
        (PerKey,          "ab",   ".b",   &[Stopped],            "01",   "__",   true),
    ];
    for &(order, keys, answers, ends, waves, outcomes, outage) in cases {
        let case = format!("{order:?} {keys} {answers} {ends:?}");
        let course = run(order, Continue, &claim(keys), answers, ends);
        course.must_be(waves, outcomes, outage, &case);
    }
}

#[test]
fn a_chain_travels_at_once_and_ends_at_what_is_not_confirmed() {
    // on dead, keys, answers, ends, waves, outcomes, outage
    #[rustfmt::skip]
    let cases: &[(_, _, _, &[WaveEnd], _, _, _)] = &[
        (Continue, "aab-a-", "++++++", &[],         "012345", "DDDDDD", false),
        // What is behind a failure was not sent, and has no answer.
        (Continue, "aaba",   "r.+.",   &[],         "0123",   "PBDB",   false),
        (Continue, "aaab",   "+t.+",   &[],         "0123",   "DpBD",   false),
        (Continue, "aaba",   "x.+.",   &[],         "0123",   "X_D_",   false),
        (HaltKey,  "aaba",   "x.+.",   &[],         "0123",   "HBDB",   false),
        (Continue, "aaa",    "R..",    &[],         "012",    "X__",    false),
        // What it was answered all the same is not believed.
        (Continue, "aaba",   "r+++",   &[],         "0123",   "PBDB",   false),
        (Continue, "aaba",   "xr++",   &[],         "0123",   "X_D_",   false),
        (Continue, "aaba",   "rx++",   &[],         "0123",   "PBDB",   false),
        // Behind what was confirmed, no answer is no failure: it comes again and then stands first.
        (Continue, "aab",    "+.+",    &[],         "012",    "D_D",    false),
        (Continue, "aab",    "+.+",    &[TimedOut], "012",    "D_D",    false),
        (Continue, "aab",    "+.+",    &[Panicked], "012",    "D_D",    false),
        (Continue, "aab",    "+.+",    &[Stopped],  "012",    "D_D",    false),
        // The first of its key has no such excuse.
        (Continue, "aab",    "..+",    &[],         "012",    "PBD",    false),
        (Continue, "aab",    "..+",    &[TimedOut], "012",    "PBD",    false),
        (Continue, "aa",     "..",     &[TimedOut], "01",     "__",     true),
        (Continue, "aa",     "r.",     &[TimedOut], "01",     "PB",     false),
        (Continue, "aa",     "..",     &[Stopped],  "01",     "__",     false),
        // An outage, whoever says so.
        (Continue, "aabb",   "+b+.",   &[],         "0123",   "D_D_",   true),
        (Continue, "aab",    "rb+",    &[],         "012",    "__D",    true),
        (Continue, "aab",    "x.b",    &[],         "012",    "X__",    true),
    ];
    for &(on_dead, keys, answers, ends, waves, outcomes, outage) in cases {
        let case = format!("{on_dead:?} {keys} {answers} {ends:?}");
        let course = run_with(true, PerKey, on_dead, &claim(keys), answers, ends);
        course.must_be(waves, outcomes, outage, &case);
    }
}

#[test]
fn nothing_is_chained_behind_a_message_that_is_given_up_unsent() {
    let mut claimed = claim("aaba");
    claimed[0].crashes = CRASH_LIMIT;
    let first = run_with(true, PerKey, Continue, &claimed, "++++", &[]);
    first.must_be("2", "X_D_", false, "the first of its key");
    claimed.swap(0, 1);
    let second = run_with(true, PerKey, HaltKey, &claimed, "++++", &[]);
    second.must_be("02", "DHDB", false, "the second of its key");
}

#[test]
fn what_shares_its_key_is_chained_and_only_in_per_key() {
    let claimed = claim("aab--");
    for (order, chains, chained) in [
        (PerKey, true, "++..."),
        (PerKey, false, "....."),
        (PerKeyPipelined, true, "....."),
        (Unordered, true, "....."),
    ] {
        let rules = Rules {
            order,
            on_dead: Continue,
            chains,
            crash_limit: CRASH_LIMIT,
            retry: &Script,
        };
        let plan = Plan::new(rules, &claimed);
        let marks = (0..claimed.len()).map(|index| match plan.is_chained(index) {
            true => '+',
            false => '.',
        });
        assert_eq!(marks.collect::<String>(), chained, "{order:?}, {chains}");
    }
}

#[test]
fn a_claim_that_was_never_sent_is_released() {
    let claimed = claim("aab-");
    for order in [PerKey, PerKeyPipelined, Unordered] {
        let rules = Rules {
            order,
            on_dead: Continue,
            chains: false,
            crash_limit: CRASH_LIMIT,
            retry: &Script,
        };
        let conclusion = Plan::new(rules, &claimed).conclude();
        assert_eq!(conclusion.outcomes, vec![Outcome::Released; 4]);
        assert_eq!(conclusion.outage, None);
    }
}

#[test]
fn the_policy_gives_the_time_and_its_errors_are_kept() {
    let course = run(PerKey, Continue, &claim("abc"), "rtx", &[]);
    let park = |counted, error| Outcome::Park {
        after: PARKED,
        counted,
        error,
    };
    let outcomes = [
        park(true, PublishError::retryable("nack")),
        park(false, PublishError::topic_unavailable("no leader")),
        Outcome::Dead {
            error: PublishError::rejected("too large"),
            halt: false,
        },
    ];
    assert_eq!(course.conclusion.outcomes, outcomes);
}

#[test]
fn what_does_not_count_is_never_given_up() {
    struct Never;
    impl RetryPolicy for Never {
        fn retry_after(&self, _: &Claimed, _: &PublishError) -> Option<Duration> {
            None
        }
    }
    let claimed = claim("a");
    let rules = Rules {
        order: PerKey,
        on_dead: Continue,
        chains: false,
        crash_limit: CRASH_LIMIT,
        retry: &Never,
    };
    let mut plan = Plan::new(rules, &claimed);
    let wave = plan.next_wave().unwrap();
    plan.absorb(&wave, [answer('t')], Returned);
    let outcome = plan.conclude().outcomes.remove(0);
    assert!(
        matches!(
            outcome,
            Outcome::Park { after, counted: false, .. } if after == PARK_WHEN_GIVEN_UP_UNCOUNTED
        ),
        "{outcome:?}"
    );
}

#[test]
fn a_message_that_has_ended_too_many_processes_is_given_up_and_never_sent() {
    let mut claimed = claim("aab");
    claimed[0].crashes = CRASH_LIMIT - 1;
    let sent = run(PerKey, Continue, &claimed, "+++", &[]);
    sent.must_be("02 1", "DDD", false, "one crash less than the limit");

    claimed[0].crashes = CRASH_LIMIT;
    for (order, on_dead, waves, outcomes) in [
        (PerKey, Continue, "2", "X_D"),
        (PerKey, HaltKey, "2", "HBD"),
        (PerKeyPipelined, Continue, "12", "XDD"),
        (PerKeyPipelined, HaltKey, "12", "HBD"),
        (Unordered, HaltKey, "12", "XDD"),
    ] {
        let course = run(order, on_dead, &claimed, "+++", &[]);
        course.must_be(waves, outcomes, false, &format!("{order:?}, {on_dead:?}"));
        let Outcome::Dead { error, .. } = &course.conclusion.outcomes[0] else {
            panic!("{:?}", course.conclusion);
        };
        assert_eq!(error.kind(), PublishErrorKind::Rejected);
        assert!(error.reason().contains("ended 3 times"), "{error}");
    }
    // Also when the broker is away for the others.
    let away = run(PerKey, Continue, &claimed, "++b", &[]);
    away.must_be("2", "X__", true, "an outage");
    // Alone, there is nothing to send.
    let alone = run(PerKey, Continue, &claimed[..1], "+", &[]);
    alone.must_be("", "X", false, "alone");
}

#[test]
fn an_outage_says_whether_the_broker_spoke() {
    let spoken = run(PerKey, Continue, &claim("ab"), ".b", &[TimedOut])
        .conclusion
        .outage
        .unwrap();
    assert!(!spoken.silence);
    assert_eq!(spoken.error.reason(), "refused");
    let silent = run(PerKey, Continue, &claim("ab"), "..", &[TimedOut])
        .conclusion
        .outage
        .unwrap();
    assert!(silent.silence);
    assert_eq!(silent.error.kind(), PublishErrorKind::BrokerUnavailable);
}

#[test]
fn an_empty_key_is_a_key_and_no_key_is_none() {
    let with_key = |key: Option<&str>| {
        let message = Message::to("topic");
        let message = match key {
            Some(key) => message.key(key),
            None => message,
        };
        Claimed {
            message: message.tombstone().unwrap(),
            parked: 0,
            failures: 0,
            crashes: 0,
        }
    };
    let claimed = [
        with_key(Some("")),
        with_key(Some("")),
        with_key(None),
        with_key(None),
    ];
    let course = run(PerKey, Continue, &claimed, "r+++", &[]);
    assert_eq!(course.waves(), "023");
    assert_eq!(course.outcomes(), "PBDD");
}

/// A random claim, with the answer that each message gets if it is sent, and the end of each wave.
fn courses() -> impl Strategy<Value = (OnDead, String, String, Vec<WaveEnd>)> {
    let on_dead = prop_oneof![Just(Continue), Just(HaltKey)];
    let ends = prop_oneof![8 => Just(Returned), 1 => Just(Panicked), 1 => Just(TimedOut), 1 => Just(Stopped)];
    (
        on_dead,
        prop::collection::vec(("[abc-]", "[+++++++rRtxb.]"), 1..24),
        prop::collection::vec(ends, 0..8),
    )
        .prop_map(|(on_dead, messages, ends)| {
            let (keys, answers): (String, String) = messages.into_iter().unzip();
            (on_dead, keys, answers, ends)
        })
}

/// For each key but `-`, its places in the claim.
fn places_of_keys(keys: &str) -> Vec<Vec<usize>> {
    ['a', 'b', 'c']
        .map(|key| keys.match_indices(key).map(|(place, _)| place).collect())
        .to_vec()
}

/// The answers of a publisher that keeps its promise: none behind what was not confirmed.
fn chained(keys: &str, answers: &str) -> String {
    let mut stopped = String::new();
    let said = keys.chars().zip(answers.chars());
    said.map(|(key, answer)| {
        let answer = match stopped.contains(key) {
            true => '.',
            false => answer,
        };
        if answer != '+' && key != '-' {
            stopped.push(key);
        }
        answer
    })
    .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_message_is_sent_at_most_once_and_has_one_outcome((on_dead, keys, answers, ends) in courses()) {
        for order in [PerKey, PerKeyPipelined, Unordered] {
            let course = run(order, on_dead, &claim(&keys), &answers, &ends);
            let mut sent: Vec<usize> = course.waves.concat();
            sent.sort_unstable();
            prop_assert!(sent.windows(2).all(|pair| pair[0] < pair[1]), "sent twice: {sent:?}");
            let outcomes = course.outcomes();
            prop_assert_eq!(outcomes.len(), keys.len());
            for (place, (outcome, answer)) in outcomes.chars().zip(answers.chars()).enumerate() {
                let sent = sent.binary_search(&place).is_ok();
                // Only what was confirmed is delivered, only what failed for good is dead.
                prop_assert!(outcome != 'D' || (sent && answer == '+'));
                prop_assert!(!"XH".contains(outcome) || (sent && "xR".contains(answer)));
                prop_assert!(outcome != 'p' || (sent && answer == 't'));
                prop_assert!(outcome != 'P' || (sent && "r.".contains(answer)));
            }
            if course.conclusion.outage.is_some() {
                prop_assert!(!outcomes.contains(['P', 'p']), "counted or parked in an outage: {outcomes}");
            }
        }
    }

    #[test]
    fn one_wave_holds_one_message_of_a_key_and_none_passes_an_earlier_one((on_dead, keys, answers, ends) in courses()) {
        let course = run(PerKey, on_dead, &claim(&keys), &answers, &ends);
        let outcomes: Vec<char> = course.outcomes().chars().collect();
        for places in places_of_keys(&keys) {
            let mut sent_before = true;
            for (nth, &place) in places.iter().enumerate() {
                let wave = course.waves.iter().position(|wave| wave.contains(&place));
                if let Some(wave) = wave {
                    prop_assert_eq!(wave, nth);
                    prop_assert!(sent_before, "{place} was sent before an earlier one of its key was confirmed");
                }
                sent_before = wave.is_some() && outcomes[place] == 'D';
            }
        }
    }

    #[test]
    fn a_chain_ends_as_waves_do((on_dead, keys, answers, _) in courses()) {
        // Without an early end or an outage, which stops later waves and finds a whole batch under way, and
        // without silence, which is no failure behind what was confirmed.
        let answers = answers.replace(['b', '.'], "r");
        let waves = run(PerKey, on_dead, &claim(&keys), &answers, &[]);
        let chain = run_with(true, PerKey, on_dead, &claim(&keys), &chained(&keys, &answers), &[]);
        prop_assert_eq!(chain.outcomes(), waves.outcomes());
        prop_assert!(chain.waves.len() == 1);
    }

    #[test]
    fn nothing_of_a_chain_is_done_behind_what_is_not((on_dead, keys, answers, ends) in courses()) {
        // Whatever the publisher says, also about what it should not have sent.
        let course = run_with(true, PerKey, on_dead, &claim(&keys), &answers, &ends);
        let outcomes: Vec<char> = course.outcomes().chars().collect();
        for places in places_of_keys(&keys) {
            for pair in places.windows(2) {
                let (before, after) = (outcomes[pair[0]], outcomes[pair[1]]);
                let expected = match before {
                    'D' => after != 'B',
                    'P' | 'p' | 'B' | 'H' => after == 'B',
                    _ => after == '_',
                };
                prop_assert!(expected, "{before} and then {after} in {outcomes:?}");
            }
        }
        if course.conclusion.outage.is_some() {
            prop_assert!(!course.outcomes().contains(['P', 'p']), "counted or parked in an outage");
        }
    }

    #[test]
    fn in_both_keyed_modes_nothing_is_done_behind_what_is_not((on_dead, keys, answers, ends) in courses()) {
        for order in [PerKey, PerKeyPipelined] {
            let outcomes: Vec<char> = run(order, on_dead, &claim(&keys), &answers, &ends).outcomes().chars().collect();
            for places in places_of_keys(&keys) {
                for pair in places.windows(2) {
                    let (before, after) = (outcomes[pair[0]], outcomes[pair[1]]);
                    let expected = match before {
                        'P' | 'p' | 'B' | 'H' => after == 'B',
                        '_' => after == '_',
                        _ => after != 'B',
                    };
                    prop_assert!(expected, "{before} and then {after} in {outcomes:?}");
                }
            }
        }
    }

    #[test]
    fn a_failure_delays_only_its_own_key((on_dead, keys, answers, _) in courses()) {
        // Without an outage or an early end, what other keys were answered changes nothing.
        let calm: String = answers.replace('b', "r");
        for order in [PerKey, PerKeyPipelined, Unordered] {
            let together: Vec<char> = run(order, on_dead, &claim(&keys), &calm, &[]).outcomes().chars().collect();
            for places in places_of_keys(&keys) {
                let alone: String = places.iter().map(|&place| keys.as_bytes()[place] as char).collect();
                let its: String = places.iter().map(|&place| calm.as_bytes()[place] as char).collect();
                let course = run(order, on_dead, &claim(&alone), &its, &[]);
                let here: String = places.iter().map(|&place| together[place]).collect();
                prop_assert_eq!(course.outcomes(), here);
            }
        }
    }
}
