//! What one run has for itself on the servers, so that runs side by side do not meet: a topic, a schema
//! for the business tables and one for the outbox. Made at the start, removed at the end.

use std::time::Duration;

use outbox::Uuid;
use outbox::postgres::Outbox;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, PgPool};
use tokio::time::timeout;

use crate::{Error, shop};

/// How long a server has to answer at the start.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) const PARTITIONS: i32 = 4;

pub(crate) struct Ground {
    pub(crate) pool: PgPool,
    pub(crate) outbox: Outbox,
    pub(crate) kafka: ClientConfig,
    pub(crate) topic: String,
    schema: String,
    admin: AdminClient<DefaultClientContext>,
}

impl Ground {
    /// Reaches both servers, then makes what the run needs.
    pub(crate) async fn prepare(database_url: &str, kafka_brokers: &str) -> Result<Self, Error> {
        let id = Uuid::now_v7().simple().to_string();
        let schema = format!("orders_{id}");
        let topic = format!("orders-{id}");
        let postgres: PgConnectOptions = database_url
            .parse()
            // Without the address, which may hold a password.
            .map_err(
                |_| "the address of Postgres is not like postgres://user@host:port/database",
            )?;
        let mut kafka = ClientConfig::new();
        kafka.set("bootstrap.servers", kafka_brokers);

        check_postgres(&postgres).await?;
        let admin = create_topic(&kafka, kafka_brokers, &topic).await?;
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
            kafka,
            topic,
            schema,
            admin,
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
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
        let topics = [self.topic.as_str()];
        if let Err(error) = self.admin.delete_topics(&topics, &options).await {
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
    let (host, port) = (options.get_host(), options.get_port());
    Err(format!("no Postgres at {host}:{port} ({reason}); run `scripts/services up`").into())
}

async fn create_topic(
    kafka: &ClientConfig,
    brokers: &str,
    topic: &str,
) -> Result<AdminClient<DefaultClientContext>, Error> {
    let admin: AdminClient<DefaultClientContext> = kafka.create()?;
    let options = AdminOptions::new()
        .request_timeout(Some(PATIENCE))
        .operation_timeout(Some(PATIENCE));
    let new = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1));
    match admin.create_topics([&new], &options).await {
        Ok(results) => {
            for result in results {
                result.map_err(|(topic, code)| {
                    format!("Kafka does not make topic {topic}: {code}")
                })?;
            }
            Ok(admin)
        }
        Err(error) => {
            Err(format!("no Kafka at {brokers} ({error}); run `scripts/services up`").into())
        }
    }
}
