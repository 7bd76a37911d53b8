//! What the model needs of Postgres: transaction ids, snapshots, a sequence, rows and the lock of a lane.
//!
//! As in Postgres, a snapshot's `xmax` is the latest *completed* transaction id and one, so that running
//! transactions may lie at or above it and are in no list of the snapshot; only top-level ids are in the
//! list; and an id is assigned late, by the first statement that writes or asks for it.

/// A transaction id. The first one is 1.
pub(crate) type Xid = u8;

/// A position, or a value of the sequence.
pub(crate) type Position = u8;

/// No position of the model is as high: everything is below it.
pub(crate) const ABOVE_ALL: Position = u8::MAX;

/// What a statement sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Snapshot {
    /// The latest completed id and one.
    pub(crate) xmax: Xid,
    /// The ids below it that were running, one bit each.
    running: u32,
}

impl Snapshot {
    /// Whether the transaction had ended.
    pub(crate) fn has_ended(self, xid: Xid) -> bool {
        xid < self.xmax && self.running & bit(xid) == 0
    }

    /// The lowest id of those that were running which has ended for the other snapshot.
    pub(crate) fn lowest_ended_since(self, later: Self) -> Option<Xid> {
        (1..self.xmax).find(|&xid| self.running & bit(xid) != 0 && later.has_ended(xid))
    }

    /// Everything below it had ended.
    pub(crate) fn xmin(self) -> Xid {
        let running = (1..self.xmax).find(|&xid| self.running & bit(xid) != 0);
        running.unwrap_or(self.xmax)
    }
}

/// A message in the hot table, and all that is asked about it afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub(crate) position: Position,
    /// The transaction that wrote it.
    pub(crate) xmin: Xid,
    /// The transaction that deleted it; 0: none.
    pub(crate) xmax: Xid,
    /// The messages, by their place in the table and one bit each, that were committed when the enqueue
    /// of this one began, or written before it in the same transaction: they have to be published first.
    pub(crate) after: u32,
}

/// The server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    /// The last id that was assigned.
    last_xid: Xid,
    latest_completed: Xid,
    /// Top-level transactions, one bit each.
    running: u32,
    committed: u32,
    /// Settles that a crash forgets: they did not wait for the disk, and no commit after them has.
    unflushed: u32,
    pub(crate) sequence: Position,
    pub(crate) rows: Vec<Row>,
    /// The transaction that holds the lane.
    pub(crate) holder: Option<Xid>,
    /// The floor of the lane's row, and what of it is on the disk.
    pub(crate) floor: Position,
    durable_floor: Position,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self {
            last_xid: 0,
            latest_completed: 0,
            running: 0,
            committed: 0,
            unflushed: 0,
            sequence: 0,
            rows: Vec::new(),
            holder: None,
            floor: 0,
            durable_floor: 0,
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let xmax = self.latest_completed + 1;
        Snapshot {
            xmax,
            running: self.running & (bit(xmax) - 1),
        }
    }

    /// Begins a top-level transaction, or gives it its id: until it has one, nobody can tell that it is there.
    pub(crate) fn assign(&mut self) -> Xid {
        let xid = self.next_xid();
        self.running |= bit(xid);
        xid
    }

    /// A savepoint that writes, and is rolled back: it has an id of its own, which is in no list, and which
    /// completes before its transaction.
    pub(crate) fn rolled_back_savepoint(&mut self) {
        let xid = self.next_xid();
        self.complete(xid);
    }

    pub(crate) fn draw(&mut self) -> Position {
        self.sequence += 1;
        self.sequence
    }

    pub(crate) fn is_committed(&self, xid: Xid) -> bool {
        self.committed & bit(xid) != 0
    }

    /// Ends a producer's transaction. Its commit waits for the disk, which then has all that came before.
    pub(crate) fn end(&mut self, xid: Xid, commit: bool) {
        if commit {
            self.committed |= bit(xid);
            self.unflushed = 0;
            self.durable_floor = self.floor;
        }
        self.running &= !bit(xid);
        self.complete(xid);
    }

    /// Ends a claim. Its commit does not wait for the disk.
    pub(crate) fn end_claim(&mut self, xid: Xid, commit: bool) {
        if commit {
            self.committed |= bit(xid);
            self.unflushed |= bit(xid);
        }
        if self.holder == Some(xid) {
            self.holder = None;
        }
        self.running &= !bit(xid);
        self.complete(xid);
    }

    /// Dies and comes back, without the settles that were not on the disk.
    pub(crate) fn crash(&mut self) {
        self.committed &= !self.unflushed;
        self.unflushed = 0;
        self.floor = self.durable_floor;
        self.running = 0;
        self.holder = None;
        self.latest_completed = self.last_xid;
    }

    pub(crate) fn sees(&self, snapshot: Snapshot, row: &Row) -> bool {
        let done = |xid| snapshot.has_ended(xid) && self.is_committed(xid);
        done(row.xmin) && !(row.xmax != 0 && done(row.xmax))
    }

    /// The rows above `start` that the snapshot sees, in the order of their positions, by their places.
    pub(crate) fn scan(&self, snapshot: Snapshot, start: Position) -> Vec<usize> {
        let mut found: Vec<usize> = (0..self.rows.len())
            .filter(|&place| self.rows[place].position > start)
            .filter(|&place| self.sees(snapshot, &self.rows[place]))
            .collect();
        found.sort_by_key(|&place| self.rows[place].position);
        found
    }

    /// The committed messages, one bit each, whether or not they were delivered.
    pub(crate) fn committed_rows(&self) -> u32 {
        let places = 0..self.rows.len();
        places
            .filter(|&place| self.is_committed(self.rows[place].xmin))
            .fold(0, |all, place| all | 1 << place)
    }

    /// Whether it was deleted by a transaction that committed.
    pub(crate) fn is_gone(&self, place: usize) -> bool {
        let xmax = self.rows[place].xmax;
        xmax != 0 && self.is_committed(xmax)
    }

    fn next_xid(&mut self) -> Xid {
        self.last_xid += 1;
        assert!(self.last_xid < 32, "a set of ids has 32 bits");
        self.last_xid
    }

    fn complete(&mut self, xid: Xid) {
        self.latest_completed = self.latest_completed.max(xid);
    }
}

fn bit(xid: Xid) -> u32 {
    1 << xid
}
