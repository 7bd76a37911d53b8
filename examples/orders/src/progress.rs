//! How far the run is, in messages: a line that is rewritten on a terminal, a line a second elsewhere.

use std::convert::Infallible;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What was done so far, counted by those who do it.
#[derive(Debug, Default)]
pub struct Progress {
    /// How many messages there will be.
    pub total: u64,
    /// Messages in committed transactions.
    pub written: AtomicU64,
    /// Committed messages that have left the outbox.
    pub delivered: AtomicU64,
    /// Messages that the consumer has read.
    pub read: AtomicU64,
    /// Transactions that were rolled back on purpose.
    pub rolled_back: AtomicU64,
    /// Savepoints that were rolled back on purpose.
    pub rolled_back_savepoints: AtomicU64,
}

impl Progress {
    /// Nothing of so many messages yet.
    pub fn of(total: u64) -> Self {
        Self {
            total,
            ..Self::default()
        }
    }

    /// Shows it until the call is dropped, and then for the last time.
    pub async fn show(&self) -> Infallible {
        let mut line = Line::new(self);
        let every = match line.rewritten {
            true => Duration::from_millis(200),
            false => Duration::from_secs(1),
        };
        loop {
            tokio::time::sleep(every).await;
            line.print();
        }
    }
}

struct Line<'a> {
    written: Meter<'a>,
    delivered: Meter<'a>,
    read: Meter<'a>,
    total: u64,
    rewritten: bool,
}

impl<'a> Line<'a> {
    fn new(progress: &'a Progress) -> Self {
        Self {
            written: Meter::new(&progress.written),
            delivered: Meter::new(&progress.delivered),
            read: Meter::new(&progress.read),
            total: progress.total,
            rewritten: stderr().is_terminal(),
        }
    }

    fn print(&mut self) {
        let line = format!(
            "written {}, delivered {}, read back {} of {} messages",
            self.written.text(),
            self.delivered.text(),
            self.read.text(),
            self.total
        );
        // A terminal that went away is no reason to end.
        let _ = match self.rewritten {
            true => write!(stderr(), "\r\x1b[K{line}"),
            false => writeln!(stderr(), "{line}"),
        };
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        self.print();
        if self.rewritten {
            let _ = writeln!(stderr());
        }
    }
}

/// A count and its rate up to the last time that it was seen to grow.
struct Meter<'a> {
    count: &'a AtomicU64,
    seen: u64,
    start: Instant,
    grown: Instant,
}

impl<'a> Meter<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        let now = Instant::now();
        Self {
            count,
            seen: 0,
            start: now,
            grown: now,
        }
    }

    fn text(&mut self) -> String {
        let count = self.count.load(Relaxed);
        if count > self.seen {
            (self.seen, self.grown) = (count, Instant::now());
        }
        let seconds = (self.grown - self.start).as_secs_f64();
        let rate = match seconds > 0.0 {
            true => count as f64 / seconds,
            false => 0.0,
        };
        format!("{count} ({rate:.0}/s)")
    }
}
