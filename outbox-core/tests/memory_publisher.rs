//! The publisher in memory passes the suite that the real ones pass.

use std::sync::Arc;

use outbox_conformance::publisher::{InMemory, Received};

outbox_conformance::publisher_suite!(InMemory {
    wrap: |memory| Arc::new(memory),
    read: Received::of,
    chains: true,
});
