//! Signals.

use std::time::Duration;

use tokio::time::Instant;

use outbox_conformance::address;

use super::brokers;
use super::proxy::Silent;
use super::support::{Place, Schema, name, wait_for};

/// Far below the grace time of an hour, and enough for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(20);

fn redis(url: &str, more: &str) -> String {
    format!("[broker.redis]\nkind = \"redis\"\nurl = \"{url}\"\n{more}")
}

async fn enqueue(schema: &Schema, topic: &str, count: i32) {
    let statement = format!(
        "SELECT count({}.enqueue($1, decode(repeat('00', 1000), 'hex'), key => (n % 10)::text)) FROM generate_series(1, $2) n",
        schema.name
    );
    sqlx::query(sqlx::AssertSqlSafe(statement))
        .bind(topic)
        .bind(count)
        .execute(&schema.pool)
        .await
        .unwrap();
}

/// Whether a relay has a claim open.
async fn claimed(schema: &Schema) -> Option<()> {
    let held = "SELECT count(*) FROM pg_stat_activity \
                WHERE state = 'idle in transaction' AND application_name = 'outbox relay {schema} outbox'";
    (schema.number(held).await > 0).then_some(())
}

#[tokio::test]
async fn the_first_signal_drains_so_that_nothing_is_sent_twice() {
    const COUNT: i32 = 20_000;
    let schema = Schema::new().await;
    let place = Place::new();
    let topic = name("drained");
    place.configure(&(schema.section(None) + &redis(&address("OUTBOX_TEST_REDIS_URL"), "")));
    place.run(&["migrate"], &[]).await.success();
    enqueue(&schema, &topic, COUNT).await;
    // Slow enough to be caught in the middle.
    let slow = [
        ("OUTBOX__RELAY__WORKERS", "1"),
        ("OUTBOX__RELAY__BATCH_MESSAGES", "10"),
    ];
    let half = place.start(&slow);
    wait_for("the first", async || {
        (schema.left().await < i64::from(COUNT)).then_some(())
    })
    .await;
    half.stop().await;
    let left = schema.left().await;
    let arrived = brokers::redis_entries(&topic).await.len() as i64;
    assert_eq!(
        left + arrived,
        i64::from(COUNT),
        "confirmed and not settled, or the reverse"
    );
    assert!(left > 0, "it was done before the signal came");

    let rest = place.start(&[]);
    wait_for("the rest", async || {
        (schema.left().await == 0).then_some(())
    })
    .await;
    let memory = rest.peak_memory();
    assert!(memory < 100 * 1024 * 1024, "{memory} bytes");
    rest.stop().await;
    assert_eq!(
        brokers::redis_entries(&topic).await.len() as i64,
        i64::from(COUNT)
    );
    brokers::delete_redis_stream(&topic).await;
    schema.drop().await;
}

#[tokio::test]
async fn in_an_outage_it_stops_within_the_grace_time_and_a_second_signal_ends_it_at_once() {
    let schema = Schema::new().await;
    let place = Place::new();
    let silent = Silent::new().await;
    // The adapter does not give up before the signals come.
    let more =
        "connect_timeout = \"1m\"\n[relay]\nshutdown_grace = \"12s\"\nsettle_timeout = \"10s\"\n";
    let config = redis(&format!("redis://{}", silent.address), more);
    place.configure(&(schema.section(None) + &config));
    place.run(&["migrate"], &[]).await.success();
    enqueue(&schema, &name("hung"), 10).await;

    let mut drained = place.start(&[("OUTBOX__LOG__LEVEL", "debug")]);
    drained.says("the relay runs").await;
    wait_for("a claim", async || claimed(&schema).await).await;
    drained.signal("INT").await;
    drained.says("the relay stops").await;
    let start = Instant::now();
    let status = drained.ended().await;
    assert_eq!(status.code(), Some(0), "{}", drained.log());
    assert!(
        start.elapsed() < Duration::from_secs(12),
        "{:?}",
        start.elapsed()
    );

    let mut ended = place.start(&[("OUTBOX__RELAY__SHUTDOWN_GRACE", "1h")]);
    wait_for("a claim", async || claimed(&schema).await).await;
    ended.signal("TERM").await;
    ended.says("the relay stops").await;
    ended.signal("TERM").await;
    let start = Instant::now();
    assert_eq!(ended.ended().await.code(), Some(1), "{}", ended.log());
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    ended.says("by a second signal").await;
    assert_eq!(schema.left().await, 10, "nothing is lost");
    schema.drop().await;
}

#[tokio::test]
async fn a_relay_that_waits_for_its_database_stops_at_once() {
    let place = Place::new();
    place.configure(
        &("[store]\nkind = \"postgres\"\nurl = \"postgres://u@127.0.0.1:1/none\"\n".to_owned()
            + &redis("redis://127.0.0.1:1", "[relay]\nshutdown_grace = \"1h\"\n")),
    );
    let mut running = place.start(&[]);
    running.says("the database is away").await;
    running.signal("TERM").await;
    let start = Instant::now();
    assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
}
