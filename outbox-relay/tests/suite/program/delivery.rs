//! What is enqueued with the program arrives with the program.

use outbox_conformance::address;

use super::packaging;
use crate::support::brokers::{self, Ids};
use crate::support::place::Place;
use crate::support::scene::with_scene;
use crate::support::{name, wait_for};

/// Some for each broker, enqueued by the function that other languages call.
const EACH: usize = 20;

#[tokio::test]
async fn routes_lead_from_postgres_to_every_broker() {
    let topic = name("routed");
    let topics =
        ["kafka", "amqp", "nats", "redis"].map(|broker| format!("{topic}.{broker}.placed"));
    let [kafka, amqp, nats, redis] = &topics;
    tokio::join!(
        brokers::create_kafka_topic(kafka),
        brokers::create_queue(amqp),
        brokers::create_stream(&topic, nats),
    );
    let mut settings = brokers::settings();
    for broker in ["kafka", "amqp", "nats"] {
        settings += &format!("[[route]]\ntopic = \"{topic}.{broker}.*\"\nbroker = \"{broker}\"\n");
    }
    settings += "[[route]]\ntopic = \"*\"\nbroker = \"redis\"\n[http]\nlisten = \"127.0.0.1:0\"\n";
    let mut enqueued = [const { Ids::new() }; 4];
    with_scene(&settings, async |scene| {
        scene.done(&["migrate"]).await;
        for (topic, ids) in topics.iter().zip(&mut enqueued) {
            let statement = "SELECT {schema}.enqueue_json($1, '{\"number\": 7}', key => n::text)::text \
                             FROM generate_series(1, $2) n";
            let rows: Vec<String> = sqlx::query_scalar(scene.sql(statement))
                .bind(topic)
                .bind(EACH as i32)
                .fetch_all(&scene.pool)
                .await
                .unwrap();
            ids.extend(rows);
        }
        let running = scene.start(&["run"]);
        scene.delivered().await;
        packaging::the_dashboard_finds_its_metrics(&running.http().await).await;
        running.stop().await;
    })
    .await;

    let arrived = tokio::join!(
        brokers::kafka_ids(kafka, EACH),
        brokers::queue_ids(amqp),
        brokers::stream_ids(&topic, EACH),
        brokers::redis_ids(redis),
    );
    assert_eq!(enqueued, <[Ids; 4]>::from(arrived));
    tokio::join!(
        brokers::delete_kafka_topic(kafka),
        brokers::delete_queue(amqp),
        brokers::delete_stream(&topic),
        brokers::delete_redis_stream(redis),
    );
}

#[tokio::test]
async fn bytes_go_from_a_pipe_through_sqlite_to_redis_unchanged() {
    let topic = name("bytes");
    let place = Place::with(&format!(
        "[store]\nkind = \"sqlite\"\npath = \"shop.db\"\n\
         [broker.redis]\nkind = \"redis\"\nurl = \"{}\"\n",
        address("OUTBOX_TEST_REDIS_URL")
    ));
    place.done(&["migrate"]).await;
    let bytes: Vec<u8> = (0..=255).collect();
    place.write("payload", &bytes);

    let piped = [
        "enqueue",
        &topic,
        "--key",
        "k",
        "--header",
        "content-type=a=b",
    ];
    let piped = place.done_with_input(&piped, &bytes).await;
    let file = ["enqueue", &topic, "--key", "k", "--file", "payload"];
    let file = place.done(&file).await;
    let id = "0191d2f0-0000-7000-8000-000000000001";
    let text = [
        "enqueue",
        &topic,
        "naïve \"text\"",
        "--key",
        "k",
        "--id",
        id,
    ];
    assert_eq!(place.done(&text).await.trim(), id);
    let tombstone = ["enqueue", &topic, "--tombstone", "--key", "k"];
    let tombstone = place.done(&tombstone).await;

    let running = place.start(&["run"]);
    let entries = wait_for("delivery", async || {
        let entries = brokers::redis_entries(&topic).await;
        (entries.len() == 4).then_some(entries)
    });
    let entries = entries.await;
    running.stop().await;
    brokers::delete_redis_stream(&topic).await;

    let field = |entry: usize, name: &str| {
        let field = entries[entry].iter().find(|(field, _)| field == name);
        field.map(|(_, value)| value.clone())
    };
    let ids = [piped.trim(), file.trim(), id, tombstone.trim()];
    for (entry, id) in ids.into_iter().enumerate() {
        assert_eq!(field(entry, "id"), Some(id.as_bytes().to_vec()));
        assert_eq!(field(entry, "key"), Some(b"k".to_vec()));
    }
    assert_eq!(field(0, "payload"), Some(bytes.clone()));
    assert_eq!(field(0, "header:content-type"), Some(b"a=b".to_vec()));
    assert_eq!(field(1, "payload"), Some(bytes));
    assert_eq!(
        field(2, "payload"),
        Some("naïve \"text\"".as_bytes().to_vec())
    );
    assert_eq!(field(3, "payload"), None);
}
