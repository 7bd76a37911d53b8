//! What a claim holds, from the poll to the moment when it is handed to the relay.
//!
//! A claim holds lanes, in memory, and what was read of them:
//!
//! * *hot* rows, from `message`;
//! * *due* rows, from `parked`: the head of a line that is tried again, and what waits behind it;
//! * chores: hot rows of blocked lines, which the settle sets aside, and rows that cannot be decoded,
//!   which it gives up.
//!
//! Reading takes no lock that a producer would wait for. `settle.rs` ends the claim.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use outbox_core::{Claim, ClaimLimits, Claimed, Headers, Message, Outcome, StoreError, Uuid};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};
use tokio::time::Instant;

use crate::delays;
use crate::lanes::{Hold, bit};
use crate::statements::Statements;
use crate::store::{Shared, is_busy};

/// So many rows at the front of a lane are looked at, however few of them a claim may take: behind them
/// may be what it can, and what it cannot take is set aside in steps of this size.
const FRONT: usize = 1_000;

/// What one look found.
pub(crate) enum Look {
    Claimed(Box<dyn Claim>),
    /// Nothing to hand out, but rows were moved: there may be something now.
    Again,
    /// As before, but another writer was in the way.
    Busy,
    Nothing {
        /// When something is due that was parked or delayed.
        due_in: Option<Duration>,
    },
}

/// Where a claimed message lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) position: i64,
    pub(crate) line: i64,
    /// In `parked`; else in `message`.
    pub(crate) due: bool,
}

impl Place {
    pub(crate) fn lane(&self) -> u32 {
        (self.line & 63) as u32
    }
}

/// A row that cannot be decoded, and why.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) place: Place,
    pub(crate) reason: String,
}

/// What was read of the lanes that a claim holds.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) messages: Vec<Claimed>,
    /// One for each message.
    pub(crate) places: Vec<Place>,
    pub(crate) broken: Vec<Broken>,
    /// Lines that were due.
    pub(crate) due_lines: Vec<i64>,
    /// Up to which position lanes have rows of blocked lines that are to be set aside.
    pub(crate) aside: BTreeMap<u32, i64>,
    bytes: usize,
}

pub(crate) struct SqliteClaim {
    pub(crate) shared: Arc<Shared>,
    pub(crate) hold: Hold,
    pub(crate) held: Held,
}

/// Looks once for something to claim. Dropped at any await, it holds nothing.
pub(crate) async fn look(shared: &Arc<Shared>, limits: &ClaimLimits) -> Result<Look, sqlx::Error> {
    let claim = {
        let mut reader = shared.reader.lock().await;
        // Put back only when all went well: a statement that was left half-way must not go on.
        let mut conn = match reader.take() {
            Some(conn) => conn,
            None => shared.connect().await?,
        };
        let found = match delays::due_in(shared, &mut conn).await {
            Ok(delayed) => {
                let found = read(shared, &mut conn, limits).await;
                found.map(|found| (delayed, found))
            }
            Err(error) => Err(error),
        };
        if found.is_ok() {
            *reader = Some(conn);
        }
        let (delayed, found) = found?;
        // It tells the store when it is done.
        let delayed = delayed.filter(|due_in| {
            let later = !due_in.is_zero();
            if !later {
                delays::deliver(shared);
            }
            later
        });
        match found {
            Ok(claim) => claim,
            Err(due_in) => {
                let due_in = due_in.into_iter().chain(delayed).min();
                return Ok(Look::Nothing { due_in });
            }
        }
    };
    if !claim.held.messages.is_empty() {
        return Ok(Look::Claimed(Box::new(claim)));
    }
    let Some(until) = claim.hold.settling() else {
        return Ok(Look::Again);
    };
    match claim.record(Vec::new(), until).await {
        Ok(()) => Ok(Look::Again),
        Err(error) if is_busy(&error) => Ok(Look::Busy),
        Err(error) => Err(error),
    }
}

/// A claim, or the time until something is due.
async fn read(
    shared: &Arc<Shared>,
    conn: &mut SqliteConnection,
    limits: &ClaimLimits,
) -> Result<Result<SqliteClaim, Option<Duration>>, sqlx::Error> {
    let (mut wanted, mut due, mut blocked) = (0, 0, 0);
    let mut next_due: Option<i64> = None;
    for row in shared.statements.poll.query().fetch_all(&mut *conn).await? {
        let lane = bit(row.try_get::<u32, _>(0)?);
        if row.try_get(1)? {
            wanted |= lane;
        }
        if row.try_get(2)? {
            blocked |= lane;
        }
        match row.try_get::<Option<i64>, _>(3)? {
            Some(due_in) if due_in <= 0 => due |= lane,
            Some(due_in) => next_due = Some(next_due.map_or(due_in, |next| next.min(due_in))),
            None => {}
        }
    }
    let due_in = next_due.map(|due_in| Duration::from_millis(due_in.unsigned_abs()));
    let Some((hold, lanes)) = shared.lanes.take(wanted | due, limits.hold, Instant::now()) else {
        return Ok(Err(due_in));
    };
    let due_goes_first = shared.lanes.due_goes_first();
    let mut reading = Reading {
        statements: &shared.statements,
        conn,
        limits,
        held: Held::default(),
    };
    let mut used = Vec::new();
    for (nth, &lane) in lanes.iter().enumerate() {
        let before = reading.held.size();
        // An equal part for each lane; what one leaves goes to the next ones.
        let part = reading.room().div_ceil(lanes.len() - nth);
        let enough = before.0 + part;
        for turn in [due_goes_first, !due_goes_first] {
            match turn {
                true if due & bit(lane) != 0 => reading.due(lane, enough).await?,
                false if wanted & bit(lane) != 0 => {
                    reading.hot(lane, enough, blocked & bit(lane) != 0).await?;
                }
                _ => {}
            }
        }
        if reading.held.size() != before {
            used.push(lane);
        }
    }
    let held = reading.held;
    if used.is_empty() {
        return Ok(Err(due_in));
    }
    hold.keep(&used);
    Ok(Ok(SqliteClaim {
        shared: Arc::clone(shared),
        hold,
        held,
    }))
}

impl Held {
    /// Rows, and chores; what grows when a lane gave something.
    fn size(&self) -> (usize, usize) {
        let rows = self.messages.len() + self.broken.len();
        (rows, self.due_lines.len() + self.aside.len())
    }
}

struct Reading<'a> {
    statements: &'a Statements,
    conn: &'a mut SqliteConnection,
    limits: &'a ClaimLimits,
    held: Held,
}

impl Reading<'_> {
    /// How many more rows the claim may hold.
    fn room(&self) -> usize {
        let (rows, _) = self.held.size();
        self.limits.messages.max(1).saturating_sub(rows)
    }

    fn room_up_to(&self, enough: usize) -> usize {
        let (rows, _) = self.held.size();
        enough.saturating_sub(rows)
    }

    async fn due(&mut self, lane: u32, enough: usize) -> Result<(), sqlx::Error> {
        let lines = self
            .statements
            .due_lines
            .query()
            .bind(lane)
            .bind(to_i64(self.room_up_to(enough)))
            .fetch_all(&mut *self.conn)
            .await?;
        for line in lines {
            let room = self.room_up_to(enough);
            if room == 0 {
                break;
            }
            let line: i64 = line.try_get(0)?;
            let alone = self.held.messages.is_empty();
            let query = self
                .statements
                .read_due
                .query()
                .bind(line)
                .bind(to_i64(room));
            let rows = query
                .bind(self.bytes_left())
                .bind(alone)
                .fetch_all(&mut *self.conn)
                .await?;
            for row in &rows {
                self.take(row, true)?;
            }
            // A line that is due and has nothing is freed by the settle.
            if !rows.is_empty() || alone {
                self.held.due_lines.push(line);
            }
        }
        Ok(())
    }

    async fn hot(&mut self, lane: u32, enough: usize, blocked: bool) -> Result<(), sqlx::Error> {
        let room = self.room_up_to(enough);
        let front = to_i64(room.max(FRONT));
        if blocked {
            let query = self.statements.followers.query().bind(lane).bind(front);
            let row = query.fetch_one(&mut *self.conn).await?;
            if let Some(position) = row.try_get::<Option<i64>, _>(0)? {
                self.held.aside.insert(lane, position);
            }
        }
        if room == 0 {
            return Ok(());
        }
        let query = self.statements.read_hot.query().bind(lane).bind(front);
        let rows = query
            .bind(to_i64(room))
            .bind(self.bytes_left())
            .bind(self.held.messages.is_empty())
            .fetch_all(&mut *self.conn)
            .await?;
        for row in &rows {
            self.take(row, false)?;
        }
        Ok(())
    }

    fn bytes_left(&self) -> i64 {
        to_i64(self.limits.bytes.saturating_sub(self.held.bytes))
    }

    fn take(&mut self, row: &SqliteRow, due: bool) -> Result<(), sqlx::Error> {
        let place = Place {
            position: row.try_get(0)?,
            line: row.try_get(1)?,
            due,
        };
        match decode(row) {
            Ok(message) => {
                self.held.bytes += message.size();
                self.held.messages.push(Claimed {
                    message,
                    parked: row.try_get(7)?,
                    failures: row.try_get(8)?,
                    crashes: 0,
                });
                self.held.places.push(place);
            }
            Err(reason) => self.held.broken.push(Broken { place, reason }),
        }
        Ok(())
    }
}

#[async_trait]
impl Claim for SqliteClaim {
    fn messages(&self) -> &[Claimed] {
        &self.held.messages
    }

    /// Goes on to its end when the call is dropped.
    async fn settle(self: Box<Self>, outcomes: Vec<Outcome>) -> Result<(), StoreError> {
        let (given, held) = (outcomes.len(), self.held.messages.len());
        if given != held {
            let reason = format!("{given} outcomes for {held} messages");
            return Err(StoreError::new("settle", reason));
        }
        let Some(until) = self.hold.settling() else {
            let reason = "the claim was held for too long and taken away";
            return Err(StoreError::new("settle", reason));
        };
        self.record(outcomes, until)
            .await
            .map_err(|error| StoreError::new("settle", error))
    }
}

/// A message from its columns, or what is wrong with them: a row that this version cannot read must
/// not stop those behind it.
pub(crate) fn decode(row: &SqliteRow) -> Result<Message, String> {
    let parts = || -> Result<_, sqlx::Error> {
        Ok((
            row.try_get::<Uuid, _>(2)?,
            row.try_get::<String, _>(3)?,
            row.try_get::<Option<String>, _>(4)?,
            row.try_get::<Option<String>, _>(5)?,
            row.try_get::<Option<Vec<u8>>, _>(6)?,
        ))
    };
    let (id, topic, key, headers, payload) = parts().map_err(|error| error.to_string())?;
    let headers = match headers {
        Some(headers) => Headers::from_json(&headers),
        None => Ok(Headers::default()),
    };
    headers
        .and_then(|headers| Message::from_parts(id, topic, key, payload.map(Bytes::from), headers))
        .map_err(|error| error.to_string())
}

fn to_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
