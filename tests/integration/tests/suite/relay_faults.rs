//! Relays that are killed, frozen and stopped.

use std::time::{Duration, Instant};

use crate::support::kafka::BROKER;
use crate::support::relay::Relay;
use crate::support::scene::{Scene, Servers, play};
use crate::support::until;

const STOP: Duration = Duration::from_secs(20);

/// A relay has published a batch and does not settle it. That no lane is free does not show this: workers that
/// are at work hold lanes too.
async fn holds(relay: &Relay) {
    until("a call does not return", async || {
        relay.has_logged("the call does not return")
    })
    .await;
}

async fn only_the_held_claim_is_left(scene: &Scene) {
    until("only what the held claim holds back is left", async || {
        scene.unsettled().await > 0 && scene.waiting_in_free_lanes().await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_of_a_killed_relay_move_on_at_once_and_its_unsettled_batch_is_repeated() {
    play(&BROKER, Servers::Steady, async |scene| {
        scene.write_backlog(60, 50, 1).await;
        let doomed = Relay::start(scene, &["batch=200", "hold_after=400"]);
        holds(&doomed).await;
        let other = Relay::start(scene, &["batch=200"]);
        only_the_held_claim_is_left(scene).await;

        doomed.kill().await;
        let took = scene.settled().await;
        // The server's own bound for a silent claim is 50 s.
        assert!(
            took < Duration::from_secs(25),
            "lanes came free after {took:?}"
        );
        other.stop(STOP).await;
        let audit = scene.audit().await;
        audit.assert_sound();
        // The broker had confirmed it, and nobody else knew.
        assert!(
            audit.repeats > 0,
            "it was not killed in mid-batch: {audit:?}"
        );
    })
    .await;
}

/// The worst that can happen to a relay: it stands still in the middle of a batch of which a part is
/// written to the broker and a part still in the client's queue, its lanes are taken, and it goes on as
/// if nothing had been.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_relay_loses_its_lanes_and_sends_only_repeats_when_it_goes_on() {
    play(&BROKER, Servers::FaultyBroker, async |scene| {
        // Wide waves of a megabyte and more: the client has five requests of 64 KiB in flight.
        scene.write_backlog(1_000, 6, 2_000).await;
        let settings = [
            "workers=2",
            "publish_timeout_ms=3000",
            "settle_timeout_ms=1000",
            "delivery.timeout.ms=1400",
        ];
        let frozen = Relay::start(scene, &settings);
        scene.arrived(500).await;
        scene.service().freeze();
        until("a claim is open", async || scene.open_claims().await > 0).await;
        frozen.freeze();
        scene.service().thaw();
        let left = scene.unsettled().await;
        assert!(left > 0, "the relay was faster than the test");

        let other = Relay::start(scene, &settings);
        let took = scene.settled().await;
        assert!(
            took < Duration::from_secs(40),
            "lanes came free after {took:?}"
        );

        frozen.thaw();
        until(
            "the frozen relay learns that its claim is gone",
            async || frozen.has_logged("the store fails"),
        )
        .await;
        let more = async {
            let mut tx = scene.pool.begin().await.unwrap();
            for key in 1..=1_000 {
                let key = format!("key-{key}");
                let message = scene.message(&key, 7);
                scene.write(&mut tx, &key, 7, &message).await.unwrap();
            }
            tx.commit().await.unwrap();
        };
        more.await;
        scene.settled().await;
        frozen.stop(STOP).await;
        other.stop(STOP).await;
        scene.audit().await.assert_sound();
        assert_eq!(scene.failures_seen().await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_stopped_relay_had_confirmed_is_settled_and_never_repeated() {
    play(&BROKER, Servers::Steady, async |scene| {
        scene.write_backlog(80, 100, 1).await;
        // Small batches, so that it has far to go yet.
        let stopped = Relay::start(scene, &["batch=100"]);
        scene.arrived(1_000).await;
        stopped.stop(STOP).await;
        assert!(scene.unsettled().await > 0, "it had nothing left to do");

        let other = Relay::start(scene, &[]);
        scene.settled().await;
        other.stop(STOP).await;
        scene.audit().await.assert_exactly_once();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_that_does_not_return_neither_delays_the_stop_nor_loses_its_answers() {
    play(&BROKER, Servers::Steady, async |scene| {
        scene.write_backlog(60, 50, 1).await;
        let stopped = Relay::start(
            scene,
            &["batch=200", "hold_after=400", "stop_grace_ms=2000"],
        );
        holds(&stopped).await;
        only_the_held_claim_is_left(scene).await;
        let start = Instant::now();
        stopped.stop(STOP).await;
        let took = start.elapsed();
        assert!(took >= Duration::from_secs(2), "it did not hold: {took:?}");

        let other = Relay::start(scene, &[]);
        scene.settled().await;
        other.stop(STOP).await;
        scene.audit().await.assert_exactly_once();
    })
    .await;
}
