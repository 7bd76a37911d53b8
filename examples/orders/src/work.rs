//! What the runs of all examples have in common, whatever their database: many orders at the same time,
//! and a watch over the outbox until they are delivered.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::audit::Audit;
use crate::{Error, Event, Progress};

/// When nothing leaves the outbox for so long, the audit is made with what there is.
pub const LONGEST_STALL: Duration = Duration::from_secs(60);

/// Places the orders of these numbers, so many at the same time.
pub async fn place_all<P>(
    orders: Range<u64>,
    at_once: usize,
    place: impl Fn(u64) -> P + Clone + Send + 'static,
) -> Result<(), Error>
where
    P: Future<Output = Result<(), Error>> + Send,
{
    let next = Arc::new(AtomicU64::new(orders.start));
    let mut tasks: JoinSet<Result<(), Error>> = JoinSet::new();
    for _ in 0..at_once {
        let (orders, next, place) = (orders.clone(), Arc::clone(&next), place.clone());
        tasks.spawn(async move {
            loop {
                let order = next.fetch_add(1, Relaxed);
                if !orders.contains(&order) {
                    return Ok(());
                }
                place(order).await?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// How many messages are in the outbox.
pub struct Left {
    /// Those that are still to be delivered, parked ones among them.
    pub waiting: u64,
    /// Those that were given up.
    pub dead: u64,
}

/// Looks at the outbox until everything was written and nothing waits in it any more.
pub async fn wait_until_all_left(
    progress: &Progress,
    mut look: impl AsyncFnMut() -> Result<Left, Error>,
) -> Result<(), Error> {
    let mut before = (0, 0);
    let mut changed = Instant::now();
    loop {
        // Read first, so that what it says is committed is seen by the look at the outbox.
        let written = progress.written.load(Relaxed);
        let Left { waiting, dead } = look().await?;
        let delivered = written.saturating_sub(waiting + dead);
        progress.delivered.fetch_max(delivered, Relaxed);

        if written == progress.total && waiting == 0 {
            return Ok(());
        }
        if before != (written, waiting) {
            (before, changed) = ((written, waiting), Instant::now());
        } else if changed.elapsed() > LONGEST_STALL {
            let seconds = LONGEST_STALL.as_secs();
            eprintln!(
                "{waiting} messages wait, and none left the outbox for {seconds} s: giving up"
            );
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What was done, in the line above the audit; `how` is the word for what the consumer did.
pub fn summary(
    progress: &Progress,
    audit: &Audit,
    committed: &[Event],
    read: &[Event],
    how: &str,
) -> String {
    format!(
        "{} messages of {} orders committed, {} {how}, {} of them repeats; \
         rolled back on purpose: {} transactions, {} savepoints",
        committed.len(),
        audit.committed,
        read.len(),
        audit.repeats,
        progress.rolled_back.load(Relaxed),
        progress.rolled_back_savepoints.load(Relaxed),
    )
}
