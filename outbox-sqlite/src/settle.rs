//! How a claim ends: every row that it holds goes to its one place, in one short transaction.
//!
//! The plan is made here, without I/O, from the outcomes; then one statement moves all the rows that
//! move alike. Usually that is one delete and the commit. Between the read and the settle nobody else
//! moves these rows: claims have their lanes to themselves, producers only add, and people decide about
//! dead messages only. A decision may block or free a line meanwhile, so what is done to lines asks the
//! tables how they are.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use outbox_core::{Claimed, Outcome, PublishError, PublishErrorKind};
use serde_json::{Value, json};
use sqlx::{Connection as _, SqliteConnection};
use tokio::time::Instant;

use crate::claim::{Held, Place, SqliteClaim};
use crate::statements::{Statement, Statements};
use crate::store::{Shared, is_busy};

/// Rows that were gone when they were settled. Anything but zero wants a person.
const MISSING_ROWS: &str = "outbox_sqlite_missing_rows_total";

/// The longest time for which a message is parked: a thousand years, which keeps sums of times finite.
const LONGEST_PARK: Duration = Duration::from_secs(1_000 * 365 * 24 * 3600);

/// What a settle does, worked out before the first statement.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    /// Positions of hot and of due rows that leave their table.
    remove: Rows,
    /// What is kept of those of them that are given up.
    dead_hot: Vec<Value>,
    dead_due: Vec<Value>,
    /// The next state of lines that failed.
    block: BTreeMap<i64, Block>,
    /// Up to which position lanes are searched for rows of blocked lines.
    aside: BTreeMap<u32, i64>,
    counters: Vec<Value>,
    /// Lines that were due and have not failed again.
    passed: Vec<i64>,
}

#[derive(Debug, Default, PartialEq)]
struct Rows {
    hot: Vec<i64>,
    due: Vec<i64>,
}

/// A line's next state in `blocked`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    /// Milliseconds; `None` halts the line.
    after: Option<i64>,
    error: PublishError,
}

impl Plan {
    fn new(held: &Held, outcomes: Vec<Outcome>) -> Self {
        let mut plan = Self {
            aside: held.aside.clone(),
            ..Self::default()
        };
        // Due lines of which something was released keep their head and stay due.
        let mut untouched: HashSet<i64> = HashSet::new();
        for ((claimed, place), outcome) in held.messages.iter().zip(&held.places).zip(outcomes) {
            match outcome {
                Outcome::Delivered => plan.remove(place),
                Outcome::Park {
                    after,
                    counted,
                    error,
                } => {
                    plan.counters.push(json!({
                        "position": place.position,
                        "parked": claimed.parked.saturating_add(1),
                        "failures": claimed.failures.saturating_add(u32::from(counted)),
                    }));
                    let after = Some(millis(after));
                    plan.block(place, Block { after, error });
                    plan.set_aside(place);
                }
                Outcome::Dead { error, halt } => plan.give_up(claimed, place, error, halt),
                Outcome::Behind | Outcome::Released if place.due => {
                    untouched.insert(place.line);
                }
                // Whether it has something to wait behind is asked when that has been written.
                Outcome::Behind | Outcome::Released => plan.set_aside(place),
            }
        }
        for broken in &held.broken {
            let reason = format!("cannot be decoded: {}", broken.reason);
            let error = PublishError::new(PublishErrorKind::Rejected, reason);
            plan.bury(&broken.place, (0, 0), &error, false);
        }
        plan.passed = held
            .due_lines
            .iter()
            .filter(|line| !plan.block.contains_key(line) && !untouched.contains(line))
            .copied()
            .collect();
        // Lanes without a line that was blocked, now or before, have nothing to set aside.
        let lanes: HashSet<i64> = plan.block.keys().map(|line| line & 63).collect();
        plan.aside
            .retain(|lane, _| held.aside.contains_key(lane) || lanes.contains(&i64::from(*lane)));
        plan
    }

    fn remove(&mut self, place: &Place) {
        match place.due {
            true => self.remove.due.push(place.position),
            false => self.remove.hot.push(place.position),
        }
    }

    fn set_aside(&mut self, place: &Place) {
        if !place.due {
            let up_to = self.aside.entry(place.lane()).or_insert(place.position);
            *up_to = place.position.max(*up_to);
        }
    }

    fn give_up(&mut self, claimed: &Claimed, place: &Place, error: PublishError, halt: bool) {
        // A message without a key has none that could wait for it.
        let halt = halt && claimed.message.key().is_some();
        let counters = (claimed.parked, claimed.failures.saturating_add(1));
        self.bury(place, counters, &error, halt);
        if halt {
            self.block(place, Block { after: None, error });
        }
    }

    fn bury(&mut self, place: &Place, counters: (u32, u32), error: &PublishError, halt: bool) {
        let dead = json!({
            "position": place.position,
            "parked": counters.0,
            "failures": counters.1,
            "error_kind": error.kind().as_str(),
            "error": error.reason(),
            "halted": u8::from(halt),
        });
        match place.due {
            true => self.dead_due.push(dead),
            false => self.dead_hot.push(dead),
        }
        self.remove(place);
    }

    /// A line has one row in `blocked`. Where several of its messages failed, which only happens without
    /// order, the first stands for the line, and a halt outweighs a time.
    fn block(&mut self, place: &Place, block: Block) {
        self.block
            .entry(place.line)
            .and_modify(|first| {
                if block.after.is_none() {
                    *first = block.clone();
                }
            })
            .or_insert(block);
    }

    async fn write(
        &self,
        statements: &Statements,
        conn: &mut SqliteConnection,
    ) -> Result<(), sqlx::Error> {
        run(&statements.settle_dead_hot, &self.dead_hot, conn).await?;
        run(&statements.settle_dead_due, &self.dead_due, conn).await?;
        for (statement, positions) in [
            (&statements.settle_remove_hot, &self.remove.hot),
            (&statements.settle_remove_due, &self.remove.due),
        ] {
            let removed = run(statement, positions, conn).await?;
            report_missing(positions.len(), removed);
        }
        let block: Vec<Value> = self.block.iter().map(Block::to_json).collect();
        run(&statements.settle_block, &block, conn).await?;
        for (lane, up_to) in &self.aside {
            for statement in [
                &statements.settle_set_aside,
                &statements.settle_set_aside_remove,
            ] {
                let query = statement.query().bind(lane).bind(up_to);
                query.execute(&mut *conn).await?;
            }
        }
        run(&statements.settle_counters, &self.counters, conn).await?;
        run(&statements.promote, &self.passed, conn).await?;
        run(&statements.unblock, &self.passed, conn).await?;
        Ok(())
    }
}

impl Block {
    fn to_json((line, block): (&i64, &Self)) -> Value {
        json!({
            "line": line,
            "after": block.after,
            "error_kind": block.error.kind().as_str(),
            "error": block.error.reason(),
        })
    }
}

impl SqliteClaim {
    /// Settles and ends the claim, in a task of its own, so that it goes on when the caller does not wait
    /// for it, and the lanes are not free before it has ended.
    pub(crate) async fn record(
        self,
        outcomes: Vec<Outcome>,
        until: Instant,
    ) -> Result<(), sqlx::Error> {
        let plan = Plan::new(&self.held, outcomes);
        if plan == Plan::default() {
            return Ok(());
        }
        let task = tokio::spawn(async move {
            let recorded = self.shared.write(&plan, until).await;
            drop(self.hold);
            recorded
        });
        task.await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
    }
}

impl Shared {
    /// Writes a plan down, all or none. Another writer is waited for until `until`, and then a last time
    /// as long as the busy timeout says.
    async fn write(&self, plan: &Plan, until: Instant) -> Result<(), sqlx::Error> {
        let mut writer = self.writer.lock().await;
        loop {
            let mut conn = match writer.take() {
                Some(conn) => conn,
                None => self.connect().await?,
            };
            let written = self.write_once(plan, &mut conn).await;
            let busy = written.as_ref().is_err_and(is_busy);
            if busy || written.is_ok() {
                *writer = Some(conn);
            }
            if !busy || Instant::now() >= until {
                return written;
            }
        }
    }

    async fn write_once(
        &self,
        plan: &Plan,
        conn: &mut SqliteConnection,
    ) -> Result<(), sqlx::Error> {
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
        match plan.write(&self.statements, &mut tx).await {
            Ok(()) => tx.commit().await,
            Err(error) => {
                // The first error says more than one of the rollback.
                let _ = tx.rollback().await;
                Err(error)
            }
        }
    }
}

/// Runs a statement with a JSON array, unless that is empty. How many rows it changed.
pub(crate) async fn run<T: Clone + Into<Value>>(
    statement: &Statement,
    rows: &[T],
    conn: &mut SqliteConnection,
) -> Result<u64, sqlx::Error> {
    if rows.is_empty() {
        return Ok(0);
    }
    let array = Value::from(rows).to_string();
    let done = statement.query().bind(array).execute(conn).await?;
    Ok(done.rows_affected())
}

/// Rows that are gone although this claim held their lane were deleted by hand, or an invariant is
/// broken. The others are settled all the same.
fn report_missing(expected: usize, found: u64) {
    if found != expected as u64 {
        metrics::counter!(MISSING_ROWS).increment((expected as u64).saturating_sub(found));
        tracing::error!(
            expected,
            found,
            "rows that this claim held are gone: deleted by hand, or a fault"
        );
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.min(LONGEST_PARK).as_millis()).unwrap_or(i64::MAX)
}
