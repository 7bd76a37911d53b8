//! The tables, and how they come to a database: embedded, safe to run at every start.
//!
//! sqlx's own migrator is not used: its table belongs to the application, whose migrations have numbers
//! of their own, and it knows nothing of programs of another version beside this one.
//!
//! Migrations are added, never changed.

use std::error::Error;

use sqlx::migrate::{Migration as SqlxMigration, MigrationType};
use sqlx::{
    AssertSqlSafe, Connection as _, Row as _, SqlSafeStr as _, SqliteConnection, SqlitePool,
};

use crate::Outbox;

struct Migration {
    version: i64,
    name: &'static str,
    sql: &'static str,
    /// A program whose last migration is this one may still use the tables.
    compatible_from: i64,
}

const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    name: "outbox",
    sql: include_str!("../migrations/0001_outbox.sql"),
    compatible_from: 1,
}];

/// A migration that the database says was applied.
struct Applied {
    version: i64,
    checksum: String,
    compatible_from: i64,
}

/// Why the tables could not be brought up to date.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// A newer version of this crate has migrated the tables to something that this one cannot use.
    #[error(
        "the outbox's tables are at migration {found}, which this version cannot use: it knows {known}"
    )]
    Newer {
        /// The first migration in the database that excludes this version.
        found: i64,
        /// The last one that this version knows.
        known: i64,
    },
    /// A migration was applied with another content than it has here.
    #[error(
        "migration {version} of the outbox was applied with other content than it has in this version"
    )]
    Changed {
        /// The migration.
        version: i64,
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
    /// Creates the outbox's tables, or brings them up to date. Made to be called at every start, by
    /// several processes at once. When everything is applied, this is one read.
    ///
    /// All or nothing. It waits for another writer as long as the pool's busy timeout says.
    ///
    /// # Errors
    ///
    /// [`MigrateError`].
    ///
    /// # Cancellation
    ///
    /// Of a dropped call it is open whether it migrated; it may be repeated.
    pub async fn migrate(&self, pool: &SqlitePool) -> Result<(), MigrateError> {
        let mut conn = pool.acquire().await?;
        if missing(&self.applied(&mut conn).await?)?.is_empty() {
            return Ok(());
        }
        // IMMEDIATE, so that what another process did meanwhile is seen.
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
        self.run_script(
            &mut tx,
            include_str!("../migrations/0000_migration_table.sql"),
        )
        .await?;
        for migration in missing(&self.applied(&mut tx).await?)? {
            self.run_script(&mut tx, migration.sql).await?;
            sqlx::query(self.sql(include_str!("../sql/record_migration.sql")))
                .bind(migration.version)
                .bind(migration.name)
                .bind(migration.checksum())
                .bind(migration.compatible_from)
                .execute(&mut *tx)
                .await?;
        }
        Ok(tx.commit().await?)
    }

    /// The migrations that are left to do.
    pub(crate) async fn missing_migrations(
        &self,
        pool: &SqlitePool,
    ) -> Result<Vec<i64>, MigrateError> {
        let mut conn = pool.acquire().await?;
        let missing = missing(&self.applied(&mut conn).await?)?;
        Ok(missing.iter().map(|migration| migration.version).collect())
    }

    async fn run_script(
        &self,
        conn: &mut SqliteConnection,
        script: &'static str,
    ) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(self.prefix.sql(script)))
            .execute(conn)
            .await?;
        Ok(())
    }

    async fn applied(&self, conn: &mut SqliteConnection) -> Result<Vec<Applied>, sqlx::Error> {
        let table_is_there: bool =
            sqlx::query_scalar(self.sql(include_str!("../sql/is_migrated.sql")))
                .fetch_one(&mut *conn)
                .await?;
        if !table_is_there {
            return Ok(Vec::new());
        }
        let rows = sqlx::query(self.sql(include_str!("../sql/applied_migrations.sql")))
            .fetch_all(conn)
            .await?;
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
    /// Of the text before the prefix is put in, so that it is the same for every outbox.
    fn checksum(&self) -> String {
        let migration = SqlxMigration::new(
            self.version,
            self.name.into(),
            MigrationType::Simple,
            self.sql.into_sql_str(),
            false,
        );
        let bytes = migration.checksum.iter();
        bytes.map(|byte| format!("{byte:02x}")).collect()
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

    fn newer(compatible_from: i64) -> Applied {
        Applied {
            version: 1000,
            checksum: "1".to_owned(),
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
    fn newer_tables_are_used_where_they_say_that_this_version_may() {
        let known = MIGRATIONS.len() as i64;
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
        rows[0].checksum.push('0');
        assert!(matches!(
            missing(&rows),
            Err(MigrateError::Changed { version: 1 })
        ));
    }
}
