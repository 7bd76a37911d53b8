//! What the relay tells through `tracing`, as lines.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

/// Captures what this thread tells until it is dropped.
pub(crate) struct Log {
    lines: Arc<Mutex<Vec<(Level, String)>>>,
    _guard: DefaultGuard,
}

impl Log {
    pub(crate) fn capture() -> Self {
        let lines = Arc::default();
        let _guard = tracing::subscriber::set_default(Capture(Arc::clone(&lines)));
        Self { lines, _guard }
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        lines.iter().map(|(_, line)| line.clone()).collect()
    }

    pub(crate) fn count(&self, level: Level, text: &str) -> usize {
        let lines = self.lines.lock().unwrap();
        lines
            .iter()
            .filter(|(at, line)| *at == level && line.contains(text))
            .count()
    }
}

struct Capture(Arc<Mutex<Vec<(Level, String)>>>);

impl Subscriber for Capture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("outbox_core")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line::default();
        span.record(&mut line);
        self.0
            .lock()
            .unwrap()
            .push((*span.metadata().level(), line.0));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0
            .lock()
            .unwrap()
            .push((*event.metadata().level(), line.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}
