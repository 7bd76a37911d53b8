//! What `doctor` finds: a forgotten transaction and who holds it, brokers that are away, topics that are
//! not there; and that it leaves no trace.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::{Duration, Instant};

use async_nats::jetstream;
use futures_util::FutureExt as _;
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use outbox_conformance::address;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use serde_json::Value;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};
use uuid::Uuid;

use crate::scene::{Scene, redis, until, with_scene};

const BROKERS: [&str; 4] = ["amqp", "kafka", "nats", "redis"];

#[tokio::test]
async fn every_broker_says_which_topics_are_there() {
    let unique = Uuid::now_v7().simple().to_string();
    let topic = |broker: &str, which: &str| format!("{unique}.{broker}.{which}");
    let mut settings = format!(
        "[broker.amqp]\nkind = \"amqp\"\nurl = \"{}\"\n\n\
         [broker.kafka]\nkind = \"kafka\"\nproperties = {{ \"bootstrap.servers\" = \"{}\" }}\n\n\
         [broker.nats]\nkind = \"nats\"\nurl = \"{}\"\n\n\
         [broker.redis]\nkind = \"redis\"\nurl = \"{}\"\ncreate_streams = false\n\n",
        address("OUTBOX_TEST_RABBITMQ_URL"),
        address("OUTBOX_TEST_KAFKA"),
        address("OUTBOX_TEST_NATS_URL"),
        address("OUTBOX_TEST_REDIS_URL"),
    );
    for broker in BROKERS {
        let _ = write!(
            settings,
            "[[route]]\ntopic = \"{unique}.{broker}.*\"\nbroker = \"{broker}\"\n\n"
        );
    }
    let places = Places::make(BROKERS.map(|broker| topic(broker, "there"))).await;

    with_scene(&settings, async |scene| {
        scene.done(&["migrate"]).await;
        for broker in BROKERS {
            for which in ["there", "missing"] {
                let call = format!("SELECT {{schema}}.enqueue('{}', '')", topic(broker, which));
                scene.execute(&call).await;
            }
        }
        scene
            .execute(&format!("SELECT {{schema}}.enqueue('{unique}.lost', '')"))
            .await;
        // Twice: the first question must not have made what was missing.
        for _ in 0..2 {
            let answer = scene.outbox(&["doctor", "--json"]).await;
            assert_eq!(answer.code, 1, "{answer:?}");
            let findings = findings(&answer.out);
            for broker in BROKERS {
                assert_eq!(
                    severity_of(&findings, &format!("{broker}: ")),
                    "fine",
                    "{findings:?}"
                );
                assert_eq!(
                    severity_of(&findings, &topic(broker, "there")),
                    "fine",
                    "{findings:?}"
                );
                assert_eq!(
                    severity_of(&findings, &topic(broker, "missing")),
                    "problem",
                    "{findings:?}"
                );
            }
            assert_eq!(
                severity_of(&findings, &format!("{unique}.lost")),
                "problem",
                "{findings:?}"
            );
        }
        let text = scene.outbox(&["doctor"]).await.out;
        assert!(
            text.contains(&format!(
                "outbox keys retry --topic {}",
                topic("nats", "missing")
            )),
            "{text}"
        );
    })
    .await;
    places.remove().await;
}

#[tokio::test]
async fn brokers_that_are_away_are_named_without_their_passwords() {
    let settings = "[broker.amqp]\nkind = \"amqp\"\nurl = \"amqp://shop:hunter2@127.0.0.1:1\"\n\n\
         [broker.kafka]\nkind = \"kafka\"\n\
         properties = { \"bootstrap.servers\" = \"127.0.0.1:1\", \"sasl.password\" = \"hunter2\" }\n\n\
         [broker.nats]\nkind = \"nats\"\nurl = \"nats://shop:hunter2@127.0.0.1:1\"\n\n\
         [broker.redis]\nkind = \"redis\"\nurl = \"redis://shop:hunter2@127.0.0.1:1\"\n\n\
         [[route]]\ntopic = \"*\"\nbroker = \"redis\"\n";
    with_scene(settings, async |scene| {
        scene.done(&["migrate"]).await;
        let begun = Instant::now();
        let answer = scene.outbox(&["doctor", "--json"]).await;
        assert_eq!(answer.code, 1, "{answer:?}");
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "{:?}",
            begun.elapsed()
        );
        assert!(!format!("{answer:?}").contains("hunter2"), "{answer:?}");
        let findings = findings(&answer.out);
        for broker in BROKERS {
            let start = format!("{broker} cannot be asked");
            assert_eq!(severity_of(&findings, &start), "problem", "{findings:?}");
        }
    })
    .await;
}

/// Of whoever keeps vacuum from its work it is said who it is.
#[tokio::test]
async fn a_forgotten_transaction_is_found_with_its_holder() {
    with_scene("", async |scene| {
        // A database of its own, where nobody else is.
        let name = scene.outbox.schema();
        scene.execute(&format!("CREATE DATABASE {name}")).await;
        let server = address("OUTBOX_TEST_POSTGRES_URL");
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        let tested = AssertUnwindSafe(forgotten(scene, &url))
            .catch_unwind()
            .await;
        scene
            .execute(&format!("DROP DATABASE {name} WITH (FORCE)"))
            .await;
        if let Err(panic) = tested {
            resume_unwind(panic);
        }
    })
    .await;
}

async fn forgotten(scene: &Scene, url: &str) {
    let setting = format!("store.url={url}");
    scene.done(&["migrate", "--set", &setting]).await;
    let options: PgConnectOptions = url.parse().unwrap();
    let mut forgotten = options
        .application_name("monthly-report")
        .connect()
        .await
        .unwrap();
    // It has written and asks nothing more: without a snapshot, it holds vacuum back by its own id.
    let begin = "BEGIN; CREATE TABLE public.report ()";
    sqlx::raw_sql(begin).execute(&mut forgotten).await.unwrap();
    let doctor = ["doctor", "--no-brokers", "--all", "--set", &setting];
    // Of the server it may find problems that other tests make.
    let shown = scene.outbox(&doctor).await.out;
    let is_it = |line: &&str| line.contains("oldest snapshot") && line.contains("monthly-report");
    let line = shown.lines().find(is_it);
    assert!(
        line.is_some_and(|line| line.contains("idle in transaction")),
        "{shown}"
    );
    // No relay is there, of which it warns.
    let strict = scene.outbox(&[&doctor[..], &["--strict"]].concat()).await;
    assert_eq!(strict.code, 1, "{strict:?}");
    forgotten.close().await.unwrap();
}

/// The commands work through a pooler whatever is configured; a relay that does not know of it does not.
#[tokio::test]
async fn through_a_pooler() {
    let pooler = format!("store.url={}", address("OUTBOX_TEST_PGBOUNCER_URL"));
    let broker = "[broker.events]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:1\"\n";
    with_scene(broker, async |scene| {
        let through = async |arguments: &[&str], knows: &str| {
            let settings = ["--set", &pooler, "--set", knows];
            scene.outbox(&[arguments, &settings].concat()).await
        };
        for (knows, expected) in [
            ("store.pooler=false", "problem"),
            ("store.pooler=true", "fine"),
        ] {
            for arguments in [
                &["migrate"][..],
                &["enqueue", "orders.placed", "{}"],
                &["status"],
                &["keys"],
                &["keys", "retry", "--all"],
                &["pause", "orders.*"],
                &["resume", "orders.*"],
                &["dead", "list"],
                &["dead", "discard", "--all", "--yes"],
                &["check", "--max-dead", "0"],
            ] {
                let answer = through(arguments, knows).await;
                assert_eq!(answer.code, 0, "{arguments:?} {answer:?}");
            }
            let doctor = through(&["doctor", "--no-brokers", "--json"], knows).await;
            let findings = findings(&doctor.out);
            let pooler = findings.iter().find(|finding| finding["check"] == "pooler");
            assert_eq!(pooler.unwrap()["severity"], expected, "{findings:?}");
        }
        let _relay = scene.start(&["run", "--set", &pooler, "--set", "store.pooler=true"]);
        until("a relay works through it", async || {
            let status = scene.json(&["status"]).await;
            status["relays"]
                .as_array()
                .is_some_and(|relays| !relays.is_empty())
        })
        .await;
    })
    .await;
}

fn findings(json: &str) -> Vec<Value> {
    let document: Value = serde_json::from_str(json).unwrap();
    document["findings"].as_array().unwrap().clone()
}

/// Of the finding whose text begins so.
#[track_caller]
fn severity_of<'a>(findings: &'a [Value], start: &str) -> &'a str {
    let found = findings
        .iter()
        .find(|finding| finding["what"].as_str().unwrap().starts_with(start));
    found.unwrap_or_else(|| panic!("{start}: {findings:?}"))["severity"]
        .as_str()
        .unwrap()
}

/// What the brokers have for one topic each, in the order of [`BROKERS`].
struct Places([String; 4]);

impl Places {
    async fn make(topics: [String; 4]) -> Self {
        let [queue, topic, subject, stream] = &topics;
        let rabbit = rabbit().await;
        let channel = rabbit.create_channel().await.unwrap();
        let durable = QueueDeclareOptions {
            durable: true,
            ..Default::default()
        };
        channel
            .queue_declare(queue.as_str().into(), durable, FieldTable::default())
            .await
            .unwrap();
        let new = [NewTopic::new(topic, 2, TopicReplication::Fixed(1))];
        kafka()
            .create_topics(&new, &AdminOptions::new())
            .await
            .unwrap()[0]
            .as_ref()
            .unwrap();
        let config = jetstream::stream::Config {
            name: name(subject),
            subjects: vec![subject.clone()],
            ..Default::default()
        };
        nats().await.create_stream(config).await.unwrap();
        let mut add = redis::cmd("XADD");
        add.arg(stream).arg("*").arg("first").arg("");
        add.exec_async(&mut streams().await).await.unwrap();
        Self(topics)
    }

    async fn remove(self) {
        let [queue, topic, subject, stream] = &self.0;
        let rabbit = rabbit().await;
        let channel = rabbit.create_channel().await.unwrap();
        channel
            .queue_delete(queue.as_str().into(), QueueDeleteOptions::default())
            .await
            .unwrap();
        kafka()
            .delete_topics(&[topic], &AdminOptions::new())
            .await
            .unwrap()[0]
            .as_ref()
            .unwrap();
        nats().await.delete_stream(name(subject)).await.unwrap();
        let mut remove = redis::cmd("DEL");
        remove.arg(stream);
        remove.exec_async(&mut streams().await).await.unwrap();
    }
}

/// A stream's, which takes no dots.
fn name(subject: &str) -> String {
    subject.replace('.', "-")
}

async fn rabbit() -> Connection {
    let url = address("OUTBOX_TEST_RABBITMQ_URL");
    Connection::connect(&url, ConnectionProperties::default())
        .await
        .unwrap()
}

fn kafka() -> AdminClient<DefaultClientContext> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", address("OUTBOX_TEST_KAFKA"))
        .create()
        .unwrap()
}

async fn nats() -> jetstream::Context {
    jetstream::new(
        async_nats::connect(address("OUTBOX_TEST_NATS_URL"))
            .await
            .unwrap(),
    )
}

async fn streams() -> redis::aio::MultiplexedConnection {
    redis(&address("OUTBOX_TEST_REDIS_URL")).await
}
