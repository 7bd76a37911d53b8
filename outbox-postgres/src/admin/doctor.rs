//! What an outbox needs of the server around it, looked at piece by piece.
//!
//! Facts are read here, each piece in a transaction of its own, so that one which a role may not see does
//! not hide the others. What they mean is said in `judge.rs`.

mod judge;

use std::time::Duration;

use outbox_core::Uuid;
use outbox_core::admin::{Finding, Severity};
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection, PgPool, Row as _};
use tokio::time::timeout;

use super::{BEGIN_LOOK, micros, unsigned};
use crate::{Access, Outbox};
use judge::{Index, SchemaFacts, Server, SnapshotHolder, Table};

/// For a connection of its own.
const PATIENCE: Duration = Duration::from_secs(10);

impl Outbox {
    /// Looks at what the outbox needs of the server around it, and at what of it a relay with this
    /// role and these options could use. Changes nothing. Everything that was looked at is in the list,
    /// also what is fine.
    ///
    /// Of other roles' sessions a role sees more with `pg_monitor`.
    ///
    /// # Errors
    ///
    /// What the database answered to the first question. What it does not answer later is found
    /// [`Unknown`](outbox_core::admin::Severity::Unknown).
    pub async fn doctor(&self, pool: &PgPool) -> Result<Vec<Finding>, sqlx::Error> {
        let rows = self.ask(pool, include_str!("../../sql/doctor_server.sql"));
        let row = rows.await?.pop().ok_or(sqlx::Error::RowNotFound)?;
        let server = Server {
            version_number: row.try_get(0)?,
            version: row.try_get(1)?,
            in_recovery: row.try_get(2)?,
            read_only: row.try_get(3)?,
            role: row.try_get(4)?,
            connections: row.try_get(6)?,
            connected: row.try_get(7)?,
            transaction_age: row.try_get(8)?,
            multixact_age: row.try_get(9)?,
            notification_queue: row.try_get(10)?,
            fsync: row.try_get(11)?,
            full_page_writes: row.try_get(12)?,
            synchronous_standbys: row.try_get(13)?,
        };
        let there: bool = row.try_get(5)?;
        let mut findings = judge::server(&server);
        findings.push(self.pooler(pool).await);
        findings.push(self.durability(pool, &server).await);
        findings.extend(self.snapshots(pool).await);
        findings.push(judge::migrations(
            self.schema(),
            self.missing_migrations(pool).await,
        ));
        if there {
            findings.push(self.rights(pool, &server.role).await);
            findings.extend(self.tables_found(pool).await);
            findings.extend(self.indexes(pool).await);
            findings.extend(self.schema_found(pool).await);
        }
        Ok(findings)
    }

    async fn ask(&self, pool: &PgPool, statement: &'static str) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut tx = pool.begin_with(BEGIN_LOOK).await?;
        let rows = sqlx::query(self.sql(statement))
            .persistent(false)
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(rows)
    }

    /// Asks, and has what comes back judged; what cannot be asked is unknown.
    async fn found<T>(
        &self,
        pool: &PgPool,
        check: &'static str,
        statement: &'static str,
        read: impl Fn(&PgRow) -> Result<T, sqlx::Error>,
    ) -> Result<Vec<T>, Finding> {
        let rows = self.ask(pool, statement).await;
        rows.and_then(|rows| rows.iter().map(read).collect())
            .map_err(|error| judge::unknown(check, &error))
    }

    async fn pooler(&self, pool: &PgPool) -> Finding {
        let mark = Uuid::now_v7().simple().to_string();
        let options = (*pool.connect_options())
            .clone()
            .options([("outbox.doctor", mark.as_str())]);
        let asked = timeout(PATIENCE, async {
            let mut connection = PgConnection::connect_with(&options).await?;
            let answer: String = sqlx::query_scalar(include_str!("../../sql/doctor_pooler.sql"))
                .persistent(false)
                .fetch_one(&mut connection)
                .await?;
            connection.close().await?;
            Ok::<_, sqlx::Error>(answer)
        });
        match asked.await {
            Ok(Ok(answer)) => judge::pooler(answer == mark),
            // A pooler refuses what it cannot pass on; the pool's own connections work.
            Ok(Err(sqlx::Error::Database(error))) if error.message().contains("startup") => {
                judge::pooler(false)
            }
            Ok(Err(error)) => judge::unknown(judge::POOLER, &error),
            Err(_) => judge::unknown(judge::POOLER, &"no connection in time"),
        }
    }

    async fn durability(&self, pool: &PgPool, server: &Server) -> Finding {
        let statement = include_str!("../../sql/doctor_asynchronous.sql");
        let asynchronous = self.found(pool, judge::DURABILITY, statement, |row| {
            row.try_get::<String, _>(0)
        });
        match asynchronous.await {
            Ok(who) => judge::durability(server, &who),
            Err(unknown) => unknown,
        }
    }

    async fn snapshots(&self, pool: &PgPool) -> Vec<Finding> {
        let statement = include_str!("../../sql/doctor_snapshots.sql");
        let holders = self.found(pool, judge::SNAPSHOTS, statement, |row| {
            Ok(SnapshotHolder {
                kind: row.try_get(0)?,
                name: row.try_get(1)?,
                transactions: row.try_get(2)?,
                age: row.try_get::<Option<i64>, _>(3)?.map(micros),
                elsewhere: row.try_get(4)?,
            })
        });
        let (elsewhere, here): (Vec<_>, Vec<_>) = match holders.await {
            Ok(holders) => holders.into_iter().partition(|holder| holder.elsewhere),
            Err(unknown) => return vec![unknown],
        };
        let mut findings = vec![judge::snapshots(&here)];
        // Of other databases only what is old is worth a word.
        let elsewhere = judge::snapshots(&elsewhere);
        findings.extend(Some(elsewhere).filter(|finding| finding.severity != Severity::Fine));
        findings
    }

    async fn rights(&self, pool: &PgPool, role: &str) -> Finding {
        let statement = include_str!("../../sql/doctor_rights.sql");
        let missing = self.found(pool, judge::RIGHTS, statement, |row| {
            row.try_get::<String, _>(0)
        });
        match missing.await {
            Ok(missing) => judge::rights(role, &missing, || self.grants_sql(Access::Relay, role)),
            Err(unknown) => unknown,
        }
    }

    async fn tables_found(&self, pool: &PgPool) -> Vec<Finding> {
        let statement = include_str!("../../sql/doctor_tables.sql");
        let tables = self.found(pool, judge::VACUUM, statement, |row| {
            Ok(Table {
                name: row.try_get(0)?,
                bytes: unsigned(row.try_get(1)?),
                live: unsigned(row.try_get(2)?),
                dead: unsigned(row.try_get(3)?),
                vacuumed_ago: row.try_get::<Option<i64>, _>(4)?.map(micros),
                vacuum_off: row.try_get(5)?,
                has_threshold: row.try_get(6)?,
                autovacuum: row.try_get(7)?,
            })
        });
        match tables.await {
            Ok(tables) => judge::tables(self.schema(), &tables),
            Err(unknown) => vec![unknown],
        }
    }

    async fn indexes(&self, pool: &PgPool) -> Vec<Finding> {
        let statement = include_str!("../../sql/doctor_indexes.sql");
        let indexes = self.found(pool, judge::INDEXES, statement, |row| {
            Ok(Index {
                name: row.try_get(0)?,
                usable: row.try_get(1)?,
                bytes: unsigned(row.try_get(2)?),
                rows: unsigned(row.try_get(3)?),
            })
        });
        match indexes.await {
            Ok(indexes) => judge::indexes(self.schema(), &indexes),
            Err(unknown) => vec![unknown],
        }
    }

    async fn schema_found(&self, pool: &PgPool) -> Vec<Finding> {
        let statement = include_str!("../../sql/doctor_schema.sql");
        let facts = self.found(pool, judge::SEQUENCE, statement, |row| {
            Ok(SchemaFacts {
                cache: row.try_get(0)?,
                increment: row.try_get(1)?,
                cycle: row.try_get(2)?,
                triggers: row.try_get(3)?,
                lanes: row.try_get(4)?,
                waiting: row.try_get(5)?,
            })
        });
        let facts = match facts.await.map(|mut facts| facts.pop()) {
            Ok(Some(facts)) => facts,
            Ok(None) => return Vec::new(),
            Err(unknown) => return vec![unknown],
        };
        let mut findings = judge::schema(self.schema(), &facts);
        findings.push(match self.relays_there(pool).await {
            Ok(relays) => judge::relay(relays, facts.waiting),
            Err(error) => judge::unknown(judge::RELAY, &error),
        });
        findings
    }

    async fn relays_there(&self, pool: &PgPool) -> Result<usize, sqlx::Error> {
        let mut tx = pool.begin_with(BEGIN_LOOK).await?;
        let relays = self.relays(&mut tx).await?;
        tx.commit().await?;
        Ok(relays.len())
    }
}
