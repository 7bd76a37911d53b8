//! Enqueues delayed messages when they are due: a short transaction that moves some of them to `message`.
//!
//! It is in a task of its own, one at a time, since it waits for other writers and a claim does not. What is
//! due is left in its place until it has committed, so nothing is lost when the process dies meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::{Connection as _, Row as _, SqliteConnection};
use tokio::time::sleep;

use crate::settle::run;
use crate::store::{Shared, is_busy};
use crate::wake;

/// One transaction moves so many messages, and so many bytes of them unless one alone has more.
const MOST_MESSAGES: i64 = 1_000;
const MOST_BYTES: i64 = 16 * 1024 * 1024;
/// The pause after a failure.
const FAILED: Duration = Duration::from_secs(1);

/// The task has ended, or was ended.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.moving.store(false, Ordering::Release);
    }
}

/// How long until the next delayed message is due; zero when one is.
pub(crate) async fn due_in(
    shared: &Shared,
    conn: &mut SqliteConnection,
) -> Result<Option<Duration>, sqlx::Error> {
    let next = shared.statements.delayed_next.query();
    let Some(row) = next.fetch_optional(conn).await? else {
        return Ok(None);
    };
    let millis: i64 = row.try_get(0)?;
    Ok(Some(Duration::from_millis(
        u64::try_from(millis).unwrap_or_default(),
    )))
}

/// Starts to enqueue what is due, unless that is under way. The store is woken when it is done.
pub(crate) fn deliver(shared: &Arc<Shared>) {
    if shared.moving.swap(true, Ordering::Acquire) {
        return;
    }
    let ended = Ended(Arc::clone(shared));
    tokio::spawn(async move {
        match ended.0.deliver_due().await {
            Ok(()) => {}
            Err(error) if is_busy(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "delayed messages that are due cannot be enqueued");
                // wait: so that a lasting failure is not tried in a loop
                sleep(FAILED).await;
            }
        }
        drop(ended);
        wake::soon();
    });
}

impl Shared {
    async fn deliver_due(&self) -> Result<(), sqlx::Error> {
        let mut writer = self.writer.lock().await;
        let mut conn = match writer.take() {
            Some(conn) => conn,
            None => self.connect().await?,
        };
        let moved = self.move_due(&mut conn).await;
        if moved.as_ref().map_or_else(is_busy, |()| true) {
            *writer = Some(conn);
        }
        moved
    }

    async fn move_due(&self, conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
        let due = self.statements.delayed_due.query();
        let due = due.bind(MOST_MESSAGES).bind(MOST_BYTES);
        let numbers: Result<Vec<i64>, sqlx::Error> = match due.fetch_all(&mut *tx).await {
            Ok(rows) => rows.iter().map(|row| row.try_get(0)).collect(),
            Err(error) => Err(error),
        };
        let moved = match numbers {
            Ok(numbers) => match run(&self.statements.deliver_due, &numbers, &mut tx).await {
                Ok(_) => run(&self.statements.deliver_due_remove, &numbers, &mut tx).await,
                failed => failed,
            },
            Err(error) => Err(error),
        };
        match moved {
            Ok(_) => tx.commit().await,
            Err(error) => {
                // The first error says more than one of the rollback.
                let _ = tx.rollback().await;
                Err(error)
            }
        }
    }
}
