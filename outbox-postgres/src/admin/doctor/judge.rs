//! What the facts about a server mean for an outbox on it. Pure.

use std::fmt::Display;
use std::time::Duration;

use outbox_core::admin::{Finding, Severity};

use crate::MigrateError;

pub(super) const POOLER: &str = "pooler";
pub(super) const DURABILITY: &str = "durability";
pub(super) const SNAPSHOTS: &str = "oldest snapshot";
pub(super) const RIGHTS: &str = "rights";
pub(super) const VACUUM: &str = "vacuum";
pub(super) const INDEXES: &str = "indexes";
pub(super) const SEQUENCE: &str = "sequence";
pub(super) const RELAY: &str = "relay";

/// A snapshot that is older holds back vacuum to a degree that shows.
const OLD_SNAPSHOT: Duration = Duration::from_secs(300);
/// The same in transactions, for what has no time.
const OLD_SNAPSHOT_TRANSACTIONS: i32 = 1_000_000;
/// Of these, transaction ids run out at 2.1 thousand million.
const WARN_TRANSACTION_AGE: i32 = 500_000_000;
const LAST_TRANSACTION_AGE: i32 = 1_500_000_000;
/// Below, a table or an index is too small to be worth a word.
const LARGE: u64 = 256 * 1024 * 1024;
/// So many bytes of an index for a row are more than an index needs.
const INDEX_ROW: u64 = 400;
/// Deleted rows that nothing has removed for so long.
const MANY_DELETED: u64 = 1_000_000;
/// A relay with four workers and a listener, twice, for a rollout.
const FREE_CONNECTIONS: i32 = 10;

pub(super) struct Server {
    pub(super) version_number: i32,
    pub(super) version: String,
    pub(super) in_recovery: bool,
    pub(super) read_only: bool,
    pub(super) role: String,
    /// That clients other than superusers can have.
    pub(super) connections: i32,
    pub(super) connected: i32,
    pub(super) transaction_age: i32,
    pub(super) multixact_age: i32,
    /// The part of the queue that is in use.
    pub(super) notification_queue: f64,
    pub(super) fsync: bool,
    pub(super) full_page_writes: bool,
    pub(super) synchronous_standbys: bool,
}

pub(super) struct SnapshotHolder {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) transactions: i32,
    pub(super) age: Option<Duration>,
    /// In another database of the server.
    pub(super) elsewhere: bool,
}

pub(super) struct Table {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) live: u64,
    pub(super) dead: u64,
    pub(super) vacuumed_ago: Option<Duration>,
    /// For this table.
    pub(super) vacuum_off: bool,
    /// As the migration sets it.
    pub(super) has_threshold: bool,
    /// For the server.
    pub(super) autovacuum: bool,
}

pub(super) struct Index {
    pub(super) name: String,
    pub(super) usable: bool,
    pub(super) bytes: u64,
    pub(super) rows: u64,
}

pub(super) struct SchemaFacts {
    pub(super) cache: Option<i64>,
    pub(super) increment: Option<i64>,
    pub(super) cycle: Option<bool>,
    pub(super) triggers: i32,
    pub(super) lanes: i32,
    pub(super) waiting: bool,
}

/// A finding in the making: fine, until something else is said.
struct Check {
    check: &'static str,
    why: &'static str,
}

impl Check {
    fn fine(&self, what: impl Into<String>) -> Finding {
        self.found(Severity::Fine, what, "")
    }

    fn warning(&self, what: impl Into<String>, mend: impl Into<String>) -> Finding {
        self.found(Severity::Warning, what, mend)
    }

    fn problem(&self, what: impl Into<String>, mend: impl Into<String>) -> Finding {
        self.found(Severity::Problem, what, mend)
    }

    fn found(
        &self,
        severity: Severity,
        what: impl Into<String>,
        mend: impl Into<String>,
    ) -> Finding {
        Finding {
            check: self.check,
            severity,
            what: what.into(),
            why: self.why,
            mend: mend.into(),
        }
    }
}

pub(super) fn unknown(check: &'static str, error: &dyn Display) -> Finding {
    Finding {
        check,
        severity: Severity::Unknown,
        what: error.to_string(),
        why: "it could not be looked at",
        mend: "ask with a role that may, such as a member of pg_monitor".to_owned(),
    }
}

pub(super) fn server(server: &Server) -> Vec<Finding> {
    vec![
        version(server),
        writes(server),
        connections(server),
        transaction_ids(server),
        notifications(server),
    ]
}

fn version(server: &Server) -> Finding {
    let check = Check {
        check: "server version",
        why: "the outbox is tested on Postgres 14 to 18",
    };
    let what = format!("Postgres {}", server.version);
    match server.version_number {
        ..140_000 => check.problem(what, "upgrade to Postgres 14 or later"),
        140_000..140_005 if server.synchronous_standbys => check.warning(
            format!(
                "{what} with synchronous standbys: a lock may look free before what it guarded is seen"
            ),
            "upgrade to 14.5 or later",
        ),
        _ => check.fine(what),
    }
}

fn writes(server: &Server) -> Finding {
    let check = Check {
        check: "writes",
        why: "a relay deletes what it has delivered",
    };
    if server.in_recovery {
        check.problem(
            "the server is a standby",
            "connect to the primary (target_session_attrs=read-write)",
        )
    } else if server.read_only {
        check.warning(
            "transactions are read-only unless they say otherwise",
            "the relay says otherwise; applications must too, or SET default_transaction_read_only = off",
        )
    } else {
        check.fine("the server takes writes")
    }
}

fn connections(server: &Server) -> Finding {
    let check = Check {
        check: "connections",
        why: "each claim has a connection of its own, and one listens",
    };
    let free = server.connections - server.connected;
    let what = format!(
        "{} of {} connections are in use",
        server.connected, server.connections
    );
    if free < FREE_CONNECTIONS {
        check.warning(
            what,
            "raise max_connections, or give applications smaller pools",
        )
    } else {
        check.fine(what)
    }
}

fn transaction_ids(server: &Server) -> Finding {
    let check = Check {
        check: "transaction ids",
        why: "a server that runs out of them takes no writes until it is vacuumed; every claim uses one",
    };
    let age = server.transaction_age.max(server.multixact_age);
    let what = format!("the oldest of this database is {age} transactions old");
    let mend =
        "find what holds vacuum back (oldest snapshot), then VACUUM (FREEZE) the oldest tables";
    if age >= LAST_TRANSACTION_AGE {
        check.problem(what, mend)
    } else if age >= WARN_TRANSACTION_AGE {
        check.warning(what, mend)
    } else {
        check.fine(what)
    }
}

fn notifications(server: &Server) -> Finding {
    let check = Check {
        check: "notifications",
        why: "when the queue is full, transactions that notify fail; those of producers may be among them",
    };
    let what = format!(
        "the queue of notifications is {:.0} % full",
        server.notification_queue * 100.0
    );
    if server.notification_queue > 0.25 {
        check.problem(
            what,
            "end the session that listens and is stuck in a transaction: the server's log names it",
        )
    } else {
        check.fine(what)
    }
}

pub(super) fn pooler(is_direct: bool) -> Finding {
    let check = Check {
        check: POOLER,
        why: "through a transaction pooler there is no LISTEN, and no lock outlives a transaction",
    };
    if is_direct {
        check.fine("none: the connection is direct")
    } else {
        check.warning(
            "what the connection says at its start does not reach the server: a pooler is in between",
            "give the relay a direct connection, or tell it of the pooler (`store.pooler = true`, or \
             `through_pooler`): it then polls every second",
        )
    }
}

pub(super) fn durability(server: &Server, asynchronous: &[String]) -> Finding {
    let check = Check {
        check: DURABILITY,
        why: "a crash may take back a transaction whose message was delivered before",
    };
    if !server.fsync || !server.full_page_writes {
        check.problem(
            "fsync or full_page_writes is off: a crash can destroy the database",
            "turn both on",
        )
    } else if asynchronous.is_empty() {
        check.fine(
            "commits are on the disk before they are confirmed, unless a session says otherwise",
        )
    } else {
        check.warning(
            format!(
                "synchronous_commit is off for {}",
                asynchronous.join("; ")
            ),
            "leave it on where messages are enqueued, or have the relay wait (`wait_until_flushed`)",
        )
    }
}

pub(super) fn snapshots(holders: &[SnapshotHolder]) -> Finding {
    let check = Check {
        check: SNAPSHOTS,
        why: "while it is held, vacuum removes nothing that was deleted since: tables and indexes grow",
    };
    let old = |holder: &&SnapshotHolder| match holder.age {
        Some(age) => age >= OLD_SNAPSHOT,
        None => holder.transactions >= OLD_SNAPSHOT_TRANSACTIONS,
    };
    let describe = |holder: &SnapshotHolder| {
        let age = match holder.age {
            Some(age) => format!(
                "{} s and {} transactions",
                age.as_secs(),
                holder.transactions
            ),
            None => format!("{} transactions", holder.transactions),
        };
        format!("{} ({}): {age} old", holder.kind, holder.name)
    };
    let all: Vec<String> = holders.iter().filter(old).map(describe).collect();
    if all.is_empty() {
        return check.fine(match holders.first() {
            Some(oldest) => describe(oldest),
            None => "none is held but this one".to_owned(),
        });
    }
    check.warning(
        all.join("; "),
        "end the session (pg_terminate_backend), COMMIT PREPARED or ROLLBACK PREPARED the transaction, drop \
         the slot that nobody reads, or turn the standby's hot_standby_feedback off",
    )
}

pub(super) fn migrations(schema: &str, missing: Result<Vec<i32>, MigrateError>) -> Finding {
    let check = Check {
        check: "migrations",
        why: "the tables must be those that this version knows",
    };
    match missing {
        Ok(missing) if missing.is_empty() => {
            check.fine(format!("everything is applied in the schema {schema}"))
        }
        Ok(missing) => check.problem(
            format!("the schema {schema} lacks the migrations {missing:?}"),
            "`outbox migrate` applies them, or `Outbox::migrate`; `outbox migrate --print` shows them",
        ),
        Err(MigrateError::Database(error)) => unknown(check.check, &error),
        Err(error) => check.problem(
            error.to_string(),
            "use a version of the program that fits the schema",
        ),
    }
}

pub(super) fn rights(role: &str, missing: &[String], grants: impl FnOnce() -> String) -> Finding {
    let check = Check {
        check: RIGHTS,
        why: "a relay needs them to claim and to settle",
    };
    if missing.is_empty() {
        check.fine(format!("the role {role} may do what a relay does"))
    } else {
        check.problem(
            format!("the role {role} lacks {}", missing.join(", ")),
            grants(),
        )
    }
}

pub(super) fn tables(schema: &str, tables: &[Table]) -> Vec<Finding> {
    let check = Check {
        check: VACUUM,
        why: "deleted messages stay in table and index until vacuum has removed them",
    };
    let mut findings = Vec::new();
    if tables.iter().any(|table| !table.autovacuum) {
        findings.push(check.problem(
            "autovacuum or track_counts is off on this server",
            "turn both on",
        ));
    }
    for table in tables {
        let name = format!("{schema}.{}", table.name);
        if table.vacuum_off {
            findings.push(check.problem(
                format!("autovacuum is off for {name}"),
                format!("ALTER TABLE {name} RESET (autovacuum_enabled)"),
            ));
        }
        if !table.has_threshold {
            findings.push(check.warning(
                format!("{name} is vacuumed by its size, not after a fixed number of deletes"),
                format!(
                    "ALTER TABLE {name} SET (autovacuum_vacuum_scale_factor = 0, \
                     autovacuum_vacuum_threshold = 10000)"
                ),
            ));
        }
        if table.dead >= MANY_DELETED && table.vacuumed_ago.is_none_or(|ago| ago > OLD_SNAPSHOT) {
            findings.push(check.warning(
                format!("{name} has {} deleted rows that vacuum has not removed", table.dead),
                "look for what holds vacuum back (oldest snapshot), or give autovacuum more workers",
            ));
        }
        if table.bytes >= LARGE && table.bytes / table.live.max(1) > 100 * 1024 {
            findings.push(check.warning(
                format!(
                    "{name} takes {} MB for about {} rows",
                    mega(table.bytes),
                    table.live
                ),
                format!(
                    "once nothing holds vacuum back: VACUUM (FULL) {name}, while producers can wait"
                ),
            ));
        }
    }
    if findings.is_empty() {
        let dead: u64 = tables.iter().map(|table| table.dead).sum();
        findings.push(check.fine(format!(
            "autovacuum is on; about {dead} deleted rows are left to remove"
        )));
    }
    findings
}

pub(super) fn indexes(schema: &str, indexes: &[Index]) -> Vec<Finding> {
    let check = Check {
        check: INDEXES,
        why: "every claim goes by index",
    };
    let mut findings = Vec::new();
    for index in indexes {
        let name = format!("{schema}.{}", index.name);
        if !index.usable {
            findings.push(check.problem(
                format!("the index {name} is invalid"),
                format!("REINDEX INDEX CONCURRENTLY {name}"),
            ));
        } else if index.bytes >= LARGE && index.bytes / index.rows.max(1) > INDEX_ROW {
            findings.push(check.warning(
                format!(
                    "the index {name} takes {} MB for about {} rows",
                    mega(index.bytes),
                    index.rows
                ),
                format!("REINDEX INDEX CONCURRENTLY {name}"),
            ));
        }
    }
    if findings.is_empty() {
        let bytes: u64 = indexes.iter().map(|index| index.bytes).sum();
        findings.push(check.fine(format!("{} valid ones, {} MB", indexes.len(), mega(bytes))));
    }
    findings
}

pub(super) fn schema(schema: &str, facts: &SchemaFacts) -> Vec<Finding> {
    let sequence = Check {
        check: SEQUENCE,
        why: "positions must be drawn one by one and go up, or messages overtake each other and are missed",
    };
    let triggers = Check {
        check: "triggers",
        why: "they give a message its position and its lane, keep it behind a parked one of its key, and wake \
              the relay",
    };
    let lanes = Check {
        check: "lanes",
        why: "a message of a lane without a row is never claimed",
    };
    vec![
        if (facts.cache, facts.increment, facts.cycle) == (Some(1), Some(1), Some(false)) {
            sequence.fine("CACHE 1, INCREMENT 1, NO CYCLE")
        } else {
            sequence.problem(
                "the sequence message_position has other settings than the migration gives it",
                format!(
                    "ALTER SEQUENCE {schema}.message_position INCREMENT 1 CACHE 1 NO CYCLE, while no \
                     producer has drawn from it in an open session"
                ),
            )
        },
        if facts.triggers == 7 {
            triggers.fine("all are on")
        } else {
            triggers.problem(
                "a trigger is missing or off, as a restore with --disable-triggers may leave it",
                format!(
                    "ALTER TABLE {schema}.message ENABLE TRIGGER USER; \
                     ALTER TABLE {schema}.blocked ENABLE TRIGGER USER; \
                     ALTER TABLE {schema}.delayed ENABLE TRIGGER USER"
                ),
            )
        },
        if facts.lanes == 64 {
            lanes.fine("all 64 are there")
        } else {
            lanes.problem(
                format!("{} rows where 64 belong", facts.lanes),
                format!(
                    "INSERT INTO {schema}.lane (lane) SELECT generate_series(0, 63) ON CONFLICT DO NOTHING"
                ),
            )
        },
    ]
}

pub(super) fn relay(relays: usize, waiting: bool) -> Finding {
    const START: &str =
        "start one, such as `outbox run`; if one should run, its log says what it waits for";
    let check = Check {
        check: RELAY,
        why: "without one nothing is delivered",
    };
    match (relays, waiting) {
        (0, true) => check.problem("messages wait and no relay is connected", START),
        (0, false) => check.warning("no relay is connected", START),
        (1.., _) => check.fine("connected"),
    }
}

fn mega(bytes: u64) -> u64 {
    bytes.div_ceil(1024 * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> Server {
        Server {
            version_number: 180_004,
            version: "18.4".to_owned(),
            in_recovery: false,
            read_only: false,
            role: "relay".to_owned(),
            connections: 97,
            connected: 12,
            transaction_age: 1_000,
            multixact_age: 1,
            notification_queue: 0.0,
            fsync: true,
            full_page_writes: true,
            synchronous_standbys: false,
        }
    }

    /// What is not fine about a server that is healthy but for one change, by the words for it.
    fn ill(change: impl FnOnce(&mut Server)) -> Vec<(&'static str, Severity)> {
        let mut facts = healthy();
        change(&mut facts);
        let mut findings = server(&facts);
        findings.push(durability(&facts, &[]));
        findings
            .iter()
            .filter(|finding| finding.severity != Severity::Fine)
            .inspect(|finding| assert!(!finding.mend.is_empty(), "{finding:?}"))
            .map(|finding| (finding.check, finding.severity))
            .collect()
    }

    #[test]
    fn a_server_is_ill_of_what_is_wrong_with_it_and_nothing_else() {
        use Severity::{Problem, Warning};
        assert_eq!(ill(|_| {}), []);
        let old = |number| move |s: &mut Server| s.version_number = number;
        assert_eq!(ill(old(130_020)), [("server version", Problem)]);
        assert_eq!(ill(old(140_004)), []);
        let synchronous = |s: &mut Server| {
            s.version_number = 140_004;
            s.synchronous_standbys = true;
        };
        assert_eq!(ill(synchronous), [("server version", Warning)]);
        assert_eq!(ill(|s| s.in_recovery = true), [("writes", Problem)]);
        assert_eq!(ill(|s| s.read_only = true), [("writes", Warning)]);
        assert_eq!(ill(|s| s.connected = 90), [("connections", Warning)]);
        let aged = |age| move |s: &mut Server| s.transaction_age = age;
        assert_eq!(ill(aged(600_000_000)), [("transaction ids", Warning)]);
        assert_eq!(ill(aged(1_600_000_000)), [("transaction ids", Problem)]);
        let multixacts = |s: &mut Server| s.multixact_age = 600_000_000;
        assert_eq!(ill(multixacts), [("transaction ids", Warning)]);
        let queue = |s: &mut Server| s.notification_queue = 0.5;
        assert_eq!(ill(queue), [("notifications", Problem)]);
        assert_eq!(ill(|s| s.fsync = false), [("durability", Problem)]);
    }

    #[test]
    fn an_old_snapshot_is_told_with_who_holds_it() {
        let holder = |kind: &str, seconds: Option<u64>, transactions| SnapshotHolder {
            kind: kind.to_owned(),
            name: format!("the {kind}"),
            transactions,
            age: seconds.map(Duration::from_secs),
            elsewhere: false,
        };
        assert_eq!(snapshots(&[]).severity, Severity::Fine);
        let young = [
            holder("session", Some(20), 2_000_000),
            holder("slot", None, 10),
        ];
        assert_eq!(snapshots(&young).severity, Severity::Fine);
        let old = [
            holder("session", Some(20), 5),
            holder("prepared transaction", Some(301), 3),
            holder("slot", None, 1_000_000),
        ];
        let found = snapshots(&old);
        assert_eq!(found.severity, Severity::Warning);
        assert_eq!(
            found.what,
            "prepared transaction (the prepared transaction): 301 s and 3 transactions old; \
             slot (the slot): 1000000 transactions old"
        );
    }

    fn table(change: impl FnOnce(&mut Table)) -> Vec<Severity> {
        let mut table = Table {
            name: "message".to_owned(),
            bytes: 1_000_000,
            live: 10,
            dead: 5_000,
            vacuumed_ago: Some(Duration::from_secs(60)),
            vacuum_off: false,
            has_threshold: true,
            autovacuum: true,
        };
        change(&mut table);
        let findings = tables("outbox", &[table]);
        findings.iter().map(|finding| finding.severity).collect()
    }

    #[test]
    fn vacuum_is_missed_where_it_does_not_run() {
        use Severity::{Fine, Problem, Warning};
        assert_eq!(table(|_| {}), [Fine]);
        assert_eq!(table(|t| t.autovacuum = false), [Problem]);
        assert_eq!(table(|t| t.vacuum_off = true), [Problem]);
        assert_eq!(table(|t| t.has_threshold = false), [Warning]);
        assert_eq!(table(|t| t.dead = MANY_DELETED), [Fine]);
        let left = |t: &mut Table| {
            t.dead = MANY_DELETED;
            t.vacuumed_ago = None;
        };
        assert_eq!(table(left), [Warning]);
        assert_eq!(table(|t| t.bytes = 2 * LARGE), [Warning]);
    }

    #[test]
    fn an_index_is_judged_by_what_is_in_it() {
        let index = |usable, bytes, rows| {
            let index = Index {
                name: "message_pkey".to_owned(),
                usable,
                bytes,
                rows,
            };
            indexes("outbox", &[index])[0].severity
        };
        assert_eq!(index(true, 1_000, 0), Severity::Fine);
        assert_eq!(index(true, LARGE, 10_000_000), Severity::Fine);
        assert_eq!(index(true, LARGE, 1_000), Severity::Warning);
        assert_eq!(index(false, 1_000, 0), Severity::Problem);
    }

    #[test]
    fn order_rests_on_sequence_triggers_and_lanes() {
        let findings = |facts: &SchemaFacts| -> Vec<Severity> {
            let findings = schema("outbox", facts);
            findings.iter().map(|finding| finding.severity).collect()
        };
        let mut facts = SchemaFacts {
            cache: Some(1),
            increment: Some(1),
            cycle: Some(false),
            triggers: 7,
            lanes: 64,
            waiting: false,
        };
        assert_eq!(findings(&facts), [Severity::Fine; 3]);
        facts.cache = Some(20);
        facts.triggers = 6;
        facts.lanes = 63;
        assert_eq!(findings(&facts), [Severity::Problem; 3]);
    }

    #[test]
    fn a_missing_relay_matters_more_when_messages_wait() {
        assert_eq!(relay(1, true).severity, Severity::Fine);
        assert_eq!(relay(0, false).severity, Severity::Warning);
        assert_eq!(relay(0, true).severity, Severity::Problem);
    }
}
