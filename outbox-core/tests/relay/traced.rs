//! The relay's spans, as an exporter of OpenTelemetry gets them.

use std::slice;
use std::sync::{Arc, LazyLock, Mutex};

use opentelemetry::trace::{
    SpanContext, SpanKind, Status, TraceContextExt as _, TraceId, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue, Value, global};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use outbox_core::memory::{MemoryPublisher, MemoryStore};
use outbox_core::{
    Delivery, InvalidMessage, Message, PublishError, Publisher, Relay, Uuid, async_trait,
};
use tracing::Instrument as _;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::fakes::{Act, FakeBroker};
use crate::{Running, until};

/// What the whole process exports: a relay's spans go to the one provider that a process has.
static EXPORTED: LazyLock<InMemorySpanExporter> = LazyLock::new(|| {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone());
    global::set_tracer_provider(provider.build());
    exporter
});

/// Confirms everything, and notes the span that is current meanwhile.
#[derive(Clone, Default)]
struct Watching(Arc<Mutex<Vec<SpanContext>>>);

#[async_trait]
impl Publisher for Watching {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        tokio::task::yield_now().await;
        let current = Context::current().span().span_context().clone();
        self.0.lock().unwrap().push(current);
        for delivery in batch {
            delivery.report(Ok(()));
        }
    }
}

/// Delivers messages to the topics of one test, and gives back the spans that the relay made for them.
async fn deliver(publisher: impl Publisher, messages: &[Message], topic: &str) -> Vec<SpanData> {
    LazyLock::force(&EXPORTED);
    let store = MemoryStore::new();
    store.enqueue(messages);
    let running = Running::start(Relay::builder(store.clone(), publisher).workers(1));
    until("everything is settled", || store.counts().waiting == 0).await;
    running.stop().await;
    let mut spans = EXPORTED.get_finished_spans().unwrap();
    spans.retain(|span| span.name.ends_with(topic));
    spans
}

fn placed(order: u64) -> Result<Message, InvalidMessage> {
    let message = Message::to("orders.placed").key(order).json(&order)?;
    Ok(message.with_current_trace())
}

fn traced(topic: &str, traceparent: &str) -> Message {
    let message = Message::to(topic).header("traceparent", traceparent);
    message.tombstone().unwrap()
}

fn parent(trace: usize, flags: &str) -> String {
    format!("00-{trace:032x}-00000000000000aa-{flags}")
}

fn attribute(span: &SpanData, key: &str) -> Option<Value> {
    let mut attributes = span.attributes.iter();
    attributes
        .find(|it| it.key.as_str() == key)
        .map(|it| it.value.clone())
}

#[tokio::test(start_paused = true)]
async fn the_span_of_a_wave_links_to_the_spans_that_enqueued() {
    let provider = SdkTracerProvider::builder().build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("service"));
    let log = tracing_subscriber::registry().with(layer);
    let _log = tracing::subscriber::set_default(log);

    let request = |order| {
        async move {
            let current = Context::current().span().span_context().clone();
            (placed(order).unwrap(), current)
        }
        .instrument(tracing::info_span!("request"))
    };
    let (one, first) = request(1).await;
    let (two, second) = request(2).await;
    assert_ne!(first.trace_id(), second.trace_id());
    let again = one
        .to_builder()
        .id(Uuid::now_v7())
        .key(3)
        .tombstone()
        .unwrap();
    let messages = [
        one,
        two,
        again,
        traced("orders.placed", "00-not-a-context-01"),
    ];

    let publisher = Watching::default();
    let spans = deliver(publisher.clone(), &messages, "orders.placed").await;
    let [span] = &spans[..] else {
        panic!("{} spans", spans.len())
    };
    let links: Vec<_> = span.links.iter().map(|link| &link.span_context).collect();
    let ids = |context: &SpanContext| (context.trace_id(), context.span_id());
    assert_eq!(
        links.iter().map(|it| ids(it)).collect::<Vec<_>>(),
        [ids(&first), ids(&second)]
    );
    assert!(
        links
            .iter()
            .all(|link| link.is_remote() && link.is_sampled())
    );
    assert_eq!(span.name, "publish orders.placed");
    assert_eq!(span.span_kind, SpanKind::Client);
    assert_eq!(span.status, Status::Unset);
    let expected = [
        KeyValue::new("messaging.system", "outbox"),
        KeyValue::new("messaging.operation.type", "send"),
        KeyValue::new("messaging.operation.name", "publish"),
        KeyValue::new("messaging.destination.name", "orders.placed"),
        KeyValue::new("messaging.batch.message_count", 4),
    ];
    assert_eq!(span.attributes, expected);
    // A publisher's own spans are children of it.
    let seen = publisher.0.lock().unwrap();
    assert_eq!(*seen, slice::from_ref(&span.span_context));
}

#[tokio::test(start_paused = true)]
async fn links_are_bounded_and_lead_to_sampled_spans_only() {
    let unsampled = (1000..1100).map(|trace| traced("traced-bound", &parent(trace, "00")));
    let sampled = (1..=300).map(|trace| traced("traced-bound", &parent(trace, "01")));
    let messages: Vec<_> = unsampled.chain(sampled).collect();
    let spans = deliver(MemoryPublisher::new(), &messages, "traced-bound").await;
    let [span] = &spans[..] else {
        panic!("{} spans", spans.len())
    };
    let linked = span.links.iter().map(|link| link.span_context.trace_id());
    let expected = (1..=128u128).map(TraceId::from);
    assert!(linked.eq(expected));
    assert_eq!(span.links.dropped_count, 0);
    assert_eq!(
        attribute(span, "messaging.batch.message_count"),
        Some(Value::I64(400))
    );
}

#[tokio::test(start_paused = true)]
async fn a_wave_without_a_sampled_trace_has_no_span() {
    let messages = [
        traced("traced-not", &parent(1, "00")),
        traced("traced-not", "malformed"),
        Message::to("traced-not").tombstone().unwrap(),
    ];
    let publisher = Watching::default();
    let spans = deliver(publisher.clone(), &messages, "traced-not").await;
    assert!(spans.is_empty());
    assert_eq!(publisher.0.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_span_fails_with_the_first_message_that_is_not_confirmed() {
    let broker = FakeBroker::new(|message| match message.topic() {
        "traced-bad" => Act::Answer(Err(PublishError::rejected("too large"))),
        _ => Act::Answer(Ok(())),
    });
    let messages = [
        traced("traced-good", &parent(1, "01")),
        traced("traced-bad", &parent(2, "01")),
        traced("traced-bad", &parent(3, "01")),
    ];
    let spans = deliver(broker.clone(), &messages[1..2], "traced-bad").await;
    let [alone] = &spans[..] else {
        panic!("{} spans", spans.len())
    };
    let id = messages[1].id().to_string();
    assert_eq!(attribute(alone, "messaging.message.id"), Some(id.into()));
    assert_eq!(attribute(alone, "messaging.batch.message_count"), None);
    assert_eq!(attribute(alone, "error.type"), Some("rejected".into()));

    // Of several topics none is the destination.
    let mut spans = deliver(broker, &messages, "publish").await;
    spans.retain(|span| {
        span.links
            .iter()
            .any(|link| link.span_context.trace_id() == TraceId::from(3u128))
    });
    let [mixed] = &spans[..] else {
        panic!("{} spans", spans.len())
    };
    assert_eq!(attribute(mixed, "messaging.destination.name"), None);
    assert_eq!(
        mixed.status,
        Status::error("2 of 3 messages not confirmed: too large")
    );
}
