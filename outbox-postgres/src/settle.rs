//! How a claim ends: every row that it holds goes to its one place, in one transaction.
//!
//! What is to be done is worked out from the outcomes in `settle/plan.rs`; here one statement moves all
//! the rows that move alike. Usually that is one delete and the commit.

mod plan;

use std::time::{Duration, Instant};

use outbox_core::Outcome;

use crate::claim::{Place, PostgresClaim};
use crate::scan::EMPTY;
use crate::session::SessionError;
use crate::statements::column;
use plan::{Dead, Plan};

/// A floor is written at most so often for one lane, and only when it has moved so far: every write
/// leaves a dead version of the row that each claim locks.
const FLOOR_EVERY: Duration = Duration::from_secs(600);
const FLOOR_DISTANCE: i64 = 100_000;

/// How often a session asks whether lanes with blocked keys have none any more. Each change leaves a dead
/// version of the lane's row.
const UNBLOCK_EVERY: Duration = Duration::from_secs(60);

impl PostgresClaim {
    /// Settles, commits and gives the session back. On any error the session is dropped, and its
    /// connection with it.
    pub(crate) async fn settle_in_place(
        mut self,
        outcomes: Vec<Outcome>,
    ) -> Result<(), SessionError> {
        let released = outcomes.contains(&Outcome::Released);
        let plan = Plan::new(
            &self.messages,
            &self.places,
            outcomes,
            &self.followers,
            &self.broken,
            &self.due_keys,
        );
        self.remove_delivered(&plan).await?;
        self.park(&plan).await?;
        self.record_dead(&plan).await?;
        self.block(&plan).await?;
        self.count(&plan).await?;
        self.promote(&plan).await?;

        self.unblock().await?;

        let cleared = self.cleared(&plan);
        let floors = self.floors(&cleared);
        if !floors.is_empty() {
            self.shared
                .statements
                .settle_floor
                .query()
                .bind(column(&floors, |(lane, _)| *lane))
                .bind(column(&floors, |(_, floor)| *floor))
                .execute(&mut self.session.connection)
                .await?;
        }
        if let Some(lane) = self.suspect
            && !released
        {
            self.acquit(lane).await?;
        }
        self.session.commit().await?;
        self.pass.committed();

        self.shared.knowledge().settled(&self.view, &cleared);
        for (lane, _) in floors {
            self.session.floor_written[lane as usize] = Some(Instant::now());
        }
        self.shared.put_back(self.session);
        Ok(())
    }

    async fn remove_delivered(&mut self, plan: &Plan) -> Result<(), SessionError> {
        let (due, hot): (Vec<Place>, Vec<Place>) = plan
            .delivered
            .iter()
            .copied()
            .partition(|place| place.is_due());
        let statements = &self.shared.statements;
        let (of_hot, of_due) = match self.shared.options.keep_delivered_for {
            None => (
                &statements.settle_delivered,
                &statements.settle_parked_delivered,
            ),
            Some(_) => (&statements.settle_kept, &statements.settle_parked_kept),
        };
        if !hot.is_empty() {
            let done = of_hot
                .query()
                .bind(column(&hot, |place| place.hot.map(|tid| tid.to_string())))
                .bind(column(&hot, |place| place.position))
                .execute(&mut self.session.connection)
                .await?;
            report_missing("delivered", hot.len(), done.rows_affected());
        }
        if !due.is_empty() {
            let done = of_due
                .query()
                .bind(column(&due, |place| place.key_hash))
                .bind(column(&due, |place| place.position))
                .execute(&mut self.session.connection)
                .await?;
            report_missing("delivered after parking", due.len(), done.rows_affected());
        }
        Ok(())
    }

    async fn park(&mut self, plan: &Plan) -> Result<(), SessionError> {
        if plan.park.is_empty() {
            return Ok(());
        }
        let done = self
            .shared
            .statements
            .settle_park
            .query()
            .bind(column(&plan.park, |place| place.lane))
            .bind(column(&plan.park, |place| place.position))
            .execute(&mut self.session.connection)
            .await?;
        report_missing("parked", plan.park.len(), done.rows_affected());
        Ok(())
    }

    async fn record_dead(&mut self, plan: &Plan) -> Result<(), SessionError> {
        let (due, hot): (Vec<&Dead>, Vec<&Dead>) =
            plan.dead.iter().partition(|dead| dead.place.is_due());
        let statements = &self.shared.statements;
        for (dead, is_due) in [(hot, false), (due, true)] {
            if dead.is_empty() {
                continue;
            }
            let dead = || dead.iter().copied();
            let query = if is_due {
                let keys = column(dead(), |dead| dead.place.key_hash);
                statements.settle_parked_dead.query().bind(keys)
            } else {
                let lanes = column(dead(), |dead| dead.place.lane);
                statements.settle_dead.query().bind(lanes)
            };
            let done = query
                .bind(column(dead(), |dead| dead.place.position))
                .bind(column(dead(), |dead| dead.parked))
                .bind(column(dead(), |dead| dead.failures))
                .bind(column(dead(), |dead| dead.error_kind))
                .bind(column(dead(), |dead| dead.error.as_str()))
                .bind(column(dead(), |dead| dead.halted))
                .execute(&mut self.session.connection)
                .await?;
            report_missing("given up", dead().count(), done.rows_affected());
        }
        Ok(())
    }

    async fn block(&mut self, plan: &Plan) -> Result<(), SessionError> {
        let statements = &self.shared.statements;
        if !plan.block.is_empty() {
            let blocks = || plan.block.values();
            statements
                .settle_block
                .query()
                .bind(column(plan.block.keys(), |key_hash| *key_hash))
                .bind(column(blocks(), |block| block.head))
                .bind(column(blocks(), |block| block.after))
                .bind(column(blocks(), |block| block.tried))
                .bind(column(blocks(), |block| block.parked))
                .bind(column(blocks(), |block| block.failures))
                .bind(column(blocks(), |block| block.error.kind().as_str()))
                .bind(column(blocks(), |block| block.error.reason()))
                .execute(&mut self.session.connection)
                .await?;
        }
        if !plan.lower.is_empty() {
            statements
                .settle_lower_head
                .query()
                .bind(column(plan.lower.keys(), |key_hash| *key_hash))
                .bind(column(plan.lower.values(), |head| *head))
                .execute(&mut self.session.connection)
                .await?;
        }
        Ok(())
    }

    async fn count(&mut self, plan: &Plan) -> Result<(), SessionError> {
        if plan.counters.is_empty() {
            return Ok(());
        }
        self.shared
            .statements
            .settle_counters
            .query()
            .bind(column(&plan.counters, |counted| counted.key_hash))
            .bind(column(&plan.counters, |counted| counted.position))
            .bind(column(&plan.counters, |counted| counted.parked))
            .bind(column(&plan.counters, |counted| counted.failures))
            .execute(&mut self.session.connection)
            .await?;
        Ok(())
    }

    async fn promote(&mut self, plan: &Plan) -> Result<(), SessionError> {
        if plan.promote.is_empty() {
            return Ok(());
        }
        self.shared
            .statements
            .settle_promote
            .query()
            .bind(column(&plan.promote, |(key_hash, _)| *key_hash))
            .bind(column(&plan.promote, |(_, head)| *head))
            .execute(&mut self.session.connection)
            .await?;
        Ok(())
    }

    /// None of what this claim of a suspect lane held was the cause of anything.
    async fn acquit(&mut self, lane: usize) -> Result<(), SessionError> {
        let read_to_its_end = self
            .lanes
            .iter()
            .any(|read| read.lane == lane && read.up_to == EMPTY);
        let held = self.places.len() + self.followers.len() + self.broken.len();
        self.shared
            .statements
            .settle_suspects
            .query()
            .bind(lane as i16)
            .bind(match read_to_its_end {
                true => i32::MAX,
                false => i32::try_from(held).unwrap_or(i32::MAX),
            })
            .execute(&mut self.session.connection)
            .await?;
        Ok(())
    }

    /// Now and then, when nothing of a lane is blocked any more, the next claims may know.
    async fn unblock(&mut self) -> Result<(), SessionError> {
        let asked = self.session.unblocked;
        if self.blocked_lanes.is_empty() || asked.is_some_and(|at| at.elapsed() < UNBLOCK_EVERY) {
            return Ok(());
        }
        self.shared
            .statements
            .settle_unblock
            .query()
            .bind(&self.blocked_lanes)
            .execute(&mut self.session.connection)
            .await?;
        self.session.unblocked = Some(Instant::now());
        Ok(())
    }

    /// How far each lane that was read is cleared once this settle has committed.
    fn cleared(&self, plan: &Plan) -> Vec<(usize, i64)> {
        self.lanes
            .iter()
            .map(|read| {
                let first_kept = plan
                    .kept
                    .iter()
                    .filter(|place| place.lane as usize == read.lane)
                    .map(|place| place.position - 1)
                    .min();
                (read.lane, read.up_to.min(first_kept.unwrap_or(EMPTY)))
            })
            .collect()
    }

    /// The floors that are worth writing now.
    fn floors(&self, cleared: &[(usize, i64)]) -> Vec<(i16, i64)> {
        let session = &self.session;
        cleared
            .iter()
            .filter(|(lane, _)| {
                session.floor_written[*lane].is_none_or(|written| written.elapsed() >= FLOOR_EVERY)
            })
            .map(|&(lane, up_to)| (lane, self.view.safe_floor(up_to)))
            .filter(|&(lane, floor)| floor - self.view.floor_of(lane) >= FLOOR_DISTANCE)
            .map(|(lane, floor)| (lane as i16, floor))
            .collect()
    }
}

/// Rows that were gone when they were settled. Anything but zero wants a person.
const MISSING_ROWS: &str = "outbox_postgres_missing_rows_total";

/// Rows that are gone although this claim held their lane were deleted by hand, or an invariant is
/// broken. The others are settled all the same.
fn report_missing(what: &'static str, expected: usize, found: u64) {
    if found != expected as u64 {
        let missing = (expected as u64).saturating_sub(found);
        metrics::counter!(MISSING_ROWS).increment(missing);
        tracing::error!(
            what,
            expected,
            found,
            "rows that this claim held are gone: deleted by hand, or a fault"
        );
    }
}
