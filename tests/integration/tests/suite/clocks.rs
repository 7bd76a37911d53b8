//! Relays on hosts that have the wrong time.

use std::time::Duration;

use outbox_core::Message;

use crate::support::amqp::BROKER;
use crate::support::relay::Relay;
use crate::support::scene::{Servers, play};
use crate::support::until;

const STOP: Duration = Duration::from_secs(20);

/// Every time that decides is the database's: also that of the next try of what failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_years_ahead_and_years_behind_deliver_and_try_again_in_time() {
    play(&BROKER, Servers::Steady, async |scene| {
        scene.write_backlog(20, 20, 1).await;
        let year = scene
            .number("SELECT extract(year FROM now())::bigint")
            .await;
        for (number, wrong) in ["+20y", "-20y"].into_iter().enumerate() {
            let relay = Relay::start_with_clock(wrong, scene, &["retry_longest_ms=1000"]);
            until("it has started", async || relay.year() > 0).await;
            let off = (relay.year() - year).abs();
            assert!((19..=21).contains(&off), "its clock is {off} years off");
            scene.settled().await;
            let missing = format!("{}.missing-{number}", scene.topic);
            let waits = Message::to(&missing).key("waits").bytes("x").unwrap();
            scene.enqueue(&[waits]).await;
            let tries = async || {
                scene
                    .number("SELECT coalesce(max(parked), 0)::bigint FROM {schema}.blocked")
                    .await
            };
            let took = until("it is tried again", async || tries().await >= 3).await;
            // Half a second to a second between two tries.
            assert!(took > Duration::from_millis(900), "{wrong}: in {took:?}");
            scene.create_topic(&missing).await;
            scene.settled().await;
            assert_eq!(scene.broker.count(&missing).await, 1, "{wrong}");
            scene.execute(include_str!("support/one_more.sql")).await;
            scene.settled().await;
            relay.stop(STOP).await;
        }
        scene.audit().await.assert_exactly_once();
        assert_eq!(scene.failures_seen().await, 0);
    })
    .await;
}
