//! What one run has for itself on the servers, so that runs side by side do not meet: a topic, a schema
//! for the business tables and one for the outbox. Made at the start, removed at the end.

use outbox::Uuid;
use outbox::postgres::Outbox;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, PgPool};
use tokio::time::timeout;

use crate::broker::{Broker, PATIENCE, missing};
use crate::{Error, shop};

pub(crate) struct Ground<B> {
    pub(crate) pool: PgPool,
    pub(crate) outbox: Outbox,
    pub(crate) broker: B,
    pub(crate) topic: String,
    schema: String,
}

impl<B: Broker> Ground<B> {
    /// Reaches both servers, then makes what the run needs.
    pub(crate) async fn prepare(database_url: &str, broker: B) -> Result<Self, Error> {
        let id = Uuid::now_v7().simple().to_string();
        let schema = format!("orders_{id}");
        let topic = format!("orders-{id}");
        let postgres: PgConnectOptions = database_url
            .parse()
            // Without the address, which may hold a password.
            .map_err(
                |_| "the address of Postgres is not like postgres://user@host:port/database",
            )?;

        check_postgres(&postgres).await?;
        broker.create(&topic).await?;
        // Unqualified names are those of the run's own schema.
        let own = postgres
            .options([("search_path", &schema)])
            .disable_statement_logging();
        let ground = Self {
            pool: PgPoolOptions::new()
                .max_connections(20)
                .test_before_acquire(false)
                .connect_lazy_with(own),
            outbox: Outbox::in_schema(format!("{schema}_outbox"))?,
            broker,
            topic,
            schema,
        };
        if let Err(error) = ground.create_tables().await {
            ground.remove().await;
            return Err(error);
        }
        Ok(ground)
    }

    async fn create_tables(&self) -> Result<(), Error> {
        let schema = &self.schema;
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA {schema}")))
            .execute(&self.pool)
            .await?;
        sqlx::raw_sql(shop::TABLES).execute(&self.pool).await?;
        self.outbox.migrate(&self.pool).await?;
        Ok(())
    }

    /// Removes all of it. What cannot be removed is named and left.
    pub(crate) async fn remove(self) {
        let removed = timeout(PATIENCE, self.broker.remove(&self.topic)).await;
        if let Err(error) = removed.unwrap_or_else(|_| Err("no answer".into())) {
            eprintln!("topic {} stays: {error}", self.topic);
        }
        let (schema, outbox) = (&self.schema, self.outbox.schema());
        let drop = format!(
            "SET client_min_messages = warning; \
             DROP SCHEMA IF EXISTS {schema} CASCADE; DROP SCHEMA IF EXISTS {outbox} CASCADE"
        );
        if let Err(error) = sqlx::raw_sql(AssertSqlSafe(drop)).execute(&self.pool).await {
            eprintln!("schemas {schema} and {outbox} stay: {error}");
        }
        self.pool.close().await;
    }
}

/// Connects once by itself: a pool would go on trying for longer than a person wants to wait.
async fn check_postgres(options: &PgConnectOptions) -> Result<(), Error> {
    let reason = match timeout(PATIENCE, PgConnection::connect_with(options)).await {
        Ok(Ok(connection)) => return Ok(connection.close().await?),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer".to_owned(),
    };
    let place = format!("{}:{}", options.get_host(), options.get_port());
    Err(missing("Postgres", place, reason))
}
