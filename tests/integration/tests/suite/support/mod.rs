//! What the tests stand on: a scene of their own, relays as processes, servers that can be broken, and
//! an audit that knows what was committed.

pub(crate) mod amqp;
pub(crate) mod audit;
pub(crate) mod broker;
pub(crate) mod kafka;
pub(crate) mod nats;
pub(crate) mod producer;
pub(crate) mod redis;
pub(crate) mod relay;
pub(crate) mod scene;
pub(crate) mod service;

use std::time::{Duration, Instant};

/// How long anything may take on a busy machine; a test that reaches it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Waits for a condition; how long it took. Fails when it does not come true.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < PATIENCE, "not after {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await; // wait: the poll of a bounded loop
    }
    start.elapsed()
}
