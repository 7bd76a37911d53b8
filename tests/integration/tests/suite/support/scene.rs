//! What one test works with, and nobody else: an outbox, a topic, and the truth about what committed.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use outbox_conformance::address;
use outbox_core::Message;
use outbox_postgres::Outbox;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use tokio::time::timeout;
use uuid::Uuid;

use super::audit::Audit;
use super::broker::{Broker, Install};
use super::service::Service;
use super::until;

/// No test takes longer; one that hangs must say so.
const LONGEST: Duration = Duration::from_secs(240);

/// On which servers a scene is.
#[derive(Clone, Copy)]
pub(crate) enum Servers {
    /// Servers that nobody stops.
    Steady,
    /// The same, with the newest Postgres.
    Newest,
    /// A broker that the test may break.
    FaultyBroker,
    /// A Postgres that the test may break.
    FaultyPostgres,
    /// Steady servers, and relays that reach Postgres through a transaction pooler.
    Pooled,
}

pub(crate) struct Scene {
    pub(crate) outbox: Outbox,
    /// The test's own way to Postgres.
    pub(crate) pool: PgPool,
    /// The relays' way.
    pub(crate) url: String,
    pub(crate) broker: Box<dyn Broker>,
    /// The topic that every scene has.
    pub(crate) topic: String,
    topics: Mutex<Vec<String>>,
    service: Option<Service>,
}

/// Sets a scene, plays the test in it, and clears up however the test ends.
pub(crate) async fn play(broker: &Install, servers: Servers, test: impl AsyncFnOnce(&Scene)) {
    let scene = Scene::set(broker, servers).await;
    let played = async {
        timeout(LONGEST, test(&scene))
            .await
            .unwrap_or_else(|_| panic!("the test has not ended after {LONGEST:?}"));
    };
    let outcome = AssertUnwindSafe(played).catch_unwind().await;
    match outcome {
        Ok(()) => scene.clear().await,
        Err(panic) => {
            // What is left shows what went wrong; it is in nobody's way.
            drop(scene);
            resume_unwind(panic);
        }
    }
}

impl Scene {
    async fn set(broker: &Install, servers: Servers) -> Self {
        let service = match servers {
            Servers::FaultyBroker => Some(Service::take(broker.faulty_service).await),
            Servers::FaultyPostgres => Some(Service::take("postgres-faults").await),
            Servers::Steady | Servers::Newest | Servers::Pooled => None,
        };
        let url = address(match servers {
            Servers::FaultyPostgres => "OUTBOX_TEST_POSTGRES_FAULTS_URL",
            Servers::Newest => "OUTBOX_TEST_POSTGRES_18_URL",
            Servers::Steady | Servers::FaultyBroker | Servers::Pooled => "OUTBOX_TEST_POSTGRES_URL",
        });
        let broker = (broker.at)(address(match servers {
            Servers::FaultyBroker => broker.faulty,
            _ => broker.steady,
        }));
        let pool = PgPoolOptions::new()
            .max_connections(10)
            .acquire_timeout(Duration::from_secs(60))
            .connect(&url)
            .await
            .expect("Postgres");
        let url = match servers {
            Servers::Pooled => address("OUTBOX_TEST_PGBOUNCER_URL"),
            _ => url,
        };
        let name = format!("test_{}", Uuid::now_v7().simple());
        let outbox = Outbox::in_schema(&name).expect("a schema");
        let scene = Self {
            outbox: match servers {
                Servers::Pooled => outbox.without_prepared_statements(),
                _ => outbox,
            },
            pool,
            url,
            broker,
            topic: name,
            topics: Mutex::default(),
            service,
        };
        scene.outbox.migrate(&scene.pool).await.expect("migration");
        scene.execute(include_str!("scene.sql")).await;
        scene.create_topic(&scene.topic).await;
        scene
    }

    async fn clear(self) {
        let topics =
            std::mem::take(&mut *self.topics.lock().unwrap_or_else(PoisonError::into_inner));
        for topic in topics {
            self.broker.delete_topic(&topic).await;
        }
        self.execute("SET client_min_messages = warning; DROP SCHEMA {schema} CASCADE")
            .await;
    }

    /// The server that this test may break.
    pub(crate) fn service(&self) -> &Service {
        self.service.as_ref().expect("a scene with a faulty server")
    }

    pub(crate) async fn create_topic(&self, topic: &str) {
        self.broker.create_topic(topic).await;
        self.adopt_topic(topic);
    }

    /// Takes over a topic that the test has made, to delete it in the end.
    pub(crate) fn adopt_topic(&self, topic: &str) {
        self.topics
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(topic.to_owned());
    }

    /// The statement with the schema's name in place of `{schema}`.
    pub(crate) fn sql(&self, statement: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(statement.replace("{schema}", self.outbox.schema()))
    }

    /// Runs statements without parameters.
    pub(crate) async fn execute(&self, statements: &str) {
        sqlx::raw_sql(self.sql(statements))
            .execute(&self.pool)
            .await
            .expect("statements");
    }

    /// One number.
    pub(crate) async fn number(&self, statement: &str) -> i64 {
        sqlx::query_scalar(self.sql(statement))
            .fetch_one(&self.pool)
            .await
            .expect("a number")
    }

    /// Message `n` of a key, to the topic of the scene.
    pub(crate) fn message(&self, key: &str, n: i64) -> Message {
        Message::to(&self.topic)
            .key(key)
            .bytes(n.to_string())
            .expect("a message")
    }

    /// Writes a message and, in the same transaction, the business row that says that it was written.
    pub(crate) async fn write(
        &self,
        conn: &mut PgConnection,
        key: &str,
        n: i64,
        message: &Message,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(self.sql("INSERT INTO {schema}.business (key, n, id) VALUES ($1, $2, $3)"))
            .bind(key)
            .bind(n)
            .bind(message.id())
            // Perhaps through a pooler.
            .persistent(false)
            .execute(&mut *conn)
            .await?;
        self.outbox.enqueue(conn, message).await
    }

    /// Enqueues and commits messages of which the audit knows nothing.
    pub(crate) async fn enqueue(&self, messages: &[Message]) {
        let mut conn = self.pool.acquire().await.expect("a connection");
        let enqueued = self.outbox.enqueue_all(&mut conn, messages).await;
        enqueued.expect("messages that are enqueued");
    }

    /// Writes and commits messages 1 to `each` of every key, key by key within each number.
    pub(crate) async fn write_backlog(&self, keys: usize, each: usize, payload_bytes: usize) {
        sqlx::query(self.sql(include_str!("backlog.sql")))
            .bind(&self.topic)
            .bind(i32::try_from(keys).expect("few keys"))
            .bind(i32::try_from(each).expect("few messages"))
            .bind(i32::try_from(payload_bytes).expect("small messages"))
            .execute(&self.pool)
            .await
            .expect("a backlog");
    }

    /// Messages that are neither delivered nor dead.
    pub(crate) async fn unsettled(&self) -> i64 {
        self.number(
            "SELECT (SELECT count(*) FROM {schema}.message) + (SELECT count(*) FROM {schema}.parked)",
        )
        .await
    }

    /// Waits until every message is settled; how long that took.
    pub(crate) async fn settled(&self) -> Duration {
        until("everything is settled", async || {
            self.unsettled().await == 0
        })
        .await
    }

    /// Waits until so many records are in the topic of the scene.
    pub(crate) async fn arrived(&self, count: u64) {
        until(&format!("{count} records arrived"), async || {
            self.broker.count(&self.topic).await >= count
        })
        .await;
    }

    /// How many claims are open while nothing is asked of the database.
    pub(crate) async fn open_claims(&self) -> i64 {
        self.number(
            "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) \
              WHERE pg_locks.relation = '{schema}.lane'::regclass \
                AND pg_stat_activity.state = 'idle in transaction'",
        )
        .await
    }

    /// How many messages wait in lanes that nobody holds.
    pub(crate) async fn waiting_in_free_lanes(&self) -> i64 {
        self.number(
            "SELECT count(*) FROM {schema}.message \
               JOIN (SELECT lane FROM {schema}.lane FOR UPDATE SKIP LOCKED) AS free USING (lane)",
        )
        .await
    }

    /// How often a message was given up, or a failure was counted.
    pub(crate) async fn failures_seen(&self) -> i64 {
        self.number("SELECT count(*) FROM {schema}.failure_seen")
            .await
    }

    /// Compares what is in the topic of the scene with what was committed.
    pub(crate) async fn audit(&self) -> Audit {
        let committed = sqlx::query_as(self.sql("SELECT key, n, id FROM {schema}.business"))
            .fetch_all(&self.pool)
            .await
            .expect("the business rows");
        Audit::new(committed, &self.broker.read(&self.topic).await)
    }
}
