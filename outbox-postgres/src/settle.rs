//! How a claim ends: every row that it holds goes to its one place, in one transaction.
//!
//! The plan is made here, without I/O, from the outcomes; then one statement moves all the rows that
//! move alike. Usually that is one delete and the commit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use outbox_core::{Claimed, Outcome, PublishError, PublishErrorKind};

use crate::claim::{Broken, Counted, DueKey, Follower, Place, PostgresClaim};
use crate::scan::EMPTY;
use crate::session::SessionError;

/// A floor is written at most so often for one lane, and only when it has moved so far: every write
/// leaves a dead version of the row that each claim locks.
const FLOOR_EVERY: Duration = Duration::from_secs(600);
const FLOOR_DISTANCE: i64 = 100_000;

/// A key's next state in `blocked`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    head: i64,
    /// Microseconds; `None` halts the key.
    after: Option<i64>,
    tried: i64,
    parked: i32,
    failures: i32,
    error: PublishError,
}

/// A message that is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Dead {
    place: Place,
    parked: i32,
    failures: i32,
    error_kind: &'static str,
    error: String,
    halted: bool,
}

/// What a settle does, worked out before the first statement.
#[derive(Debug, Default)]
struct Plan {
    delivered: Vec<Place>,
    /// Hot rows that move to `parked`.
    park: Vec<Place>,
    dead: Vec<Dead>,
    block: BTreeMap<i64, Block>,
    /// What was counted for messages that do not stand for their key in `blocked`, or no longer. That
    /// happens without order, and where a late commit parks in front of a head.
    counters: Vec<Counted>,
    /// Keys whose head has gone, with a position that nothing parked of the key lies below.
    promote: Vec<(i64, i64)>,
    /// Late followers that lie below the head of their key, which stays blocked as it is.
    lower: Vec<(i64, i64)>,
    /// Hot rows that stay where they are.
    kept: Vec<Place>,
}

impl Plan {
    fn new(
        messages: &[Claimed],
        places: &[Place],
        outcomes: Vec<Outcome>,
        followers: &[Follower],
        broken: &[Broken],
        due_keys: &HashMap<i64, DueKey>,
    ) -> Self {
        let mut plan = Self::default();
        // Due keys of which something was released keep their head and stay due.
        let mut untouched: HashSet<i64> = HashSet::new();
        let mut behind: Vec<Place> = Vec::new();
        for ((claimed, place), outcome) in messages.iter().zip(places).zip(outcomes) {
            match outcome {
                Outcome::Delivered => plan.delivered.push(*place),
                Outcome::Park {
                    after,
                    counted,
                    error,
                } => {
                    plan.park_head(claimed, *place, after, counted, error);
                }
                Outcome::Dead { error, halt } => plan.give_up(claimed, *place, error, halt),
                Outcome::Behind => behind.push(*place),
                Outcome::Released if place.due => {
                    untouched.insert(place.key_hash);
                }
                Outcome::Released => plan.kept.push(*place),
            }
        }
        for broken in broken {
            plan.dead.push(Dead {
                place: broken.place,
                parked: 0,
                failures: 0,
                error_kind: PublishErrorKind::Rejected.as_str(),
                error: format!("cannot be decoded: {}", broken.reason),
                halted: false,
            });
        }
        // Behind a head that this claim parked or halted; else there is nothing to wait behind. What is
        // due lies in `parked` already.
        for place in behind {
            match (place.due, plan.block.get_mut(&place.key_hash)) {
                (true, _) => {}
                (false, Some(block)) => {
                    block.head = block.head.min(place.position);
                    plan.park.push(place);
                }
                (false, None) => plan.kept.push(place),
            }
        }
        let mut heads: HashMap<i64, i64> = due_keys
            .iter()
            .map(|(&key_hash, due)| (key_hash, due.head))
            .collect();
        for follower in followers {
            let place = follower.place;
            plan.park.push(place);
            if let Some(block) = plan.block.get_mut(&place.key_hash) {
                block.head = block.head.min(place.position);
            } else if let Some(head) = heads.get_mut(&place.key_hash) {
                *head = (*head).min(place.position);
            }
            if place.position < follower.head {
                plan.lower.push((place.key_hash, place.position));
            }
        }
        for (key_hash, head) in heads {
            if !plan.block.contains_key(&key_hash) && !untouched.contains(&key_hash) {
                plan.promote.push((key_hash, head));
            }
        }
        plan.keep_counters(due_keys, &untouched);
        let settled: HashSet<i64> = plan
            .block
            .keys()
            .copied()
            .chain(plan.promote.iter().map(|(key, _)| *key))
            .collect();
        plan.lower
            .retain(|(key_hash, _)| !settled.contains(key_hash));
        plan
    }

    fn park_head(
        &mut self,
        claimed: &Claimed,
        place: Place,
        after: Duration,
        counted: bool,
        error: PublishError,
    ) {
        if !place.due {
            self.park.push(place);
        }
        let block = Block {
            head: place.position,
            after: Some(micros(after)),
            tried: place.position,
            parked: to_i32(claimed.parked.saturating_add(1)),
            failures: to_i32(claimed.failures.saturating_add(u32::from(counted))),
            error,
        };
        if self.block.contains_key(&place.key_hash) {
            self.counters.push(Counted {
                key_hash: place.key_hash,
                position: place.position,
                parked: block.parked,
                failures: block.failures,
            });
        }
        self.block_key(place.key_hash, block);
    }

    /// Writes down in their own rows what was counted for messages that stood for their key until now,
    /// and are still there.
    fn keep_counters(&mut self, due_keys: &HashMap<i64, DueKey>, untouched: &HashSet<i64>) {
        let of = |place: &Place| (place.key_hash, place.position);
        let gone_or_counted: HashSet<(i64, i64)> = self
            .delivered
            .iter()
            .chain(self.dead.iter().map(|dead| &dead.place))
            .map(of)
            .chain(
                self.counters
                    .iter()
                    .map(|counted| (counted.key_hash, counted.position)),
            )
            .collect();
        for (key_hash, tried) in due_keys
            .iter()
            .filter_map(|(key, due)| Some((key, due.tried?)))
        {
            let stands = match self.block.get(key_hash) {
                Some(block) => block.tried == tried.position,
                None => untouched.contains(key_hash),
            };
            if !stands && !gone_or_counted.contains(&(*key_hash, tried.position)) {
                self.counters.push(tried);
            }
        }
    }

    fn give_up(&mut self, claimed: &Claimed, place: Place, error: PublishError, halt: bool) {
        if halt {
            let block = Block {
                head: place.position,
                after: None,
                tried: place.position,
                parked: to_i32(claimed.parked),
                failures: to_i32(claimed.failures.saturating_add(1)),
                error: error.clone(),
            };
            self.block_key(place.key_hash, block);
        }
        self.dead.push(Dead {
            place,
            parked: to_i32(claimed.parked),
            failures: to_i32(claimed.failures.saturating_add(1)),
            error_kind: error.kind().as_str(),
            error: error.reason().to_owned(),
            halted: halt,
        });
    }

    /// A key has one row in `blocked`. Where several of its messages failed, which only happens without
    /// order, the first stands for the key, and a halt outweighs a time.
    fn block_key(&mut self, key_hash: i64, block: Block) {
        self.block
            .entry(key_hash)
            .and_modify(|first| {
                first.head = first.head.min(block.head);
                if block.after.is_none() {
                    first.after = None;
                }
            })
            .or_insert(block);
    }
}

impl PostgresClaim {
    /// Settles, commits and gives the session back. On any error the session is dropped, and its
    /// connection with it.
    pub(crate) async fn settle_in_place(
        mut self,
        outcomes: Vec<Outcome>,
    ) -> Result<(), SessionError> {
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

        let cleared = self.cleared(&plan);
        let floors = self.floors(&cleared);
        if !floors.is_empty() {
            let (lanes, floors): (Vec<i16>, Vec<i64>) = floors.iter().copied().unzip();
            let statement = &self.shared.statements.settle_floor;
            statement
                .query()
                .bind(lanes)
                .bind(floors)
                .execute(&mut self.session.connection)
                .await?;
        }
        self.session.commit().await?;

        for &(lane, up_to) in &cleared {
            self.session.scan.read(lane, up_to);
        }
        for (lane, _) in floors {
            self.session.floor_written[lane as usize] = Some(Instant::now());
        }
        self.shared.put_back(self.session);
        Ok(())
    }

    async fn remove_delivered(&mut self, plan: &Plan) -> Result<(), SessionError> {
        let (due, hot): (Vec<Place>, Vec<Place>) =
            plan.delivered.iter().copied().partition(|place| place.due);
        if !hot.is_empty() {
            let done = self
                .shared
                .statements
                .settle_delivered
                .query()
                .bind(lanes(&hot))
                .bind(positions(&hot))
                .execute(&mut self.session.connection)
                .await?;
            self.report_missing("delivered", hot.len(), done.rows_affected());
        }
        if !due.is_empty() {
            let done = self
                .shared
                .statements
                .settle_parked_delivered
                .query()
                .bind(key_hashes(&due))
                .bind(positions(&due))
                .execute(&mut self.session.connection)
                .await?;
            self.report_missing("delivered after parking", due.len(), done.rows_affected());
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
            .bind(lanes(&plan.park))
            .bind(positions(&plan.park))
            .execute(&mut self.session.connection)
            .await?;
        self.report_missing("parked", plan.park.len(), done.rows_affected());
        Ok(())
    }

    async fn record_dead(&mut self, plan: &Plan) -> Result<(), SessionError> {
        let (due, hot): (Vec<&Dead>, Vec<&Dead>) =
            plan.dead.iter().partition(|dead| dead.place.due);
        for (dead, is_due) in [(hot, false), (due, true)] {
            if dead.is_empty() {
                continue;
            }
            let places: Vec<Place> = dead.iter().map(|dead| dead.place).collect();
            let statements = &self.shared.statements;
            let query = if is_due {
                statements
                    .settle_parked_dead
                    .query()
                    .bind(key_hashes(&places))
            } else {
                statements.settle_dead.query().bind(lanes(&places))
            };
            let done = query
                .bind(positions(&places))
                .bind(dead.iter().map(|dead| dead.parked).collect::<Vec<_>>())
                .bind(dead.iter().map(|dead| dead.failures).collect::<Vec<_>>())
                .bind(dead.iter().map(|dead| dead.error_kind).collect::<Vec<_>>())
                .bind(
                    dead.iter()
                        .map(|dead| dead.error.as_str())
                        .collect::<Vec<_>>(),
                )
                .bind(dead.iter().map(|dead| dead.halted).collect::<Vec<_>>())
                .execute(&mut self.session.connection)
                .await?;
            self.report_missing("given up", places.len(), done.rows_affected());
        }
        Ok(())
    }

    async fn block(&mut self, plan: &Plan) -> Result<(), SessionError> {
        if !plan.block.is_empty() {
            let blocks = || plan.block.values();
            self.shared
                .statements
                .settle_block
                .query()
                .bind(plan.block.keys().copied().collect::<Vec<_>>())
                .bind(blocks().map(|block| block.head).collect::<Vec<_>>())
                .bind(blocks().map(|block| block.after).collect::<Vec<_>>())
                .bind(blocks().map(|block| block.tried).collect::<Vec<_>>())
                .bind(blocks().map(|block| block.parked).collect::<Vec<_>>())
                .bind(blocks().map(|block| block.failures).collect::<Vec<_>>())
                .bind(
                    blocks()
                        .map(|block| block.error.kind().as_str())
                        .collect::<Vec<_>>(),
                )
                .bind(
                    blocks()
                        .map(|block| block.error.reason())
                        .collect::<Vec<_>>(),
                )
                .execute(&mut self.session.connection)
                .await?;
        }
        if !plan.lower.is_empty() {
            // One row for each key: an update from several would take any of them.
            let mut lowest: BTreeMap<i64, i64> = BTreeMap::new();
            for &(key_hash, position) in &plan.lower {
                let lowest = lowest.entry(key_hash).or_insert(position);
                *lowest = (*lowest).min(position);
            }
            self.shared
                .statements
                .settle_lower_head
                .query()
                .bind(lowest.keys().copied().collect::<Vec<_>>())
                .bind(lowest.values().copied().collect::<Vec<_>>())
                .execute(&mut self.session.connection)
                .await?;
        }
        Ok(())
    }

    async fn count(&mut self, plan: &Plan) -> Result<(), SessionError> {
        if plan.counters.is_empty() {
            return Ok(());
        }
        let counters = || plan.counters.iter();
        self.shared
            .statements
            .settle_counters
            .query()
            .bind(
                counters()
                    .map(|counted| counted.key_hash)
                    .collect::<Vec<_>>(),
            )
            .bind(
                counters()
                    .map(|counted| counted.position)
                    .collect::<Vec<_>>(),
            )
            .bind(counters().map(|counted| counted.parked).collect::<Vec<_>>())
            .bind(
                counters()
                    .map(|counted| counted.failures)
                    .collect::<Vec<_>>(),
            )
            .execute(&mut self.session.connection)
            .await?;
        Ok(())
    }

    async fn promote(&mut self, plan: &Plan) -> Result<(), SessionError> {
        if plan.promote.is_empty() {
            return Ok(());
        }
        let (keys, heads): (Vec<i64>, Vec<i64>) = plan.promote.iter().copied().unzip();
        self.shared
            .statements
            .settle_promote
            .query()
            .bind(keys)
            .bind(heads)
            .execute(&mut self.session.connection)
            .await?;
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
            .map(|&(lane, up_to)| (lane, session.scan.safe_floor(up_to)))
            .filter(|&(lane, floor)| floor - session.scan.floor_of(lane) >= FLOOR_DISTANCE)
            .map(|(lane, floor)| (lane as i16, floor))
            .collect()
    }

    /// Rows that are gone although this claim held their lane were deleted by hand, or an invariant is
    /// broken. The others are settled all the same.
    fn report_missing(&self, what: &'static str, expected: usize, found: u64) {
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
}

/// Rows that were gone when they were settled. Anything but zero wants a person.
const MISSING_ROWS: &str = "outbox_postgres_missing_rows_total";

fn lanes(places: &[Place]) -> Vec<i16> {
    places.iter().map(|place| place.lane).collect()
}

fn key_hashes(places: &[Place]) -> Vec<i64> {
    places.iter().map(|place| place.key_hash).collect()
}

fn positions(places: &[Place]) -> Vec<i64> {
    places.iter().map(|place| place.position).collect()
}

fn micros(time: Duration) -> i64 {
    // A century is longer than any back-off, and a sum that Postgres can hold.
    const CENTURY: i64 = 100 * 365 * 24 * 3600 * 1_000_000;
    i64::try_from(time.as_micros())
        .unwrap_or(CENTURY)
        .min(CENTURY)
}

fn to_i32(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use outbox_core::Message;

    use super::*;

    const KEY: i64 = 77;
    /// What was counted for the message that stands for the key.
    const TRIED: Counted = Counted {
        key_hash: KEY,
        position: 50,
        parked: 3,
        failures: 2,
    };

    fn park() -> Outcome {
        Outcome::Park {
            after: Duration::ZERO,
            counted: true,
            error: PublishError::retryable("no"),
        }
    }

    /// A claim of the parked messages of a key at these positions, of which the one at 50 stands for it.
    fn counters(outcomes: &[(i64, Outcome)]) -> Vec<Counted> {
        let claimed = |position| Claimed {
            message: Message::to("t").tombstone().unwrap(),
            parked: if position == TRIED.position { 3 } else { 0 },
            failures: if position == TRIED.position { 2 } else { 0 },
        };
        let messages: Vec<Claimed> = outcomes
            .iter()
            .map(|(position, _)| claimed(*position))
            .collect();
        let places: Vec<Place> = outcomes
            .iter()
            .map(|&(position, _)| Place {
                lane: (KEY & 63) as i16,
                key_hash: KEY,
                position,
                due: true,
            })
            .collect();
        let outcomes = outcomes
            .iter()
            .map(|(_, outcome)| outcome.clone())
            .collect();
        let due = DueKey {
            head: places[0].position,
            tried: Some(TRIED),
        };
        Plan::new(
            &messages,
            &places,
            outcomes,
            &[],
            &[],
            &HashMap::from([(KEY, due)]),
        )
        .counters
    }

    #[test]
    fn a_retry_of_the_head_writes_no_counters_elsewhere() {
        assert_eq!(counters(&[(50, park()), (60, Outcome::Behind)]), []);
        assert_eq!(counters(&[(50, Outcome::Delivered), (60, park())]), []);
        assert_eq!(
            counters(&[(50, Outcome::Released), (60, Outcome::Released)]),
            []
        );
    }

    #[test]
    fn each_failed_message_of_a_key_is_counted() {
        let second = Counted {
            position: 60,
            parked: 1,
            failures: 1,
            ..TRIED
        };
        assert_eq!(counters(&[(50, park()), (60, park())]), [second]);
    }

    #[test]
    fn a_message_that_another_stands_in_front_of_keeps_its_counters() {
        assert_eq!(counters(&[(40, park())]), [TRIED]);
        assert_eq!(counters(&[(40, park()), (50, Outcome::Behind)]), [TRIED]);
        assert_eq!(counters(&[(40, Outcome::Delivered)]), [TRIED]);
        let again = Counted {
            parked: 4,
            failures: 3,
            ..TRIED
        };
        assert_eq!(counters(&[(40, park()), (50, park())]), [again]);
    }
}
