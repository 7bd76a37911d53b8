//! What a run leaves behind for the audit: what committed, what was tried, what arrived, what was broken.

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

use crate::schedule::Fault;

/// What must arrive as it was enqueued.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) key: Option<String>,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) headers: BTreeMap<String, String>,
}

/// A row of the database's own log: it was written by the transaction that enqueued the message.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    pub(crate) id: Uuid,
    /// Its number within its key. Numbers of transactions that rolled back are missing.
    pub(crate) n: i64,
    pub(crate) content: Content,
}

/// What a producer remembers of a message, whatever became of its transaction. Times are since the start of
/// the run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attempt {
    /// When it was about to ask for the commit; nothing where it rolled back or never came so far.
    pub(crate) commit_asked: Option<Duration>,
    /// When the database had said that it committed.
    pub(crate) commit_answered: Option<Duration>,
}

/// A copy of a message, as the consumer found it by the names of the wire contract.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: Duration,
    pub(crate) id: Uuid,
    pub(crate) content: Content,
    /// Where the order of its records is kept; 0 with a broker that has no partitions.
    pub(crate) partition: i32,
    /// The broker says that it gives this copy to a consumer for the second time.
    pub(crate) redelivered: bool,
}

/// A fault and its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disturbance {
    pub(crate) fault: Fault,
    pub(crate) from: Duration,
    /// When what was broken was put right. What follows from it may come later.
    pub(crate) until: Duration,
}

/// What the tables hold when the run is over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Left {
    pub(crate) waiting: u64,
    pub(crate) parked: u64,
    pub(crate) dead: u64,
}

/// Failures that were counted against messages during the run, which leave no trace once these are delivered.
#[derive(Clone, Debug)]
pub(crate) struct Failures {
    pub(crate) kind: String,
    pub(crate) reason: String,
    pub(crate) count: u64,
    pub(crate) first: Duration,
    pub(crate) last: Duration,
}
