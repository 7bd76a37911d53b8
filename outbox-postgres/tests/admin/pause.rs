//! Topics that people stop and start again.

use outbox_core::TopicPattern;
use outbox_core::admin::Resumed;

use crate::support::{Fixture, on_each_server};
use crate::{blocked, key, parked, stands};

on_each_server!(with_outbox:
    a_pause_is_kept_until_it_is_resumed,
    a_resumed_topic_is_tried_at_once,
);

fn pattern(pattern: &str) -> TopicPattern {
    pattern.parse().unwrap()
}

async fn a_pause_is_kept_until_it_is_resumed(f: Fixture) {
    assert_eq!(f.outbox.paused(&f.pool).await.unwrap(), []);
    assert!(
        f.outbox
            .pause(&f.pool, &pattern("orders.*"), "Größe")
            .await
            .unwrap()
    );
    assert!(
        f.outbox
            .pause(&f.pool, &pattern("a"), "somebody")
            .await
            .unwrap()
    );
    let paused = f.outbox.paused(&f.pool).await.unwrap();
    let shown: Vec<_> = paused
        .iter()
        .map(|it| (it.topic.as_str(), it.by.as_str()))
        .collect();
    assert_eq!(shown, [("a", "somebody"), ("orders.*", "Größe")]);
    // Whoever comes second changes nothing.
    assert!(
        !f.outbox
            .pause(&f.pool, &pattern("a"), "another")
            .await
            .unwrap()
    );
    assert_eq!(f.outbox.paused(&f.pool).await.unwrap(), paused);

    let nothing = f
        .outbox
        .resume(&f.pool, &pattern("orders.placed"))
        .await
        .unwrap();
    assert_eq!(nothing, Resumed::default());
    let resumed = f
        .outbox
        .resume(&f.pool, &pattern("orders.*"))
        .await
        .unwrap();
    assert!(resumed.was_paused);
    assert_eq!(f.outbox.paused(&f.pool).await.unwrap(), paused[..1]);
}

async fn a_resumed_topic_is_tried_at_once(f: Fixture) {
    for (position, name, topic) in [(1, "a", "orders.placed"), (2, "b", "other")] {
        parked(&f, position, name).await;
        blocked(&f, name, position, "2100-01-01").await;
        f.execute(&format!(
            "UPDATE {{schema}}.parked SET topic = '{topic}' WHERE key = '{name}'"
        ))
        .await
        .unwrap();
    }
    f.outbox
        .pause(&f.pool, &pattern("orders.*"), "me")
        .await
        .unwrap();
    let resumed = f
        .outbox
        .resume(&f.pool, &pattern("orders.*"))
        .await
        .unwrap();
    assert_eq!((resumed.was_paused, resumed.keys), (true, 1));
    assert_eq!(key(&f, "a").await, stands(1, "now", 2));
    assert_eq!(key(&f, "b").await, stands(2, "later", 2));
}
