//! A router passes the suite that every publisher passes.

use std::sync::Arc;

use outbox_conformance::publisher::{InMemory, Received};
use outbox_core::Router;

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
});
