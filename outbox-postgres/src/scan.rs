//! What a store knows about the lanes, so that a scan starts where rows can be. Pure.
//!
//! Deleted rows stay in the index until vacuum may remove them, which one forgotten transaction
//! prevents; a scan from the start would walk over all of them. So for each lane a store remembers how
//! far it is `cleared`. Positions are drawn before the commit, so a row may appear below that, and it
//! has to be found in the very snapshot that reads. What makes this exact:
//!
//! * `base` is a snapshot. Below `cleared`, nothing that the base sees is left. This stays true, so all
//!   sessions of a store share it: what one has delivered, no other walks over.
//! * A [`Mark`] (q, xid) says that a transaction with an id at or above `xid` draws positions above
//!   `q`: `q` was read by a statement that had ended before our own transaction `xid` began, and the
//!   insert trigger takes the transaction id before it draws.
//! * A row that a later snapshot sees and the base does not belongs to a transaction that ended in
//!   between. The statement finds the lowest id such a transaction can have and takes the highest
//!   mark at or below it: its q is the bound `g`, and the scan starts above `min(cleared, g)`.
//!
//! The bound is computed by `bound.sql`; the state that it needs is kept here. A claim works on a copy,
//! the [`View`], and puts back what it found. All is forgotten when a session fails or another is
//! opened, since a server that crashed may have taken settles back. See `ARCHITECTURE.md` for the proof.

use std::sync::Arc;

/// The number of lanes, fixed by the schema.
pub(crate) const LANES: usize = 64;

/// `cleared` of a lane in which the base sees nothing.
pub(crate) const EMPTY: i64 = i64::MAX;

/// How many positions of dead entries a probe of all lanes may have to walk over; behind that, a lane
/// is read by a claim of its own. 100,000 entries are a few milliseconds.
pub(crate) const PROBE_DEPTH: i64 = 100_000;

/// An idle session takes a transaction id for a new mark when the sequence has gone so far past the
/// last one, since otherwise its polls would go over what others deliver meanwhile.
const MARK_DISTANCE: i64 = 10_000;

const MARKS: usize = 64;

/// How long a transaction that makes a parked key due may take, in microseconds. A lane that is not
/// held is not trusted to have no due key younger than that.
const REPLAY_MICROS: i64 = 600 * 1_000_000;

/// A transaction with an id at or above `xid` draws only positions above `q`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    q: i64,
    xid: i64,
}

/// What is known of one lane.
#[derive(Clone, Debug)]
struct Lane {
    /// Nothing at or below it is left that the base sees.
    cleared: i64,
    base: Arc<str>,
    /// It has to be read from `cleared` before a probe of it is cheap.
    look: bool,
    /// The next read starts from zero, below the floor too.
    sweep: bool,
    /// The persisted floor, as the last poll saw it.
    floor: i64,
    /// No key of the lane is due at or before it, in microseconds since the epoch.
    due_floor: i64,
    /// Counts the changes, so that a probe does not undo what a settle has learned meanwhile.
    version: u64,
}

/// What the first statements of a session returned, in this order.
#[derive(Debug)]
pub(crate) struct Start {
    /// The sequence.
    pub(crate) q: i64,
    pub(crate) epoch: String,
    /// An own transaction id, assigned after `q` was returned.
    pub(crate) xid: i64,
    /// A snapshot, taken after that transaction had ended.
    pub(crate) base: String,
}

/// What the poll saw of one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) lane: usize,
    pub(crate) floor: i64,
    /// Looked into; a lane that is too deep for that is not.
    pub(crate) probed: bool,
    pub(crate) head: Option<i64>,
    /// When the next key of the lane is due, in microseconds since the epoch.
    pub(crate) due: Option<i64>,
    pub(crate) locked: bool,
    /// Keys of the lane may be blocked.
    pub(crate) blocked: bool,
    /// It has a message that is to be tried alone.
    pub(crate) alone: bool,
}

/// What the poll saw, and what it locked.
#[derive(Debug)]
pub(crate) struct Poll {
    pub(crate) lanes: Vec<Seen>,
    /// How many lanes it would have locked, had it been allowed all and others none.
    pub(crate) wanted: i64,
    /// The database's time, in microseconds since the epoch.
    pub(crate) now: i64,
    pub(crate) q: i64,
    pub(crate) snapshot: String,
    pub(crate) epoch: String,
    /// The own transaction id, if a lane was locked.
    pub(crate) xid: Option<i64>,
    /// The locked lanes whose last holder did not commit, with its transaction id.
    pub(crate) unclean: Vec<(usize, i64)>,
    /// The locked lane, or one of them, of which a message may have ended a process.
    pub(crate) suspect: Option<Suspect>,
    /// When the next delayed message is due, in microseconds since the epoch.
    pub(crate) delayed: Option<i64>,
}

/// What is known of a lane of which a message may have ended a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspect {
    pub(crate) lane: usize,
    /// A claim takes so many messages.
    pub(crate) step: usize,
    /// The position of the one that is tried alone.
    pub(crate) alone: Option<i64>,
    /// How many processes ended while they tried it.
    pub(crate) deaths: u32,
}

impl Suspect {
    /// As the poll gives it: lane, step, alone, deaths.
    pub(crate) fn from_numbers(numbers: Vec<Option<i64>>) -> Option<Self> {
        match numbers[..] {
            [Some(lane), Some(step), alone, Some(deaths)] => Some(Self {
                lane: usize::try_from(lane).ok()?,
                step: usize::try_from(step).ok()?,
                alone,
                deaths: u32::try_from(deaths).ok()?,
            }),
            _ => None,
        }
    }
}

/// The server is not the one of before, or went back in time: what is known must be forgotten.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server has been restarted, restored or failed over, or its clock set back")]
pub(crate) struct OtherServer;

/// What all sessions of a store know together.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    /// Of which life of this knowledge; what a claim learned in an earlier one is not taken in.
    generation: u64,
    /// Ascending in both.
    marks: Vec<Mark>,
    lanes: [Lane; LANES],
    /// The highest value of the sequence that a statement has returned.
    q: i64,
    /// The latest time that a poll has seen.
    now: i64,
    epoch: String,
}

/// What one claim goes by: what was known before its poll, and what the poll has added.
#[derive(Debug)]
pub(crate) struct View {
    known: Scan,
    /// The snapshot of the poll.
    snapshot: Arc<str>,
}

/// The bases of some lanes, each base once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Bases {
    pub(crate) snapshots: Vec<String>,
    /// For each lane the index of its base.
    pub(crate) of: Vec<i32>,
}

impl Scan {
    /// Knows nothing yet but where the sequence was.
    pub(crate) fn new(start: Start, generation: u64) -> Self {
        let lane = Lane {
            cleared: 0,
            base: start.base.into(),
            // A short sequence is walked by the first probe; a long one lane by lane.
            look: start.q > PROBE_DEPTH,
            sweep: false,
            floor: 0,
            due_floor: 0,
            version: 0,
        };
        Self {
            generation,
            marks: vec![Mark {
                q: start.q,
                xid: start.xid,
            }],
            lanes: std::array::from_fn(|_| lane.clone()),
            q: start.q,
            now: i64::MIN,
            epoch: start.epoch,
        }
    }

    /// What a claim goes by.
    pub(crate) fn view(&self) -> View {
        View {
            known: self.clone(),
            // Until the poll: of no lane is more known than its base says.
            snapshot: Arc::clone(&self.lanes[0].base),
        }
    }

    /// Has the next read of a lane start from zero: rows that were restored, or positions that were
    /// made by hand, obey no mark.
    pub(crate) fn sweep(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        (lane.cleared, lane.look, lane.sweep, lane.due_floor) = (0, true, true, 0);
        lane.version += 1;
    }

    /// Takes in what a poll saw, whose view has taken it in already.
    pub(crate) fn polled(&mut self, view: &View, poll: &Poll) {
        if let Some(xid) = poll.xid {
            self.own_xid(view, xid);
        }
        self.q = self.q.max(poll.q);
        self.now = self.now.max(poll.now);
        for seen in &poll.lanes {
            let (lane, known) = (&mut self.lanes[seen.lane], &view.known.lanes[seen.lane]);
            if lane.version == known.version {
                lane.clone_from(known);
                lane.version += 1;
            }
        }
    }

    /// Whether an own transaction id is wanted for a new mark, alone.
    pub(crate) fn wants_mark(&self) -> bool {
        self.marks
            .last()
            .is_none_or(|last| self.q - last.q > MARK_DISTANCE)
    }

    /// Takes in an own transaction id that was assigned after everything that the view began with was
    /// returned.
    pub(crate) fn own_xid(&mut self, view: &View, xid: i64) {
        let mark = Mark {
            q: view.known.q,
            xid,
        };
        // Other sessions make marks too, so this one may belong between theirs.
        let at = self.marks.partition_point(|other| other.xid <= mark.xid);
        if at > 0 && self.marks[at - 1].q >= mark.q {
            // The older one says the same about more transactions.
            return;
        }
        let weaker = self.marks[at..].partition_point(|later| later.q <= mark.q);
        self.marks.splice(at..at + weaker, [mark]);
        if self.marks.len() > MARKS {
            self.thin();
        }
    }

    /// A claim has settled: of each lane, everything up to its position that the poll saw is gone.
    pub(crate) fn settled(&mut self, view: &View, lanes: &[(usize, i64)]) {
        for &(number, cleared) in lanes {
            let (lane, seen) = (&mut self.lanes[number], &view.known.lanes[number]);
            if lane.sweep && !seen.sweep {
                // Marked while the claim was open.
                continue;
            }
            lane.cleared = cleared;
            lane.base = Arc::clone(&view.snapshot);
            (lane.look, lane.sweep) = (false, false);
            lane.version += 1;
        }
    }

    /// While a lane was held, all its keys that were due up to `time` were seen.
    pub(crate) fn due_read(&mut self, lane: usize, time: i64) {
        self.lanes[lane].due_floor = time;
        self.lanes[lane].version += 1;
    }

    /// Takes out the mark that is missed least: the spacing of those that stay grows with their age.
    fn thin(&mut self) {
        let newest = self.marks[self.marks.len() - 1].xid;
        let missed = |index: usize| {
            let around = self.marks[index + 1].xid - self.marks[index - 1].xid;
            let age = (newest - self.marks[index].xid).max(1);
            around as f64 / age as f64
        };
        let least = (1..self.marks.len() - 1).min_by(|&a, &b| missed(a).total_cmp(&missed(b)));
        if let Some(index) = least {
            self.marks.remove(index);
        }
    }
}

impl View {
    pub(crate) fn generation(&self) -> u64 {
        self.known.generation
    }

    /// Takes in what the poll saw.
    pub(crate) fn polled(&mut self, poll: &Poll) -> Result<(), OtherServer> {
        if poll.epoch != self.known.epoch || poll.q < self.known.q || poll.now < self.known.now {
            return Err(OtherServer);
        }
        if let Some(xid) = poll.xid {
            self.check_xid(xid)?;
        }
        self.snapshot = poll.snapshot.as_str().into();
        for seen in &poll.lanes {
            let lane = &mut self.known.lanes[seen.lane];
            lane.floor = seen.floor;
            if seen.probed {
                lane.cleared = seen.head.map_or(EMPTY, |head| head - 1);
                lane.base = Arc::clone(&self.snapshot);
            } else {
                lane.look = true;
            }
            let before_due = seen.due.map_or(i64::MAX, |due| due - 1);
            lane.due_floor = lane.due_floor.max(before_due.min(poll.now - REPLAY_MICROS));
        }
        Ok(())
    }

    /// An id that is assigned now is above all that were assigned before.
    pub(crate) fn check_xid(&self, xid: i64) -> Result<(), OtherServer> {
        match self.known.marks.last() {
            Some(last) if xid < last.xid => Err(OtherServer),
            _ => Ok(()),
        }
    }

    pub(crate) fn mark_positions(&self) -> Vec<i64> {
        self.known.marks.iter().map(|mark| mark.q).collect()
    }

    pub(crate) fn mark_xids(&self) -> Vec<i64> {
        self.known.marks.iter().map(|mark| mark.xid).collect()
    }

    /// The bases of these lanes.
    pub(crate) fn bases(&self, lanes: &[usize]) -> Bases {
        let mut distinct: Vec<&str> = Vec::new();
        let mut of = Vec::new();
        for &lane in lanes {
            let base = &*self.known.lanes[lane].base;
            let index = distinct.iter().position(|known| *known == base);
            of.push(index.unwrap_or(distinct.len()) as i32);
            if index.is_none() {
                distinct.push(base);
            }
        }
        Bases {
            snapshots: distinct.into_iter().map(str::to_owned).collect(),
            of,
        }
    }

    /// Whether a lane has to be read from `cleared` before a probe of it is cheap.
    pub(crate) fn looks_at(&self, lane: usize) -> bool {
        self.known.lanes[lane].look
    }

    pub(crate) fn cleared_of(&self, lane: usize) -> i64 {
        self.known.lanes[lane].cleared
    }

    pub(crate) fn due_floor_of(&self, lane: usize) -> i64 {
        self.known.lanes[lane].due_floor
    }

    /// Where the persisted floor lets the next read of a lane start.
    pub(crate) fn floor_of(&self, lane: usize) -> i64 {
        let lane = &self.known.lanes[lane];
        if lane.sweep { 0 } else { lane.floor }
    }

    /// Whether the read of a lane is a sweep.
    pub(crate) fn sweeping(&self, lane: usize) -> bool {
        self.known.lanes[lane].sweep
    }

    /// The floor that may be persisted for a lane that is cleared up to `cleared`: what will become
    /// visible later belongs to transactions that the poll has not seen end.
    pub(crate) fn safe_floor(&self, cleared: i64) -> i64 {
        let xmin = self
            .snapshot
            .split(':')
            .next()
            .and_then(|xmin| xmin.parse::<i64>().ok());
        let bound = self
            .known
            .marks
            .iter()
            .filter(|mark| xmin.is_some_and(|xmin| mark.xid <= xmin))
            .map(|mark| mark.q)
            .max();
        cleared.min(bound.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan() -> Scan {
        let start = Start {
            q: 10,
            xid: 100,
            base: "101:101:".into(),
            epoch: "epoch".into(),
        };
        Scan::new(start, 1)
    }

    fn seen(lane: usize) -> Seen {
        Seen {
            lane,
            floor: 0,
            probed: true,
            head: None,
            due: None,
            locked: false,
            blocked: false,
            alone: false,
        }
    }

    /// Of all lanes, in their order.
    fn poll(q: i64) -> Poll {
        Poll {
            lanes: (0..LANES).map(seen).collect(),
            wanted: 0,
            now: REPLAY_MICROS * 2,
            q,
            snapshot: "200:210:205".into(),
            epoch: "epoch".into(),
            xid: None,
            unclean: Vec::new(),
            suspect: None,
            delayed: None,
        }
    }

    /// A claim polls and has seen this.
    fn polled(scan: &mut Scan, poll: &Poll) -> View {
        let mut view = scan.view();
        view.polled(poll).unwrap();
        scan.polled(&view, poll);
        view
    }

    fn marks(scan: &Scan) -> Vec<(i64, i64)> {
        scan.marks.iter().map(|mark| (mark.q, mark.xid)).collect()
    }

    #[test]
    fn a_probed_lane_is_cleared_up_to_its_head() {
        let mut scan = scan();
        let mut poll = poll(500);
        poll.lanes[3].head = Some(42);
        polled(&mut scan, &poll);
        let view = scan.view();
        assert_eq!((view.cleared_of(3), view.cleared_of(4)), (41, EMPTY));
        let bases = view.bases(&[3, 4]);
        assert_eq!(bases.snapshots, ["200:210:205"]);
        assert_eq!(bases.of, [0, 0]);
    }

    #[test]
    fn what_was_not_probed_keeps_what_was_known_and_its_base() {
        let mut scan = scan();
        let mut poll = poll(500);
        // Too deep, and too far away.
        poll.lanes[5].probed = false;
        poll.lanes.remove(6);
        polled(&mut scan, &poll);
        let view = scan.view();
        assert_eq!((view.cleared_of(5), view.cleared_of(6)), (0, 0));
        assert_eq!((view.looks_at(5), view.looks_at(6)), (true, false));
        assert_eq!(
            (view.due_floor_of(5), view.due_floor_of(6)),
            (REPLAY_MICROS, 0)
        );
        let bases = view.bases(&[4, 5, 6, 7]);
        assert_eq!(bases.snapshots, ["200:210:205", "101:101:"]);
        assert_eq!(bases.of, [0, 1, 1, 0]);
    }

    #[test]
    fn what_one_session_has_settled_another_starts_above() {
        let mut scan = scan();
        let first = polled(&mut scan, &poll(500));
        scan.settled(&first, &[(3, 250)]);
        let view = scan.view();
        assert_eq!(view.cleared_of(3), 250);
        assert_eq!(view.bases(&[3]).snapshots, ["200:210:205"]);
    }

    #[test]
    fn a_probe_does_not_undo_what_was_settled_while_it_ran() {
        let mut scan = scan();
        let holder = polled(&mut scan, &poll(500));
        let mut other = scan.view();
        let mut seen = poll(500);
        seen.snapshot = "201:211:".into();
        // The holder has deleted up to 250 and not committed.
        (seen.lanes[3].head, seen.lanes[4].head) = (Some(200), Some(300));
        other.polled(&seen).unwrap();
        scan.settled(&holder, &[(3, 250)]);
        scan.polled(&other, &seen);
        let view = scan.view();
        assert_eq!((view.cleared_of(3), view.cleared_of(4)), (250, 299));
    }

    #[test]
    fn a_mark_is_made_of_an_earlier_sequence_and_a_later_transaction() {
        let mut scan = scan();
        polled(&mut scan, &poll(500));
        // The transaction id was taken by the statement that returned 900.
        let mut second = poll(900);
        second.xid = Some(150);
        polled(&mut scan, &second);
        assert_eq!(marks(&scan), [(10, 100), (500, 150)]);
    }

    #[test]
    fn marks_of_several_sessions_are_kept_in_order_and_the_weaker_ones_dropped() {
        let mut scan = scan();
        let early = scan.view();
        polled(&mut scan, &poll(500));
        let late = scan.view();
        scan.own_xid(&late, 150);
        // Says less than (500, 150).
        scan.own_xid(&early, 160);
        assert_eq!(marks(&scan), [(10, 100), (500, 150)]);
        polled(&mut scan, &poll(900));
        let latest = scan.view();
        scan.own_xid(&latest, 180);
        assert_eq!(marks(&scan), [(10, 100), (500, 150), (900, 180)]);
        // Says more than (900, 180).
        scan.own_xid(&latest, 170);
        assert_eq!(marks(&scan), [(10, 100), (500, 150), (900, 170)]);
        // Belongs in between.
        scan.own_xid(&late, 140);
        assert_eq!(marks(&scan), [(10, 100), (500, 140), (900, 170)]);
    }

    #[test]
    fn a_sequence_transaction_id_or_clock_that_went_back_is_another_server() {
        let mut scan = scan();
        polled(&mut scan, &poll(500));
        assert_eq!(scan.view().polled(&poll(499)), Err(OtherServer));
        assert_eq!(scan.view().check_xid(99), Err(OtherServer));
        let mut earlier = poll(600);
        earlier.now -= 1;
        assert_eq!(scan.view().polled(&earlier), Err(OtherServer));
        let mut lower = poll(600);
        lower.xid = Some(99);
        assert_eq!(scan.view().polled(&lower), Err(OtherServer));
        let mut elsewhere = poll(600);
        elsewhere.epoch = "another".into();
        assert_eq!(scan.view().polled(&elsewhere), Err(OtherServer));
    }

    #[test]
    fn marks_stay_bounded_and_keep_the_oldest_and_the_newest() {
        let mut scan = scan();
        for n in 1..=10_000 {
            polled(&mut scan, &poll(10 + n * 7));
            let view = scan.view();
            scan.own_xid(&view, 100 + n);
        }
        let xids = scan.view().mark_xids();
        assert_eq!(xids.len(), MARKS);
        assert_eq!((xids[0], xids[MARKS - 1]), (100, 10_100));
        // A transaction half as old as all of history still finds a mark within a quarter of its age.
        let old = 5_100;
        let near = xids.iter().rev().find(|xid| **xid <= old).unwrap();
        assert!(
            old - near <= 1_250,
            "nearest mark at or below {old} is {near}"
        );
    }

    #[test]
    fn an_idle_store_wants_a_mark_once_others_have_gone_far() {
        let mut scan = scan();
        polled(&mut scan, &poll(10 + MARK_DISTANCE));
        assert!(!scan.wants_mark());
        polled(&mut scan, &poll(11 + MARK_DISTANCE));
        assert!(scan.wants_mark());
        let view = scan.view();
        scan.own_xid(&view, 120);
        assert!(!scan.wants_mark());
    }

    #[test]
    fn the_persisted_floor_stays_below_what_open_transactions_may_have_drawn() {
        let mut scan = scan();
        polled(&mut scan, &poll(500));
        let view = scan.view();
        // The poll has 205 in progress and its xmin is 200: this mark says nothing about those.
        scan.own_xid(&view, 201);
        let view = polled(&mut scan, &poll(500));
        assert_eq!(view.safe_floor(EMPTY), 10);
        assert_eq!(view.safe_floor(7), 7);
    }

    #[test]
    fn a_lane_that_is_not_held_keeps_due_keys_of_a_replay_in_sight() {
        let mut scan = scan();
        let mut poll = poll(500);
        poll.lanes[2].due = Some(1_000);
        polled(&mut scan, &poll);
        let view = scan.view();
        assert_eq!(view.due_floor_of(2), 999);
        assert_eq!(view.due_floor_of(3), REPLAY_MICROS);
        scan.due_read(3, REPLAY_MICROS * 2);
        assert_eq!(scan.view().due_floor_of(3), REPLAY_MICROS * 2);
    }

    #[test]
    fn a_sweep_reads_below_the_floor_once() {
        let mut scan = scan();
        let mut poll = poll(500);
        poll.lanes[8].floor = 300;
        let earlier = polled(&mut scan, &poll);
        assert_eq!(earlier.floor_of(8), 300);
        scan.sweep(8);
        // A claim that was open when the lane was marked is not the sweep.
        scan.settled(&earlier, &[(8, EMPTY)]);
        poll.lanes[8].probed = false;
        let view = polled(&mut scan, &poll);
        assert_eq!((view.floor_of(8), view.cleared_of(8)), (0, 0));
        assert!(view.sweeping(8));
        scan.settled(&view, &[(8, EMPTY)]);
        assert_eq!(scan.view().floor_of(8), 300);
    }
}
