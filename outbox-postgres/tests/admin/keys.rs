//! Keys that are held up: lists of them, and having them tried at once.

use std::time::Duration;

use futures_util::future::join_all;
use outbox_core::admin::{Count, HeldKey, KeyFilter};
use outbox_core::{Outcome, PublishError, Store as _};

use crate::support::store::{Db, contents, limits};
use crate::support::{Fixture, on_each_server};
use crate::{blocked, dead, key, parked, stands};

on_each_server!(with_outbox:
    held_keys_are_listed_with_what_holds_them_up,
    many_followers_are_counted_to_a_bound,
    a_filter_means_the_heads_that_fit,
    a_look_has_a_bound_where_no_key_fits,
    a_retry_makes_keys_due_and_counts_nothing,
    of_many_retries_at_once_each_key_is_made_due_once,
    a_relay_tries_what_it_had_parked_for_long,
);

/// All pages of a list, by the key of each head.
async fn listed(f: &Fixture, filter: &KeyFilter, limit: u32) -> Vec<HeldKey> {
    let (mut all, mut from) = (Vec::new(), None);
    loop {
        let page = f
            .outbox
            .held_keys(&f.pool, filter, from, limit)
            .await
            .unwrap();
        assert!(page.keys.len() <= limit as usize);
        all.extend(page.keys);
        match page.next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    let name = |held: &HeldKey| held.head.as_ref().and_then(|head| head.key.clone());
    all.sort_by_key(name);
    all
}

fn names(keys: &[HeldKey]) -> Vec<&str> {
    keys.iter()
        .map(|held| {
            held.head
                .as_ref()
                .and_then(|head| head.key.as_deref())
                .unwrap_or("-")
        })
        .collect()
}

async fn retry(f: &Fixture, filter: KeyFilter) -> u64 {
    f.outbox
        .retry_now(&f.pool, filter)
        .finish()
        .await
        .unwrap()
        .keys
}

/// `a` waits with two behind it, `h` is halted with one behind it, and a message without a key waits.
async fn three_keys(f: &Fixture) {
    for position in [3, 7, 5] {
        parked(f, position, "a").await;
    }
    blocked(f, "a", 2, "2100-01-01").await;
    f.execute("UPDATE {schema}.blocked SET tried = 3, blocked_at = now() - interval '1 hour'")
        .await
        .unwrap();
    dead(f, 10, "h", true).await;
    dead(f, 9, "h", false).await;
    parked(f, 11, "h").await;
    blocked(f, "h", 10, "infinity").await;
    f.execute(
        "INSERT INTO {schema}.parked (key_hash, position, id, topic, enqueued_at)
         VALUES (20, 20, gen_random_uuid(), 'alone', now());
         INSERT INTO {schema}.blocked (key_hash, lane, head, due_at) VALUES (20, 20, 20, now())",
    )
    .await
    .unwrap();
}

async fn held_keys_are_listed_with_what_holds_them_up(f: Fixture) {
    let page = f
        .outbox
        .held_keys(&f.pool, &KeyFilter::all(), None, 10)
        .await
        .unwrap();
    assert_eq!((page.keys, page.next), (vec![], None));
    three_keys(&f).await;
    let page = f
        .outbox
        .held_keys(&f.pool, &KeyFilter::all(), None, 10)
        .await
        .unwrap();
    for limit in [1, 2, 10] {
        let all = listed(&f, &KeyFilter::all(), limit).await;
        assert_eq!(names(&all), ["-", "a", "h"]);
        let [alone, a, h] = &all[..] else {
            panic!("{all:?}")
        };

        let head = a.head.as_ref().unwrap();
        assert_eq!((head.position, head.topic.as_str()), (3, "t"));
        assert_eq!((head.parked, head.failures), (3, 2));
        assert_eq!(
            (a.error_kind.as_deref(), a.error.as_deref()),
            (Some("retryable"), Some("away"))
        );
        assert_eq!((a.followers, a.halted), (Count::Exact(2), false));
        let held_for = page.now.duration_since(a.since).unwrap();
        assert!((3_600..3_700).contains(&held_for.as_secs()), "{held_for:?}");
        assert!(a.next_try.unwrap() > page.now + Duration::from_secs(3_600));

        let head = h.head.as_ref().unwrap();
        assert_eq!((head.position, head.topic.as_str()), (10, "orders.placed"));
        assert_eq!((head.parked, head.failures), (3, 2));
        assert_eq!(
            (h.followers, h.halted, h.next_try),
            (Count::Exact(1), true, None)
        );

        let head = alone.head.as_ref().unwrap();
        assert_eq!((head.position, head.topic.as_str()), (20, "alone"));
        assert_eq!((head.parked, head.failures), (0, 0));
        assert_eq!(
            (&alone.error_kind, alone.followers),
            (&None, Count::Exact(0))
        );
        assert!(alone.next_try.unwrap() <= page.now);
    }
    // Held up by nothing, as after a delete by hand, until a relay has seen it.
    f.execute("DELETE FROM {schema}.parked").await.unwrap();
    let all = listed(&f, &KeyFilter::all(), 10).await;
    assert_eq!(all.iter().filter(|held| held.head.is_none()).count(), 2);
}

async fn many_followers_are_counted_to_a_bound(f: Fixture) {
    f.execute(
        "INSERT INTO {schema}.parked (key_hash, position, id, topic, key, enqueued_at)
         SELECT hashtextextended(k, 0), n, gen_random_uuid(), 't', k, now()
           FROM (VALUES ('exact', 1001), ('more', 1002)) AS v(k, number)
          CROSS JOIN LATERAL generate_series(1, number) AS n",
    )
    .await
    .unwrap();
    blocked(&f, "exact", 1, "2100-01-01").await;
    blocked(&f, "more", 1, "2100-01-01").await;
    let all = listed(&f, &KeyFilter::all(), 10).await;
    assert_eq!(names(&all), ["exact", "more"]);
    assert_eq!(all[0].followers, Count::Exact(1_000));
    assert_eq!(all[1].followers, Count::AtLeast(1_000));
}

async fn a_filter_means_the_heads_that_fit(f: Fixture) {
    three_keys(&f).await;
    let all = KeyFilter::all;
    let topic = |pattern: &str| all().topic(pattern.parse().unwrap());
    for (filter, expected) in [
        (all(), &["-", "a", "h"][..]),
        (topic("t"), &["a"]),
        (topic("*a*"), &["-", "h"]),
        (topic("none"), &[]),
        (all().key("h"), &["h"]),
        (all().key("none"), &[]),
        (all().key("h").topic("t".parse().unwrap()), &[]),
        (all().halted(true), &["h"]),
        (all().halted(false), &["-", "a"]),
    ] {
        assert_eq!(names(&listed(&f, &filter, 1).await), expected, "{filter:?}");
    }
}

async fn a_look_has_a_bound_where_no_key_fits(f: Fixture) {
    f.execute(
        "INSERT INTO {schema}.blocked (key_hash, lane, head, due_at)
         SELECT n, n & 63, n, '2100-01-01' FROM generate_series(1, 12000) AS n;
         INSERT INTO {schema}.parked (key_hash, position, id, topic, enqueued_at)
         SELECT n, n, gen_random_uuid(), 't', now() FROM generate_series(1, 12000) AS n",
    )
    .await
    .unwrap();
    let none = KeyFilter::all().topic("none".parse().unwrap());
    let page = f.outbox.held_keys(&f.pool, &none, None, 10).await.unwrap();
    assert_eq!((page.keys, page.next), (vec![], Some(10_001)));
    let page = f
        .outbox
        .held_keys(&f.pool, &none, page.next, 10)
        .await
        .unwrap();
    assert_eq!((page.keys, page.next), (vec![], None));

    // In steps, each key once.
    let mut steps = f.outbox.retry_now(&f.pool, KeyFilter::all());
    let mut so_far = Vec::new();
    while steps.step().await.unwrap() {
        so_far.push(steps.done().keys);
    }
    assert_eq!(so_far, [4_000, 8_000, 12_000]);
    assert_eq!(retry(&f, KeyFilter::all()).await, 0);
}

async fn a_retry_makes_keys_due_and_counts_nothing(f: Fixture) {
    three_keys(&f).await;
    parked(&f, 30, "other").await;
    blocked(&f, "other", 30, "2100-01-01").await;
    f.execute("UPDATE {schema}.parked SET topic = 'u' WHERE key = 'other'")
        .await
        .unwrap();
    assert_eq!(
        retry(&f, KeyFilter::all().topic("t".parse().unwrap())).await,
        1
    );
    assert_eq!(key(&f, "a").await, stands(2, "now", 2));
    assert_eq!(key(&f, "other").await, stands(30, "later", 2));
    assert_eq!(key(&f, "h").await, stands(10, "never", 2));
    assert_eq!(retry(&f, KeyFilter::all().key("other")).await, 1);
    assert_eq!(key(&f, "other").await, stands(30, "now", 2));
    assert_eq!(retry(&f, KeyFilter::all()).await, 0);
}

async fn of_many_retries_at_once_each_key_is_made_due_once(f: Fixture) {
    f.execute(
        "INSERT INTO {schema}.blocked (key_hash, lane, head, due_at)
         SELECT n, n & 63, n, '2100-01-01' FROM generate_series(1, 1000) AS n",
    )
    .await
    .unwrap();
    let people = join_all((0..4).map(|_| retry(&f, KeyFilter::all()))).await;
    assert_eq!(people.into_iter().sum::<u64>(), 1_000);
}

/// A worker does not look for keys that were due long ago, so the time that a retry writes matters.
async fn a_relay_tries_what_it_had_parked_for_long(f: Fixture) {
    let db = Db::new(f.clone());
    let store = db.outbox.store(&db.pool);
    let mut at = Vec::new();
    db.enqueue("k", "late").await;
    for round in 0..3 {
        let claim = store.claim(&limits(10)).await.unwrap().unwrap();
        at.push((contents(&*claim), claim.messages()[0].failures));
        let park = Outcome::Park {
            after: Duration::from_secs(3_600),
            counted: true,
            error: PublishError::retryable("not now"),
        };
        claim.settle(vec![park]).await.unwrap();
        assert!(store.claim(&limits(10)).await.unwrap().is_none());
        if round < 2 {
            assert_eq!(retry(&f, KeyFilter::all().key("k")).await, 1);
        }
    }
    let late = vec![("k".to_owned(), "late".to_owned())];
    assert_eq!(at, [(late.clone(), 0), (late.clone(), 1), (late, 2)]);
}
