//! What a look at an outbox means, and what to do next. Pure.
//!
//! The words are for somebody who was just woken up: first whether messages move, then what is stuck and
//! why, then one command.

use std::time::{Duration, SystemTime};

use outbox_core::admin::{HeldKey, KeyPage, PausedTopic, Status};

use crate::text::{counted_at_least, quoted, span};

/// A queue whose oldest message is younger than this moves: no second look is needed to say so.
const YOUNG: Duration = Duration::from_secs(5);

/// A message that has waited for longer is late, whether or not others leave.
const LATE: Duration = Duration::from_secs(60);

/// What was seen at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) status: Status,
    /// The first of the keys that are held up.
    pub(crate) keys: KeyPage,
}

/// How it stands, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Something waits, if only for its time, and no relay is there to deliver it.
    NoRelay,
    /// Something waits, and nothing leaves; or what was delayed is due, and no relay enqueues it.
    Stuck,
    /// Messages leave, but the oldest has waited for long.
    Behind,
    /// Keys are held up; what else there is moves.
    HeldUp,
    /// All that waits is of paused topics.
    Paused,
    /// Nothing is held up, and what waits leaves.
    Moving,
    /// Nothing waits but a decision about dead messages.
    Dead,
    /// There is nothing, or only what a relay enqueues when it is due.
    Idle,
}

impl Verdict {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::NoRelay => "no_relay",
            Self::Stuck => "stuck",
            Self::Behind => "behind",
            Self::HeldUp => "held_up",
            Self::Paused => "paused",
            Self::Moving => "moving",
            Self::Dead => "dead",
            Self::Idle => "idle",
        }
    }

    /// For the beginning of a line.
    pub(crate) const fn heading(self) -> &'static str {
        match self {
            Self::NoRelay => "NO RELAY",
            Self::Stuck => "STUCK",
            Self::Behind => "BEHIND",
            Self::HeldUp => "HELD UP",
            Self::Paused => "PAUSED",
            Self::Moving => "MOVING",
            Self::Dead => "DEAD",
            Self::Idle => "IDLE",
        }
    }
}

/// Whether one look cannot tell if anything leaves.
pub(crate) fn needs_second_look(look: &Look) -> bool {
    let has_relay = look
        .status
        .relays
        .as_ref()
        .is_none_or(|relays| !relays.is_empty());
    has_relay && (may_be_older(look, YOUNG) || is_delayed_late(&look.status))
}

/// Judges a look, with the help of an earlier one where there is one.
pub(crate) fn verdict(look: &Look, earlier: Option<&Look>) -> Verdict {
    let status = &look.status;
    let waits = status.waiting.number() > 0;
    let is_held_up = status.held_keys.number() > 0;
    let is_empty = !waits && !is_held_up;
    let has_no_relay = status.relays.as_ref().is_some_and(Vec::is_empty);
    if has_no_relay && !(is_empty && status.delayed.number() == 0) {
        return Verdict::NoRelay;
    }
    if waits && may_be_older(look, YOUNG) && earlier.is_some_and(|earlier| !has_left(earlier, look))
        || is_overdue(status)
        || is_delayed_stuck(look, earlier)
    {
        return Verdict::Stuck;
    }
    if is_older(look, LATE) || is_delayed_late(status) {
        return Verdict::Behind;
    }
    if is_empty {
        return if status.dead.number() > 0 {
            Verdict::Dead
        } else {
            Verdict::Idle
        };
    }
    match (is_held_up, waits) {
        (true, false) if is_all_paused(look) => Verdict::Paused,
        (true, _) => Verdict::HeldUp,
        (false, _) => Verdict::Moving,
    }
}

fn is_older(look: &Look, limit: Duration) -> bool {
    look.status
        .oldest_waiting_age()
        .is_some_and(|age| age >= limit)
}

/// As [`is_older`], also where the oldest message was not found in time.
fn may_be_older(look: &Look, limit: Duration) -> bool {
    let status = &look.status;
    let is_unknown =
        !status.complete && status.oldest_waiting.is_none() && status.waiting.number() > 0;
    is_unknown || is_older(look, limit)
}

/// A key was to be tried long ago, and no relay has done it.
fn is_overdue(status: &Status) -> bool {
    late_since(status.next_due, status).is_some_and(|late| late >= LATE)
}

/// A delayed message was due long ago.
fn is_delayed_late(status: &Status) -> bool {
    late_since(status.next_delayed, status).is_some_and(|late| late >= LATE)
}

/// As [`is_delayed_late`], and none was enqueued between two looks.
fn is_delayed_stuck(look: &Look, earlier: Option<&Look>) -> bool {
    let status = &look.status;
    is_delayed_late(status)
        && earlier.is_some_and(
            |Look {
                 status: earlier, ..
             }| {
                status.next_delayed <= earlier.next_delayed
                    && status.delayed.number() >= earlier.delayed.number()
            },
        )
}

/// How long ago something was due.
fn late_since(due: Option<SystemTime>, status: &Status) -> Option<Duration> {
    status.now.duration_since(due?).ok()
}

/// Whether something has left the waiting messages between two looks. A server counts what it removes with
/// a delay, so the messages themselves are asked too.
fn has_left(earlier: &Look, later: &Look) -> bool {
    let (earlier, later) = (&earlier.status, &later.status);
    later.rates_since(earlier).is_some_and(|(_, out)| out > 0.0)
        || later.waiting.number() < earlier.waiting.number()
        || later.oldest_waiting > earlier.oldest_waiting
}

/// Whether all keys that were seen, and there are no others, wait for a paused topic.
fn is_all_paused(look: &Look) -> bool {
    let KeyPage { keys, next, .. } = &look.keys;
    next.is_none() && !keys.is_empty() && keys.iter().all(|key| is_paused(look, key))
}

/// Whether the head of the key is of a paused topic.
pub(crate) fn is_paused(look: &Look, key: &HeldKey) -> bool {
    pause_of(look, key).is_some()
}

/// The pause that the head of the key waits for.
fn pause_of<'a>(look: &'a Look, key: &HeldKey) -> Option<&'a PausedTopic> {
    let head = key.head.as_ref()?;
    let mut paused = look.status.paused.iter();
    paused.find(|paused| paused.topic.matches(&head.topic))
}

/// The verdict in a sentence, with what it rests on.
pub(crate) fn sentence(verdict: Verdict, look: &Look, earlier: Option<&Look>) -> String {
    let status = &look.status;
    let messages = |count| counted_at_least(count, "message", "messages");
    let oldest = match status.oldest_waiting_age() {
        Some(age) => format!(", the oldest for {}", span(age)),
        None => String::new(),
    };
    let keys = || {
        let keys = counted_at_least(status.held_keys, "key is held up", "keys are held up");
        match status.oldest_held_age() {
            Some(age) => format!("{keys}, the longest for {}", span(age)),
            None => keys,
        }
    };
    let delayed = || {
        let messages = counted_at_least(
            status.delayed,
            "message waits for its time",
            "messages wait for their time",
        );
        match status
            .next_delayed
            .map(|due| due.duration_since(status.now))
        {
            Some(Ok(wait)) => format!("{messages}, the next is due in {}", span(wait)),
            Some(Err(late)) => {
                format!("{messages}, the next was due {} ago", span(late.duration()))
            }
            None => messages,
        }
    };
    match verdict {
        Verdict::NoRelay => {
            let waiting = match status.waiting.number() {
                0 if status.held_keys.number() == 0 => delayed(),
                0 => keys(),
                1 => format!("1 message waits{oldest}"),
                _ => format!("{} wait{oldest}", messages(status.waiting)),
            };
            format!("no relay is connected; {waiting}")
        }
        Verdict::Stuck if is_delayed_stuck(look, earlier) => {
            format!("{}, and no relay enqueues it", delayed())
        }
        Verdict::Stuck if status.waiting.number() == 0 => {
            format!("{}; they are due, and no relay tries them", keys())
        }
        Verdict::Stuck => format!(
            "nothing leaves; waiting: {}{oldest}",
            messages(status.waiting)
        ),
        Verdict::Behind if !is_older(look, LATE) => format!("late: {}", delayed()),
        Verdict::Behind => format!("late: {}{oldest}", messages(status.waiting)),
        Verdict::HeldUp if status.waiting.number() == 0 => {
            format!("{}; nothing else waits", keys())
        }
        Verdict::HeldUp => format!("{}; everything else moves", keys()),
        Verdict::Paused => format!("{}, all of paused topics", keys()),
        Verdict::Moving => format!("on the way: {}{oldest}", messages(status.waiting)),
        Verdict::Dead => format!("nothing waits; given up: {}", messages(status.dead)),
        Verdict::Idle if status.delayed.number() > 0 => format!(
            "nothing is due, nothing is held up, nothing is dead; delayed: {}",
            messages(status.delayed)
        ),
        Verdict::Idle => "nothing waits, nothing is held up, nothing is dead".to_owned(),
    }
}

/// The next command, and what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Advice {
    pub(crate) command: String,
    pub(crate) purpose: String,
}

impl Advice {
    fn new(command: &str, purpose: impl Into<String>) -> Self {
        Self {
            command: command.to_owned(),
            purpose: purpose.into(),
        }
    }
}

/// What to do next; `None` when there is nothing to do.
pub(crate) fn advice(verdict: Verdict, look: &Look) -> Option<Advice> {
    let status = &look.status;
    let dead = status.dead.number();
    Some(match verdict {
        Verdict::NoRelay => Advice::new(
            "outbox run",
            "starts a relay; nothing is delivered without one",
        ),
        Verdict::Stuck => Advice::new(
            "outbox doctor",
            "asks the database and the brokers why nothing leaves",
        ),
        Verdict::Behind => Advice::new(
            "outbox status --watch",
            "shows whether the queue gets shorter",
        ),
        Verdict::Paused => {
            // The first one that something waits for: others may be paused too.
            let mut keys = look.keys.keys.iter();
            let paused = keys
                .find_map(|key| pause_of(look, key))
                .map_or("TOPIC", |paused| paused.topic.as_str());
            Advice::new(
                &format!("outbox resume {}", quoted(paused)),
                "when whoever paused it agrees: outbox pause lists them",
            )
        }
        Verdict::HeldUp if status.halted_keys.number() > 0 => Advice::new(
            "outbox keys --halted",
            format!(
                "names the dead messages that halt {}",
                counted_at_least(status.halted_keys, "key", "keys")
            ),
        ),
        Verdict::HeldUp if is_mostly(look, "topic_unavailable") => Advice::new(
            "outbox doctor",
            "asks the brokers which topics are not there",
        ),
        Verdict::HeldUp => Advice::new("outbox keys", "shows which keys, and why"),
        Verdict::Moving | Verdict::Dead if dead > 0 => Advice::new(
            "outbox dead list",
            format!(
                "shows what was given up: {}",
                counted_at_least(status.dead, "message", "messages")
            ),
        ),
        Verdict::Moving | Verdict::Dead | Verdict::Idle => return None,
    })
}

/// Whether at least half of the keys that were seen are held up by errors of this kind, and not by a pause.
fn is_mostly(look: &Look, kind: &str) -> bool {
    let of_kind = look
        .keys
        .keys
        .iter()
        .filter(|&key| key.error_kind.as_deref() == Some(kind) && !is_paused(look, key));
    let of_kind = of_kind.count();
    of_kind > 0 && of_kind * 2 >= look.keys.keys.len()
}

#[cfg(test)]
pub(in crate::commands) mod tests {
    use outbox_core::Uuid;
    use outbox_core::admin::{Count, Head, RelaySeen, TopicCounts, Traffic};

    use super::*;

    fn ago(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(100_000 - seconds)
    }

    /// Nothing is in it, and one relay is there.
    pub(in crate::commands) fn empty() -> Look {
        Look {
            status: Status {
                now: ago(0),
                waiting: Count::Exact(0),
                parked: Count::Exact(0),
                dead: Count::Exact(0),
                delayed: Count::Exact(0),
                held_keys: Count::Exact(0),
                halted_keys: Count::Exact(0),
                oldest_waiting: None,
                oldest_held: None,
                next_due: None,
                next_delayed: None,
                topics: Vec::new(),
                complete: true,
                more_topics: false,
                paused: Vec::new(),
                traffic: None,
                lanes: Vec::new(),
                relays: Some(vec![RelaySeen {
                    application: "outbox".to_owned(),
                    role: "relay".to_owned(),
                    address: None,
                    connections: 5,
                    since: None,
                }]),
            },
            keys: KeyPage {
                keys: Vec::new(),
                next: None,
                now: ago(0),
            },
        }
    }

    pub(in crate::commands) fn waiting(mut look: Look, messages: u64, oldest: u64) -> Look {
        look.status.waiting = Count::Exact(messages);
        look.status.oldest_waiting = Some(ago(oldest));
        look.status.topics = vec![TopicCounts {
            topic: "orders.placed".to_owned(),
            waiting: messages,
            ..TopicCounts::default()
        }];
        look
    }

    pub(in crate::commands) fn held(mut look: Look, topic: &str, kind: &str, halted: bool) -> Look {
        let number = look.keys.keys.len() as u64 + 1;
        look.keys.keys.push(HeldKey {
            line: 7,
            head: Some(Head {
                position: 7,
                id: Uuid::from_u128(7),
                topic: topic.to_owned(),
                key: Some("order-7".to_owned()),
                enqueued_at: ago(300),
                parked: 4,
                failures: 2,
            }),
            error_kind: Some(kind.to_owned()),
            error: Some("the topic does not exist".to_owned()),
            since: ago(185),
            next_try: (!halted).then(|| ago(0) + Duration::from_secs(4)),
            followers: Count::Exact(12),
            halted,
        });
        look.status.held_keys = Count::Exact(number);
        look.status.parked = Count::Exact(number * 13);
        look.status.oldest_held = Some(ago(185));
        look.status.halted_keys =
            Count::Exact(look.keys.keys.iter().filter(|key| key.halted).count() as u64);
        look.status.next_due = look.keys.keys.iter().filter_map(|key| key.next_try).min();
        look
    }

    pub(in crate::commands) fn traffic(
        mut look: Look,
        seconds: u64,
        enqueued: u64,
        removed: u64,
    ) -> Look {
        look.status.now = ago(0) + Duration::from_secs(seconds);
        look.status.traffic = Some(Traffic { enqueued, removed });
        look
    }

    fn command(look: &Look, earlier: Option<&Look>) -> String {
        advice(verdict(look, earlier), look).map_or(String::new(), |advice| advice.command)
    }

    #[test]
    fn nothing_at_all_is_idle_and_dead_messages_alone_want_a_decision() {
        let mut look = empty();
        assert_eq!(
            (verdict(&look, None), command(&look, None)),
            (Verdict::Idle, String::new())
        );
        look.status.relays = Some(Vec::new());
        assert_eq!(verdict(&look, None), Verdict::Idle);
        look.status.dead = Count::Exact(3);
        assert_eq!(
            (verdict(&look, None), &*command(&look, None)),
            (Verdict::Dead, "outbox dead list")
        );
    }

    #[test]
    fn without_a_relay_nothing_else_matters() {
        let mut look = held(waiting(empty(), 7, 600), "t", "retryable", false);
        look.status.relays = Some(Vec::new());
        assert_eq!(
            (verdict(&look, None), &*command(&look, None)),
            (Verdict::NoRelay, "outbox run")
        );
        assert!(!needs_second_look(&look));
        assert_eq!(
            sentence(Verdict::NoRelay, &look, None),
            "no relay is connected; 7 messages wait, the oldest for 10 min"
        );
    }

    /// They were due so many seconds ago, or will be.
    fn delayed(mut look: Look, messages: u64, due: i64) -> Look {
        look.status.delayed = Count::Exact(messages);
        let seconds = Duration::from_secs(due.unsigned_abs());
        look.status.next_delayed = Some(match due {
            ..0 => ago(0) - seconds,
            _ => ago(0) + seconds,
        });
        look
    }

    #[test]
    fn delayed_messages_need_a_relay_and_no_one_else() {
        let mut look = delayed(empty(), 2, 90);
        assert_eq!(verdict(&look, None), Verdict::Idle);
        look.status.dead = Count::Exact(3);
        assert_eq!(verdict(&look, None), Verdict::Dead);
        look.status.relays = Some(Vec::new());
        assert_eq!(
            (verdict(&look, None), &*command(&look, None)),
            (Verdict::NoRelay, "outbox run")
        );
        assert_eq!(
            sentence(Verdict::NoRelay, &look, None),
            "no relay is connected; 2 messages wait for their time, the next is due in 1 min 30 s"
        );
        look.status.relays = None;
        assert_eq!(
            verdict(&look, None),
            Verdict::Dead,
            "it does not show relays"
        );
    }

    #[test]
    fn what_was_due_long_ago_and_is_not_enqueued_is_stuck() {
        let due = delayed(empty(), 2, -59);
        assert!(!needs_second_look(&due));
        assert_eq!(verdict(&due, None), Verdict::Idle);

        let late = delayed(empty(), 2, -120);
        assert!(needs_second_look(&late));
        assert_eq!(
            verdict(&late, None),
            Verdict::Behind,
            "one look cannot tell"
        );
        assert_eq!(
            (
                verdict(&late, Some(&late)),
                &*command(&late, Some(&late)),
                &*sentence(Verdict::Stuck, &late, Some(&late)),
            ),
            (
                Verdict::Stuck,
                "outbox doctor",
                "2 messages wait for their time, the next was due 2 min ago, and no relay enqueues it"
            )
        );
        for earlier in [delayed(empty(), 3, -120), delayed(empty(), 2, -130)] {
            assert_eq!(verdict(&late, Some(&earlier)), Verdict::Behind);
            assert_eq!(
                sentence(Verdict::Behind, &late, Some(&earlier)),
                "late: 2 messages wait for their time, the next was due 2 min ago"
            );
        }
    }

    #[test]
    fn what_leaves_between_two_looks_tells_late_from_stuck() {
        let young = waiting(empty(), 7, 2);
        assert!(!needs_second_look(&young));
        assert_eq!(verdict(&young, None), Verdict::Moving);

        let late = waiting(empty(), 7, 600);
        assert!(needs_second_look(&late));
        let earlier = traffic(late.clone(), 0, 1000, 500);
        let moved = traffic(late.clone(), 1, 1000, 501);
        assert_eq!(verdict(&moved, Some(&earlier)), Verdict::Behind);
        let still = traffic(late.clone(), 1, 1001, 500);
        assert_eq!(
            (
                verdict(&still, Some(&earlier)),
                &*command(&still, Some(&earlier))
            ),
            (Verdict::Stuck, "outbox doctor")
        );

        // Where the store counts no traffic, the number and the oldest have to do.
        assert_eq!(verdict(&late, Some(&late)), Verdict::Stuck);
        assert_eq!(
            verdict(&waiting(empty(), 6, 600), Some(&late)),
            Verdict::Behind
        );
        assert_eq!(
            verdict(&waiting(empty(), 7, 590), Some(&late)),
            Verdict::Behind
        );
    }

    #[test]
    fn a_due_key_that_nobody_tries_is_stuck() {
        let mut look = held(empty(), "t", "retryable", false);
        assert_eq!(verdict(&look, None), Verdict::HeldUp);
        look.status.next_due = Some(ago(61));
        assert_eq!(verdict(&look, None), Verdict::Stuck);
        assert!(sentence(Verdict::Stuck, &look, None).contains("no relay tries them"));
    }

    #[test]
    fn the_advice_for_held_up_keys_is_by_their_reason() {
        let missing = held(empty(), "t", "topic_unavailable", false);
        assert_eq!(command(&missing, None), "outbox doctor");
        assert_eq!(
            command(&held(empty(), "t", "retryable", false), None),
            "outbox keys"
        );
        let halted = held(missing.clone(), "t", "rejected", true);
        assert_eq!(command(&halted, None), "outbox keys --halted");

        let mut many = halted;
        many.status.halted_keys = Count::AtLeast(10_000);
        let advice = advice(Verdict::HeldUp, &many).unwrap();
        assert!(advice.purpose.ends_with("halt 10,000+ keys"), "{advice:?}");

        let mut paused = missing;
        // Nothing waits for the first.
        for topic in ["a*", "t*"] {
            paused.status.paused.push(PausedTopic {
                topic: topic.parse().unwrap(),
                since: ago(60),
                by: "ada".to_owned(),
            });
        }
        assert_eq!(verdict(&paused, None), Verdict::Paused);
        assert_eq!(command(&paused, None), "outbox resume 't*'");
        let mixed = held(paused, "u", "retryable", false);
        assert_eq!(
            (verdict(&mixed, None), &*command(&mixed, None)),
            (Verdict::HeldUp, "outbox keys")
        );
    }
}
