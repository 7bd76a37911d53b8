//! A Postgres that restarts, crashes and ends sessions.

use std::time::{Duration, Instant};

use futures_util::join;

use crate::support::kafka::BROKER;
use crate::support::producer::produce;
use crate::support::relay::Relay;
use crate::support::scene::{Servers, play};
use crate::support::until;

const STOP: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_and_producers_go_on_by_themselves_after_postgres_restarts_and_crashes() {
    play(&BROKER, Servers::FaultyPostgres, async |scene| {
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
    play(&BROKER, Servers::FaultyPostgres, async |scene| {
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

/// A failover: what answers is a standby, which takes no writes, until it is promoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_waits_while_postgres_takes_no_writes_says_so_once_and_goes_on() {
    play(&BROKER, Servers::FaultyPostgres, async |scene| {
        let relay = Relay::start(scene, &["batch=200"]);
        let failover = async {
            scene.arrived(500).await;
            scene.service().restart_as_standby().await;
            let start = Instant::now();
            until("the relay has tried and tried again", async || {
                // Its back-off is a second at the longest.
                relay.has_logged("the store fails") && start.elapsed() > Duration::from_secs(2)
            })
            .await;
            let standby = scene
                .number("SELECT pg_is_in_recovery()::int::bigint")
                .await;
            assert_eq!(standby, 1);
            scene.execute("SELECT pg_promote()").await;
        };
        join!(produce(scene, 50, 2_000), failover);
        scene.settled().await;
        assert_eq!(relay.times_logged("the store fails"), 1);
        assert_eq!(relay.times_logged("the store works again"), 1);
        relay.stop(STOP).await;
        let audit = scene.audit().await;
        assert_eq!(audit.committed, 2_000);
        audit.assert_sound();
        assert_eq!(scene.failures_seen().await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sleeping_relay_that_loses_every_session_finds_messages_and_sleeps_again() {
    play(&BROKER, Servers::Steady, async |scene| {
        let relay = Relay::start(scene, &[]);
        let asleep = async || {
            scene
                .number(
                    "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) \
                      WHERE locktype = 'advisory' AND pg_locks.mode = 'ExclusiveLock' \
                        AND granted AND application_name LIKE 'outbox relay {schema}%'",
                )
                .await
                == 1
        };
        scene.write_backlog(5, 1, 1).await;
        until("the relay sleeps", asleep).await;
        scene.settled().await;

        let ended = scene
            .number(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                  WHERE application_name LIKE 'outbox relay {schema}%'",
            )
            .await;
        assert!(ended >= 2, "it had {ended} sessions");
        scene.execute(include_str!("support/one_more.sql")).await;
        let took = scene.settled().await;
        assert!(took < Duration::from_secs(5), "found after {took:?}");

        until("the relay sleeps again", asleep).await;
        scene.execute(include_str!("support/one_more.sql")).await;
        let took = scene.settled().await;
        assert!(took < Duration::from_secs(5), "woken after {took:?}");
        relay.stop(STOP).await;
        scene.audit().await.assert_exactly_once();
    })
    .await;
}
