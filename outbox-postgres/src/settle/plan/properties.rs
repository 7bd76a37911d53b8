//! What holds of the plan for any claim and any outcomes.

use proptest::collection::vec;
use proptest::prelude::*;

use outbox_core::Message;

use super::*;
use crate::tid::Tid;

/// A row of a claim.
#[derive(Clone, Debug)]
struct Row {
    key_hash: i64,
    position: i64,
    role: Role,
}

#[derive(Clone, Debug)]
enum Role {
    Hot(Outcome),
    /// In `parked`, of a key that is due.
    Due(Outcome),
    Follower,
    Broken,
}

/// A claim, and the keys of it that are due.
#[derive(Clone, Debug)]
struct Case {
    rows: Vec<Row>,
    due_keys: HashMap<i64, DueKey>,
}

/// A key that is blocked and not due: its hot rows move behind this head.
const ELSEWHERE: i64 = 3;
const HEAD_ELSEWHERE: i64 = 15;

fn outcomes() -> impl Strategy<Value = Outcome> {
    let park = |counted| Outcome::Park {
        after: Duration::from_secs(1),
        counted,
        error: PublishError::retryable("no"),
    };
    let dead = |halt| Outcome::Dead {
        error: PublishError::rejected("never"),
        halt,
    };
    prop_oneof![
        3 => Just(Outcome::Delivered),
        1 => Just(park(true)),
        1 => Just(park(false)),
        1 => Just(Outcome::Behind),
        1 => Just(dead(true)),
        1 => Just(dead(false)),
        1 => Just(Outcome::Released),
    ]
}

/// Claims of three keys, which may be due, and of one that is blocked elsewhere; rows in any places, late
/// commits in front of their heads among them.
fn cases() -> impl Strategy<Value = Case> {
    (
        vec((0..4i64, 0..8u8, outcomes()), 1..24),
        any::<[bool; 3]>(),
        any::<[u8; 3]>(),
    )
        .prop_flat_map(|(rows, due, tried)| {
            let positions: Vec<i64> = (1..=rows.len() as i64).collect();
            (
                Just(rows),
                Just(due),
                Just(tried),
                Just(positions).prop_shuffle(),
            )
        })
        .prop_map(|(rows, due, tried, positions)| {
            let is_due = |key: i64| due.get(key as usize) == Some(&true);
            let mut rows: Vec<Row> = rows
                .into_iter()
                .zip(positions)
                .map(|((key_hash, dice, outcome), position)| {
                    let role = match dice {
                        0 => Role::Broken,
                        _ if key_hash == ELSEWHERE => Role::Follower,
                        1..3 if is_due(key_hash) => Role::Follower,
                        _ if is_due(key_hash) => Role::Due(outcome),
                        _ => Role::Hot(outcome),
                    };
                    Row {
                        key_hash,
                        position,
                        role,
                    }
                })
                .collect();
            rows.sort_by_key(|row| row.position);
            let due_keys = (0..3)
                .filter(|&key| is_due(key))
                .map(|key| (key, due_key(&rows, key, tried[key as usize])))
                .collect();
            Case { rows, due_keys }
        })
}

/// Its head is the first that is parked. The counters speak of any of those, or of one that this claim did
/// not read.
fn due_key(rows: &[Row], key: i64, tried: u8) -> DueKey {
    let parked: Vec<i64> = rows
        .iter()
        .filter(|row| row.key_hash == key && matches!(row.role, Role::Due(_)))
        .map(|row| row.position)
        .collect();
    let of = |position| Counted {
        key_hash: key,
        position,
        parked: 5,
        failures: 4,
    };
    DueKey {
        head: parked.first().copied().unwrap_or(20),
        tried: match tried % 3 {
            0 => None,
            1 => Some(of(100)),
            _ => parked
                .get(usize::from(tried) % parked.len().max(1))
                .map(|at| of(*at)),
        },
    }
}

impl Case {
    fn place(&self, row: &Row) -> Place {
        Place {
            lane: (row.key_hash & 63) as i16,
            key_hash: row.key_hash,
            position: row.position,
            hot: match row.role {
                Role::Due(_) => None,
                _ => Tid::from_sent(&[0; 6]).ok(),
            },
        }
    }

    fn counted(&self, row: &Row) -> (u32, u32) {
        let tried = self.due_keys.get(&row.key_hash).and_then(|due| due.tried);
        match tried {
            Some(tried) if tried.position == row.position => (5, 4),
            _ => (0, 0),
        }
    }

    fn plan(&self) -> Plan {
        let (mut messages, mut places, mut outcomes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut followers, mut broken) = (Vec::new(), Vec::new());
        for row in &self.rows {
            let place = self.place(row);
            match &row.role {
                Role::Hot(outcome) | Role::Due(outcome) => {
                    let (parked, failures) = self.counted(row);
                    messages.push(Claimed {
                        message: Message::to("t").tombstone().unwrap(),
                        parked,
                        failures,
                        crashes: 0,
                    });
                    places.push(place);
                    outcomes.push(outcome.clone());
                }
                Role::Follower => {
                    let due = self.due_keys.get(&row.key_hash);
                    followers.push(Follower {
                        place,
                        head: due.map_or(HEAD_ELSEWHERE, |due| due.head),
                    });
                }
                Role::Broken => broken.push(Broken {
                    place,
                    reason: "odd".to_owned(),
                }),
            }
        }
        let due_keys = &self.due_keys;
        Plan::new(&messages, &places, outcomes, &followers, &broken, due_keys)
    }
}

/// How often a row is in each of the lists: delivered, parked, dead, kept.
fn lists(plan: &Plan, row: &Row) -> [usize; 4] {
    let is_it = |place: &Place| place.key_hash == row.key_hash && place.position == row.position;
    let count = |places: &[Place]| places.iter().filter(|place| is_it(place)).count();
    let dead = plan.dead.iter().filter(|dead| is_it(&dead.place)).count();
    [
        count(&plan.delivered),
        count(&plan.park),
        dead,
        count(&plan.kept),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_row_ends_in_exactly_one_place(case in cases()) {
        let plan = case.plan();
        for row in &case.rows {
            let [delivered, parked, dead, kept] = lists(&plan, row);
            let expected = match &row.role {
                Role::Hot(Outcome::Delivered) | Role::Due(Outcome::Delivered) => [1, 0, 0, 0],
                Role::Hot(Outcome::Dead { .. }) | Role::Due(Outcome::Dead { .. }) | Role::Broken => [0, 0, 1, 0],
                Role::Hot(Outcome::Park { .. }) | Role::Follower => [0, 1, 0, 0],
                Role::Hot(Outcome::Released) => [0, 0, 0, 1],
                // Behind something that is blocked now, or else where it was.
                Role::Hot(Outcome::Behind) => match plan.block.contains_key(&row.key_hash) {
                    true => [0, 1, 0, 0],
                    false => [0, 0, 0, 1],
                },
                // It lies in `parked` already.
                Role::Due(_) => [0, 0, 0, 0],
            };
            prop_assert_eq!([delivered, parked, dead, kept], expected, "{:?}", row);
        }
        let all = plan.delivered.len() + plan.park.len() + plan.dead.len() + plan.kept.len();
        let still = case.rows.iter().filter(|row| lists(&plan, row) == [0; 4]).count();
        prop_assert_eq!(all + still, case.rows.len());
    }

    #[test]
    fn every_parked_message_has_a_next_step(case in cases()) {
        let plan = case.plan();
        let promoted: HashSet<i64> = plan.promote.iter().map(|(key, _)| *key).collect();
        prop_assert_eq!(promoted.len(), plan.promote.len(), "a key is promoted once");
        for key in &promoted {
            prop_assert!(case.due_keys.contains_key(key) && !plan.block.contains_key(key));
            prop_assert!(!plan.lower.contains_key(key));
        }
        for key in plan.lower.keys() {
            prop_assert!(!plan.block.contains_key(key));
        }
        for row in &case.rows {
            let [_, parked, ..] = lists(&plan, row);
            let stays = matches!(row.role, Role::Due(_)) && lists(&plan, row) == [0; 4];
            if parked == 0 && !stays {
                continue;
            }
            // The row of its key in `blocked` is there, and no position of the key lies below its head.
            let promote = plan.promote.iter().find(|(key, _)| *key == row.key_hash);
            let head = match (plan.block.get(&row.key_hash), promote) {
                (Some(block), _) => block.head,
                (None, Some((_, head))) => *head,
                (None, None) => {
                    let there = match case.due_keys.get(&row.key_hash) {
                        Some(due) => due.head,
                        None => HEAD_ELSEWHERE,
                    };
                    prop_assert!(row.key_hash == ELSEWHERE || case.due_keys.contains_key(&row.key_hash));
                    plan.lower.get(&row.key_hash).map_or(there, |lower| there.min(*lower))
                }
            };
            prop_assert!(head <= row.position, "head {} above {:?}", head, row);
        }
    }

    #[test]
    fn a_key_of_which_something_due_was_released_stays_due(case in cases()) {
        let plan = case.plan();
        for key in case.due_keys.keys() {
            let released = case.rows.iter().any(|row| {
                row.key_hash == *key && matches!(row.role, Role::Due(Outcome::Released))
            });
            let promoted = plan.promote.iter().any(|(it, _)| it == key);
            let blocked = plan.block.contains_key(key);
            prop_assert_eq!(promoted, !released && !blocked);
        }
    }

    #[test]
    fn every_failure_is_counted_once(case in cases()) {
        let plan = case.plan();
        let mut written: Vec<(i64, i64)> = plan.counters.iter().map(|it| (it.key_hash, it.position)).collect();
        written.sort_unstable();
        prop_assert!(written.windows(2).all(|pair| pair[0] != pair[1]), "counters twice: {:?}", written);
        for row in &case.rows {
            let (Role::Hot(outcome) | Role::Due(outcome)) = &row.role else { continue };
            let in_its_row = plan.counters.iter().find(|it| {
                (it.key_hash, it.position) == (row.key_hash, row.position)
            });
            match outcome {
                Outcome::Park { counted, .. } => {
                    let (parked, failures) = case.counted(row);
                    let expected = (parked as i32 + 1, failures as i32 + i32::from(*counted));
                    let block = &plan.block[&row.key_hash];
                    let found = match in_its_row {
                        Some(it) => (it.parked, it.failures),
                        None => {
                            prop_assert_eq!(block.tried, row.position);
                            (block.parked, block.failures)
                        }
                    };
                    prop_assert_eq!(found, expected, "{:?}", row);
                }
                Outcome::Delivered | Outcome::Dead { .. } => prop_assert!(in_its_row.is_none()),
                Outcome::Behind | Outcome::Released => {}
            }
        }
    }

    #[test]
    fn a_dead_message_that_halts_its_key_leaves_it_halted(case in cases()) {
        let plan = case.plan();
        for row in &case.rows {
            let halts = matches!(
                row.role,
                Role::Hot(Outcome::Dead { halt: true, .. }) | Role::Due(Outcome::Dead { halt: true, .. })
            );
            if halts {
                prop_assert_eq!(plan.block[&row.key_hash].after, None);
            }
        }
    }
}
