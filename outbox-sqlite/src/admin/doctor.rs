//! What an outbox needs of the database around it, and of the way it is opened.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outbox_core::admin::{Finding, Severity};
use sqlx::{Row as _, SqlitePool};

use crate::{MigrateError, Outbox};

/// A log that has grown so far is not written back into the database any more.
const LONG_LOG: u64 = 256 * 1024 * 1024;
/// A settle of the relay takes less.
const SHORT_TIMEOUT: Duration = Duration::from_millis(500);

struct Facts {
    version: String,
    journal: String,
    /// 0: off, 1: normal, 2: full, 3: extra.
    synchronous: i64,
    busy_timeout: Duration,
    file: PathBuf,
    /// The bytes of the write-ahead log.
    log: u64,
}

impl Outbox {
    /// Looks at what the outbox needs of the database around it, and of the pool's way to open it.
    /// Changes nothing. Everything that was looked at is in the list, also what is fine.
    ///
    /// # Errors
    ///
    /// What the database answered to the first question.
    pub async fn doctor(&self, pool: &SqlitePool) -> Result<Vec<Finding>, sqlx::Error> {
        let row = sqlx::query(include_str!("../../sql/doctor.sql"))
            .fetch_one(pool)
            .await?;
        let file = PathBuf::from(row.try_get::<String, _>(4)?);
        let facts = Facts {
            version: row.try_get(0)?,
            journal: row.try_get(1)?,
            synchronous: row.try_get(2)?,
            busy_timeout: super::millis(row.try_get(3)?),
            log: log_of(&file),
            file,
        };
        let mut findings = judge(&facts);
        let missing = self.missing_migrations(pool).await;
        let there = missing.as_ref().is_ok_and(|missing| missing.is_empty());
        findings.push(migrations(missing));
        if there {
            findings.push(writes(
                sqlx::query(self.sql(include_str!("../../sql/is_writable.sql")))
                    .execute(pool)
                    .await
                    .map(drop),
            ));
        }
        Ok(findings)
    }
}

/// The length of the write-ahead log beside a database.
fn log_of(file: &Path) -> u64 {
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    std::fs::metadata(PathBuf::from(log)).map_or(0, |log| log.len())
}

fn finding(
    check: &'static str,
    why: &'static str,
    severity: Severity,
    what: impl Into<String>,
    mend: &str,
) -> Finding {
    Finding {
        check,
        severity,
        what: what.into(),
        why,
        mend: mend.to_owned(),
    }
}

fn judge(facts: &Facts) -> Vec<Finding> {
    use Severity::{Fine, Problem, Warning};

    let wal = facts.journal.eq_ignore_ascii_case("wal");
    let (severity, what, mend) = match facts.synchronous {
        0 => (
            Problem,
            "synchronous is OFF",
            "open the database with synchronous = FULL",
        ),
        1 => (
            Warning,
            "synchronous is NORMAL",
            "open the database with synchronous = FULL where messages are enqueued",
        ),
        _ => (
            Fine,
            "commits are on the disk before they are confirmed",
            "",
        ),
    };
    vec![
        finding(
            "version",
            "it comes with the program",
            Fine,
            format!("SQLite {}", facts.version),
            "",
        ),
        if facts.file.as_os_str().is_empty() {
            finding(
                "file",
                "what is in memory dies with the process",
                Problem,
                "the database is in memory",
                "open a file",
            )
        } else {
            finding(
                "file",
                "one relay works on one file",
                Fine,
                facts.file.display().to_string(),
                "",
            )
        },
        finding(
            "journal",
            "without WAL a claim that reads makes commits wait, and a commit makes claims wait",
            if wal { Fine } else { Warning },
            format!("journal_mode is {}", facts.journal.to_uppercase()),
            if wal { "" } else { "PRAGMA journal_mode = WAL" },
        ),
        finding(
            "durability",
            "a loss of power may take back a transaction whose message was delivered before",
            severity,
            what,
            mend,
        ),
        if facts.busy_timeout < SHORT_TIMEOUT {
            finding(
                "busy timeout",
                "a writer that meets another one fails at once instead of waiting for it",
                Warning,
                format!("{} ms", facts.busy_timeout.as_millis()),
                "open the database with a busy timeout of 5 s",
            )
        } else {
            finding(
                "busy timeout",
                "one writer at a time is SQLite's rule",
                Fine,
                format!("{} ms", facts.busy_timeout.as_millis()),
                "",
            )
        },
        finding(
            "write-ahead log",
            "it is written back when no reader needs what is in it, and reading slows down as it grows",
            if facts.log >= LONG_LOG { Warning } else { Fine },
            format!("{} MB", facts.log.div_ceil(1024 * 1024)),
            if facts.log >= LONG_LOG {
                "end the read transaction that has been open for long, in whatever process"
            } else {
                ""
            },
        ),
    ]
}

fn migrations(missing: Result<Vec<i64>, MigrateError>) -> Finding {
    let (severity, what, mend) = match missing {
        Ok(missing) if missing.is_empty() => {
            (Severity::Fine, "everything is applied".to_owned(), "")
        }
        Ok(missing) => (
            Severity::Problem,
            format!("the migrations {missing:?} are missing"),
            "`outbox migrate` applies them, or `Outbox::migrate`",
        ),
        Err(MigrateError::Database(error)) => (
            Severity::Unknown,
            error.to_string(),
            "see that the file can be read",
        ),
        Err(error) => (
            Severity::Problem,
            error.to_string(),
            "use a version of the program that fits the tables",
        ),
    };
    let why = "the tables must be those that this version knows";
    finding("migrations", why, severity, what, mend)
}

fn writes(tried: Result<(), impl Display>) -> Finding {
    let why = "a relay deletes what it has delivered";
    match tried {
        Ok(()) => finding(
            "writes",
            why,
            Severity::Fine,
            "the database takes writes",
            "",
        ),
        Err(error) => finding(
            "writes",
            why,
            Severity::Problem,
            error.to_string(),
            "give the process the right to write to the file and its folder, or wait for the other writer",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ill(change: impl FnOnce(&mut Facts)) -> Vec<(&'static str, Severity)> {
        let mut facts = Facts {
            version: "3.51.0".to_owned(),
            journal: "wal".to_owned(),
            synchronous: 2,
            busy_timeout: Duration::from_secs(5),
            file: PathBuf::from("/srv/app.db"),
            log: 4_000_000,
        };
        change(&mut facts);
        let findings = judge(&facts).into_iter();
        findings
            .filter(|finding| finding.severity != Severity::Fine)
            .inspect(|finding| assert!(!finding.mend.is_empty(), "{finding:?}"))
            .map(|finding| (finding.check, finding.severity))
            .collect()
    }

    #[test]
    fn a_database_is_ill_of_what_is_wrong_with_it_and_nothing_else() {
        use Severity::{Problem, Warning};
        assert_eq!(ill(|_| {}), []);
        assert_eq!(
            ill(|facts| facts.journal = "delete".to_owned()),
            [("journal", Warning)]
        );
        assert_eq!(
            ill(|facts| facts.synchronous = 1),
            [("durability", Warning)]
        );
        assert_eq!(
            ill(|facts| facts.synchronous = 0),
            [("durability", Problem)]
        );
        assert_eq!(
            ill(|facts| facts.busy_timeout = Duration::ZERO),
            [("busy timeout", Warning)]
        );
        assert_eq!(
            ill(|facts| facts.file = PathBuf::new()),
            [("file", Problem)]
        );
        assert_eq!(
            ill(|facts| facts.log = LONG_LOG),
            [("write-ahead log", Warning)]
        );
    }
}
