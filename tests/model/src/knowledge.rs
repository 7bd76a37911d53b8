//! What a store knows of the lane, as `outbox-postgres/src/scan.rs` and `bound.sql` have it.

use crate::server::{ABOVE_ALL, Position, Snapshot, Xid};
use crate::system::Mutation;

/// A transaction with an id at or above `xid` draws only positions above `q`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Mark {
    q: Position,
    xid: Xid,
}

/// What is known together by the workers of a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Known {
    /// Ascending in both.
    marks: Vec<Mark>,
    /// The highest value of the sequence that a statement has returned.
    q: Position,
    /// Nothing at or below it is left that the base sees.
    pub(crate) cleared: Position,
    base: Snapshot,
    /// The persisted floor, as the last poll saw it.
    floor: Position,
}

/// What a claim goes by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct View {
    pub(crate) known: Known,
    /// The snapshot of its poll.
    snapshot: Snapshot,
    /// Of which life of the knowledge.
    pub(crate) life: u8,
    /// The store has learned of the lane since the view was taken: a poll's look does not undo that.
    pub(crate) overtaken: bool,
}

impl Known {
    /// From the first three statements of a session, in their order.
    pub(crate) fn begin(q: Position, xid: Xid, base: Snapshot) -> Self {
        Self {
            marks: vec![Mark { q, xid }],
            q,
            cleared: 0,
            base,
            floor: 0,
        }
    }

    pub(crate) fn view(&self, life: u8) -> View {
        View {
            known: self.clone(),
            snapshot: self.base,
            life,
            overtaken: false,
        }
    }

    /// Takes in a mark: `q` was returned before `xid` was assigned.
    pub(crate) fn mark(&mut self, q: Position, xid: Xid) {
        let at = self.marks.partition_point(|other| other.xid <= xid);
        if at > 0 && self.marks[at - 1].q >= q {
            return;
        }
        let weaker = self.marks[at..].partition_point(|later| later.q <= q);
        self.marks.splice(at..at + weaker, [Mark { q, xid }]);
    }

    pub(crate) fn saw_sequence(&mut self, q: Position) {
        self.q = self.q.max(q);
    }

    /// Takes in what a poll saw of the lane, whose view has it.
    pub(crate) fn look(&mut self, view: &View) {
        self.cleared = view.known.cleared;
        self.base = view.known.base;
        self.floor = view.known.floor;
    }

    /// A claim has settled: everything up to `cleared` that its poll saw is gone.
    pub(crate) fn settled(&mut self, view: &View, cleared: Position, mutation: Option<Mutation>) {
        self.cleared = cleared;
        if mutation != Some(Mutation::SettlesForTheLatestLook) {
            self.base = view.snapshot;
        }
    }
}

impl View {
    /// The value of the sequence that is older than the claim's own transaction id.
    pub(crate) fn q(&self) -> Position {
        self.known.q
    }

    /// Takes in what the poll saw: the first row, if any, and the floor.
    pub(crate) fn polled(&mut self, snapshot: Snapshot, head: Option<Position>, floor: Position) {
        self.snapshot = snapshot;
        self.known.base = snapshot;
        self.known.cleared = head.map_or(ABOVE_ALL, |head| head - 1);
        self.known.floor = floor;
    }

    /// Where a statement with this snapshot starts to scan: see `bound.sql`.
    pub(crate) fn start(
        &self,
        snapshot: Snapshot,
        floor: Position,
        mutation: Option<Mutation>,
    ) -> Position {
        let base = self.known.base;
        let ended = base.lowest_ended_since(snapshot);
        let bound = match (mutation, ended) {
            (Some(Mutation::NoBound), _) | (Some(Mutation::ForgetsAboveXmax), None) => ABOVE_ALL,
            _ => self.highest_mark(ended.unwrap_or(base.xmax)),
        };
        floor.max(self.known.cleared.min(bound))
    }

    pub(crate) fn floor(&self) -> Position {
        self.known.floor
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.snapshot
    }

    /// The floor that a settle may write.
    pub(crate) fn safe_floor(&self, cleared: Position, mutation: Option<Mutation>) -> Position {
        let bound = match mutation {
            Some(Mutation::FloorPassesOpenTransactions) => self.known.q,
            _ => self.highest_mark(self.snapshot.xmin()),
        };
        cleared.min(bound)
    }

    /// What a transaction with an id at or above `xid` draws is above it.
    fn highest_mark(&self, xid: Xid) -> Position {
        let marks = self.known.marks.iter();
        let below = marks.filter(|mark| mark.xid <= xid);
        below.map(|mark| mark.q).max().unwrap_or(0)
    }
}
