//! A router passes the suite that every publisher passes.

use std::sync::Arc;

use outbox_conformance::publisher::{InMemory, Received};
use outbox_core::memory::MemoryPublisher;
use outbox_core::{Publisher as _, Router};

outbox_conformance::publisher_suite!(InMemory {
    // Topics of the suite end in a random hexadecimal digit, so that either broker gets some.
    wrap: |memory| {
        let router = ('0'..='7')
            .fold(Router::builder(), |router, digit| {
                router.route(format!("*{digit}"), "some")
            })
            .broker("some", memory.clone())
            .broker("others", memory)
            .otherwise("others")
            .build();
        Arc::new(router.expect("a valid router"))
    },
    read: Received::of,
    chains: false,
});

/// What is parted, and what has no route, may be in the midst of a key.
#[test]
fn a_router_chains_only_where_all_goes_to_one_broker() {
    let memory = MemoryPublisher::new();
    let one = || Router::builder().broker("one", memory.clone());
    let two = one().broker("two", memory.clone()).route("b", "two");
    let routers = [
        (one().otherwise("one"), true),
        (one().route("a*", "one").otherwise("one"), true),
        (one().route("*", "one"), false),
        (two.otherwise("one"), false),
    ];
    for (number, (router, chains)) in routers.into_iter().enumerate() {
        let router = router.build().expect("a valid router");
        assert_eq!(router.chains_keys(), chains, "router {number}");
    }
}
