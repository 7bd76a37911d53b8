//! Goes through every course of events, the shortest first.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::system::{Setup, State, Step, Violation};

/// What was found.
#[derive(Clone, Debug)]
pub struct Explored {
    /// How many different states there are.
    pub states: usize,
    /// How many steps lead from one to another.
    pub transitions: usize,
    /// How many steps the longest shortest way to a state has.
    pub depth: usize,
    /// The shortest course of events that breaks a promise, with the promise.
    pub counterexample: Option<(Vec<Step>, Violation)>,
}

/// Explores until a promise is broken, or everything is seen. A state is remembered by a hash of 64 bits: of
/// a million, two have the same one with a chance of 1 to 37 million.
pub fn explore(setup: &Setup) -> Explored {
    let start = State::new(setup);
    let mut seen = HashSet::from([hash(&start)]);
    // For each state the one before it, and the step from there.
    let mut trail: Vec<(usize, Option<Step>)> = vec![(0, None)];
    let mut next = VecDeque::from([(start, 0, 0)]);
    let mut explored = Explored {
        states: 1,
        transitions: 0,
        depth: 0,
        counterexample: None,
    };
    while let Some((state, number, depth)) = next.pop_front() {
        explored.depth = depth;
        if state.is_quiet(setup) {
            for worker in 0..setup.workers.len() {
                if let Err(violation) = state.clone().drain(setup, worker) {
                    explored.counterexample = Some((way_to(&trail, number), violation));
                    return explored;
                }
            }
        }
        for step in state.steps(setup) {
            explored.transitions += 1;
            let mut after = state.clone();
            if let Err(violation) = after.take(setup, step) {
                let mut way = way_to(&trail, number);
                way.push(step);
                explored.counterexample = Some((way, violation));
                return explored;
            }
            if seen.insert(hash(&after)) {
                trail.push((number, Some(step)));
                next.push_back((after, trail.len() - 1, depth + 1));
                explored.states += 1;
            }
        }
    }
    explored
}

fn way_to(trail: &[(usize, Option<Step>)], mut number: usize) -> Vec<Step> {
    let mut way = Vec::new();
    while let (before, Some(step)) = trail[number] {
        way.push(step);
        number = before;
    }
    way.reverse();
    way
}

fn hash(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}
