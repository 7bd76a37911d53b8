//! Signals.

use std::time::{Duration, Instant};

use outbox_conformance::address;
use outbox_conformance::proxy::Proxy;

use crate::support::place::Place;
use crate::support::scene::{Scene, with_scene};
use crate::support::{authority, brokers, name, until};

/// Far below the grace time of an hour, and enough for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(20);

fn redis(url: &str, more: &str) -> String {
    format!("[broker.redis]\nkind = \"redis\"\nurl = \"{url}\"\n{more}")
}

async fn enqueue(scene: &Scene, topic: &str, count: i32) {
    let statement = "SELECT count({schema}.enqueue($1, decode(repeat('00', 1000), 'hex'), key => (n % 10)::text)) \
                     FROM generate_series(1, $2) n";
    sqlx::query(scene.sql(statement))
        .bind(topic)
        .bind(count)
        .execute(&scene.pool)
        .await
        .unwrap();
}

/// Waits until the broker has been gone to more often than `before`: a batch is under way.
async fn publishes(broker: &Proxy, before: usize) {
    until("a publish", async || broker.accepted() > before).await;
}

#[tokio::test]
async fn the_first_signal_drains_so_that_nothing_is_sent_twice() {
    const COUNT: i64 = 20_000;
    let topic = name("drained");
    let settings = redis(&address("OUTBOX_TEST_REDIS_URL"), "");
    with_scene(&settings, async |scene| {
        scene.done(&["migrate"]).await;
        enqueue(scene, &topic, COUNT as i32).await;
        // Slow enough to be caught in the middle.
        let slow = [
            ("OUTBOX__RELAY__WORKERS", "1"),
            ("OUTBOX__RELAY__BATCH_MESSAGES", "10"),
        ];
        let half = scene.start_with(&["run"], &slow);
        until("the first", async || scene.left().await < COUNT).await;
        half.stop().await;
        let left = scene.left().await;
        let arrived = brokers::redis_entries(&topic).await.len() as i64;
        assert_eq!(
            left + arrived,
            COUNT,
            "confirmed and not settled, or the reverse"
        );
        assert!(left > 0, "it was done before the signal came");

        let rest = scene.start(&["run"]);
        scene.delivered().await;
        let memory = rest.peak_memory();
        assert!(memory < 100 * 1024 * 1024, "{memory} bytes");
        rest.stop().await;
        let arrived = brokers::redis_entries(&topic).await.len() as i64;
        assert_eq!(arrived, COUNT);
        brokers::delete_redis_stream(&topic).await;
    })
    .await;
}

#[tokio::test]
async fn in_an_outage_it_stops_within_the_grace_time_and_a_second_signal_ends_it_at_once() {
    let silent = Proxy::to(authority(&address("OUTBOX_TEST_REDIS_URL"))).await;
    silent.hold();
    // The adapter does not give up before the signals come.
    let more =
        "connect_timeout = \"1m\"\n[relay]\nshutdown_grace = \"12s\"\nsettle_timeout = \"10s\"\n";
    let settings = redis(&format!("redis://{}", silent.address()), more);
    with_scene(&settings, async |scene| {
        scene.done(&["migrate"]).await;
        enqueue(scene, &name("hung"), 10).await;

        let mut drained = scene.start_with(&["run"], &[("OUTBOX__LOG__LEVEL", "debug")]);
        publishes(&silent, 0).await;
        drained.signal("INT");
        drained.says("the relay stops").await;
        let start = Instant::now();
        assert_eq!(drained.ended().await.code(), Some(0));
        let took = start.elapsed();
        assert!(took < Duration::from_secs(12), "{took:?}");

        let before = silent.accepted();
        let mut ended = scene.start_with(&["run"], &[("OUTBOX__RELAY__SHUTDOWN_GRACE", "1h")]);
        publishes(&silent, before).await;
        ended.signal("TERM");
        ended.says("the relay stops").await;
        ended.signal("TERM");
        let start = Instant::now();
        assert_eq!(ended.ended().await.code(), Some(1));
        let took = start.elapsed();
        assert!(took < AT_ONCE, "{took:?}");
        ended.says("by a second signal").await;
        assert_eq!(scene.left().await, 10, "nothing is lost");
    })
    .await;
}

#[tokio::test]
async fn a_relay_that_waits_for_its_database_stops_at_once() {
    let store = "[store]\nkind = \"postgres\"\nurl = \"postgres://u@127.0.0.1:1/none\"\n";
    let broker = redis("redis://127.0.0.1:1", "[relay]\nshutdown_grace = \"1h\"\n");
    let place = Place::with(&(store.to_owned() + &broker));
    let mut running = place.start(&["run"]);
    running.says("the database is away").await;
    running.signal("TERM");
    let start = Instant::now();
    assert_eq!(running.ended().await.code(), Some(0));
    let took = start.elapsed();
    assert!(took < AT_ONCE, "{took:?}");
}
