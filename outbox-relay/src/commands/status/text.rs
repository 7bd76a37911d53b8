//! A look as text, with the answer first.

use std::collections::BTreeMap;
use std::time::SystemTime;

use outbox_core::admin::{Count, RelaySeen, Status};

use super::verdict::{Look, advice, is_paused, sentence, verdict};
use crate::text::{
    Table, approximate, count, counted, counted_at_least, escaped, line, shortened, since, span,
};

/// So many topics and reasons are shown; the others are counted.
const SHOWN: usize = 12;

/// A reason takes so many columns at most.
const REASON: usize = 90;

pub(super) fn of(outbox: &str, look: &Look, earlier: Option<&Look>) -> String {
    let verdict = verdict(look, earlier);
    let mut text = String::new();
    let now = humantime::format_rfc3339_seconds(look.status.now);
    line(&mut text, format_args!("{}  {now}", escaped(outbox)));
    line(
        &mut text,
        format_args!(
            "{}: {}",
            verdict.heading(),
            sentence(verdict, look, earlier)
        ),
    );
    if let Some(advice) = advice(verdict, look) {
        line(
            &mut text,
            format_args!("next: {}   ({})", advice.command, advice.purpose),
        );
    }
    text.push('\n');
    numbers(
        &mut text,
        &look.status,
        earlier.map(|earlier| &earlier.status),
    );
    topics(&mut text, &look.status);
    reasons(&mut text, look);
    text
}

fn numbers(text: &mut String, status: &Status, earlier: Option<&Status>) {
    let mut table = Table::new(&["", ">", ""]);
    let mut row =
        |name: &str, number: String, remark: String| table.row([name.to_owned(), number, remark]);
    row(
        "waiting",
        approximate(status.waiting),
        match status.oldest_waiting_age() {
            Some(age) => format!("the oldest for {}", span(age)),
            None => String::new(),
        },
    );
    row("parked", approximate(status.parked), parked(status));
    row("dead", approximate(status.dead), String::new());
    if status.delayed != Count::Exact(0) {
        row(
            "delayed",
            approximate(status.delayed),
            status.next_delayed.map_or_else(String::new, |due| {
                format!("the next is due {}", from_now(due, status.now))
            }),
        );
    }
    if let Some(relays) = &status.relays {
        row(
            "relays",
            count(relays.len() as u64),
            relays_seen(relays, status),
        );
    }
    if let Some((enqueued, removed)) = earlier.and_then(|earlier| status.rates_since(earlier)) {
        row(
            "rate",
            String::new(),
            format!("{enqueued:.0}/s in, {removed:.0}/s out"),
        );
    }
    text.push_str(&table.render());
}

fn parked(status: &Status) -> String {
    if status.held_keys == Count::Exact(0) {
        return String::new();
    }
    let mut remark = format!(
        "behind {}",
        counted_at_least(status.held_keys, "key", "keys")
    );
    if status.halted_keys.number() > 0 {
        remark += &format!(", {} of them halted", approximate(status.halted_keys));
    }
    if let Some(due) = status.next_due {
        remark += &format!("; next try {}", from_now(due, status.now));
    }
    remark
}

fn from_now(due: SystemTime, now: SystemTime) -> String {
    match due.duration_since(now) {
        Ok(wait) => format!("in {}", span(wait)),
        Err(_) => "now".to_owned(),
    }
}

fn relays_seen(relays: &[RelaySeen], status: &Status) -> String {
    if relays.is_empty() {
        return "nothing is delivered until one is started".to_owned();
    }
    let connections: u64 = relays
        .iter()
        .map(|relay| u64::from(relay.connections))
        .sum();
    let held = status
        .lanes
        .iter()
        .filter(|lane| lane.held.is_some())
        .count();
    let mut remark = counted(connections, "connection", "connections");
    if !status.lanes.is_empty() {
        remark += &format!(", {held} of {} lanes held", status.lanes.len());
    }
    remark
}

fn topics(text: &mut String, status: &Status) {
    let paused = |topic: &str| {
        status
            .paused
            .iter()
            .find(|paused| paused.topic.matches(topic))
    };
    let mut table = Table::new(&["topic", ">waiting", ">parked", ">dead", ""]);
    for topic in status.topics.iter().take(SHOWN) {
        let remark = paused(&topic.topic).map_or_else(String::new, |paused| {
            format!(
                "paused by {} for {}",
                shortened(&paused.by, 40),
                since(status.now, paused.since)
            )
        });
        table.row([
            shortened(&topic.topic, 60),
            count(topic.waiting),
            count(topic.parked),
            count(topic.dead),
            remark,
        ]);
    }
    if !status.topics.is_empty() {
        text.push('\n');
        text.push_str(&table.render());
    }
    let others = status.topics.len().saturating_sub(SHOWN) as u64;
    let others = match status.more_topics {
        true => Count::AtLeast(others),
        false => Count::Exact(others),
    };
    if others != Count::Exact(0) {
        let others = counted_at_least(others, "other topic", "other topics");
        line(text, format_args!("and {others}"));
    }
    let is_exact = |count| matches!(count, Count::Exact(_));
    if ![status.waiting, status.parked, status.dead]
        .into_iter()
        .all(is_exact)
    {
        line(
            text,
            format_args!("(estimated: there are too many messages to count those of each topic)"),
        );
    }
    for paused in &status.paused {
        if !status
            .topics
            .iter()
            .any(|topic| paused.topic.matches(&topic.topic))
        {
            line(
                text,
                format_args!(
                    "paused, and without a message: {}, by {} for {}",
                    escaped(paused.topic.as_str()),
                    shortened(&paused.by, 40),
                    since(status.now, paused.since),
                ),
            );
        }
    }
}

/// Why keys are held up, the most frequent reason first.
fn reasons(text: &mut String, look: &Look) {
    if look.keys.keys.is_empty() {
        return;
    }
    let mut reasons: BTreeMap<String, (u64, SystemTime)> = BTreeMap::new();
    for key in &look.keys.keys {
        let error = key.error_kind.as_ref().zip(key.error.as_ref());
        let reason = match error {
            _ if !key.halted && is_paused(look, key) => "its topic is paused".to_owned(),
            Some((kind, error)) if key.halted => {
                format!("halted by a dead message, {kind}: {error}")
            }
            Some((kind, error)) => format!("{kind}: {error}"),
            None if key.halted => "halted by a dead message".to_owned(),
            None => "due, and not tried yet".to_owned(),
        };
        let entry = reasons
            .entry(shortened(&reason, REASON))
            .or_insert((0, key.since));
        entry.0 += 1;
        entry.1 = entry.1.min(key.since);
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, (keys, _))| std::cmp::Reverse(*keys));
    let mut table = Table::new(&[">keys", "longest", "held up by"]);
    for (reason, (keys, longest)) in reasons.iter().take(SHOWN) {
        table.row([
            count(*keys),
            since(look.status.now, *longest),
            reason.clone(),
        ]);
    }
    text.push('\n');
    text.push_str(&table.render());
    if reasons.len() > SHOWN {
        line(
            text,
            format_args!(
                "and {}",
                counted(
                    (reasons.len() - SHOWN) as u64,
                    "other reason",
                    "other reasons"
                )
            ),
        );
    }
    if look.keys.next.is_some() {
        line(
            text,
            format_args!("(of the first {} keys)", count(look.keys.keys.len() as u64)),
        );
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::admin::{HeldLane, Lane};

    use super::super::verdict::tests::{empty, held, traffic, waiting};
    use super::*;

    #[test]
    fn one_look_has_the_answer_first() {
        let mut look = held(
            waiting(empty(), 1204, 2),
            "orders.shipped",
            "topic_unavailable",
            false,
        );
        look.status.dead = Count::About(31_000);
        look.status.delayed = Count::Exact(2_048);
        look.status.next_delayed = Some(look.status.now + std::time::Duration::from_secs(62));
        look.status.lanes = (0..64)
            .map(|lane| Lane {
                lane,
                floor: 0,
                floor_lag: 0,
                held: (lane < 4).then(|| HeldLane {
                    pid: 7,
                    application: "outbox".to_owned(),
                    address: None,
                    since: None,
                }),
            })
            .collect();
        let earlier = traffic(look.clone(), 0, 1000, 1000);
        let look = traffic(look, 2, 1240, 1238);
        let shown = of("db:5432/shop, schema outbox", &look, Some(&earlier));
        assert_eq!(
            shown,
            "db:5432/shop, schema outbox  1970-01-02T03:46:42Z\n\
             HELD UP: 1 key is held up, the longest for 3 min 7 s; everything else moves\n\
             next: outbox doctor   (asks the brokers which topics are not there)\n\
             \n\
             waiting    1,204  the oldest for 4 s\n\
             parked        13  behind 1 key; next try in 2 s\n\
             dead     ~31,000\n\
             delayed    2,048  the next is due in 1 min\n\
             relays         1  5 connections, 4 of 64 lanes held\n\
             rate              120/s in, 119/s out\n\
             \n\
             topic          waiting  parked  dead\n\
             orders.placed    1,204       0     0\n\
             (estimated: there are too many messages to count those of each topic)\n\
             \n\
             keys  longest    held up by\n\
             \u{20}  1  3 min 7 s  topic_unavailable: the topic does not exist\n"
        );
    }

    #[test]
    fn what_is_hostile_is_escaped_and_what_is_long_is_cut() {
        let mut look = held(empty(), "a\u{1b}[2J", "retryable\n", true);
        look.status.topics = (0..20)
            .map(|nth| outbox_core::admin::TopicCounts {
                topic: format!("\u{202e}{nth}{}", "x".repeat(300)),
                ..Default::default()
            })
            .collect();
        let shown = of("\u{7}", &look, None);
        assert!(
            shown
                .chars()
                .all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'),
            "{shown:?}"
        );
        assert!(shown.contains("and 8 other topics"), "{shown}");
        assert!(
            shown.lines().all(|line| line.chars().count() < 160),
            "{shown}"
        );
    }
}
