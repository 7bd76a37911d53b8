//! What is kept of a run that was not sound, beside its report: what the processes logged, the database's
//! tables, and the memory of the producers and of the consumer.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use sqlx::PgPool;
use sqlx::postgres::PgPoolCopyExt as _;
use uuid::Uuid;

use crate::Result;
use crate::record::{Arrival, Attempt};

/// The names of the files in `folder` are those of their programs; each kind of them gets a folder.
pub(crate) fn keep_logs(from: &Path, folder: &Path) -> Result<()> {
    let logs = folder.join("logs");
    fs::create_dir_all(&logs)?;
    for entry in fs::read_dir(from)?.flatten() {
        if entry.path().extension().is_some_and(|it| it == "log") {
            fs::copy(entry.path(), logs.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Every table of the outbox and of the log, as CSV.
pub(crate) async fn keep_tables(pool: &PgPool, folder: &Path) -> Result<()> {
    let tables = folder.join("tables");
    fs::create_dir_all(&tables)?;
    let names: Vec<String> = sqlx::query_scalar(
        "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname IN ('outbox', 'log')",
    )
    .fetch_all(pool)
    .await?;
    for name in names {
        let copy = format!("COPY (SELECT * FROM {name}) TO STDOUT WITH (FORMAT csv, HEADER)");
        let rows = pool.copy_out_raw(&copy).await?;
        let rows: Vec<_> = rows.try_collect().await?;
        fs::write(tables.join(format!("{name}.csv")), rows.concat())?;
    }
    Ok(())
}

/// The producers' attempts and the consumer's arrivals, as CSV, with times in seconds since the start.
pub(crate) fn keep_records(
    attempts: &HashMap<Uuid, Attempt>,
    arrivals: &[Arrival],
    folder: &Path,
) -> Result<()> {
    let seconds =
        |at: Option<Duration>| at.map_or(String::new(), |at| format!("{:.6}", at.as_secs_f64()));
    let mut text = "id,commit_asked,commit_answered\n".to_owned();
    for (id, attempt) in attempts {
        let (asked, answered) = (
            seconds(attempt.commit_asked),
            seconds(attempt.commit_answered),
        );
        writeln!(text, "{id},{asked},{answered}")?;
    }
    fs::write(folder.join("attempts.csv"), text)?;
    let mut text = "at,id,key,partition,redelivered\n".to_owned();
    for arrival in arrivals {
        let (at, key) = (seconds(Some(arrival.at)), arrival.content.key.as_deref());
        let Arrival {
            id,
            partition,
            redelivered,
            ..
        } = arrival;
        writeln!(
            text,
            "{at},{id},{},{partition},{redelivered}",
            key.unwrap_or_default()
        )?;
    }
    Ok(fs::write(folder.join("arrivals.csv"), text)?)
}
