//! The store in Postgres.

use std::fmt;
use std::time::Duration;

use outbox_core::Message;
use outbox_postgres::{Inbox, MigrateError, Outbox, PostgresStore};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, PgPool};
use tokio::time::timeout;

use super::{CONNECT_TIMEOUT, CONNECTIONS, Opened, away};
use crate::commands::grants::Access;
use crate::failure::Failure;
use crate::settings::{self, Address, InvalidSettings};

pub(crate) struct Postgres {
    pub(crate) outbox: Outbox,
    pub(crate) inbox: Inbox,
    pub(crate) pool: PgPool,
    pooler: bool,
    /// Past the pooler, if there is one.
    listen: Option<PgPool>,
    lanes_per_claim: usize,
    synchronous_settle: bool,
    wait_until_flushed: bool,
    keep_delivered_for: Option<Duration>,
}

impl Postgres {
    pub(super) fn open(settings: &settings::Postgres) -> Result<Self, InvalidSettings> {
        let invalid = |error| InvalidSettings::new("store.schema", error);
        let outbox = Outbox::in_schema(&settings.schema).map_err(invalid)?;
        let store = Self {
            outbox: match settings.pooler {
                true => outbox.without_prepared_statements(),
                false => outbox,
            },
            inbox: Inbox::in_schema(&settings.schema).map_err(invalid)?,
            pool: pool("store.url", &settings.url)?,
            pooler: settings.pooler,
            listen: match &settings.listen_url {
                Some(url) => Some(pool("store.listen_url", url)?),
                None => None,
            },
            lanes_per_claim: settings.lanes_per_claim,
            synchronous_settle: settings.synchronous_settle,
            wait_until_flushed: settings.wait_until_flushed,
            keep_delivered_for: settings.keep_delivered_for.as_ref().map(|span| span.0),
        };
        store.claims()?;
        Ok(store)
    }

    fn claims(&self) -> Result<PostgresStore, InvalidSettings> {
        let mut store = self
            .outbox
            .store(&self.pool)
            .lanes_per_claim(self.lanes_per_claim)
            .map_err(|error| InvalidSettings::new("store.lanes_per_claim", error))?;
        if self.pooler {
            store = store.through_pooler();
        }
        if let Some(listen) = &self.listen {
            store = store.listening_on(listen);
        }
        if self.synchronous_settle {
            store = store.synchronous_settle();
        }
        if self.wait_until_flushed {
            store = store.wait_until_flushed();
        }
        if let Some(time) = self.keep_delivered_for {
            store = store
                .keep_delivered_for(time)
                .map_err(|error| InvalidSettings::new("store.keep_delivered_for", error))?;
        }
        Ok(store)
    }

    pub(super) async fn relay(&self) -> Result<Opened, Failure> {
        let mut conn = match self.connect().await {
            Ok(conn) => conn,
            Err(reason) => return Ok(Opened::NotYet(reason)),
        };
        let migrated = timeout(CONNECT_TIMEOUT, self.outbox.is_migrated(&mut conn)).await;
        // The answer is there; how the connection ends changes nothing.
        let _ = conn.close().await;
        match migrated {
            Ok(Ok(true)) => Ok(Opened::Store(Box::new(self.claims()?))),
            Ok(Ok(false)) => Ok(Opened::NotMigrated),
            Ok(Err(MigrateError::Database(error))) => Ok(Opened::NotYet(away(&*error))),
            Ok(Err(error)) => Err(Failure::of(error)),
            Err(_) => Ok(Opened::NotYet(silent())),
        }
    }

    pub(super) async fn migrate(&self) -> Result<(), Failure> {
        self.reach().await?;
        self.outbox.migrate(&self.pool).await.map_err(Failure::of)
    }

    pub(super) fn grants_sql(&self, access: Access, role: &str) -> Result<String, Failure> {
        let access = match access {
            Access::Producer => outbox_postgres::Access::Producer,
            Access::Relay => outbox_postgres::Access::Relay,
            Access::Consumer => outbox_postgres::Access::Consumer,
            Access::Operator => outbox_postgres::Access::Operator,
        };
        Ok(self.outbox.grants_sql(access, role))
    }

    pub(super) async fn enqueue(&self, messages: &[Message]) -> Result<(), Failure> {
        self.reach().await?;
        let mut tx = self.pool.begin().await.map_err(Failure::of)?;
        let enqueued = self.outbox.enqueue_all(&mut tx, messages).await;
        enqueued.map_err(Failure::of)?;
        tx.commit().await.map_err(Failure::of)
    }

    /// Connects once, since the pool says only that it took too long, and not why.
    pub(crate) async fn reach(&self) -> Result<(), Failure> {
        let conn = self.connect().await.map_err(Failure::new)?;
        // It has shown what it was for.
        let _ = conn.close().await;
        Ok(())
    }

    async fn connect(&self) -> Result<PgConnection, String> {
        match timeout(CONNECT_TIMEOUT, self.pool.connect_options().connect()).await {
            Ok(Ok(conn)) => Ok(conn),
            Ok(Err(error)) => Err(away(&error)),
            Err(_) => Err(silent()),
        }
    }
}

impl fmt::Display for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.pool.connect_options();
        let (host, port) = (options.get_host(), options.get_port());
        let database = options.get_database().unwrap_or(options.get_username());
        write!(
            f,
            "{host}:{port}/{database}, schema {}",
            self.outbox.schema()
        )
    }
}

fn silent() -> String {
    format!("the database is away: no answer within {CONNECT_TIMEOUT:?}")
}

/// A pool that connects when it is asked for a connection.
fn pool(setting: &str, url: &Address) -> Result<PgPool, InvalidSettings> {
    let options: PgConnectOptions = url.expose().parse().map_err(|_| {
        // Its own words may quote the URL.
        InvalidSettings::new(
            setting,
            "it is no URL such as postgres://user:password@host:5432/database",
        )
    })?;
    let options = options.disable_statement_logging();
    let options = match options.get_application_name() {
        Some(_) => options,
        None => options.application_name("outbox"),
    };
    Ok(PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(CONNECT_TIMEOUT)
        .connect_lazy_with(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pooler_is_heeded_by_the_relay_too() {
        for pooler in [true, false] {
            let settings: settings::Postgres = serde_json::from_value(serde_json::json!({
                "url": "postgres://127.0.0.1:1/shop",
                "pooler": pooler,
            }))
            .unwrap();
            let claims = Postgres::open(&settings).unwrap().claims().unwrap();
            let shown = format!("{claims:?}");
            assert!(shown.contains(&format!("pooled: {pooler}")), "{shown}");
        }
    }
}
