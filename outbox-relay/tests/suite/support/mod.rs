//! What the tests stand on: places in which the program is run, outboxes and databases of their own, and
//! what is at the brokers.

pub(crate) mod brokers;
pub(crate) mod http;
pub(crate) mod place;
pub(crate) mod scene;
pub(crate) mod tap;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use uuid::Uuid;

/// The longest that anything here may take: the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A name that no other test has, in this run or another.
pub(crate) fn name(prefix: &str) -> String {
    format!("{prefix}_{}", Uuid::now_v7().simple())
}

/// `host:port` of a URL.
pub(crate) fn authority(url: &str) -> &str {
    let rest = url.split_once("://").expect("a scheme").1;
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

/// A file of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(path)
}

/// Polls until `condition` gives something.
pub(crate) async fn wait_for<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        // wait: what is waited for happens in another process.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// As [`wait_for`], for something that comes true.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    wait_for(what, async || condition().await.then_some(())).await;
}
