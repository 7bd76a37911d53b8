//! A Postgres that restarts and crashes.

use std::time::{Duration, Instant};

use futures_util::join;

use crate::support::producer::produce;
use crate::support::relay::Relay;
use crate::support::scene::{Servers, play};
use crate::support::until;

const STOP: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_and_producers_go_on_by_themselves_after_postgres_restarts_and_crashes() {
    play(Servers::FaultyPostgres, async |scene| {
        let relays = [
            Relay::start(scene, &["batch=200"]),
            Relay::start(scene, &["batch=200"]),
        ];
        let faults = async {
            scene.arrived(700).await;
            scene.service().restart().await;
            scene.arrived(2_000).await;
            scene.service().kill().await;
            scene.service().start().await;
            scene.arrived(3_300).await;
            scene.service().restart().await;
        };
        join!(produce(scene, 50, 5_000), faults);
        scene.settled().await;
        let [one, other] = relays;
        join!(one.stop(STOP), other.stop(STOP));
        let audit = scene.audit().await;
        assert_eq!(audit.committed, 5_000);
        audit.assert_sound();
        assert_eq!(scene.failures_seen().await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_starts_waits_and_stops_in_time_while_postgres_is_away() {
    play(Servers::FaultyPostgres, async |scene| {
        scene.write_backlog(20, 10, 1).await;
        scene.service().stop().await;
        let settings = ["stop_grace_ms=2000", "settle_timeout_ms=2000"];
        let [impatient, patient] = [(); 2].map(|()| Relay::start(scene, &settings));
        for relay in [&impatient, &patient] {
            until("the relay sees the trouble", async || {
                relay.has_logged("the store fails")
            })
            .await;
        }
        let start = Instant::now();
        impatient.stop(STOP).await;
        let took = start.elapsed();
        assert!(took < Duration::from_secs(5), "the stop took {took:?}");

        scene.service().start().await;
        scene.settled().await;
        assert!(patient.has_logged("the store works again"));
        patient.stop(STOP).await;
        scene.audit().await.assert_exactly_once();
    })
    .await;
}
