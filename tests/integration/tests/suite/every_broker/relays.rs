//! Relays side by side on one outbox, and relays that are killed.

use std::time::Duration;

use futures_util::future::join_all;
use futures_util::join;

use crate::support::broker::Install;
use crate::support::producer::produce;
use crate::support::relay::Relay;
use crate::support::scene::{Servers, play};

const STOP: Duration = Duration::from_secs(20);

pub(crate) async fn two_relays_deliver_each_message_once_and_in_order_while_producers_run(
    broker: &Install,
) {
    play(broker, Servers::Steady, async |scene| {
        let relays = [Relay::start(scene, &[]), Relay::start(scene, &[])];
        produce(scene, 200, 4_000).await;
        scene.settled().await;
        join_all(relays.map(|relay| relay.stop(STOP))).await;
        let audit = scene.audit().await;
        assert_eq!(audit.committed, 4_000);
        audit.assert_exactly_once();
        assert_eq!(scene.failures_seen().await, 0);
    })
    .await;
}

pub(crate) async fn relays_killed_one_after_another_lose_nothing_and_keep_the_order(
    broker: &Install,
) {
    play(broker, Servers::Newest, async |scene| {
        let mut relay = Relay::start(scene, &["batch=100"]);
        let killer = async {
            for round in 1..=5 {
                scene.arrived(round * 700).await;
                let next = Relay::start(scene, &["batch=100"]);
                std::mem::replace(&mut relay, next).kill().await;
            }
        };
        join!(produce(scene, 40, 4_000), killer);
        scene.settled().await;
        relay.stop(STOP).await;
        let audit = scene.audit().await;
        assert_eq!(audit.committed, 4_000);
        audit.assert_sound();
        assert_eq!(scene.failures_seen().await, 0);
    })
    .await;
}
