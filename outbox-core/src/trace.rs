//! Trace context in a message's headers, as W3C Trace Context has it: written when a message is made, read
//! when it is published.
//!
//! A context that cannot be read, or for which a message has no room, is as good as none: what people watch
//! never stands in the way of what they send. The format is written and read here, and not by the
//! propagator that a process has installed, so that what is stored has one form whoever stored it.
//!
//! Where to read next: `relay/span.rs` for the span that links to what was stored.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};

use crate::Headers;

/// The header that names the trace and the span.
pub(crate) const TRACEPARENT: &str = "traceparent";
/// The header for what a vendor adds.
const TRACESTATE: &str = "tracestate";
/// The bytes of a `traceparent` as this version of the standard has it.
const TRACEPARENT_BYTES: usize = 55;

/// Adds the context of the current span, if there is one and the headers have none.
pub(crate) fn write(headers: &mut Headers) {
    let is_context = |name: &str| {
        name.eq_ignore_ascii_case(TRACEPARENT) || name.eq_ignore_ascii_case(TRACESTATE)
    };
    let context = Context::map_current(|current| current.span().span_context().clone());
    if !context.is_valid() || headers.iter().any(|(name, _)| is_context(name)) {
        return;
    }
    let parent = format!(
        "00-{}-{}-{:02x}",
        context.trace_id(),
        context.span_id(),
        context.trace_flags() & TraceFlags::SAMPLED,
    );
    let state = context.trace_state().header();
    // One that no HTTP header could hold would be refused by a broker, and the message with it.
    let carried = state.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    // A message that has no room for its context goes without.
    if headers.insert(TRACEPARENT, parent).is_ok() && !state.is_empty() && carried {
        let _ = headers.insert(TRACESTATE, state);
    }
}

/// The context that was stored, if there is one that can be read and its trace is sampled.
pub(crate) fn read_sampled(headers: &Headers) -> Option<SpanContext> {
    let (trace, span, flags) = parse(headers.get(TRACEPARENT)?)?;
    // Most are not, and the state costs more to read than the rest.
    if !flags.is_sampled() {
        return None;
    }
    let state = headers.get(TRACESTATE).and_then(|state| state.parse().ok());
    let context = SpanContext::new(trace, span, flags, true, state.unwrap_or(TraceState::NONE));
    context.is_valid().then_some(context)
}

/// Reads `version-trace-span-flags`. A later version may go on behind that.
fn parse(traceparent: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let (known, rest) = traceparent.split_at_checked(TRACEPARENT_BYTES)?;
    if !known
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'))
    {
        return None;
    }
    let mut parts = known.split('-');
    let mut part = |bytes| parts.next().filter(|part| part.len() == bytes);
    let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
    let complete = match version {
        "00" => rest.is_empty(),
        "ff" => false,
        _ => rest.is_empty() || rest.starts_with('-'),
    };
    if !complete {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    Some((
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        flags & TraceFlags::SAMPLED,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MAX_HEADERS, Message, MessageBuilder};

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn to() -> MessageBuilder {
        Message::to("topic").key("k")
    }

    /// What is made of the message while this is the context of the current span.
    fn traced(message: MessageBuilder, parent: &str, state: TraceState) -> Message {
        let (trace, span, flags) = parse(parent).unwrap();
        let context = SpanContext::new(trace, span, flags, false, state);
        let _current = Context::new().with_remote_span_context(context).attach();
        message.tombstone().unwrap().with_current_trace()
    }

    fn stored(traceparent: &str) -> Option<SpanContext> {
        let message = to().header(TRACEPARENT, traceparent).tombstone().unwrap();
        read_sampled(message.headers())
    }

    #[test]
    fn the_context_of_the_current_span_is_written_and_read() {
        let state = TraceState::from_key_value([("vendor", "a b"), ("other", "2")]).unwrap();
        let message = traced(to().header("kind", "own"), PARENT, state.clone());
        let headers: Vec<_> = message.headers().iter().collect();
        let expected = [
            ("kind", "own"),
            ("traceparent", PARENT),
            ("tracestate", "vendor=a b,other=2"),
        ];
        assert_eq!(headers, expected);
        let context = read_sampled(message.headers()).unwrap();
        assert_eq!(context.trace_state(), &state);
        assert!(context.is_sampled() && context.is_remote());

        let unsampled = PARENT.replace("-01", "-00");
        let message = traced(to(), &unsampled, TraceState::NONE);
        let headers: Vec<_> = message.headers().iter().collect();
        assert_eq!(headers, [("traceparent", unsampled.as_str())]);
        assert_eq!(read_sampled(message.headers()), None);
    }

    #[test]
    fn what_the_application_has_given_stays() {
        for (name, value) in [
            (
                TRACEPARENT,
                "00-11111111111111111111111111111111-1111111111111111-00",
            ),
            (TRACEPARENT, "none of your business"),
            ("Traceparent", "mine"),
            (TRACESTATE, "mine=1"),
        ] {
            let message = traced(to().header(name, value), PARENT, TraceState::NONE);
            let headers: Vec<_> = message.headers().iter().collect();
            assert_eq!(headers, [(name, value)]);
        }
    }

    #[test]
    fn without_a_span_or_without_room_a_message_is_as_it_was() {
        let plain = to().tombstone().unwrap();
        assert_eq!(plain.clone().with_current_trace(), plain);

        let full = (0..MAX_HEADERS).fold(to(), |to, n| to.header(format!("header-{n}"), ""));
        let message = traced(full, PARENT, TraceState::NONE);
        assert_eq!(message.headers().len(), MAX_HEADERS);
        assert_eq!(message.headers().get(TRACEPARENT), None);
    }

    #[test]
    fn a_state_that_a_broker_would_refuse_is_left_out() {
        for value in ["line\nbreak", "größe", "nul\0"] {
            let state = TraceState::from_key_value([("vendor", value)]).unwrap();
            let message = traced(to(), PARENT, state);
            assert_eq!(message.headers().get(TRACEPARENT), Some(PARENT));
            assert_eq!(message.headers().get(TRACESTATE), None);
        }
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        for later in [
            PARENT.replacen("00", "cc", 1),
            PARENT.replacen("00", "01", 1) + "-what-comes",
        ] {
            assert_eq!(stored(&later), stored(PARENT), "{later:?}");
        }
        // Of the flags one is known.
        assert_eq!(stored(&PARENT.replace("-01", "-ff")), stored(PARENT));
    }

    #[test]
    fn what_is_no_context_is_none() {
        for (number, malformed) in [
            "".to_owned(),
            "-".repeat(TRACEPARENT_BYTES),
            "0".repeat(TRACEPARENT_BYTES),
            "\u{1F980}".repeat(20),
            PARENT[1..].to_owned(),
            format!("{PARENT}0"),
            format!("{PARENT}-00"),
            format!(" {PARENT}"),
            PARENT.to_uppercase(),
            PARENT.replacen("00", "ff", 1),
            PARENT.replacen("00", "+0", 1),
            PARENT.replacen("00", "01", 1) + "0",
            PARENT.replacen("4bf9", "4bfg", 1),
            PARENT.replacen("4bf9", "+bf9", 1),
            PARENT.replacen("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32), 1),
            PARENT.replacen("00f067aa0ba902b7", &"0".repeat(16), 1),
            PARENT.replacen("-00f0", "00-f0", 1),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(stored(&malformed), None, "{number}: {malformed:?}");
        }
    }

    #[test]
    fn a_state_that_cannot_be_read_does_not_hide_the_span() {
        let message = to().header(TRACEPARENT, PARENT).header(TRACESTATE, "=,;");
        let context = read_sampled(message.tombstone().unwrap().headers()).unwrap();
        assert_eq!(Some(context), stored(PARENT));
    }
}
