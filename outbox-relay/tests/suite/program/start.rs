//! Starts into a world that is not ready yet, and an idle relay's cost.

use std::time::{Duration, Instant};

use outbox_conformance::address;
use tokio::time::sleep;

use crate::support::http::get;
use crate::support::place::{Place, Running};
use crate::support::scene::{Scene, execute, with_scene};
use crate::support::tap::Tap;
use crate::support::{PATIENCE, brokers, name, wait_for};

/// The settings of a broker at Redis.
fn redis() -> String {
    let url = address("OUTBOX_TEST_REDIS_URL");
    format!("[broker.redis]\nkind = \"redis\"\nurl = \"{url}\"\n")
}

#[tokio::test]
async fn it_waits_for_database_and_tables_says_so_once_and_then_works_and_idles_cheaply() {
    let topic = name("waited");
    let mut tap = Tap::closed(&address("OUTBOX_TEST_POSTGRES_URL"));
    let settings = redis() + "[http]\nlisten = \"127.0.0.1:0\"\n";
    with_scene(&settings, async |scene| {
        let running = scene.start_with(&["run"], &[("OUTBOX__STORE__URL", &tap.url)]);
        running.says("the database is away").await;
        let http = running.http().await;
        let (status, reason) = get(&http, "/health/ready").await;
        assert_eq!(status, 503);
        assert!(reason.contains("the database is away"), "{reason}");
        assert_eq!(get(&http, "/health/live").await, (200, "live\n".to_owned()));

        tap.open();
        running.says("run `outbox migrate`").await;
        assert_eq!(running.count("the database is away"), 1);
        scene.done(&["migrate"]).await;
        running.says("the relay runs").await;
        assert_eq!(running.count("run `outbox migrate`"), 1);
        assert_eq!(get(&http, "/health/ready").await.0, 200);

        scene.done(&["enqueue", &topic, "hello"]).await;
        scene.delivered().await;
        assert_eq!(brokers::redis_ids(&topic).await.len(), 1);
        brokers::delete_redis_stream(&topic).await;

        // It has become quiet, and stays so, as does another one beside it.
        let mut others = Tap::closed(&address("OUTBOX_TEST_POSTGRES_URL"));
        others.open();
        let other = scene.start_with(&["run"], &[("OUTBOX__STORE__URL", &others.url)]);
        other.says("the relay runs").await;
        let writes = "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint \
                      FROM pg_stat_user_tables WHERE schemaname = '{schema}'";
        let written = settled(scene, writes).await;
        tap.statements();
        others.statements();
        let window = Duration::from_secs(30);
        let start = Instant::now();
        sleep(window).await; // wait: what does not happen in this time is what is counted
        let minutes = start.elapsed().as_secs_f64() / 60.0;
        for statements in [tap.statements(), others.statements()] {
            let a_minute = statements.len() as f64 / minutes;
            println!("{a_minute} statements a minute");
            assert!(a_minute <= 120.0, "{a_minute} a minute: {statements:#?}");
            assert!(!statements.is_empty(), "nothing was seen of it");
        }
        assert_eq!(
            scene.number(writes).await,
            written,
            "it wrote while it was idle"
        );
        assert_eq!(get(&http, "/health/live").await.0, 200);

        other.stop().await;
        running.stop().await;
    })
    .await;
}

/// The number that a statement of the server's statistics gives, once it stays: the server hands in what it
/// counted of a session ten seconds after that became idle.
async fn settled(scene: &Scene, statement: &str) -> i64 {
    let start = Instant::now();
    let (mut number, mut since) = (scene.number(statement).await, start);
    while since.elapsed() < Duration::from_secs(12) {
        sleep(Duration::from_millis(500)).await; // wait: the poll of a bounded loop
        let now = scene.number(statement).await;
        if now != number {
            (number, since) = (now, Instant::now());
        }
        assert!(start.elapsed() < PATIENCE, "it goes on writing");
    }
    number
}

#[tokio::test]
async fn it_starts_without_any_of_its_brokers_and_says_once_of_each_that_it_is_away() {
    let place = Place::with(
        "[store]\nkind = \"sqlite\"\npath = \"shop.db\"\n\
         [broker.kafka]\nkind = \"kafka\"\nproperties.\"bootstrap.servers\" = \"127.0.0.1:1\"\n\
         [broker.amqp]\nkind = \"amqp\"\nurl = \"amqp://127.0.0.1:1\"\n\
         [broker.nats]\nkind = \"nats\"\nurl = \"nats://127.0.0.1:1\"\n\
         [broker.redis]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:1\"\n\
         [[route]]\ntopic = \"kafka\"\nbroker = \"kafka\"\n[[route]]\ntopic = \"amqp\"\nbroker = \"amqp\"\n\
         [[route]]\ntopic = \"nats\"\nbroker = \"nats\"\n[[route]]\ntopic = \"redis\"\nbroker = \"redis\"\n\
         [http]\nlisten = \"127.0.0.1:0\"\n",
    );
    place.done(&["migrate"]).await;
    let running = place.start(&["run"]);
    running.says("the relay runs").await;
    let brokers = ["kafka", "amqp", "nats", "redis"];
    for topic in brokers {
        place.done(&["enqueue", topic, "x"]).await;
    }
    for broker in brokers {
        running.says(&format!("\"broker\":\"{broker}\"")).await;
    }
    let http = running.http().await;
    assert_eq!(get(&http, "/health/ready").await.0, 200);
    let page = get(&http, "/metrics").await.1;
    for broker in brokers {
        let gauge = format!("outbox_broker_outage{{broker=\"{broker}\"}} 1");
        assert!(page.contains(&gauge), "{gauge} is not in\n{page}");
    }
    let log = running.stop().await;
    let said = log.matches("one of the brokers is away").count();
    assert_eq!(said, brokers.len(), "{log}");
}

#[tokio::test]
async fn it_makes_the_file_of_sqlite_where_it_is_asked_to_and_otherwise_waits_for_it() {
    let place = Place::with(
        "[store]\nkind = \"sqlite\"\npath = \"shop.db\"\n\
         [broker.redis]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:1\"\n",
    );
    let waiting = place.start(&["run"]);
    waiting.says("run `outbox migrate`").await;
    assert!(!place.path("shop.db").exists());
    let migrating = place.start(&["run", "--migrate"]);
    migrating.says("the tables are up to date").await;
    // One of them works, and the other one waits until it is gone.
    let migrating_works = wait_for("a relay", async || {
        let runs = |relay: &Running| relay.count("the relay runs") > 0;
        (runs(&migrating) || runs(&waiting)).then(|| runs(&migrating))
    });
    let (works, waits) = match migrating_works.await {
        true => (migrating, waiting),
        false => (waiting, migrating),
    };
    waits.says("has a relay already").await;
    works.stop().await;
    waits.says("the relay runs").await;
    waits.stop().await;
}

#[tokio::test]
async fn it_is_soon_ready_and_migrates_where_it_is_asked_to() {
    with_scene(&redis(), async |scene| {
        let printed = scene.done(&["migrate", "--print"]).await;
        assert!(
            printed.contains(&format!("{}.message", scene.name)),
            "{printed}"
        );
        let away = [("OUTBOX__STORE__URL", "postgres://u:p@127.0.0.1:1/none")];
        let same = scene.run_with(&["migrate", "--print"], &away).await;
        assert_eq!(same.success(), printed);
        let refused = scene.run_with(&["migrate"], &away).await.failure(1);
        assert!(refused.contains("the database is away"), "{refused}");
        execute(&scene.pool, &printed).await;

        let mut best = Duration::MAX;
        for _ in 0..3 {
            let start = Instant::now();
            let running = scene.start(&["run"]);
            running.says("the relay runs").await;
            best = best.min(start.elapsed());
            running.stop().await;
        }
        println!("ready after {best:?}");
        // A second is the limit of a machine that does nothing else.
        assert!(best < Duration::from_secs(10), "ready after {best:?}");
    })
    .await;
}
