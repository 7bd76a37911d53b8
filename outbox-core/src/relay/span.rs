//! The span of one wave, for OpenTelemetry: how long the publisher had it, what came of it, and which spans
//! enqueued what is in it.
//!
//! A wave has a span when it has a message of a sampled trace. So whoever starts the traces decides how many
//! spans the relay makes, and a relay of messages without trace context makes none.
//!
//! Names and attributes are those of OpenTelemetry's conventions for messaging. The system that they name is
//! the outbox, since a topic is in its words; which broker takes it is known to the publisher alone.
//!
//! Where to read next: `trace.rs` for the headers, `docs/tracing.md` for what people see.

use std::collections::HashSet;

use opentelemetry::context::FutureExt as _;
use opentelemetry::trace::{Link, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue, global};

use crate::trace::{self, TRACEPARENT};
use crate::{Answer, Delivery};

/// The most spans that one links to: what OpenTelemetry's SDKs keep unless they are told otherwise.
const MAX_LINKS: usize = 128;

/// The span of a wave that is with the publisher, if it has one. It ends when this is dropped.
pub(super) struct PublishSpan(Option<Context>);

impl PublishSpan {
    pub(super) fn start(wave: &[Delivery<'_>]) -> Self {
        let links = links(wave);
        if links.is_empty() {
            return Self(None);
        }
        let mut attributes = vec![
            KeyValue::new("messaging.system", "outbox"),
            KeyValue::new("messaging.operation.type", "send"),
            KeyValue::new("messaging.operation.name", "publish"),
        ];
        let mut name = "publish".to_owned();
        let first = wave[0].message();
        if wave.iter().all(|it| it.message().topic() == first.topic()) {
            name = format!("publish {}", first.topic());
            let topic = first.topic().to_owned();
            attributes.push(KeyValue::new("messaging.destination.name", topic));
        }
        attributes.push(match wave.len() {
            1 => KeyValue::new("messaging.message.id", first.id().to_string()),
            count => KeyValue::new("messaging.batch.message_count", count as i64),
        });
        let tracer = global::tracer("outbox");
        let span = tracer
            .span_builder(name)
            // The spans that made the messages are the producers.
            .with_kind(SpanKind::Client)
            .with_attributes(attributes)
            .with_links(links)
            .start(&tracer);
        Self(Some(Context::current_with_span(span)))
    }

    /// Awaits the call with this span as the current one, the parent of those that a publisher makes.
    pub(super) async fn around<T>(&self, call: impl Future<Output = T>) -> T {
        match &self.0 {
            Some(context) => call.with_context(context.clone()).await,
            None => call.await,
        }
    }

    /// Ends the span; it failed if one of its messages is not confirmed.
    pub(super) fn end<'a>(self, answers: impl Iterator<Item = &'a Answer>) {
        let Some(context) = self.0 else { return };
        let (mut count, mut failures, mut first) = (0, 0, None);
        for answer in answers {
            count += 1;
            if !matches!(answer.get(), Some(Ok(()))) {
                failures += 1;
                first.get_or_insert(answer);
            }
        }
        let span = context.span();
        if let Some(first) = first {
            let (kind, reason) = match first.get() {
                Some(Err(error)) => (error.kind().as_str(), error.reason()),
                _ => ("unanswered", "no answer"),
            };
            span.set_attribute(KeyValue::new("error.type", kind));
            span.set_status(Status::error(format!(
                "{failures} of {count} messages not confirmed: {reason}"
            )));
        }
        span.end();
    }
}

/// To the sampled spans that enqueued the messages, to each once; others lead to nothing.
fn links(wave: &[Delivery<'_>]) -> Vec<Link> {
    let mut seen = HashSet::new();
    wave.iter()
        .map(|delivery| delivery.message().headers())
        .filter(|headers| headers.get(TRACEPARENT).is_some_and(|it| seen.insert(it)))
        .filter_map(trace::read_sampled)
        .map(Link::with_context)
        .take(MAX_LINKS)
        .collect()
}
