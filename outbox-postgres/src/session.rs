//! A connection that claims. What is known of the lanes is the store's, see `scan.rs`.
//!
//! A session belongs to one claim at a time. It is thrown away whenever a claim ends other than by a
//! settle that succeeded: closing the connection is what releases the lanes,
//! so release and death are one path.

use std::collections::BTreeMap;
use std::time::Instant;

use outbox_core::ClaimLimits;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, Row};

use crate::delays::{self, Cursor, Step, Stepped};
use crate::scan::{LANES, Poll, Seen, Start, Suspect, View};
use crate::statements::{Statements, column};

/// What the server says when a statement took too long.
const QUERY_CANCELED: &str = "57014";

pub(crate) struct Session {
    pub(crate) connection: PgConnection,
    /// How many lanes the next claim may lock.
    pub(crate) width: usize,
    /// Where the next claim starts to look for lanes, so that all have their turn.
    pub(crate) turn: usize,
    /// How many lanes from there on it looks at.
    pub(crate) reach: usize,
    /// How many lanes that are too deep for a probe it may read.
    pub(crate) deep: usize,
    /// Whether a claim of one message takes a due one, where there is a choice.
    pub(crate) due_first: bool,
    /// Whether the last messages were too large to be read without adding up their bytes.
    pub(crate) large: bool,
    /// When the floor of each lane was last written.
    pub(crate) floor_written: [Option<Instant>; LANES],
    /// When it was last asked whether a lane with blocked keys has none any more.
    pub(crate) unblocked: Option<Instant>,
    /// For flushing, where that is asked: a claim's own transaction is open.
    flusher: Option<PgConnection>,
    server_version: u32,
}

/// Nothing in the state of a session is worth keeping after an error.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    OtherServer(#[from] crate::scan::OtherServer),
    /// A session that draws positions in advance, or a sequence that goes round, would use one below
    /// what was already delivered.
    #[error("the sequence message_position must have CACHE 1, INCREMENT 1 and NO CYCLE")]
    Sequence,
    /// Somebody has deleted rows of `lane`, and messages of these lanes would never be found.
    #[error("the table lane does not have the {LANES} rows that belong there")]
    Lanes,
}

impl Session {
    /// Connects, and takes a mark and a base: three statements.
    pub(crate) async fn open(
        options: &PgConnectOptions,
        statements: &Statements,
        width: usize,
    ) -> Result<(Self, Start), SessionError> {
        let mut connection = options.connect().await?;
        let start = statements
            .session_start
            .at_once()
            .fetch_one(&mut connection)
            .await?;
        let (q, epoch, server_version) = (
            start.try_get(0)?,
            start.try_get(1)?,
            start.try_get::<i32, _>(2)?,
        );
        if !start.try_get::<bool, _>(3)? {
            return Err(SessionError::Sequence);
        }
        let xid = Self::take_xid(&mut connection, statements).await?;
        let snapshot = statements
            .snapshot
            .at_once()
            .fetch_one(&mut connection)
            .await?;
        let start = Start {
            q,
            epoch,
            xid,
            base: snapshot.try_get(0)?,
        };
        let session = Self {
            connection,
            width,
            turn: fastrand::usize(..LANES),
            reach: LANES,
            deep: 1,
            due_first: false,
            large: false,
            floor_written: [None; LANES],
            unblocked: None,
            flusher: None,
            server_version: server_version.unsigned_abs(),
        };
        Ok((session, start))
    }

    /// How many lanes have their turn before this one.
    pub(crate) fn distance(&self, lane: usize) -> usize {
        (lane + LANES - self.turn) % LANES
    }

    pub(crate) async fn begin(
        &mut self,
        statements: &Statements,
        limits: &ClaimLimits,
    ) -> Result<(), sqlx::Error> {
        // Numbers and words of ours only.
        let begin = AssertSqlSafe(statements.begin(limits, self.server_version));
        sqlx::raw_sql(begin).execute(&mut self.connection).await?;
        Ok(())
    }

    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("COMMIT")
            .execute(&mut self.connection)
            .await?;
        Ok(())
    }

    /// Says that claims which ended without a settle did not end by a death; gives back the lanes of
    /// which it has to be said again.
    pub(crate) async fn say_alive(
        &mut self,
        statements: &Statements,
        claims: &BTreeMap<usize, i64>,
    ) -> Result<Vec<usize>, sqlx::Error> {
        let rows = statements
            .survived
            .query()
            .bind(column(claims.keys(), |&lane| lane as i16))
            .bind(column(claims.values(), |&xid| xid))
            .fetch_all(&mut self.connection)
            .await?;
        rows.iter()
            .map(|row| Ok(row.try_get::<i16, _>(0)? as usize))
            .collect()
    }

    /// Enqueues delayed messages that are due, in a transaction of its own. What the database refuses, such as
    /// a statement that takes too long, holds up nothing else.
    pub(crate) async fn deliver_due(
        &mut self,
        statements: &Statements,
        step: &Step,
    ) -> Result<Stepped, sqlx::Error> {
        // Numbers and words of ours only.
        let begin = AssertSqlSafe(Statements::begin_move(step.timeout));
        sqlx::raw_sql(begin).execute(&mut self.connection).await?;
        let stepped = statements
            .deliver_due
            .query()
            .bind(step.since.map(|since| since.micros))
            .bind(step.since.map_or(0, |since| since.number))
            .bind(step.before)
            .bind(delays::MOST_MESSAGES)
            .bind(delays::MOST_BYTES)
            .fetch_one(&mut self.connection)
            .await;
        let row = match stepped {
            Ok(row) => row,
            Err(sqlx::Error::Database(error)) => {
                sqlx::raw_sql("ROLLBACK")
                    .execute(&mut self.connection)
                    .await?;
                if error.code().as_deref() == Some(QUERY_CANCELED) && step.timeout.is_some() {
                    return Ok(Stepped::TimedOut);
                }
                tracing::warn!(%error, "delayed messages that are due cannot be enqueued");
                return Ok(Stepped::Failed);
            }
            Err(error) => return Err(error),
        };
        self.commit().await?;
        let Some(messages) = row.try_get(0)? else {
            return Ok(Stepped::Busy);
        };
        let last = match row.try_get::<Option<i64>, _>(1)? {
            Some(micros) => Some(Cursor {
                micros,
                number: row.try_get(2)?,
            }),
            None => None,
        };
        Ok(Stepped::Moved {
            messages,
            last,
            clock: row.try_get(3)?,
        })
    }

    /// Looks at the lanes within reach and locks up to `width` of those that have work. One with a
    /// message to be tried alone is locked only by a poll for it.
    pub(crate) async fn poll(
        &mut self,
        statements: &Statements,
        view: &View,
        width: usize,
        alone: bool,
        delayed: Option<Cursor>,
    ) -> Result<Poll, SessionError> {
        let lanes: Vec<usize> = (0..self.reach)
            .map(|distance| (self.turn + distance) % LANES)
            .collect();
        let bases = view.bases(&lanes);
        let row = statements
            .poll
            .query()
            .bind(bases.snapshots)
            .bind(view.mark_positions())
            .bind(view.mark_xids())
            .bind(column(&lanes, |&lane| lane as i16))
            .bind(bases.of)
            .bind(column(&lanes, |&lane| view.cleared_of(lane)))
            .bind(column(&lanes, |&lane| view.looks_at(lane)))
            .bind(column(&lanes, |&lane| view.due_floor_of(lane)))
            .bind(crate::scan::PROBE_DEPTH)
            .bind(width as i32)
            .bind(self.deep as i32)
            .bind(alone)
            .bind(delayed.map(|floor| floor.micros))
            .bind(delayed.map_or(0, |floor| floor.number))
            .fetch_one(&mut self.connection)
            .await?;
        let seen: Option<Vec<i16>> = row.try_get(0)?;
        let seen = seen.unwrap_or_default();
        if seen.len() != lanes.len() {
            return Err(SessionError::Lanes);
        }
        let (floors, probed): (Vec<i64>, Vec<bool>) = (row.try_get(1)?, row.try_get(2)?);
        let heads: Vec<Option<i64>> = row.try_get(3)?;
        let due: Vec<Option<i64>> = row.try_get(4)?;
        let (locked, blocked): (Vec<bool>, Vec<bool>) = (row.try_get(5)?, row.try_get(6)?);
        let (alone, unclean): (Vec<bool>, Vec<i64>) = (row.try_get(13)?, row.try_get(14)?);
        let suspect: Option<Vec<Option<i64>>> = row.try_get(15)?;
        Ok(Poll {
            lanes: seen
                .into_iter()
                .enumerate()
                .map(|(at, lane)| Seen {
                    lane: lane as usize,
                    floor: floors[at],
                    probed: probed[at],
                    head: heads[at],
                    due: due[at],
                    locked: locked[at],
                    blocked: blocked[at],
                    alone: alone[at],
                })
                .collect(),
            wanted: row.try_get(7)?,
            now: row.try_get(8)?,
            q: row.try_get(9)?,
            snapshot: row.try_get(10)?,
            epoch: row.try_get(11)?,
            xid: row.try_get(12)?,
            unclean: unclean
                .chunks_exact(2)
                .map(|pair| (pair[0] as usize, pair[1]))
                .collect(),
            suspect: suspect.and_then(Suspect::from_numbers),
            delayed: row.try_get(16)?,
        })
    }

    /// Makes suspects of lanes that are held and whose last claims ended without a settle.
    pub(crate) async fn suspect(
        &mut self,
        statements: &Statements,
        unclean: &[(usize, i64)],
        limits: &ClaimLimits,
    ) -> Result<(), sqlx::Error> {
        tracing::warn!(
            ?unclean,
            "claims ended without a settle: their process died, or lost its connection"
        );
        statements
            .suspect
            .query()
            .bind(column(unclean, |&(lane, _)| lane as i16))
            .bind(column(unclean, |&(_, xid)| xid))
            .bind(i32::try_from(limits.messages).unwrap_or(i32::MAX))
            .execute(&mut self.connection)
            .await?;
        Ok(())
    }

    /// Waits until the server's disk holds everything that is visible now.
    pub(crate) async fn flush(&mut self, options: &PgConnectOptions) -> Result<(), sqlx::Error> {
        let connection = match &mut self.flusher {
            Some(connection) => connection,
            none => none.insert(options.connect().await?),
        };
        sqlx::raw_sql(crate::statements::FLUSH)
            .execute(connection)
            .await?;
        Ok(())
    }

    /// Takes an own transaction id, in a transaction of its own.
    pub(crate) async fn take_xid(
        connection: &mut PgConnection,
        statements: &Statements,
    ) -> Result<i64, sqlx::Error> {
        statements
            .own_xid
            .at_once()
            .fetch_one(connection)
            .await?
            .try_get(0)
    }
}
