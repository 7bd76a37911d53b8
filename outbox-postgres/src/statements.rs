//! The statements of the relay's side, written for one schema.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::ClaimLimits;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres, RawSql};

use crate::schema::Schema;

/// What the server adds to the time that a claim is held before it ends the claim by itself.
pub(crate) const HOLD_MARGIN: Duration = Duration::from_secs(10);

/// Run by itself, and not prepared: it is a transaction of its own.
pub(crate) const FLUSH: &str = include_str!("../sql/flush.sql");

/// The longest that one statement of ours may run, and wait for a lock.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

macro_rules! statements {
    ($($name:ident),+ $(,)?) => {
        /// Every statement, and how it is prepared.
        pub(crate) struct Statements {
            $(pub(crate) $name: Statement,)+
            asynchronous_settle: bool,
        }

        impl Statements {
            /// With `pooled`, no prepared statement outlives its transaction.
            pub(crate) fn new(schema: &Schema, pooled: bool, asynchronous_settle: bool) -> Self {
                let statement = |text: &str| {
                    let text = text
                        .replace("{walk}", include_str!("../sql/walk.sql"))
                        .replace("{bound}", include_str!("../sql/bound.sql"))
                        .replace("{epoch}", include_str!("../sql/epoch.sql"));
                    Statement { text: schema.sql(&text).into(), persistent: !pooled }
                };
                Self {
                    $($name: statement(include_str!(concat!("../sql/", stringify!($name), ".sql"))),)+
                    asynchronous_settle,
                }
            }
        }
    };
}

statements!(
    session_start,
    survived,
    own_xid,
    deliver_due,
    snapshot,
    poll,
    read,
    read_large,
    due,
    suspect,
    try_alone,
    settle_suspects,
    settle_delivered,
    settle_park,
    settle_block,
    settle_counters,
    settle_lower_head,
    settle_parked_delivered,
    settle_promote,
    settle_dead,
    settle_parked_dead,
    settle_floor,
    settle_unblock,
    settle_kept,
    settle_parked_kept,
    keep_delivered,
);

/// One statement.
pub(crate) struct Statement {
    text: Arc<str>,
    persistent: bool,
}

impl Statement {
    pub(crate) fn query(&self) -> Query<'_, Postgres, PgArguments> {
        // The only thing put into the text is the name of a schema, which was checked.
        sqlx::query(AssertSqlSafe(Arc::clone(&self.text))).persistent(self.persistent)
    }

    /// The same in one message to the server, for a statement without parameters that is a transaction
    /// of its own. A query is two, and between them a pooler may change the session behind us: then it
    /// runs what another client has prepared there.
    pub(crate) fn at_once(&self) -> RawSql {
        sqlx::raw_sql(AssertSqlSafe(Arc::clone(&self.text)))
    }
}

impl Statements {
    /// Begins a move of delayed messages, in one round trip: a producer's transaction, so nothing is put off
    /// that a producer has when it commits.
    pub(crate) fn begin_move(timeout: Option<Duration>) -> String {
        let statement = millis(timeout.unwrap_or(STATEMENT_TIMEOUT)).to_string();
        let set = set_local(&[
            ("statement_timeout", statement),
            ("lock_timeout", millis(STATEMENT_TIMEOUT).to_string()),
            (
                "idle_in_transaction_session_timeout",
                millis(STATEMENT_TIMEOUT).to_string(),
            ),
        ]);
        format!("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {set}")
    }

    /// Begins a claim, in one round trip.
    ///
    /// * The isolation is named, since a server whose default is stricter would give the second
    ///   statement the first one's snapshot, and so messages twice.
    /// * The planner is told what it cannot know: statistics of an outbox are those of an empty table,
    ///   every scan of ours is short and by index. Without sequential scans the cost of an
    ///   unavoidable one would start the JIT compiler.
    /// * The server ends a claim whose relay is frozen or cut off, and notices a dead peer.
    pub(crate) fn begin(&self, limits: &ClaimLimits, server_version: u32) -> String {
        let hold = millis(limits.hold.saturating_add(HOLD_MARGIN));
        let statement = millis(STATEMENT_TIMEOUT);
        let commit = if self.asynchronous_settle {
            "off"
        } else {
            "on"
        };
        let mut settings = vec![
            ("synchronous_commit", commit.to_owned()),
            ("jit", "off".to_owned()),
            ("enable_seqscan", "off".to_owned()),
            ("enable_bitmapscan", "off".to_owned()),
            ("plan_cache_mode", "force_generic_plan".to_owned()),
            ("idle_in_transaction_session_timeout", hold.to_string()),
            ("statement_timeout", statement.to_string()),
            ("lock_timeout", statement.to_string()),
            ("tcp_keepalives_idle", "10".to_owned()),
            ("tcp_keepalives_interval", "5".to_owned()),
            ("tcp_keepalives_count", "3".to_owned()),
            ("tcp_user_timeout", "25000".to_owned()),
        ];
        if server_version >= 170_000 {
            settings.push(("transaction_timeout", "0".to_owned()));
        }
        format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {}",
            set_local(&settings)
        )
    }
}

/// Sets what ends with the transaction, since settings of a session leak through poolers. It is one
/// statement, where `SET LOCAL` is one for each: an idle relay does little else. Names and values are
/// words of ours only.
pub(crate) fn set_local(settings: &[(&str, String)]) -> String {
    let set = settings
        .iter()
        .map(|(name, value)| format!("set_config('{name}', '{value}', true)"));
    format!("SELECT {}", set.collect::<Vec<_>>().join(", "))
}

/// As a setting of Postgres, which is a positive number of 31 bits.
fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// One value of each row, as an array for Postgres.
pub(crate) fn column<'a, R: 'a, V>(
    rows: impl IntoIterator<Item = &'a R>,
    value: impl Fn(&'a R) -> V,
) -> Vec<V> {
    rows.into_iter().map(value).collect()
}
