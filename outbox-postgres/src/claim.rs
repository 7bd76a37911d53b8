//! What a claim holds, from the poll to the moment when it is handed to the relay.
//!
//! A claim is one open transaction that has locked lanes. It holds three kinds of rows:
//!
//! * *hot* rows, from `message`;
//! * *due* rows, from `parked`: the head of a key that is tried again, and what waits behind it;
//! * rows that only *move*: hot rows of a blocked key, which the settle parks behind its head, and rows
//!   that cannot be decoded, which it gives up.
//!
//! `settle.rs` ends it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox_core::{Claim, ClaimLimits, Claimed, Headers, Message, Outcome, StoreError};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::scan::{EMPTY, LANES, Seen, View};
use crate::session::{Session, SessionError};
use crate::statements::column;
use crate::store::Shared;
use crate::tid::Tid;
use crate::trial::Pass;

/// While there is more to do than a claim can hold, it looks at so many lanes for each one that it may
/// lock. Others hold some of them.
const REACH: usize = 2;

/// While reading its lanes takes a claim no longer than this, the next one may read more deep ones.
const DEEP_READ: Duration = Duration::from_millis(50);

/// Where a claimed message lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) lane: i16,
    pub(crate) key_hash: i64,
    pub(crate) position: i64,
    /// Where in `message`; a row without is in `parked`.
    pub(crate) hot: Option<Tid>,
}

impl Place {
    /// In `parked`; else in `message`.
    pub(crate) fn is_due(&self) -> bool {
        self.hot.is_none()
    }
}

/// A row that cannot be decoded, and why.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) place: Place,
    pub(crate) reason: String,
}

/// A hot row of a blocked key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Follower {
    pub(crate) place: Place,
    pub(crate) head: i64,
}

/// How a key that is due stands in `blocked`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DueKey {
    pub(crate) head: i64,
    /// The message that the counters speak of.
    pub(crate) tried: Option<Counted>,
}

/// What was counted for a parked message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) key_hash: i64,
    pub(crate) position: i64,
    pub(crate) parked: i32,
    pub(crate) failures: i32,
}

/// How far a lane was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneRead {
    pub(crate) lane: usize,
    /// Everything up to here is in this claim.
    pub(crate) up_to: i64,
}

/// What bounds the bytes of a read.
#[derive(Clone, Copy)]
enum Bytes {
    /// No message may be larger; if one is, nothing of the read is used.
    EachMessage(usize),
    InAll {
        bytes: usize,
        /// One message that is larger goes alone.
        alone: bool,
    },
}

/// A row of `message`; the columns of its content begin at 5.
struct HotRow {
    place: Place,
    /// The head of its key, if that is blocked.
    head: Option<i64>,
    /// True: the bound cuts it off. False: it is the last.
    cut: Option<bool>,
    row: PgRow,
}

impl HotRow {
    fn new(row: PgRow) -> Result<Self, sqlx::Error> {
        let key_hash: i64 = row.try_get(1)?;
        Ok(Self {
            place: Place {
                // As the insert trigger chooses it.
                lane: (key_hash & (LANES as i64 - 1)) as i16,
                key_hash,
                position: row.try_get(0)?,
                hot: Some(Tid::from_sent(row.try_get(4)?)?),
            },
            head: row.try_get(2)?,
            cut: row.try_get(3)?,
            row,
        })
    }
}

/// An open claim.
pub(crate) struct PostgresClaim {
    pub(crate) shared: Arc<Shared>,
    pub(crate) session: Session,
    /// What was known of the lanes when it began, and what its poll saw.
    pub(crate) view: View,
    pub(crate) messages: Vec<Claimed>,
    /// One for each message.
    pub(crate) places: Vec<Place>,
    pub(crate) followers: Vec<Follower>,
    pub(crate) broken: Vec<Broken>,
    /// The keys that were read as due.
    pub(crate) due_keys: HashMap<i64, DueKey>,
    pub(crate) lanes: Vec<LaneRead>,
    /// Those that it holds in which keys may be blocked.
    pub(crate) blocked_lanes: Vec<i16>,
    /// The lane is a suspect.
    pub(crate) suspect: Option<usize>,
    pub(crate) pass: Pass,
}

/// What one look at the lanes came to.
pub(crate) enum Look {
    Claimed(Box<PostgresClaim>),
    /// Something was done, or there may be more at once: look again.
    Again,
    Nothing {
        /// Work was seen in lanes that others hold.
        contended: bool,
        /// Microseconds until the next parked or delayed message is due.
        due_in: Option<i64>,
    },
}

/// Looks at the lanes once, with a session of its own from the store's stock.
pub(crate) async fn look(shared: &Arc<Shared>, limits: &ClaimLimits) -> Result<Look, SessionError> {
    let trials = &shared.trials;
    let Some(mut pass) = trials.enter() else {
        return Ok(Look::Nothing {
            contended: true,
            due_in: None,
        });
    };
    let mut session = shared.session().await?;
    let Some(mut view) = shared.knowledge().view() else {
        // Another claim has failed meanwhile.
        return Ok(Look::Again);
    };
    let statements = &shared.statements;
    let lost = trials.lost();
    if !lost.is_empty() {
        let again = session.say_alive(statements, &lost).await?;
        trials.said(&lost, &again);
    }
    // Never within a claim: what is enqueued has an end of its own.
    let step = shared.delays().step(Instant::now());
    if let Some(step) = step {
        let stepped = session.deliver_due(statements, &step).await?;
        shared.delays().stepped(&step, stepped, Instant::now());
    }
    let mut width = session.width.min(limits.messages).max(1);
    if let Some(lane) = pass.alone() {
        (session.turn, session.reach, width) = (lane, 1, 1);
    }
    session.begin(statements, limits).await?;
    let floor = shared.delays().floor();
    let mut poll = session
        .poll(statements, &view, width, pass.alone().is_some(), floor)
        .await?;
    let delayed = shared
        .delays()
        .polled(poll.now, poll.delayed, &poll.snapshot, Instant::now());
    let held: Vec<Seen> = poll
        .lanes
        .iter()
        .copied()
        .filter(|seen| seen.locked)
        .collect();
    let held_lanes: Vec<usize> = held.iter().map(|seen| seen.lane).collect();
    // Before they are known as this claim's.
    poll.unclean
        .retain(|&(lane, xid)| !trials.is_ours(lane, xid));
    if let Some(xid) = poll.xid {
        pass.holds(xid, &held_lanes);
    }
    view.polled(&poll)?;
    shared.knowledge().polled(&view, &poll);
    let alone = poll.lanes.iter().find(|seen| seen.alone && !seen.locked);
    let tries_next = alone.is_some_and(|seen| trials.want(seen.lane));

    if held.is_empty() {
        session.commit().await?;
        if pass.alone().is_some() {
            pass.came_in_vain();
        }
        // Another lane comes first next time, in case a stuck relay holds this one.
        session.turn = (session.turn + 1) % LANES;
        let stale = shared.knowledge().stale();
        if let Some(view) = stale {
            let xid = Session::take_xid(&mut session.connection, statements).await?;
            view.check_xid(xid)?;
            shared.knowledge().fresh_xid(&view, xid);
        }
        if session.reach < LANES || tries_next || delayed.now {
            session.reach = LANES;
            shared.put_back(session);
            return Ok(Look::Again);
        }
        let due_in = poll
            .lanes
            .iter()
            .filter_map(|seen| Some((seen.due? - poll.now).max(0)))
            .chain(delayed.due_in)
            .min();
        shared.put_back(session);
        return Ok(Look::Nothing {
            contended: poll.wanted > 0 || alone.is_some(),
            due_in,
        });
    }
    if !poll.unclean.is_empty() {
        session.suspect(statements, &poll.unclean, limits).await?;
        return look_again(shared, session, pass).await;
    }
    if let Some(suspect) = poll.suspect
        && held.len() > 1
    {
        // A suspect is claimed by itself.
        (session.turn, session.reach) = (suspect.lane, 1);
        return look_again(shared, session, pass).await;
    }
    // Those that come after what was locked are next.
    if let Some(last) = held.iter().max_by_key(|seen| session.distance(seen.lane)) {
        session.turn = (last.lane + 1) % LANES;
    }

    let reading = Instant::now();
    let due_lanes: Vec<usize> = held
        .iter()
        .filter(|seen| seen.due.is_some_and(|due| due <= poll.now))
        .map(|seen| seen.lane)
        .collect();
    let swept = held_lanes.iter().copied().find(|&lane| view.sweeping(lane));
    let mut claim = PostgresClaim {
        shared: Arc::clone(shared),
        session,
        view,
        messages: Vec::new(),
        places: Vec::new(),
        followers: Vec::new(),
        broken: Vec::new(),
        due_keys: HashMap::new(),
        lanes: Vec::new(),
        blocked_lanes: held
            .iter()
            .filter(|seen| seen.blocked)
            .map(|seen| seen.lane as i16)
            .collect(),
        suspect: poll.suspect.map(|suspect| suspect.lane),
        pass,
    };
    let limits = &match poll.suspect {
        Some(suspect) => {
            // Always the same first.
            claim.session.due_first = false;
            ClaimLimits {
                messages: match suspect.alone {
                    Some(_) => 1,
                    None => suspect.step.clamp(1, limits.messages.max(1)),
                },
                ..*limits
            }
        }
        None => *limits,
    };
    claim.read_due(&due_lanes, limits).await?;
    claim.read_hot(&held_lanes, limits).await?;
    let took = reading.elapsed();
    if let Some(lane) = swept {
        shared.knowledge().swept(lane, took);
    }
    // After a start all lanes are deep, and most of them quickly read: one at a time would give each of
    // the first 64 claims the few keys of one lane.
    claim.session.deep = if held.iter().any(|seen| !seen.probed) && took < DEEP_READ {
        (claim.session.deep * 2).min(LANES)
    } else {
        1
    };

    // More lanes had work than were locked, and those that were locked gave little: the next claim of
    // this session takes more at once, which saves transactions.
    let full = claim.messages.len() * 2 >= limits.messages;
    claim.session.reach = if full && held.len() >= width {
        (width * REACH).min(LANES)
    } else {
        LANES
    };
    claim.session.width = match (full, poll.wanted as usize > held.len()) {
        (true, _) => shared.options.lanes_per_claim,
        (false, true) => (claim.session.width * 2).min(LANES),
        (false, false) => claim.session.width,
    };

    if let (Some(suspect), [place]) = (poll.suspect, &claim.places[..]) {
        let position = place.position;
        if claim.pass.alone().is_none() || suspect.alone != Some(position) {
            return claim.try_alone(suspect.lane, position).await;
        }
        claim.messages[0].crashes = suspect.deaths;
    }
    if claim.messages.is_empty() {
        // Nothing for the relay. What only moves is moved now.
        claim.settle_in_place(Vec::new()).await?;
        return Ok(Look::Again);
    }
    if shared.options.wait_until_flushed {
        claim.session.flush(&shared.connect).await?;
    }
    Ok(Look::Claimed(Box::new(claim)))
}

/// Commits what the look has written, and lets go of what it holds.
async fn look_again(
    shared: &Shared,
    mut session: Session,
    mut pass: Pass,
) -> Result<Look, SessionError> {
    session.commit().await?;
    pass.committed();
    shared.put_back(session);
    Ok(Look::Again)
}

impl PostgresClaim {
    /// Has its only message be tried when the process holds nothing else.
    async fn try_alone(mut self, lane: usize, position: i64) -> Result<Look, SessionError> {
        let connection = &mut self.session.connection;
        self.shared
            .statements
            .try_alone
            .query()
            .bind(lane as i16)
            .bind(position)
            .execute(connection)
            .await?;
        self.shared.trials.want(lane);
        look_again(&self.shared, self.session, self.pass).await
    }

    async fn read_due(
        &mut self,
        lanes: &[usize],
        limits: &ClaimLimits,
    ) -> Result<(), SessionError> {
        if lanes.is_empty() {
            return Ok(());
        }
        // At most half of a claim, in messages and in bytes, so that neither kind starves the other; a
        // claim of one message takes turns.
        self.session.due_first = !self.session.due_first;
        let count = match limits.messages / 2 {
            0 if self.session.due_first => 1,
            0 => return Ok(()),
            half => half,
        };
        let rows = self
            .shared
            .statements
            .due
            .query()
            .bind(column(lanes, |&lane| lane as i16))
            .bind(column(lanes, |&lane| self.view.due_floor_of(lane)))
            .bind(to_i32(count))
            .bind(to_i64(limits.bytes / 2))
            .fetch_all(&mut self.session.connection)
            .await?;
        for row in rows.iter().rev() {
            // Earliest last: nothing of the lane is due before the earliest that was read.
            let (lane, due_at): (i16, i64) = (row.try_get(0)?, row.try_get(3)?);
            self.shared
                .knowledge()
                .due_read(&self.view, lane as usize, due_at - 1);
        }
        for row in &rows {
            let lane: i16 = row.try_get(0)?;
            let (key_hash, head): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
            let tried = match row.try_get::<Option<i64>, _>(4)? {
                Some(position) => Some(Counted {
                    key_hash,
                    position,
                    parked: row.try_get(5)?,
                    failures: row.try_get(6)?,
                }),
                None => None,
            };
            self.due_keys.insert(key_hash, DueKey { head, tried });
            let Some(position) = row.try_get::<Option<i64>, _>(7)? else {
                continue;
            };
            let place = Place {
                lane,
                key_hash,
                position,
                hot: None,
            };
            let (parked, failures): (i32, i32) = match tried {
                Some(tried) if tried.position == position => (tried.parked, tried.failures),
                _ => (row.try_get(8)?, row.try_get(9)?),
            };
            self.take(
                row,
                10,
                place,
                parked.unsigned_abs(),
                failures.unsigned_abs(),
            );
        }
        Ok(())
    }

    async fn read_hot(&mut self, held: &[usize], limits: &ClaimLimits) -> Result<(), SessionError> {
        let taken: usize = self
            .messages
            .iter()
            .map(|claimed| claimed.message.size())
            .sum();
        let room = limits.messages.saturating_sub(self.messages.len());
        let bytes = limits.bytes.saturating_sub(taken);
        if room == 0 || (bytes == 0 && !self.messages.is_empty()) {
            return Ok(());
        }
        // Every lane has its share. There may be less room than lanes.
        let held = &held[..held.len().min(room)];
        let a_lane = room / held.len();
        let a_message = bytes / room;
        let mut rows = Vec::new();
        if !self.session.large {
            rows = self
                .hot_rows(held, a_lane, Bytes::EachMessage(a_message))
                .await?;
            self.session.large = rows.iter().any(|row| row.cut.is_some());
        }
        if self.session.large {
            let alone = self.messages.is_empty();
            rows = self
                .hot_rows(held, a_lane, Bytes::InAll { bytes, alone })
                .await?;
        }

        // The byte bound may have cut off more of the last lane, and the lanes after it.
        let mut cut = false;
        let mut largest = 0;
        let mut last_lane: Option<i16> = None;
        let mut read: HashMap<usize, (usize, i64)> = HashMap::new();
        for HotRow {
            place,
            head,
            cut: here,
            row,
        } in &rows
        {
            cut |= here.is_some();
            if *here == Some(true) {
                break;
            }
            last_lane = Some(place.lane);
            let (count, last) = read.entry(place.lane as usize).or_default();
            (*count, *last) = (*count + 1, place.position);
            match head {
                Some(head) => self.followers.push(Follower {
                    place: *place,
                    head: *head,
                }),
                None => {
                    let taken = self.messages.len();
                    self.take(row, 5, *place, 0, 0);
                    if let Some(claimed) = self.messages.get(taken) {
                        largest = largest.max(claimed.message.size());
                    }
                }
            }
        }
        // The two measures differ a little in what they count, so not at the very bound.
        self.session.large &= cut || largest > a_message / 2;

        // A lane was read to its end if its limit was not reached and nothing was cut off before that.
        let mut reached = cut && last_lane.is_none();
        for &lane in held {
            let is_last = last_lane == Some(lane as i16);
            let up_to = match read.get(&lane) {
                _ if cut && reached => None,
                Some(&(count, last)) if count >= a_lane || (cut && is_last) => Some(last),
                _ => Some(EMPTY),
            };
            reached |= is_last;
            if let Some(up_to) = up_to {
                self.lanes.push(LaneRead { lane, up_to });
            }
        }
        Ok(())
    }

    /// The next rows of the lanes, lane by lane and in order.
    async fn hot_rows(
        &mut self,
        held: &[usize],
        a_lane: usize,
        bound: Bytes,
    ) -> Result<Vec<HotRow>, SessionError> {
        let (view, statements) = (&self.view, &self.shared.statements);
        let bases = view.bases(held);
        let statement = match bound {
            Bytes::EachMessage(_) => &statements.read,
            Bytes::InAll { .. } => &statements.read_large,
        };
        let query = statement
            .query()
            .bind(bases.snapshots)
            .bind(view.mark_positions())
            .bind(view.mark_xids())
            .bind(column(held, |&lane| lane as i16))
            .bind(bases.of)
            .bind(column(held, |&lane| view.cleared_of(lane)))
            .bind(column(held, |&lane| view.floor_of(lane)))
            .bind(to_i32(a_lane));
        let query = match bound {
            Bytes::EachMessage(bytes) => query.bind(to_i64(bytes)),
            Bytes::InAll { bytes, alone } => query.bind(to_i64(bytes)).bind(alone),
        };
        let rows = query.fetch_all(&mut self.session.connection).await?;
        let mut rows = rows
            .into_iter()
            .map(HotRow::new)
            .collect::<Result<Vec<_>, _>>()?;
        let mut rank = [LANES; LANES];
        for (number, &lane) in held.iter().enumerate() {
            rank[lane] = number;
        }
        rows.sort_by_key(|row| (rank[row.place.lane as usize], row.place.position));
        Ok(rows)
    }

    /// Takes a row into the claim; the columns of the message start at `column`.
    fn take(&mut self, row: &PgRow, column: usize, place: Place, parked: u32, failures: u32) {
        match decode(row, column) {
            Ok(message) => {
                self.messages.push(Claimed {
                    message,
                    parked,
                    failures,
                    crashes: 0,
                });
                self.places.push(place);
            }
            Err(reason) => self.broken.push(Broken { place, reason }),
        }
    }
}

#[async_trait]
impl Claim for PostgresClaim {
    fn messages(&self) -> &[Claimed] {
        &self.messages
    }

    async fn settle(self: Box<Self>, outcomes: Vec<Outcome>) -> Result<(), StoreError> {
        if outcomes.len() != self.messages.len() {
            let reason = format!(
                "{} outcomes for {} messages",
                outcomes.len(),
                self.messages.len()
            );
            return Err(StoreError::new("settle", reason));
        }
        let shared = Arc::clone(&self.shared);
        self.settle_in_place(outcomes).await.map_err(|error| {
            shared.forget();
            StoreError::new("settle", error)
        })
    }
}

/// A message from its columns, or what is wrong with them: a row that this version cannot read must
/// not stop those behind it.
pub(crate) fn decode(row: &PgRow, column: usize) -> Result<Message, String> {
    let parts = || -> Result<_, sqlx::Error> {
        Ok((
            row.try_get::<Uuid, _>(column)?,
            row.try_get::<String, _>(column + 1)?,
            row.try_get::<Option<String>, _>(column + 2)?,
            row.try_get::<Option<Vec<u8>>, _>(column + 3)?,
            row.try_get::<Option<String>, _>(column + 4)?,
        ))
    };
    let (id, topic, key, payload, headers) = parts().map_err(|error| error.to_string())?;
    let headers = match headers {
        Some(headers) => Headers::from_json(&headers),
        None => Ok(Headers::default()),
    };
    headers
        .and_then(|headers| Message::from_parts(id, topic, key, payload.map(Into::into), headers))
        .map_err(|error| error.to_string())
}

fn to_i32(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn to_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
