//! A look as JSON.

use outbox_core::admin::{HeldLane, RelaySeen};
use serde_json::{Value, json};

use super::verdict::{Look, advice, sentence, verdict};
use crate::json::{self, count, optional_time, seconds, time};

pub(super) fn of(outbox: &str, look: &Look, earlier: Option<&Look>) -> Value {
    let status = &look.status;
    let verdict = verdict(look, earlier);
    let rates = earlier.and_then(|earlier| status.rates_since(&earlier.status));
    json!({
        "outbox": outbox,
        "now": time(status.now),
        "verdict": verdict.as_str(),
        "summary": sentence(verdict, look, earlier),
        "next": advice(verdict, look).map(|advice| advice.command),
        "waiting": count(status.waiting),
        "oldest_waiting_seconds": seconds(status.oldest_waiting_age()),
        "parked": count(status.parked),
        "dead": count(status.dead),
        "delayed": count(status.delayed),
        "next_delayed": optional_time(status.next_delayed),
        "held_keys": count(status.held_keys),
        "halted_keys": count(status.halted_keys),
        "longest_held_seconds": seconds(status.oldest_held_age()),
        "next_due": optional_time(status.next_due),
        "in_per_second": rates.map(|(enqueued, _)| enqueued),
        "out_per_second": rates.map(|(_, removed)| removed),
        "topics": status.topics.iter().map(|topic| json!({
            "topic": topic.topic,
            "waiting": topic.waiting,
            "parked": topic.parked,
            "dead": topic.dead,
        })).collect::<Vec<_>>(),
        "more_topics": status.more_topics,
        "complete": status.complete,
        "paused": status.paused.iter().map(json::paused).collect::<Vec<_>>(),
        "relays": status.relays.as_ref().map(|relays| relays.iter().map(relay).collect::<Vec<_>>()),
        "held_lanes": status.lanes.iter().filter_map(|lane| lane.held.as_ref().map(|held| {
            held_lane(lane.lane, held)
        })).collect::<Vec<_>>(),
    })
}

fn relay(relay: &RelaySeen) -> Value {
    json!({
        "application": relay.application,
        "role": relay.role,
        "address": relay.address,
        "connections": relay.connections,
        "since": optional_time(relay.since),
    })
}

fn held_lane(lane: u16, held: &HeldLane) -> Value {
    json!({
        "lane": lane,
        "pid": held.pid,
        "application": held.application,
        "since": optional_time(held.since),
    })
}
