//! What a monitor sees: metrics and health.

use outbox_conformance::address;
use outbox_conformance::proxy::Proxy;

use crate::support::http::{get, metrics};
use crate::support::scene::with_scene;
use crate::support::{authority, brokers, name, wait_for};

#[tokio::test]
async fn an_outage_ends_readiness_and_not_life_and_the_metrics_tell_of_it() {
    let topic = name("watched");
    let proxy = Proxy::to(authority(&address("OUTBOX_TEST_REDIS_URL"))).await;
    proxy.refuse();
    let settings = format!(
        "[broker.redis]\nkind = \"redis\"\nurl = \"redis://{}\"\n\
         [http]\nlisten = \"127.0.0.1:0\"\n",
        proxy.address()
    );
    with_scene(&settings, async |scene| {
        scene.done(&["migrate"]).await;
        let running = scene.start(&["run"]);
        running.says("the relay runs").await;
        let http = running.http().await;
        let ready = async |wanted: u16| {
            let page = get(&http, "/health/ready").await;
            (page.0 == wanted).then_some(page.1)
        };
        wait_for("readiness", async || ready(200).await).await;

        scene.done(&["enqueue", &topic, "x"]).await;
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

        proxy.release();
        wait_for("readiness", async || ready(200).await).await;
        scene.delivered().await;
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
    })
    .await;
}
