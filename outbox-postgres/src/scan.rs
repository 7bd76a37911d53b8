//! What one session knows about the lanes, so that a scan starts where rows can be. Pure.
//!
//! Deleted rows stay in the index until vacuum may remove them, which one forgotten transaction
//! prevents; a scan from the start would walk over all of them. So a session remembers how far each
//! lane is `cleared`. Positions are drawn before the commit, so a row may appear below that, and it
//! has to be found in the very snapshot that reads. What makes this exact:
//!
//! * `base` is the snapshot of the last poll. Below `cleared`, nothing that the base sees is left.
//! * A [`Mark`] (q, xid) says that a transaction with an id at or above `xid` draws positions above
//!   `q`: `q` was read by a statement that had ended before our own transaction `xid` began, and the
//!   insert trigger takes the transaction id before it draws.
//! * A row that a later snapshot sees and the base does not belongs to a transaction that ended in
//!   between. The statement finds the lowest id such a transaction can have and takes the highest
//!   mark at or below it: its q is the bound `g`, and the scan starts above `min(cleared, g)`.
//!
//! The bound is computed by `bound.sql`; the state that it needs is kept here, and is forgotten with
//! the session on any error. See `ARCHITECTURE.md` for the proof.

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

/// What a session knows of one lane.
#[derive(Clone, Copy, Debug)]
struct Lane {
    /// Nothing at or below it is left that the base sees.
    cleared: i64,
    /// It has to be read from `cleared` before a probe of it is cheap.
    look: bool,
    /// The next read starts from zero, below the floor too.
    sweep: bool,
    /// The persisted floor, as the last poll saw it.
    floor: i64,
    /// No key of the lane is due at or before it, in microseconds since the epoch.
    due_floor: i64,
}

/// What the poll saw, and what it locked.
#[derive(Debug)]
pub(crate) struct Poll {
    pub(crate) floors: Vec<i64>,
    pub(crate) probed: Vec<bool>,
    pub(crate) heads: Vec<Option<i64>>,
    pub(crate) due: Vec<Option<i64>>,
    pub(crate) locked: Vec<bool>,
    /// How many lanes it would have locked, had it been allowed all and others none.
    pub(crate) wanted: i64,
    /// The database's time, in microseconds since the epoch.
    pub(crate) now: i64,
    pub(crate) g: i64,
    pub(crate) q: i64,
    pub(crate) snapshot: String,
    pub(crate) epoch: String,
}

/// The state of one session. Field by field as in the module documentation.
#[derive(Debug)]
pub(crate) struct Scan {
    base: String,
    marks: Vec<Mark>,
    lanes: [Lane; LANES],
    /// The sequence as the last statement returned it.
    q: i64,
    /// The sequence as the last statement before that returned it.
    earlier_q: i64,
    epoch: String,
}

/// The server is not the one of before, or went back in time: what is known must be forgotten.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server has been restarted, restored or failed over")]
pub(crate) struct OtherServer;

impl Scan {
    /// Starts from nothing: `q` was read by a statement that had ended before the own transaction
    /// `xid` began, and `base` is a snapshot taken after that one had ended.
    pub(crate) fn new(q: i64, xid: i64, base: String, epoch: String) -> Self {
        Self {
            base,
            marks: vec![Mark { q, xid }],
            lanes: [Lane {
                cleared: 0,
                // A short sequence is walked by the first probe; a long one lane by lane.
                look: q > PROBE_DEPTH,
                sweep: false,
                floor: 0,
                due_floor: 0,
            }; LANES],
            q,
            earlier_q: q,
            epoch,
        }
    }

    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    pub(crate) fn mark_positions(&self) -> Vec<i64> {
        self.marks.iter().map(|mark| mark.q).collect()
    }

    pub(crate) fn mark_xids(&self) -> Vec<i64> {
        self.marks.iter().map(|mark| mark.xid).collect()
    }

    pub(crate) fn cleared(&self) -> Vec<i64> {
        self.lanes.iter().map(|lane| lane.cleared).collect()
    }

    pub(crate) fn looks(&self) -> Vec<bool> {
        self.lanes.iter().map(|lane| lane.look).collect()
    }

    pub(crate) fn due_floors(&self) -> Vec<i64> {
        self.lanes.iter().map(|lane| lane.due_floor).collect()
    }

    pub(crate) fn cleared_of(&self, lane: usize) -> i64 {
        self.lanes[lane].cleared
    }

    pub(crate) fn due_floor_of(&self, lane: usize) -> i64 {
        self.lanes[lane].due_floor
    }

    /// Where the persisted floor lets the next read of a lane start.
    pub(crate) fn floor_of(&self, lane: usize) -> i64 {
        let lane = &self.lanes[lane];
        if lane.sweep { 0 } else { lane.floor }
    }

    /// Has the next read of a lane start from zero: rows that were restored, or positions that were
    /// made by hand, obey no mark.
    pub(crate) fn sweep(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        (lane.cleared, lane.look, lane.sweep, lane.due_floor) = (0, true, true, 0);
    }

    /// Whether the next read of a lane is a sweep.
    pub(crate) fn sweeping(&self, lane: usize) -> bool {
        self.lanes[lane].sweep
    }

    /// Takes in what a poll saw: its snapshot is the new base.
    pub(crate) fn polled(&mut self, poll: &Poll) -> Result<(), OtherServer> {
        if poll.epoch != self.epoch || poll.q < self.q {
            return Err(OtherServer);
        }
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            lane.floor = poll.floors[number];
            if poll.probed[number] {
                lane.cleared = poll.heads[number].map_or(EMPTY, |head| head - 1);
            } else {
                // What the old base did not see and the new one does lies above g.
                lane.cleared = lane.cleared.min(poll.g);
                lane.look = true;
            }
            let before_due = poll.due[number].map_or(i64::MAX, |due| due - 1);
            lane.due_floor = lane.due_floor.max(before_due.min(poll.now - REPLAY_MICROS));
        }
        self.base.clone_from(&poll.snapshot);
        self.earlier_q = self.q;
        self.q = poll.q;
        Ok(())
    }

    /// Takes in an own transaction id that was assigned after the statement before the last poll had
    /// returned.
    pub(crate) fn own_xid(&mut self, xid: i64) -> Result<(), OtherServer> {
        self.mark(Mark {
            q: self.earlier_q,
            xid,
        })
    }

    /// Whether an own transaction id is wanted for a new mark, alone.
    pub(crate) fn wants_mark(&self) -> bool {
        self.marks
            .last()
            .is_none_or(|last| self.q - last.q > MARK_DISTANCE)
    }

    /// Takes in an own transaction id that was assigned after the last poll had returned.
    pub(crate) fn fresh_xid(&mut self, xid: i64) -> Result<(), OtherServer> {
        self.mark(Mark { q: self.q, xid })
    }

    /// A lane was read, and everything below `cleared` that was read is gone.
    pub(crate) fn read(&mut self, lane: usize, cleared: i64) {
        let lane = &mut self.lanes[lane];
        (lane.cleared, lane.look, lane.sweep) = (cleared, false, false);
    }

    /// While a lane was held, all its keys that were due up to `time` were seen.
    pub(crate) fn due_read(&mut self, lane: usize, time: i64) {
        self.lanes[lane].due_floor = time;
    }

    /// The floor that may be persisted for a lane that is cleared up to `cleared`: what will become
    /// visible later belongs to transactions that the base has not seen end.
    pub(crate) fn safe_floor(&self, cleared: i64) -> i64 {
        let xmin = self
            .base
            .split(':')
            .next()
            .and_then(|xmin| xmin.parse::<i64>().ok());
        let bound = self
            .marks
            .iter()
            .filter(|mark| xmin.is_some_and(|xmin| mark.xid <= xmin))
            .map(|mark| mark.q)
            .max();
        cleared.min(bound.unwrap_or(0))
    }

    fn mark(&mut self, mark: Mark) -> Result<(), OtherServer> {
        let Some(last) = self.marks.last() else {
            self.marks.push(mark);
            return Ok(());
        };
        if mark.xid < last.xid || mark.q < last.q {
            return Err(OtherServer);
        }
        if mark.q == last.q {
            // The older one says the same about more transactions.
            return Ok(());
        }
        self.marks.push(mark);
        if self.marks.len() > MARKS {
            self.thin();
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn scan() -> Scan {
        Scan::new(10, 100, "101:101:".into(), "epoch".into())
    }

    fn poll(q: i64, g: i64) -> Poll {
        Poll {
            floors: vec![0; LANES],
            probed: vec![true; LANES],
            heads: vec![None; LANES],
            due: vec![None; LANES],
            locked: vec![false; LANES],
            wanted: 0,
            now: REPLAY_MICROS * 2,
            g,
            q,
            snapshot: "200:210:205".into(),
            epoch: "epoch".into(),
        }
    }

    #[test]
    fn a_probed_lane_is_cleared_up_to_its_head() {
        let mut scan = scan();
        let mut poll = poll(500, 10);
        poll.heads[3] = Some(42);
        scan.polled(&poll).unwrap();
        assert_eq!(scan.cleared_of(3), 41);
        assert_eq!(scan.cleared_of(4), EMPTY);
        assert_eq!(scan.base(), "200:210:205");
    }

    #[test]
    fn a_lane_that_was_not_probed_falls_back_to_the_bound() {
        let mut scan = scan();
        scan.polled(&poll(500, 10)).unwrap();
        let mut second = poll(200_500, 77);
        second.probed[5] = false;
        scan.polled(&second).unwrap();
        assert_eq!(scan.cleared_of(5), 77);
        assert!(scan.looks()[5]);
        assert!(!scan.looks()[6]);
    }

    #[test]
    fn a_mark_is_made_of_an_earlier_sequence_and_a_later_transaction() {
        let mut scan = scan();
        scan.polled(&poll(500, 10)).unwrap();
        scan.polled(&poll(900, 10)).unwrap();
        // The transaction id was taken by the statement that returned 900.
        scan.own_xid(150).unwrap();
        assert_eq!(
            (scan.mark_positions(), scan.mark_xids()),
            (vec![10, 500], vec![100, 150])
        );
    }

    #[test]
    fn a_sequence_or_transaction_id_that_went_back_is_another_server() {
        let mut scan = scan();
        scan.polled(&poll(500, 10)).unwrap();
        assert_eq!(scan.polled(&poll(499, 10)), Err(OtherServer));
        assert_eq!(scan.fresh_xid(99), Err(OtherServer));
        let mut elsewhere = poll(600, 10);
        elsewhere.epoch = "another".into();
        assert_eq!(scan.polled(&elsewhere), Err(OtherServer));
    }

    #[test]
    fn marks_stay_bounded_and_keep_the_oldest_and_the_newest() {
        let mut scan = scan();
        for n in 1..=10_000 {
            scan.polled(&poll(10 + n * 7, 10)).unwrap();
            scan.fresh_xid(100 + n).unwrap();
        }
        let xids = scan.mark_xids();
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
    fn an_idle_session_wants_a_mark_once_others_have_gone_far() {
        let mut scan = scan();
        scan.polled(&poll(10 + MARK_DISTANCE, 10)).unwrap();
        assert!(!scan.wants_mark());
        scan.polled(&poll(11 + MARK_DISTANCE, 10)).unwrap();
        assert!(scan.wants_mark());
        scan.fresh_xid(120).unwrap();
        assert!(!scan.wants_mark());
    }

    #[test]
    fn the_persisted_floor_stays_below_what_open_transactions_may_have_drawn() {
        let mut scan = scan();
        scan.polled(&poll(500, 10)).unwrap();
        // The base has 205 in progress and its xmin is 200: this mark says nothing about those.
        scan.fresh_xid(201).unwrap();
        assert_eq!(scan.safe_floor(EMPTY), 10);
        assert_eq!(scan.safe_floor(7), 7);
    }

    #[test]
    fn a_lane_that_is_not_held_keeps_due_keys_of_a_replay_in_sight() {
        let mut scan = scan();
        let mut poll = poll(500, 10);
        poll.due[2] = Some(1_000);
        scan.polled(&poll).unwrap();
        assert_eq!(scan.due_floor_of(2), 999);
        assert_eq!(scan.due_floor_of(3), REPLAY_MICROS);
        scan.due_read(3, REPLAY_MICROS * 2);
        assert_eq!(scan.due_floor_of(3), REPLAY_MICROS * 2);
    }

    #[test]
    fn a_sweep_reads_below_the_floor_once() {
        let mut scan = scan();
        let mut poll = poll(500, 10);
        poll.floors[8] = 300;
        scan.polled(&poll).unwrap();
        assert_eq!(scan.floor_of(8), 300);
        scan.sweep(8);
        assert_eq!((scan.floor_of(8), scan.cleared_of(8)), (0, 0));
        scan.read(8, EMPTY);
        assert_eq!(scan.floor_of(8), 300);
    }
}
