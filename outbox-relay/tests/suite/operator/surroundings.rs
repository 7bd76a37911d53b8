//! What `doctor` finds: a forgotten transaction and who holds it, brokers that are away, topics that are
//! not there; and that it leaves no trace.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use outbox_conformance::address;
use serde_json::Value;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use crate::support::place::Place;
use crate::support::scene::{with_database, with_scene};
use crate::support::{brokers, name};

const BROKERS: [&str; 4] = ["amqp", "kafka", "nats", "redis"];

#[tokio::test]
async fn every_broker_says_which_topics_are_there() {
    let unique = name("doctor");
    let topic = |broker: &str, which: &str| format!("{unique}.{broker}.{which}");
    let mut settings = brokers::settings() + "create_streams = false\n\n";
    for broker in BROKERS {
        let _ = write!(
            settings,
            "[[route]]\ntopic = \"{unique}.{broker}.*\"\nbroker = \"{broker}\"\n\n"
        );
    }
    let [queue, kafka_topic, subject, stream] = BROKERS.map(|broker| topic(broker, "there"));
    tokio::join!(
        brokers::create_queue(&queue),
        brokers::create_kafka_topic(&kafka_topic),
        brokers::create_stream(&unique, &subject),
        brokers::create_redis_stream(&stream),
    );

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
            let answer = scene.run(&["doctor", "--json"]).await;
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
        let text = scene.run(&["doctor"]).await.out;
        assert!(
            text.contains(&format!(
                "outbox keys retry --topic {}",
                topic("nats", "missing")
            )),
            "{text}"
        );
    })
    .await;
    tokio::join!(
        brokers::delete_queue(&queue),
        brokers::delete_kafka_topic(&kafka_topic),
        brokers::delete_stream(&unique),
        brokers::delete_redis_stream(&stream),
    );
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
        let answer = scene.run(&["doctor", "--json"]).await;
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
    // A database of its own, where nobody else is.
    with_database(async |url| {
        let place = Place::with(&format!("[store]\nkind = \"postgres\"\nurl = \"{url}\"\n"));
        place.done(&["migrate"]).await;
        let options: PgConnectOptions = url.parse().unwrap();
        let mut forgotten = options
            .application_name("monthly-report")
            .connect()
            .await
            .unwrap();
        // It has written and asks nothing more: without a snapshot, it holds vacuum back by its own id.
        let begin = "BEGIN; CREATE TABLE public.report ()";
        sqlx::raw_sql(begin).execute(&mut forgotten).await.unwrap();
        let doctor = ["doctor", "--no-brokers", "--all"];
        // Of the server it may find problems that other tests make.
        let shown = place.run(&doctor).await.out;
        let is_it =
            |line: &&str| line.contains("oldest snapshot") && line.contains("monthly-report");
        let line = shown.lines().find(is_it);
        assert!(
            line.is_some_and(|line| line.contains("idle in transaction")),
            "{shown}"
        );
        // No relay is there, of which it warns.
        let strict = place.run(&[&doctor[..], &["--strict"]].concat()).await;
        assert_eq!(strict.code, 1, "{strict:?}");
        forgotten.close().await.unwrap();
    })
    .await;
}

/// The commands work through a pooler whatever is configured; a relay that does not know of it does not.
#[tokio::test]
async fn through_a_pooler() {
    let pooler = format!("store.url={}", address("OUTBOX_TEST_PGBOUNCER_URL"));
    let broker = "[broker.events]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:1\"\n";
    with_scene(broker, async |scene| {
        let through = async |arguments: &[&str], knows: &str| {
            let settings = ["--set", &pooler, "--set", knows];
            scene.run(&[arguments, &settings].concat()).await
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
                &["inbox", "forget", "--older-than", "30d"],
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
        scene.has_a_relay().await;
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
