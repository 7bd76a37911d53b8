//! The consumer's record, and how it goes on after its server was away.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::Result;
use crate::broker::{Broker, is_probe};
use crate::record::{Arrival, Content};
use crate::timeline::Timeline;

/// All that a consumer got.
pub(crate) struct Recorder {
    timeline: Arc<Timeline>,
    stop: AtomicBool,
    record: Mutex<Record>,
}

#[derive(Default)]
struct Record {
    arrivals: Vec<Arrival>,
    different: HashSet<Uuid>,
    /// What was not as the wire contract says.
    strange: Option<String>,
}

impl Recorder {
    pub(crate) fn new(timeline: Arc<Timeline>) -> Self {
        Self {
            timeline,
            stop: AtomicBool::new(false),
            record: Mutex::default(),
        }
    }

    /// Whether nothing more is wanted.
    pub(crate) fn is_done(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Records a copy that arrived now: its id and content, or why these cannot be read.
    pub(crate) fn arrived(&self, read: Result<(Uuid, Content)>, partition: i32, redelivered: bool) {
        let at = self.timeline.now();
        let mut record = self.lock();
        match read {
            Ok((id, _)) if is_probe(id) => {}
            Ok((id, content)) => {
                record.different.insert(id);
                record.arrivals.push(Arrival {
                    at,
                    id,
                    content,
                    partition,
                    redelivered,
                });
            }
            Err(error) => record.strange = Some(format!("{at:.3?}: {error}")),
        }
    }

    /// All copies so far.
    pub(crate) fn copies(&self) -> usize {
        self.lock().arrivals.len()
    }

    /// Different messages so far.
    pub(crate) fn messages(&self) -> usize {
        self.lock().different.len()
    }

    /// The copies, of which a sampling run keeps none.
    pub(crate) fn take(&self) -> Vec<Arrival> {
        std::mem::take(&mut self.lock().arrivals)
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A consumer that runs.
pub(crate) struct Consumer {
    pub(crate) recorder: Arc<Recorder>,
    running: JoinHandle<()>,
}

impl Consumer {
    pub(crate) fn start(broker: Arc<dyn Broker>, timeline: Arc<Timeline>) -> Self {
        let recorder = Arc::new(Recorder::new(timeline));
        let running = tokio::spawn({
            let recorder = Arc::clone(&recorder);
            async move {
                while !recorder.is_done() {
                    // Its server is away, which is what this is about.
                    let _ = broker.consume(&recorder).await;
                    sleep(Duration::from_millis(100)).await; // wait: the pause between two tries
                }
            }
        });
        Self { recorder, running }
    }

    /// Waits until it has so many different messages. Gives up when nothing has come for a while.
    pub(crate) async fn catch_up(&self, messages: usize) {
        const SILENCE: Duration = Duration::from_secs(15);
        let (mut copies, mut since) = (self.recorder.copies(), tokio::time::Instant::now());
        while self.recorder.messages() < messages && since.elapsed() < SILENCE {
            sleep(Duration::from_millis(50)).await; // wait: the poll of a bounded loop
            let now = self.recorder.copies();
            if now != copies {
                (copies, since) = (now, tokio::time::Instant::now());
            }
        }
    }

    /// Ends it; all that it got, and what was wrong with that.
    pub(crate) async fn stop(self) -> (Vec<Arrival>, Result<()>) {
        self.recorder.stop.store(true, Ordering::Relaxed);
        let ended = timeout(Duration::from_secs(60), self.running).await;
        let mut record = self.recorder.lock();
        let strange = record.strange.take();
        let verdict = match (ended, strange) {
            (Err(_), _) => Err("it does not end".into()),
            (Ok(Err(error)), _) => Err(error.into()),
            (Ok(Ok(())), Some(strange)) => {
                Err(format!("a record that breaks the wire contract: {strange}").into())
            }
            (Ok(Ok(())), None) => Ok(()),
        };
        (std::mem::take(&mut record.arrivals), verdict)
    }
}
