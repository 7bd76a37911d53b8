//! Runs the service of the README: orders that are posted arrive in Kafka, and a signal ends it cleanly.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::env;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(60);
/// The topic that the service writes to, always the same, so that runs take turns with it.
const TOPIC: &str = "orders.placed";

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run `eval \"$(scripts/services env)\"` first")
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_posted_order_arrives_in_kafka_and_sigterm_ends_the_service() {
    let server = variable("OUTBOX_TEST_POSTGRES_URL");
    let brokers = variable("OUTBOX_TEST_KAFKA");
    let mut admin = PgConnection::connect(&server).await.unwrap();
    // Until the connection ends; another checkout may be running this test on the same servers.
    let turn = format!("SELECT pg_advisory_lock(hashtextextended('{TOPIC}', 0))");
    sqlx::raw_sql(AssertSqlSafe(turn))
        .execute(&mut admin)
        .await
        .unwrap();
    let mut kafka = ClientConfig::new();
    kafka.set("bootstrap.servers", &brokers);
    create_topic(&kafka).await;
    let consumer = consumer_from_the_end(&kafka);

    // The service has its tables in fixed places, so it gets a database of its own.
    let database = format!("axum_orders_{}", Uuid::now_v7().simple());
    let create = format!("CREATE DATABASE {database}");
    sqlx::raw_sql(AssertSqlSafe(create))
        .execute(&mut admin)
        .await
        .unwrap();
    let (address, _) = server.rsplit_once('/').unwrap();

    let mut service = Service::start(&format!("{address}/{database}"), &brokers);
    let ids = [fastrand::i64(..), fastrand::i64(..)];
    let orders = ids.map(|id| format!(r#"{{"id":{id},"item":"tea"}}"#));
    assert_eq!(service.post(&orders[0]), 201);
    assert_eq!(
        service.post(&orders[0]),
        500,
        "the same order again breaks its primary key"
    );
    assert_eq!(service.post(&orders[1]), 201);
    let keys = ids.map(|id| id.to_string());
    let read = tokio::task::spawn_blocking(move || read(&consumer, &keys, 2));
    let mut read = read.await.unwrap();
    // Messages of different keys have no order among them.
    read.sort_by_key(|payload| *payload != orders[0]);
    assert_eq!(read, orders);
    service.stop();

    let mut again = Service::start(&format!("{address}/{database}"), &brokers);
    assert_eq!(
        again.post(&orders[0]),
        500,
        "its orders are where they were, also for a role `outbox`"
    );
    again.stop();

    let drop = format!("DROP DATABASE {database} WITH (FORCE)");
    sqlx::raw_sql(AssertSqlSafe(drop))
        .execute(&mut admin)
        .await
        .unwrap();
    let topics: AdminClient<DefaultClientContext> = kafka.create().unwrap();
    let deleted = topics.delete_topics(&[TOPIC], &AdminOptions::new()).await;
    deleted.unwrap()[0].as_ref().unwrap();
}

/// The program, ended with the test.
struct Service {
    process: Child,
    address: String,
}

impl Service {
    fn start(database_url: &str, brokers: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_axum-orders"))
            .env("DATABASE_URL", database_url)
            .env("KAFKA_BROKERS", brokers)
            .env("LISTEN", "127.0.0.1:0")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().strip_prefix("listening on ").map(str::to_owned);
        let service = Self {
            process,
            address: address.clone().unwrap_or_default(),
        };
        assert!(address.is_some(), "the service printed {line:?}");
        service
    }

    /// Posts an order and gives back the status.
    fn post(&self, json: &str) -> u16 {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(
            stream,
            "POST /orders HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{json}",
            json.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Tells it to stop, and waits until it has ended without an error.
    fn stop(&mut self) {
        let pid = self.process.id().to_string();
        let told = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        assert!(told.success());
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(Instant::now() < deadline, "the service does not stop");
            std::thread::sleep(Duration::from_millis(20)); // wait: the poll
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn create_topic(kafka: &ClientConfig) {
    let admin: AdminClient<DefaultClientContext> = kafka.create().unwrap();
    let topic = NewTopic::new(TOPIC, 1, TopicReplication::Fixed(1));
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    // It is there where a run before this one was killed.
    drop(admin.create_topics([&topic], &options).await.unwrap());
}

/// A consumer of what is written from now on.
fn consumer_from_the_end(kafka: &ClientConfig) -> BaseConsumer {
    let consumer: BaseConsumer = kafka.clone().set("group.id", TOPIC).create().unwrap();
    let metadata = consumer.fetch_metadata(Some(TOPIC), PATIENCE).unwrap();
    let mut assignment = TopicPartitionList::new();
    for partition in metadata.topics()[0].partitions() {
        let (_, end) = consumer
            .fetch_watermarks(TOPIC, partition.id(), PATIENCE)
            .unwrap();
        assignment
            .add_partition_offset(TOPIC, partition.id(), Offset::Offset(end))
            .unwrap();
    }
    consumer.assign(&assignment).unwrap();
    consumer
}

/// The payloads of the next `count` messages with one of the keys.
fn read(consumer: &BaseConsumer, keys: &[String], count: usize) -> Vec<String> {
    let mut payloads = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while payloads.len() < count {
        assert!(
            Instant::now() < deadline,
            "only {payloads:?} arrived in time"
        );
        let Some(Ok(record)) = consumer.poll(Duration::from_millis(100)) else {
            continue;
        };
        let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
        if keys.contains(&text(record.key())) {
            payloads.push(text(record.payload()));
        }
    }
    payloads
}
