//! Producers, workers and the server: every step that one of them can take, and what is promised of it.

use std::fmt;

use crate::knowledge::{Known, View};
use crate::server::{ABOVE_ALL, Position, Server, Snapshot, Xid};

/// A mistake put into the algorithm, for which there has to be a course of events that breaks a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// A scan starts where the last one ended, as in the common "greater than the last position".
    NoBound,
    /// The transactions that lie at or above the xmax of the base are forgotten.
    ForgetsAboveXmax,
    /// A mark takes a value of the sequence that was returned after its transaction id was assigned.
    MarkOfALaterSequence,
    /// A producer draws the position and gets its transaction id only then.
    PositionBeforeXid,
    /// The lane is read with the snapshot of the statement that locked it.
    ReadsWithTheSnapshotOfTheLock,
    /// Nobody locks the lane.
    NoLock,
    /// A claim that did not settle is taken for one that did.
    AbortedSettleClears,
    /// What a claim has settled is taken to be gone for the latest look of another worker, instead of for
    /// the snapshot of its own poll.
    SettlesForTheLatestLook,
    /// After the server was gone, the store goes by what it knew before.
    RemembersThroughACrash,
    /// The floor is written without regard to open transactions.
    FloorPassesOpenTransactions,
    /// A read that was cut off by its limit is taken for one that reached the end.
    ForgetsTheLimit,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::NoBound,
        Self::ForgetsAboveXmax,
        Self::MarkOfALaterSequence,
        Self::PositionBeforeXid,
        Self::ReadsWithTheSnapshotOfTheLock,
        Self::NoLock,
        Self::AbortedSettleClears,
        Self::SettlesForTheLatestLook,
        Self::RemembersThroughACrash,
        Self::FloorPassesOpenTransactions,
        Self::ForgetsTheLimit,
    ];
}

/// What a producer does, one after the other. Its first write begins a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Writes something of its own, which gives the transaction its id.
    Write,
    /// Enqueues a message. All are of one key.
    Enqueue,
    /// Enqueues one in a savepoint and rolls that back.
    RolledBack,
    /// Ends the transaction.
    Commit,
    /// Ends it the other way.
    Abort,
}

/// What is explored.
#[derive(Clone, Debug)]
pub struct Setup {
    /// For each producer, what it does.
    pub producers: Vec<Vec<Op>>,
    /// For each worker, its store: the workers of one store share what they know.
    pub workers: Vec<usize>,
    /// So many messages a claim.
    pub limit: usize,
    /// So many claims may end by the loss of their connection, or by being dropped.
    pub losses: u8,
    /// So many settles may release what they hold.
    pub releases: u8,
    /// So often the server may crash.
    pub crashes: u8,
    /// Each statement is one step. Otherwise, what others can do in the middle of a statement is a step too.
    pub statements: bool,
    /// What is wrong.
    pub mutation: Option<Mutation>,
}

/// One step. The number says of which producer or worker, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The producer writes something, or begins the statement that enqueues.
    Write(usize),
    /// It draws the position and inserts the row, or this is the whole statement. (That the row is there later
    /// than its position is drawn makes no difference: nobody sees it before the commit.)
    Enqueue(usize),
    /// The savepoint with a message is rolled back.
    RollBack(usize),
    /// The transaction commits.
    Commit(usize),
    /// The transaction is rolled back.
    Abort(usize),
    /// The worker takes a session of the stock, or connects and asks for the sequence.
    Begin(usize),
    /// A new session takes a transaction id.
    TakeXid(usize),
    /// A new session takes the first base.
    TakeBase(usize),
    /// The poll looks into the lane; as a whole statement it also locks it.
    Poll(usize),
    /// The poll locks the lane, or finds no reason to, or finds it held.
    Lock(usize),
    /// The claim reads the lane and publishes what it read.
    Read(usize),
    /// The settle deletes.
    Delete(usize),
    /// The settle commits; so does a claim that read nothing.
    Settle(usize),
    /// The settle releases what the claim holds, and commits.
    Release(usize),
    /// The claim is dropped while it is published.
    Drop(usize),
    /// The connection is lost.
    Lose(usize),
    /// The connection is lost after the commit has arrived and before its answer has.
    LoseAnswer(usize),
    /// The server dies and comes back, perhaps without the settles that were not on its disk.
    Crash,
}

/// A promise that was broken. Messages are named by their place among those that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// Nothing is left to happen, and this committed message was not found.
    Lost(usize),
    /// The first message was published although the second, which comes before it, was not yet.
    OutOfOrder(usize, usize),
    /// The message was published again although its settle had succeeded, or while another claim held it.
    Repeated(usize),
    /// The message's transaction did not commit.
    NotCommitted(usize),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(message) => write!(f, "message {message} is never found"),
            Self::OutOfOrder(late, early) => {
                write!(f, "message {late} is published before message {early}")
            }
            Self::Repeated(message) => write!(f, "message {message} is published again"),
            Self::NotCommitted(message) => {
                write!(f, "message {message} is published and not committed")
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Producer {
    /// Its place in what it does.
    at: usize,
    xid: Option<Xid>,
    phase: Phase,
    /// Places in the table of what this transaction wrote, one bit each.
    wrote: u32,
}

/// How far a statement that enqueues is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Between,
    /// It has begun, when these messages were committed, and perhaps drawn the position.
    Begun(u32, Option<Position>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Worker {
    Idle,
    Connected {
        q: Position,
    },
    HasXid {
        q: Position,
        xid: Xid,
    },
    Viewed(View),
    Polled {
        view: View,
        snapshot: Snapshot,
        head: Option<Position>,
        q: Position,
        floor: Position,
    },
    Holds {
        view: View,
        xid: Xid,
    },
    Published {
        view: View,
        xid: Xid,
        places: Vec<usize>,
        up_to: Position,
    },
    Deleted {
        view: View,
        xid: Xid,
        cleared: Position,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Store {
    known: Option<Known>,
    /// How often it began anew.
    life: u8,
    /// Sessions that no claim uses.
    idle: u8,
}

/// Where everything stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    server: Server,
    producers: Vec<Producer>,
    workers: Vec<Worker>,
    stores: Vec<Store>,
    /// The messages that were published at least once, one bit each.
    published: u32,
    losses: u8,
    releases: u8,
    crashes: u8,
}

impl State {
    /// Nothing has happened but that each worker's store has a session for it.
    pub fn new(setup: &Setup) -> Self {
        let mut state = Self::before(setup);
        for &store in &setup.workers {
            let (q, xid) = (state.server.sequence, state.server.assign());
            state.server.end(xid, false);
            let base = state.server.snapshot();
            let store = &mut state.stores[store];
            store.known = Some(Known::begin(q, xid, base));
            store.idle += 1;
        }
        state
    }

    fn before(setup: &Setup) -> Self {
        let stores = setup.workers.iter().max().map_or(0, |last| last + 1);
        Self {
            server: Server::new(),
            producers: vec![
                Producer {
                    at: 0,
                    xid: None,
                    phase: Phase::Between,
                    wrote: 0,
                };
                setup.producers.len()
            ],
            workers: vec![Worker::Idle; setup.workers.len()],
            stores: vec![
                Store {
                    known: None,
                    life: 0,
                    idle: 0,
                };
                stores
            ],
            published: 0,
            losses: setup.losses,
            releases: setup.releases,
            crashes: setup.crashes,
        }
    }

    /// Every step that can be taken.
    pub fn steps(&self, setup: &Setup) -> Vec<Step> {
        let mut steps = Vec::new();
        for (number, producer) in self.producers.iter().enumerate() {
            let op = setup.producers[number].get(producer.at);
            steps.extend(op.map(|op| match (op, producer.phase) {
                (Op::Write, _) => Step::Write(number),
                (Op::Enqueue, Phase::Between) if setup.statements => Step::Enqueue(number),
                (Op::Enqueue, Phase::Between) => Step::Write(number),
                (Op::Enqueue, Phase::Begun(..)) => Step::Enqueue(number),
                (Op::RolledBack, _) => Step::RollBack(number),
                (Op::Commit, _) => Step::Commit(number),
                (Op::Abort, _) => Step::Abort(number),
            }));
        }
        for (number, worker) in self.workers.iter().enumerate() {
            steps.push(match worker {
                Worker::Idle => Step::Begin(number),
                Worker::Connected { .. } => Step::TakeXid(number),
                Worker::HasXid { .. } => Step::TakeBase(number),
                Worker::Viewed(_) => Step::Poll(number),
                Worker::Polled { .. } => Step::Lock(number),
                Worker::Holds { .. } => Step::Read(number),
                Worker::Published { .. } => Step::Delete(number),
                Worker::Deleted { .. } => Step::Settle(number),
            });
            if self.releases > 0 && matches!(worker, Worker::Published { .. }) {
                steps.push(Step::Release(number));
            }
            if self.losses == 0 {
                continue;
            }
            match worker {
                Worker::Published { .. } => steps.extend([Step::Drop(number), Step::Lose(number)]),
                Worker::Deleted { .. } => {
                    steps.extend([Step::Lose(number), Step::LoseAnswer(number)]);
                }
                Worker::Viewed(_) | Worker::Holds { .. } => steps.push(Step::Lose(number)),
                _ => {}
            }
        }
        if self.crashes > 0 {
            steps.push(Step::Crash);
        }
        steps
    }

    /// Takes a step that can be taken.
    ///
    /// # Errors
    ///
    /// The promise that it breaks.
    pub fn take(&mut self, setup: &Setup, step: Step) -> Result<(), Violation> {
        match step {
            Step::Write(number)
            | Step::Enqueue(number)
            | Step::RollBack(number)
            | Step::Commit(number)
            | Step::Abort(number) => {
                self.produce(setup, step, number);
                Ok(())
            }
            Step::Crash => {
                self.crash(setup);
                Ok(())
            }
            Step::Begin(number)
            | Step::TakeXid(number)
            | Step::TakeBase(number)
            | Step::Poll(number)
            | Step::Lock(number)
            | Step::Read(number)
            | Step::Delete(number)
            | Step::Settle(number) => {
                let worker = std::mem::replace(&mut self.workers[number], Worker::Idle);
                self.workers[number] = self.work(setup, number, worker)?;
                Ok(())
            }
            Step::Release(number) => {
                self.releases -= 1;
                self.release(setup, number);
                Ok(())
            }
            Step::Drop(number) | Step::Lose(number) | Step::LoseAnswer(number) => {
                self.losses -= 1;
                self.lose(setup, number, step);
                Ok(())
            }
        }
    }

    fn produce(&mut self, setup: &Setup, step: Step, number: usize) {
        let op = setup.producers[number][self.producers[number].at];
        let late_xid = setup.mutation == Some(Mutation::PositionBeforeXid);
        let committed = self.server.committed_rows();
        let Self {
            server, producers, ..
        } = self;
        let producer = &mut producers[number];
        let is_enqueue = matches!(op, Op::Enqueue);
        match step {
            Step::Write(_) => {
                let drawn = (is_enqueue && late_xid).then(|| server.draw());
                if drawn.is_none() {
                    producer.xid.get_or_insert_with(|| server.assign());
                }
                match is_enqueue {
                    true => producer.phase = Phase::Begun(committed, drawn),
                    false => producer.at += 1,
                }
            }
            Step::Enqueue(_) => {
                let (before, drawn) = match producer.phase {
                    Phase::Begun(before, drawn) => (before, drawn),
                    Phase::Between => (committed, None),
                };
                let xid = *producer.xid.get_or_insert_with(|| server.assign());
                let position = drawn.unwrap_or_else(|| server.draw());
                let place = server.rows.len();
                server.rows.push(crate::server::Row {
                    position,
                    xmin: xid,
                    xmax: 0,
                    after: before | producer.wrote,
                });
                producer.wrote |= 1 << place;
                producer.phase = Phase::Between;
                producer.at += 1;
            }
            Step::RollBack(_) => {
                producer.xid.get_or_insert_with(|| server.assign());
                server.rolled_back_savepoint();
                server.draw();
                producer.at += 1;
            }
            _ => {
                if let Some(xid) = producer.xid.take() {
                    server.end(xid, op == Op::Commit);
                }
                producer.wrote = 0;
                producer.at += 1;
            }
        }
    }

    /// The next step of a worker, and where it then stands.
    fn work(&mut self, setup: &Setup, number: usize, worker: Worker) -> Result<Worker, Violation> {
        let store = setup.workers[number];
        let mutation = setup.mutation;
        Ok(match worker {
            Worker::Idle => {
                let store = &mut self.stores[store];
                if store.idle == 0 {
                    return Ok(Worker::Connected {
                        q: self.server.sequence,
                    });
                }
                store.idle -= 1;
                // After another claim has failed there is nothing to go by; the session is closed.
                match &store.known {
                    Some(known) => Worker::Viewed(known.view(store.life)),
                    None => Worker::Idle,
                }
            }
            Worker::Connected { q } => {
                let xid = self.server.assign();
                self.server.end(xid, false);
                Worker::HasXid { q, xid }
            }
            Worker::HasXid { q, xid } => {
                // All that was known is forgotten: what cut the last session may have taken settles back.
                let known = Known::begin(q, xid, self.server.snapshot());
                let store = &mut self.stores[store];
                store.life += 1;
                let view = known.view(store.life);
                store.known = Some(known);
                Worker::Viewed(view)
            }
            Worker::Viewed(view) => {
                let snapshot = self.server.snapshot();
                let floor = self.server.floor;
                let start = view.start(snapshot, floor, mutation);
                let rows = self.server.scan(snapshot, start);
                let head = rows.first().map(|&place| self.server.rows[place].position);
                let polled = Worker::Polled {
                    view,
                    snapshot,
                    head,
                    q: self.server.sequence,
                    floor,
                };
                match setup.statements {
                    true => self.work(setup, number, polled)?,
                    false => polled,
                }
            }
            Worker::Polled {
                mut view,
                snapshot,
                head,
                q,
                floor,
            } => {
                let is_free = self.server.holder.is_none() || mutation == Some(Mutation::NoLock);
                let xid = (head.is_some() && is_free).then(|| self.server.assign());
                self.server.holder = xid.or(self.server.holder);
                view.polled(snapshot, head, floor);
                self.learn(setup, store, &view, |known| {
                    if let (Some(xid), true) =
                        (xid, mutation != Some(Mutation::MarkOfALaterSequence))
                    {
                        known.mark(view.q(), xid);
                    }
                    known.saw_sequence(q);
                    if !view.overtaken {
                        known.look(&view);
                    }
                    !view.overtaken
                });
                match xid {
                    Some(xid) => Worker::Holds { view, xid },
                    None => {
                        self.stores[store].idle += 1;
                        Worker::Idle
                    }
                }
            }
            Worker::Holds { view, xid } => self.read(setup, store, view, xid)?,
            Worker::Published {
                view,
                xid,
                places,
                up_to,
            } => {
                for place in places {
                    self.server.rows[place].xmax = xid;
                }
                Worker::Deleted {
                    view,
                    xid,
                    cleared: up_to,
                }
            }
            Worker::Deleted { view, xid, cleared } => {
                self.settle(setup, store, &view, xid, cleared);
                Worker::Idle
            }
        })
    }

    /// Reads the lane, and publishes what it read.
    fn read(
        &mut self,
        setup: &Setup,
        store: usize,
        view: View,
        xid: Xid,
    ) -> Result<Worker, Violation> {
        let mutation = setup.mutation;
        let snapshot = match mutation {
            Some(Mutation::ReadsWithTheSnapshotOfTheLock) => view.snapshot(),
            _ => self.server.snapshot(),
        };
        if mutation == Some(Mutation::MarkOfALaterSequence) {
            let q = self.server.sequence;
            self.learn(setup, store, &view, |known| {
                known.mark(q, xid);
                false
            });
        }
        let start = view.start(snapshot, view.floor(), mutation);
        let mut places = self.server.scan(snapshot, start);
        let is_cut = places.len() >= setup.limit && mutation != Some(Mutation::ForgetsTheLimit);
        places.truncate(setup.limit);
        let up_to = match places.last() {
            Some(&last) if is_cut => self.server.rows[last].position,
            _ => ABOVE_ALL,
        };
        for &place in &places {
            let row = &self.server.rows[place];
            if self.server.is_gone(place) || self.is_held(place) {
                return Err(Violation::Repeated(place));
            }
            if !self.server.is_committed(row.xmin) {
                return Err(Violation::NotCommitted(place));
            }
            let missing = row.after & !self.published;
            if missing != 0 {
                let early = missing.trailing_zeros() as usize;
                return Err(Violation::OutOfOrder(place, early));
            }
            self.published |= 1 << place;
        }
        Ok(match places.is_empty() {
            // Another worker was faster; there is nothing to settle.
            true => Worker::Deleted {
                view,
                xid,
                cleared: up_to,
            },
            false => Worker::Published {
                view,
                xid,
                places,
                up_to,
            },
        })
    }

    /// Whether an open claim has published the message.
    fn is_held(&self, place: usize) -> bool {
        let publishes = |worker: &Worker| match worker {
            Worker::Published { places, .. } => places.contains(&place),
            Worker::Deleted { xid, .. } => self.server.rows[place].xmax == *xid,
            _ => false,
        };
        self.workers.iter().any(publishes)
    }

    fn settle(&mut self, setup: &Setup, store: usize, view: &View, xid: Xid, cleared: Position) {
        let floor = view.safe_floor(cleared, setup.mutation);
        self.server.floor = self.server.floor.max(floor);
        self.server.end_claim(xid, true);
        self.learn(setup, store, view, |known| {
            known.settled(view, cleared, setup.mutation);
            true
        });
        self.stores[store].idle += 1;
    }

    fn release(&mut self, setup: &Setup, number: usize) {
        let worker = std::mem::replace(&mut self.workers[number], Worker::Idle);
        if let Worker::Published {
            view, xid, places, ..
        } = worker
        {
            let first = places
                .first()
                .map(|&place| self.server.rows[place].position);
            let cleared = first.map_or(ABOVE_ALL, |first| first - 1);
            self.settle(setup, setup.workers[number], &view, xid, cleared);
        }
    }

    /// A claim ends without a settle that anybody knows of.
    fn lose(&mut self, setup: &Setup, number: usize, step: Step) {
        let worker = std::mem::replace(&mut self.workers[number], Worker::Idle);
        let store = setup.workers[number];
        let clears = setup.mutation == Some(Mutation::AbortedSettleClears);
        // Dropped, it is the claim's own connection that is closed, and nothing has failed.
        let forgets = !matches!(step, Step::Drop(_)) && !clears;
        match worker {
            Worker::Holds { xid, .. } => self.server.end_claim(xid, false),
            Worker::Published {
                view, xid, up_to, ..
            } => {
                self.server.end_claim(xid, false);
                if clears {
                    self.learn(setup, store, &view, |known| {
                        known.settled(&view, up_to, None);
                        true
                    });
                }
            }
            Worker::Deleted { view, xid, cleared } => {
                let arrived = matches!(step, Step::LoseAnswer(_));
                if arrived {
                    let floor = view.safe_floor(cleared, setup.mutation);
                    self.server.floor = self.server.floor.max(floor);
                }
                self.server.end_claim(xid, arrived);
            }
            _ => {}
        }
        if forgets {
            self.forget(store);
        }
    }

    fn crash(&mut self, setup: &Setup) {
        self.crashes -= 1;
        self.server.crash();
        for (number, producer) in self.producers.iter_mut().enumerate() {
            if producer.xid.take().is_none() && producer.phase == Phase::Between {
                continue;
            }
            // What it had begun is gone; it goes on with its next transaction.
            let rest = &setup.producers[number][producer.at..];
            let end = rest
                .iter()
                .position(|op| matches!(op, Op::Commit | Op::Abort));
            producer.at += end.map_or(rest.len(), |end| end + 1);
            (producer.phase, producer.wrote) = (Phase::Between, 0);
        }
        self.workers.fill(Worker::Idle);
        for store in 0..self.stores.len() {
            match setup.mutation {
                Some(Mutation::RemembersThroughACrash) => {}
                _ => self.forget(store),
            }
        }
    }

    fn forget(&mut self, store: usize) {
        let store = &mut self.stores[store];
        (store.known, store.idle) = (None, 0);
    }

    /// Has a store learn from a claim, unless all was forgotten since that began. `learn` says whether it
    /// has changed what is known of the lane.
    fn learn(
        &mut self,
        setup: &Setup,
        store: usize,
        view: &View,
        learn: impl FnOnce(&mut Known) -> bool,
    ) {
        let Store { known, life, .. } = &mut self.stores[store];
        let Some(known) = known.as_mut().filter(|_| *life == view.life) else {
            return;
        };
        if !learn(known) {
            return;
        }
        let life = *life;
        for (number, worker) in self.workers.iter_mut().enumerate() {
            if let (true, Worker::Viewed(view) | Worker::Polled { view, .. }) =
                (setup.workers[number] == store, worker)
            {
                view.overtaken |= view.life == life;
            }
        }
    }

    /// Whether the producers are done and no claim is open: from here on, nothing changes but by new claims.
    pub fn is_quiet(&self, setup: &Setup) -> bool {
        let done =
            |(number, producer): (usize, &Producer)| producer.at == setup.producers[number].len();
        self.producers.iter().enumerate().all(done)
            && self.workers.iter().all(|worker| *worker == Worker::Idle)
    }

    /// Lets one worker go on alone until it finds nothing more: whatever is committed has to be found.
    ///
    /// # Errors
    ///
    /// The promise that is broken on the way, or the message that is lost.
    pub fn drain(mut self, setup: &Setup, number: usize) -> Result<(), Violation> {
        let mut idle_polls = 0;
        while idle_polls < 2 {
            let is_poll = match self.workers[number] {
                Worker::Viewed(_) => setup.statements,
                Worker::Polled { .. } => true,
                _ => false,
            };
            let worker = std::mem::replace(&mut self.workers[number], Worker::Idle);
            self.workers[number] = self.work(setup, number, worker)?;
            match self.workers[number] {
                Worker::Idle if is_poll => idle_polls += 1,
                Worker::Holds { .. } => idle_polls = 0,
                _ => {}
            }
        }
        let left = (0..self.server.rows.len()).find(|&place| {
            self.server.is_committed(self.server.rows[place].xmin) && !self.server.is_gone(place)
        });
        left.map_or(Ok(()), |place| Err(Violation::Lost(place)))
    }

    /// The messages that a worker publishes just now, by their place among those that were written.
    pub fn published_by(&self, number: usize) -> Option<&[usize]> {
        match &self.workers[number] {
            Worker::Published { places, .. } => Some(places),
            _ => None,
        }
    }

    /// How many messages were written.
    pub fn written(&self) -> usize {
        self.server.rows.len()
    }

    /// Whether every committed message is gone.
    pub fn is_empty(&self) -> bool {
        (0..self.server.rows.len()).all(|place| {
            self.server.is_gone(place) || !self.server.is_committed(self.server.rows[place].xmin)
        })
    }

    /// Whether the worker has no claim, not even the beginning of one.
    pub fn is_idle(&self, number: usize) -> bool {
        self.workers[number] == Worker::Idle
    }
}

impl Step {
    /// Whether a producer takes it.
    pub fn is_a_producers(self) -> bool {
        matches!(
            self,
            Self::Write(_)
                | Self::Enqueue(_)
                | Self::RollBack(_)
                | Self::Commit(_)
                | Self::Abort(_)
        )
    }

    /// The worker that takes it by itself, when nothing goes wrong.
    pub fn worker(self) -> Option<usize> {
        match self {
            Self::Begin(number)
            | Self::TakeXid(number)
            | Self::TakeBase(number)
            | Self::Poll(number)
            | Self::Lock(number)
            | Self::Read(number)
            | Self::Delete(number)
            | Self::Settle(number) => Some(number),
            _ => None,
        }
    }
}
