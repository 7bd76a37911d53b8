//! The tables, and how they come to a database: embedded, safe to run at every start.
//!
//! What runs is what [`Outbox::migrations_sql`] prints: one `DO` block for each migration, which takes
//! a lock for its transaction, looks whether the migration was applied, applies it, and writes that
//! down in the outbox's own table. So it may run in twenty processes at once, from `psql`, from another
//! migration tool, and through a transaction pooler.
//!
//! sqlx's own migrator is not used, though it can keep its table in our schema: its lock is one of the
//! session, which a transaction pooler leaks and an error leaves behind, and the same for all of the
//! database's migrations; it creates schema and table before it looks, which takes rights that an
//! application at its start does not have; and a migration that waits for a lock makes all producers
//! wait behind it, so ours must give up soon and try again.
//!
//! Migrations are added, never changed. One stands inside a block of PL/pgSQL, so it cannot hold a bare
//! `SELECT` or what runs only outside of a transaction.

use std::error::Error;
use std::time::{Duration, Instant};

use sqlx::migrate::{Migration as SqlxMigration, MigrationType};
use sqlx::{Connection as _, PgConnection, PgPool, Row as _, SqlSafeStr as _};

use crate::Outbox;

/// How long a statement of a migration may wait for a lock, while producers wait behind it.
const LOCK_TIMEOUT: Duration = Duration::from_millis(250);
/// How long the migration as a whole tries again when locks are held.
const PATIENCE: Duration = Duration::from_secs(60);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

const UNDEFINED_TABLE: &str = "42P01";
const LOCK_NOT_AVAILABLE: &str = "55P03";
const DEADLOCK_DETECTED: &str = "40P01";

struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
    /// A program whose last migration is this one may still use the schema.
    compatible_from: i32,
}

const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    name: "outbox",
    sql: include_str!("../migrations/0001_outbox.sql"),
    compatible_from: 1,
}];

/// A migration that the database says was applied.
struct Applied {
    version: i32,
    checksum: Vec<u8>,
    compatible_from: i32,
}

/// Why the tables could not be brought up to date.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// A newer version of this crate has migrated the schema to something that this one cannot use.
    #[error(
        "the outbox's schema is at migration {found}, which this version cannot use: it knows {known}"
    )]
    Newer {
        /// The first migration in the database that excludes this version.
        found: i32,
        /// The last one that this version knows.
        known: i32,
    },
    /// A migration was applied with another content than it has here.
    #[error(
        "migration {version} of the outbox was applied with other content than it has in this version"
    )]
    Changed {
        /// The migration.
        version: i32,
    },
    /// Others held locks on the outbox's tables all the time.
    #[error("no lock on the outbox's tables within {} s: something holds them in long transactions", .waited.as_secs())]
    Locked {
        /// How long it was tried.
        waited: Duration,
    },
    /// What the database answered.
    #[error(transparent)]
    Database(Box<dyn Error + Send + Sync>),
}

impl From<sqlx::Error> for MigrateError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

impl Outbox {
    /// Creates the outbox's schema and tables, or brings them up to date. Made to be called at every
    /// start, by many processes at once.
    ///
    /// When everything is applied, this is one read: a role that may read the table `migration` can
    /// call it, also on a server that is read-only. Otherwise the role must own the schema, or be
    /// allowed to create it.
    ///
    /// An application and a relay of an older version go on while a newer one migrates, unless that
    /// migration says that they cannot; then this is [`MigrateError::Newer`] for them.
    ///
    /// All or nothing. A lock that others hold is awaited for a fraction of a second at a time, since
    /// producers wait behind it, and tried again for a minute.
    ///
    /// # Errors
    ///
    /// [`MigrateError`].
    ///
    /// # Cancellation
    ///
    /// Of a dropped call it is open whether it migrated; it may be repeated.
    pub async fn migrate(&self, pool: &PgPool) -> Result<(), MigrateError> {
        let mut conn = pool.acquire().await?;
        let started = Instant::now();
        let mut backoff = Duration::from_millis(50);
        loop {
            match self.migrate_once(&mut conn).await {
                Err(Failed::Locked) if started.elapsed() >= PATIENCE => {
                    return Err(MigrateError::Locked {
                        waited: started.elapsed(),
                    });
                }
                Err(Failed::Locked) => {
                    tracing::debug!(
                        schema = self.schema(),
                        ?backoff,
                        "migration waits for a lock"
                    );
                    // Half of it random, so that many processes do not come back together.
                    tokio::time::sleep(backoff.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                    backoff = (backoff * 2).min(MAX_BACKOFF);
                }
                Err(Failed::ForGood(error)) => return Err(error),
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Whether the tables are there and fit this version: whether [`migrate`](Self::migrate) has nothing to
    /// do. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`MigrateError`] as of [`migrate`](Self::migrate), except that no lock is waited for.
    pub async fn is_migrated(&self, conn: &mut PgConnection) -> Result<bool, MigrateError> {
        Ok(missing(&self.applied(conn).await?)?.is_empty())
    }

    /// All of [`migrate`](Self::migrate) as SQL, to read, to run with `psql`, or to put into another
    /// migration tool. It may be run repeatedly: it does what is missing.
    pub fn migrations_sql(&self) -> String {
        let mut script = format!(
            "-- The outbox in schema {schema}. Does what is missing, so it may be run again.\n\
             -- Where producers are running, SET lock_timeout = '{timeout}ms' first: they wait behind it.\n\n",
            schema = self.schema(),
            timeout = LOCK_TIMEOUT.as_millis(),
        );
        script.push_str(include_str!("../migrations/0000_migration_table.sql"));
        for migration in MIGRATIONS {
            script.push_str(&migration.block());
        }
        self.schema.sql(&script)
    }

    async fn migrate_once(&self, conn: &mut PgConnection) -> Result<(), Failed> {
        if missing(&self.applied(conn).await?)?.is_empty() {
            return Ok(());
        }
        // READ COMMITTED, so that what another process did is seen after the wait for its lock.
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = {}",
            LOCK_TIMEOUT.as_millis()
        );
        let mut tx = conn.begin_with(sqlx::AssertSqlSafe(begin)).await?;
        let script = sqlx::AssertSqlSafe(self.migrations_sql()).into_sql_str();
        if let Err(error) = sqlx::raw_sql(script).execute(&mut *tx).await {
            // Awaited, since the locks are held until then.
            let _ = tx.rollback().await;
            return Err(error.into());
        }
        tx.commit().await?;
        // Once more, for what was there before and does not fit.
        missing(&self.applied(conn).await?)?;
        Ok(())
    }

    /// The migrations that are left to do.
    pub(crate) async fn missing_migrations(&self, pool: &PgPool) -> Result<Vec<i32>, MigrateError> {
        let mut conn = pool.acquire().await?;
        let missing = missing(&self.applied(&mut conn).await?)?;
        Ok(missing.iter().map(|migration| migration.version).collect())
    }

    async fn applied(&self, conn: &mut PgConnection) -> Result<Vec<Applied>, sqlx::Error> {
        let statement = self.sql(include_str!("../sql/applied_migrations.sql"));
        let rows = match sqlx::raw_sql(statement).fetch_all(conn).await {
            Err(error) if has_code(&error, UNDEFINED_TABLE) => return Ok(Vec::new()),
            answer => answer?,
        };
        rows.iter()
            .map(|row| {
                Ok(Applied {
                    version: row.try_get("version")?,
                    checksum: row.try_get("checksum")?,
                    compatible_from: row.try_get("compatible_from")?,
                })
            })
            .collect()
    }
}

impl Migration {
    /// The migration as a statement that may be repeated.
    fn block(&self) -> String {
        format!(
            "\n-- Migration {version}: {name}.\n\
             DO $outbox$\n\
             BEGIN\n    \
                 PERFORM pg_advisory_xact_lock(hashtextextended('outbox migration:{{schema}}', 0));\n    \
                 IF EXISTS (SELECT FROM {{schema}}.migration WHERE version = {version}) THEN\n        \
                     RETURN;\n    \
                 END IF;\n\n\
             {sql}\n    \
                 INSERT INTO {{schema}}.migration (version, name, checksum, compatible_from)\n    \
                 VALUES ({version}, '{name}', '\\x{checksum}', {compatible_from});\n\
             END\n\
             $outbox$;\n",
            version = self.version,
            name = self.name,
            sql = self.sql,
            checksum = hex(&self.checksum()),
            compatible_from = self.compatible_from,
        )
    }

    /// Of the text before the schema's name is put in, so that it is the same in every schema.
    fn checksum(&self) -> Vec<u8> {
        let migration = SqlxMigration::new(
            self.version.into(),
            self.name.into(),
            MigrationType::Simple,
            self.sql.into_sql_str(),
            false,
        );
        migration.checksum.into_owned()
    }
}

/// The migrations that are left to do, unless what was applied does not fit this version.
fn missing(applied: &[Applied]) -> Result<Vec<&'static Migration>, MigrateError> {
    let known = MIGRATIONS.last().map_or(0, |migration| migration.version);
    for there in applied {
        match MIGRATIONS.iter().find(|here| here.version == there.version) {
            Some(here) if here.checksum() != there.checksum => {
                return Err(MigrateError::Changed {
                    version: there.version,
                });
            }
            None if there.compatible_from > known => {
                return Err(MigrateError::Newer {
                    found: there.version,
                    known,
                });
            }
            _ => {}
        }
    }
    let is_missing = |here: &&Migration| applied.iter().all(|it| it.version != here.version);
    Ok(MIGRATIONS.iter().filter(is_missing).collect())
}

/// Why one try failed.
enum Failed {
    /// A lock was held for too long: try again.
    Locked,
    ForGood(MigrateError),
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        if has_code(&error, LOCK_NOT_AVAILABLE) || has_code(&error, DEADLOCK_DETECTED) {
            Self::Locked
        } else {
            Self::ForGood(error.into())
        }
    }
}

impl From<MigrateError> for Failed {
    fn from(error: MigrateError) -> Self {
        Self::ForGood(error)
    }
}

fn has_code(error: &sqlx::Error, code: &str) -> bool {
    error
        .as_database_error()
        .and_then(|error| error.code())
        .is_some_and(|found| found == code)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied() -> Vec<Applied> {
        MIGRATIONS
            .iter()
            .map(|migration| Applied {
                version: migration.version,
                checksum: migration.checksum(),
                compatible_from: migration.compatible_from,
            })
            .collect()
    }

    fn newer(compatible_from: i32) -> Applied {
        Applied {
            version: 1000,
            checksum: vec![1],
            compatible_from,
        }
    }

    #[test]
    fn versions_count_up_from_one() {
        for (nth, migration) in (1..).zip(MIGRATIONS) {
            assert_eq!(migration.version, nth);
            assert!((1..=nth).contains(&migration.compatible_from));
        }
    }

    #[test]
    fn what_is_not_applied_is_missing() {
        let versions = |applied: &[Applied]| -> Vec<_> {
            let missing = missing(applied).unwrap();
            missing.iter().map(|migration| migration.version).collect()
        };
        let all: Vec<_> = MIGRATIONS.iter().map(|it| it.version).collect();
        assert_eq!(versions(&[]), all);
        assert_eq!(versions(&applied()[1..]), all[..1]);
        assert!(versions(&applied()).is_empty());
    }

    #[test]
    fn a_newer_schema_is_used_where_it_says_that_this_version_may() {
        let known = MIGRATIONS.len() as i32;
        let mut rows = applied();
        rows.push(newer(known));
        assert!(missing(&rows).unwrap().is_empty());
        rows.push(newer(known + 1));
        assert!(matches!(
            missing(&rows),
            Err(MigrateError::Newer { found: 1000, known: k }) if k == known
        ));
    }

    #[test]
    fn a_changed_migration_is_an_error() {
        let mut rows = applied();
        rows[0].checksum[0] ^= 1;
        assert!(matches!(
            missing(&rows),
            Err(MigrateError::Changed { version: 1 })
        ));
    }
}
