//! A test that kills an example in mid-work, several times, and then looks for effects that are missing or
//! there twice. An example joins with [`killed_in_mid_work`].
//!
//! A transaction of the consumer is held up by a lock, in the midst of a batch, and the process is killed
//! while it waits: the messages before it in the batch are committed and not acknowledged, so they come
//! again. Nothing here waits for a time.

use std::env;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use outbox::{Uuid, async_trait};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};
use tokio::time::sleep;

use crate::prepare;

const PATIENCE: Duration = Duration::from_secs(60);
const ORDERS: i64 = 35;
/// The orders at which the process is killed. None is the first of a batch.
const KILLED_AT: [i64; 3] = [7, 18, 26];

/// The broker of an example, through its own client.
#[async_trait]
pub trait Server: Sync {
    /// Makes a topic, and what a consumer of it needs.
    async fn create(&self, topic: &str);
    /// Writes messages as the outbox's adapter does.
    async fn publish(&self, topic: &str, messages: &[(Uuid, String)]);
    /// Removes what was made.
    async fn remove(&self, topic: &str);
    /// The settings of the program, beside the topic and the database.
    fn settings(&self) -> Vec<(&'static str, String)>;
}

/// The address of a server of the tests.
///
/// # Panics
///
/// When it is not set, with what to do then.
pub fn address(variable: &str) -> String {
    env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run `eval \"$(scripts/services env)\"` first")
    })
}

/// Kills the program three times in mid-work; then every order is billed once, in order, and the messages
/// of committed transactions really came again.
///
/// # Panics
///
/// When that is not so.
pub async fn killed_in_mid_work(program: &'static str, server: &impl Server) {
    with_scene(program, server, async |scene| scene.play(server).await).await;
}

/// A test of another kind, with a topic and a database of its own, which are removed however it ends.
///
/// # Panics
///
/// When the test does.
pub async fn with_scene(
    program: &'static str,
    server: &impl Server,
    test: impl AsyncFnOnce(&Scene),
) {
    let scene = Scene::new(program).await;
    server.create(&scene.topic).await;
    let outcome = AssertUnwindSafe(test(&scene)).catch_unwind().await;
    server.remove(&scene.topic).await;
    scene.remove().await;
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

/// A topic and a database of the test's own.
pub struct Scene {
    program: &'static str,
    /// The topic, with nothing in it.
    pub topic: String,
    /// The address of the server, and of the database on it.
    server: String,
    database: String,
    /// The consumer's database, without tables.
    pub pool: PgPool,
}

impl Scene {
    async fn new(program: &'static str) -> Self {
        let server = address("OUTBOX_TEST_POSTGRES_URL");
        let topic = format!("consumer_{}", Uuid::now_v7().simple());
        execute_at(&server, &format!("CREATE DATABASE {topic}")).await;
        let (at, _) = server.rsplit_once('/').expect("a database in the address");
        let database = format!("{at}/{topic}");
        let pool = PgPool::connect(&database).await.expect("a connection");
        Self {
            program,
            topic,
            server,
            database,
            pool,
        }
    }

    async fn remove(self) {
        self.pool.close().await;
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.topic);
        execute_at(&self.server, &drop).await;
    }

    async fn play(&self, server: &impl Server) {
        prepare(&self.pool).await.expect("tables");
        let mut locks = self.hold_up().await;
        self.publish(server, 1..=ORDERS).await;
        let mut again = Vec::new();
        for order in KILLED_AT {
            let mut process = self.start(server);
            let waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                          AND objid::bigint = $1 AND database = (SELECT oid FROM pg_database
                                                                  WHERE datname = current_database()))";
            self.until(&mut process, waits, order).await;
            process.kill().expect("a process to kill");
            again.push(ended(process));
            sqlx::query("SELECT pg_advisory_unlock($1)")
                .bind(order)
                .execute(&mut locks)
                .await
                .expect("the lock is let go");
        }
        let all = "SELECT count(DISTINCT order_id) = $1 FROM invoice";
        again.push(self.run_until(server, all, ORDERS).await);
        // What was acknowledged does not come again.
        self.publish(server, ORDERS + 1..=ORDERS + 1).await;
        again.push(self.run_until(server, all, ORDERS + 1).await);

        let billed: Vec<i64> = sqlx::query_scalar("SELECT order_id FROM invoice ORDER BY number")
            .fetch_all(&self.pool)
            .await
            .expect("invoices");
        let expected: Vec<i64> = (1..=ORDERS + 1).collect();
        assert_eq!(billed, expected, "came again, by run: {again:?}");
        let (runs, [first, .., last]) = (&again[1..=KILLED_AT.len()], &again[..]) else {
            unreachable!("there are five runs");
        };
        assert_eq!((*first, *last), (0, 0), "came again, by run: {again:?}");
        assert!(
            runs.iter().all(|&number| number > 0),
            "came again, by run: {again:?}"
        );
        println!("killed at {KILLED_AT:?}; came again, by run: {again:?}");
    }

    /// Has the transactions of some orders wait, until their lock is let go.
    async fn hold_up(&self) -> PgConnection {
        let orders = KILLED_AT.map(|order| order.to_string()).join(", ");
        let trigger = format!(
            "CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 PERFORM pg_advisory_xact_lock(NEW.order_id);
                 RETURN NEW;
             END $$;
             CREATE TRIGGER hold_up BEFORE INSERT ON invoice
                 FOR EACH ROW WHEN (NEW.order_id IN ({orders})) EXECUTE FUNCTION hold_up();
             SELECT pg_advisory_lock(held) FROM unnest(ARRAY[{orders}]::bigint[]) AS held"
        );
        let mut locks = PgConnection::connect(&self.database)
            .await
            .expect("a connection");
        sqlx::raw_sql(AssertSqlSafe(trigger))
            .execute(&mut locks)
            .await
            .expect("the locks");
        locks
    }

    /// Publishes orders, each with a new message id.
    pub async fn publish(&self, server: &impl Server, orders: impl Iterator<Item = i64>) {
        let messages: Vec<(Uuid, String)> = orders
            .map(|id| (Uuid::now_v7(), format!(r#"{{"id":{id},"cents":1250}}"#)))
            .collect();
        server.publish(&self.topic, &messages).await;
    }

    fn start(&self, server: &impl Server) -> Child {
        Command::new(self.program)
            .env("DATABASE_URL", &self.database)
            .env("TOPIC", &self.topic)
            .env("GROUP", &self.topic)
            .envs(server.settings())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts")
    }

    /// Runs until the database says so, and then stops without an error. Gives what came again.
    ///
    /// # Panics
    ///
    /// When either takes longer than a minute, or the program ends with an error.
    pub async fn run_until(
        &self,
        server: &impl Server,
        condition: &'static str,
        order: i64,
    ) -> usize {
        let mut process = self.start(server);
        self.until(&mut process, condition, order).await;
        let pid = process.id().to_string();
        let told = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(told.expect("kill").success());
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = process.try_wait().expect("the program") {
                assert!(status.success(), "{status}");
                return ended(process);
            }
            assert!(Instant::now() < deadline, "the program does not stop");
            sleep(Duration::from_millis(10)).await; // wait: the poll
        }
    }

    async fn until(&self, process: &mut Child, condition: &'static str, order: i64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let asked = sqlx::query_scalar(condition).bind(order);
            if asked.fetch_one(&self.pool).await.expect("an answer") {
                return;
            }
            let ended = process.try_wait().expect("the program");
            if ended.is_some() || Instant::now() > deadline {
                let _ = process.kill();
                panic!("order {order}: not within {PATIENCE:?}, the program: {ended:?}");
            }
            sleep(Duration::from_millis(10)).await; // wait: the poll
        }
    }
}

/// How many messages came again, by what the process has printed.
fn ended(process: Child) -> usize {
    let output = process.wait_with_output().expect("what it printed");
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    lines
        .lines()
        .filter(|line| line.ends_with(" again"))
        .count()
}

async fn execute_at(server: &str, statement: &str) {
    let mut conn = PgConnection::connect(server).await.expect("Postgres");
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
        .execute(&mut conn)
        .await
        .expect("a database of its own");
}
