//! The checker: what the consumer got, held against what the database says that committed.
//!
//! It is pure and knows no relay, no broker and none of the crates under test; its tests put each fault into
//! its input that it is there for. A finding of any kind but a repeat fails the run, and so does a repeat
//! that no fault explains.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use uuid::Uuid;

use crate::record::{Arrival, Attempt, Committed, Disturbance, Left};

/// How many findings of a kind are described; all are counted.
const DESCRIBED: usize = 5;

/// All that is known of a run.
pub(crate) struct Evidence<'a> {
    pub(crate) committed: &'a [Committed],
    pub(crate) attempts: &'a HashMap<Uuid, Attempt>,
    /// In the order of each partition.
    pub(crate) arrivals: &'a [Arrival],
    pub(crate) disturbances: &'a [Disturbance],
    /// How long after its end a fault may still be the reason of a repeat: what a relay that was frozen or
    /// cut off holds is free that late.
    pub(crate) aftermath: Duration,
    pub(crate) left: Left,
}

/// What came out.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    pub(crate) attempted: usize,
    pub(crate) committed: usize,
    pub(crate) keys: usize,
    /// Different committed messages that arrived.
    pub(crate) delivered: usize,
    /// Copies of messages that had arrived before, by the fault that explains them.
    pub(crate) repeats: BTreeMap<&'static str, usize>,
    /// Repeats that nothing explains.
    pub(crate) unexplained: Findings,
    /// Committed, and never arrived.
    pub(crate) lost: Findings,
    /// Arrived, and its transaction did not commit.
    pub(crate) not_committed: Findings,
    /// Arrived before its commit was asked for.
    pub(crate) early: Findings,
    /// Arrived with another key, payload or header than it was enqueued with.
    pub(crate) altered: Findings,
    /// A first copy behind that of a later message of its key.
    pub(crate) out_of_order: Findings,
    /// A key in more than one partition, where nothing keeps its order.
    pub(crate) scattered: Findings,
    /// The database had confirmed the commit and does not know of it.
    pub(crate) forgotten: Findings,
    pub(crate) left: Left,
}

/// How many, and the first of them in words.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) count: usize,
    first: Vec<String>,
}

impl Findings {
    fn add(&mut self, describe: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < DESCRIBED {
            self.first.push(describe());
        }
    }
}

impl Audit {
    pub(crate) fn of(evidence: &Evidence<'_>) -> Self {
        let log: HashMap<Uuid, &Committed> =
            evidence.committed.iter().map(|it| (it.id, it)).collect();
        let mut audit = Self {
            attempted: evidence.attempts.len(),
            committed: log.len(),
            left: evidence.left,
            ..Self::default()
        };
        let mut first_copies: HashMap<Uuid, Duration> = HashMap::with_capacity(log.len());
        let mut keys: HashMap<&str, (i64, i32)> = HashMap::new();
        for arrival in evidence.arrivals {
            let id = arrival.id;
            let Some(committed) = log.get(&id) else {
                audit.not_committed.add(|| {
                    let known = match evidence.attempts.get(&id) {
                        Some(_) => "its transaction did not commit",
                        None => "nobody enqueued it",
                    };
                    format!("{id} at {:.3?}: {known}", arrival.at)
                });
                continue;
            };
            if arrival.content != committed.content {
                audit
                    .altered
                    .add(|| format!("{id}: {:?} became {:?}", committed.content, arrival.content));
            }
            let asked = evidence.attempts.get(&id).and_then(|it| it.commit_asked);
            if asked.is_none_or(|asked| arrival.at < asked) {
                audit.early.add(|| {
                    format!(
                        "{id} at {:.3?}, its commit asked for: {asked:.3?}",
                        arrival.at
                    )
                });
            }
            if let Some(first) = first_copies.get(&id) {
                audit.repeat(evidence, arrival, *first);
                continue;
            }
            first_copies.insert(id, arrival.at);
            let Some(key) = committed.content.key.as_deref() else {
                continue;
            };
            let (last, partition) = keys.entry(key).or_insert((0, arrival.partition));
            if committed.n <= *last {
                audit.out_of_order.add(|| {
                    format!(
                        "{id} at {:.3?}: number {} of {key} after {last}",
                        arrival.at, committed.n
                    )
                });
            }
            *last = (*last).max(committed.n);
            if *partition != arrival.partition {
                audit.scattered.add(|| {
                    format!(
                        "{id}: {key} in partition {} and {partition}",
                        arrival.partition
                    )
                });
            }
        }
        audit.keys = keys.len();
        audit.delivered = first_copies.len();
        for committed in evidence.committed {
            if !first_copies.contains_key(&committed.id) {
                audit.lost.add(|| {
                    format!(
                        "{}: number {} of {:?}",
                        committed.id, committed.n, committed.content.key
                    )
                });
            }
        }
        for (id, attempt) in evidence.attempts {
            if let Some(answered) = attempt.commit_answered
                && !log.contains_key(id)
            {
                audit
                    .forgotten
                    .add(|| format!("{id}, committed at {answered:.3?}"));
            }
        }
        audit
    }

    /// The youngest fault explains it that had begun when the repeat came, and whose aftermath reached
    /// beyond the first copy.
    fn repeat(&mut self, evidence: &Evidence<'_>, arrival: &Arrival, first: Duration) {
        let fault = evidence
            .disturbances
            .iter()
            .filter(|it| it.from <= arrival.at && first <= it.until + evidence.aftermath)
            .max_by_key(|it| it.from);
        let reason = match fault {
            _ if arrival.redelivered => "given again by the broker",
            Some(fault) => fault.kind,
            None => {
                self.unexplained
                    .add(|| format!("{} at {:.3?}, first at {first:.3?}", arrival.id, arrival.at));
                return;
            }
        };
        *self.repeats.entry(reason).or_default() += 1;
    }

    fn findings(&self) -> [(&'static str, &Findings); 8] {
        [
            ("lost", &self.lost),
            ("of a transaction that did not commit", &self.not_committed),
            ("before its commit", &self.early),
            ("altered", &self.altered),
            ("first copies out of order", &self.out_of_order),
            ("keys in two partitions", &self.scattered),
            ("repeats without a reason", &self.unexplained),
            ("commits that the database forgot", &self.forgotten),
        ]
    }

    /// Whether every promise was kept, and there was something to keep.
    pub(crate) fn is_sound(&self) -> bool {
        let Left {
            waiting,
            parked,
            dead,
            failures: _,
        } = self.left;
        self.delivered > 0
            && self
                .findings()
                .iter()
                .all(|(_, findings)| findings.count == 0)
            && (waiting, parked, dead) == (0, 0, 0)
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rolled_back = self.attempted.saturating_sub(self.committed);
        let repeats: usize = self.repeats.values().sum();
        let mut line = |what: &str, count: u64| writeln!(f, "{what:<38} {count:>9}");
        line("messages that committed", self.committed as u64)?;
        line("messages that rolled back", rolled_back as u64)?;
        line("keys", self.keys as u64)?;
        line("delivered", self.delivered as u64)?;
        for (what, findings) in self.findings() {
            line(what, findings.count as u64)?;
        }
        line("left waiting", self.left.waiting)?;
        line("left parked", self.left.parked)?;
        line("left dead", self.left.dead)?;
        line("failures counted", self.left.failures)?;
        line("repeats, explained", repeats as u64)?;
        for (reason, count) in &self.repeats {
            line(&format!("  {reason}"), *count as u64)?;
        }
        for (what, findings) in self.findings() {
            for described in &findings.first {
                writeln!(f, "{what}: {described}")?;
            }
            if findings.count > findings.first.len() {
                writeln!(
                    f,
                    "{what}: and {} more",
                    findings.count - findings.first.len()
                )?;
            }
        }
        let verdict = if self.is_sound() {
            "every promise was kept"
        } else {
            "FAILED"
        };
        write!(f, "verdict: {verdict}")
    }
}
