//! The checker: what the consumer got, held against what the database says that committed.
//!
//! It is pure and knows no relay, no broker and none of the crates under test; its tests put each fault into
//! its input that it is there for. A finding of any kind but a repeat fails the run, and so does a repeat
//! that no fault explains, of which `repeats.rs` decides.

mod repeats;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use uuid::Uuid;

pub(crate) use self::repeats::{Bounds, Explained};
use self::repeats::{Progress, Repeat, explain};
use crate::record::{Arrival, Attempt, Committed, Disturbance, Failures, Left};

/// How many findings of a kind are described; all are counted.
const DESCRIBED: usize = 5;

/// All that is known of a run.
pub(crate) struct Evidence<'a> {
    pub(crate) committed: &'a [Committed],
    pub(crate) attempts: &'a HashMap<Uuid, Attempt>,
    /// In the order of each partition.
    pub(crate) arrivals: &'a [Arrival],
    pub(crate) disturbances: &'a [Disturbance],
    pub(crate) bounds: Bounds,
    pub(crate) left: Left,
    pub(crate) failures: &'a [Failures],
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
    pub(crate) repeats: BTreeMap<&'static str, Explained>,
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
    pub(crate) failures: Vec<Failures>,
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
            failures: evidence.failures.to_vec(),
            ..Self::default()
        };
        // When the last copy of each message arrived.
        let mut copies: HashMap<Uuid, Duration> = HashMap::with_capacity(log.len());
        let (mut repeats, mut progress) = (Vec::new(), Vec::new());
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
            let attempt = evidence.attempts.get(&id).copied().unwrap_or_default();
            let asked = attempt.commit_asked;
            if asked.is_none_or(|asked| arrival.at < asked) {
                audit.early.add(|| {
                    format!(
                        "{id} at {:.3?}, its commit asked for: {asked:.3?}",
                        arrival.at
                    )
                });
            }
            if let Some(before) = copies.insert(id, arrival.at) {
                repeats.push(Repeat { arrival, before });
                continue;
            }
            let committed_at = attempt.commit_answered.or(asked).unwrap_or_default();
            progress.push((committed_at, arrival.at));
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
        audit.delivered = copies.len();
        for committed in evidence.committed {
            if !copies.contains_key(&committed.id) {
                let key = committed.content.key.as_deref();
                let partition = key.and_then(|key| Some(keys.get(key)?.1));
                audit
                    .lost
                    .add(|| describe_lost(committed, evidence.attempts, partition));
            }
        }
        let progress = Progress::of(progress);
        let (explained, unexplained) =
            explain(repeats, evidence.disturbances, &progress, &evidence.bounds);
        audit.repeats = explained;
        for Repeat { arrival, before } in unexplained {
            let (id, at) = (arrival.id, arrival.at);
            audit
                .unexplained
                .add(|| format!("{id} at {at:.3?}, the copy before it at {before:.3?}"));
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
        let repeats: usize = self.repeats.values().map(|it| it.count).sum();
        let failures = self.failures.iter().map(|it| it.count).sum();
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
        line("failures counted", failures)?;
        line("repeats, explained", repeats as u64)?;
        for (reason, Explained { count, latest }) in &self.repeats {
            let (reason, latest) = (format!("  {reason}"), latest.as_secs_f64());
            writeln!(f, "{reason:<38} {count:>9}, up to {latest:.1} s after it")?;
        }
        for failures in self.failures.iter().take(2 * DESCRIBED) {
            let Failures {
                kind,
                reason,
                count,
                first,
                last,
            } = failures;
            writeln!(
                f,
                "failures: {count} {kind}, from {first:.1?} to {last:.1?}: {reason}"
            )?;
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

/// All that is known of it. The partition is that of its key, where another message of it arrived.
fn describe_lost(
    lost: &Committed,
    attempts: &HashMap<Uuid, Attempt>,
    partition: Option<i32>,
) -> String {
    let Committed { id, n, content } = lost;
    let attempt = attempts.get(id).copied().unwrap_or_default();
    let time = |at: Option<Duration>| at.map_or("never".to_owned(), |at| format!("at {at:.3?}"));
    let key = content.key.as_deref().unwrap_or("no key");
    let partition = partition.map_or("unknown".to_owned(), |it| it.to_string());
    format!(
        "{id}: number {n} of {key}, partition {partition}, commit asked for {}, answered {}",
        time(attempt.commit_asked),
        time(attempt.commit_answered)
    )
}
