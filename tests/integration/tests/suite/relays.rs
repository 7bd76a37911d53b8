//! More relays than anyone needs, on one outbox.

use std::time::Duration;

use futures_util::future::join_all;

use crate::support::kafka::BROKER;
use crate::support::relay::Relay;
use crate::support::scene::{Servers, play};

const STOP: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_relays_that_start_at_once_deliver_each_message_once() {
    play(&BROKER, Servers::Newest, async |scene| {
        scene.write_backlog(100, 50, 1).await;
        let relays: Vec<Relay> = (0..20)
            .map(|_| Relay::start(scene, &["workers=2", "batch=50"]))
            .collect();
        scene.settled().await;
        join_all(relays.into_iter().map(|relay| relay.stop(STOP))).await;
        let audit = scene.audit().await;
        assert_eq!(audit.committed, 5_000);
        audit.assert_exactly_once();
    })
    .await;
}
