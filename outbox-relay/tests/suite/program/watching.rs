//! What a monitor sees: metrics and health.

use outbox_conformance::address;

use super::brokers;
use super::proxy::Proxy;
use super::support::{Place, Schema, authority, get, metrics, name, wait_for};

#[tokio::test]
async fn an_outage_ends_readiness_and_not_life_and_the_metrics_tell_of_it() {
    let schema = Schema::new().await;
    let place = Place::new();
    let topic = name("watched");
    let url = address("OUTBOX_TEST_REDIS_URL");
    let mut proxy = Proxy::closed(authority(&url));
    place.configure(&format!(
        "{}[broker.redis]\nkind = \"redis\"\nurl = \"redis://{}\"\n\
         [http]\nlisten = \"127.0.0.1:0\"\n",
        schema.section(None),
        proxy.address
    ));
    place.run(&["migrate"], &[]).await.success();
    let running = place.start(&[]);
    running.says("the relay runs").await;
    let http = running.http().await;
    let ready = async |wanted: u16| {
        let page = get(&http, "/health/ready").await;
        (page.0 == wanted).then_some(page.1)
    };
    wait_for("readiness", async || ready(200).await).await;

    place.run(&["enqueue", &topic, "x"], &[]).await.success();
    let reason = wait_for("the outage", async || ready(503).await).await;
    assert_eq!(reason, "the broker is away\n");
    assert_eq!(get(&http, "/health/live").await.0, 200);
    let waiting = async || {
        let page = get(&http, "/metrics").await.1;
        let waiting = metrics(&page, "outbox_waiting_messages");
        (waiting.get("outbox_waiting_messages") == Some(&1.0)).then_some(page)
    };
    let page = wait_for("the gauges", waiting).await;
    assert_eq!(metrics(&page, "outbox_outage")["outbox_outage"], 1.0);

    proxy.open();
    wait_for("readiness", async || ready(200).await).await;
    wait_for("delivery", async || {
        (schema.left().await == 0).then_some(())
    })
    .await;
    let delivered = async || {
        let page = get(&http, "/metrics").await.1;
        let delivered = metrics(&page, "outbox_messages_delivered_total");
        (delivered["outbox_messages_delivered_total"] == 1.0).then_some(page)
    };
    let page = wait_for("the counters", delivered).await;
    assert_eq!(metrics(&page, "outbox_outage")["outbox_outage"], 0.0);
    brokers::delete_redis_stream(&topic).await;
    let log = running.stop().await;
    assert_eq!(log.matches("the broker is away").count(), 1, "{log}");
    schema.drop().await;
}
