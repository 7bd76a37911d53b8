//! How times, spans and counts are written in the JSON of `--json`: RFC 3339, seconds, and a number with
//! a word for how far it can be trusted.

use std::time::{Duration, SystemTime};

use outbox_core::admin::{Count, PausedTopic};
use serde_json::{Value, json};

use crate::text::escaped_json;

/// Indented, for eyes too, and ended by a line break.
pub(crate) fn document(value: &Value) -> String {
    escaped_json(&format!("{value:#}\n"))
}

/// On one line, ended by its break.
pub(crate) fn line(value: &Value) -> String {
    escaped_json(&format!("{value}\n"))
}

/// To the millisecond, in UTC.
pub(crate) fn time(time: SystemTime) -> Value {
    Value::from(humantime::format_rfc3339_millis(time).to_string())
}

/// `null` for none.
pub(crate) fn optional_time(optional: Option<SystemTime>) -> Value {
    optional.map_or(Value::Null, time)
}

/// Seconds to the millisecond; `null` for none.
pub(crate) fn seconds(span: Option<Duration>) -> Value {
    span.map_or(Value::Null, |span| json!(span.as_millis() as f64 / 1000.0))
}

/// A topic that is paused, since when and by whom.
pub(crate) fn paused(paused: &PausedTopic) -> Value {
    json!({
        "topic": paused.topic.as_str(),
        "since": time(paused.since),
        "by": paused.by,
    })
}

/// The number, and whether it is `exact`, `at_least` or `about` that.
pub(crate) fn count(count: Count) -> Value {
    let how = match count {
        Count::Exact(_) => "exact",
        Count::AtLeast(_) => "at_least",
        Count::About(_) => "about",
    };
    json!({ "number": count.number(), "is": how })
}
