//! A broker that stops, crashes and freezes. No message is at fault, so none counts a failure.

use std::time::{Duration, Instant};

use futures_util::join;

use crate::support::broker::Install;
use crate::support::producer::produce;
use crate::support::relay::Relay;
use crate::support::scene::{Servers, play};
use crate::support::until;

const STOP: Duration = Duration::from_secs(20);

/// An outage is noticed within seconds: the adapter explains it in less than half of the publish timeout.
fn settings(broker: &Install) -> Vec<&str> {
    let relays = [
        "publish_timeout_ms=12000",
        "settle_timeout_ms=2000",
        "stop_grace_ms=2000",
    ];
    [&relays, broker.impatient].concat()
}

pub(crate) async fn messages_wait_while_the_broker_is_stopped_and_go_on_by_themselves(
    broker: &Install,
) {
    play(broker, Servers::FaultyBroker, async |scene| {
        let relay = Relay::start(scene, &settings(broker));
        let outage = async {
            scene.arrived(500).await;
            scene.service().stop().await;
        };
        join!(produce(scene, 50, 4_000), outage);
        until("the relay sees the outage", async || {
            relay.has_logged("the broker is away")
        })
        .await;
        assert!(scene.unsettled().await > 0, "nothing was left to wait");

        // Nobody enqueues any more: what is delivered now the relay delivers by itself.
        scene.service().start().await;
        scene.settled().await;
        assert!(relay.has_logged("the broker is back"));
        relay.stop(STOP).await;
        let audit = scene.audit().await;
        assert_eq!(audit.committed, 4_000);
        audit.assert_sound();
        assert_eq!(scene.failures_seen().await, 0);
    })
    .await;
}

pub(crate) async fn a_batch_that_the_broker_crashed_on_between_send_and_confirmation_is_delivered(
    broker: &Install,
) {
    play(broker, Servers::FaultyBroker, async |scene| {
        let relay = Relay::start(scene, &settings(broker));
        produce(scene, 50, 1_000).await;
        scene.settled().await;

        // Whatever is sent from now on stays without an answer.
        scene.service().freeze();
        scene.execute(include_str!("../support/one_more.sql")).await;
        until("a claim is open", async || scene.open_claims().await > 0).await;
        scene.service().kill().await;
        assert!(
            scene.unsettled().await > 0,
            "it was settled without a broker"
        );

        scene.service().start().await;
        scene.settled().await;
        relay.stop(STOP).await;
        scene.audit().await.assert_sound();
        assert_eq!(scene.failures_seen().await, 0);
    })
    .await;
}

pub(crate) async fn a_relay_stops_in_time_while_the_broker_is_away(broker: &Install) {
    play(broker, Servers::FaultyBroker, async |scene| {
        scene.service().stop().await;
        scene.write_backlog(20, 10, 1).await;
        let relay = Relay::start(scene, &settings(broker));
        until("the relay sees the outage", async || {
            relay.has_logged("the broker is away")
        })
        .await;
        let start = Instant::now();
        relay.stop(STOP).await;
        let took = start.elapsed();
        // Grace and settle timeout, and a second for a busy machine.
        assert!(took < Duration::from_secs(5), "the stop took {took:?}");
        assert_eq!(scene.unsettled().await, 200);

        scene.service().start().await;
        let other = Relay::start(scene, &settings(broker));
        scene.settled().await;
        other.stop(STOP).await;
        scene.audit().await.assert_sound();
        assert_eq!(scene.failures_seen().await, 0);
    })
    .await;
}
