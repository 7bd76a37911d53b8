//! What people see, and what their decisions do.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, SystemTime};

use outbox_core::admin::{
    Count, DeadFilter, DeadMessage, HeldKey, KeyFilter, Severity, TopicCounts,
};
use outbox_core::{Headers, Message, Outcome, PublishError, Store as _, TopicPattern, Uuid};
use outbox_sqlite::{DeadSteps, Outbox};
use sqlx::sqlite::SqliteSynchronous;
use support::{Fixture, deliver, limits, message, texts};

fn dead(halt: bool) -> Outcome {
    Outcome::Dead {
        error: PublishError::rejected("too large"),
        halt,
    }
}

fn park() -> Outcome {
    Outcome::Park {
        after: Duration::from_secs(3_600),
        counted: true,
        error: PublishError::retryable("not now"),
    }
}

/// Claims everything there is, and settles each message by its text.
async fn settle(fixture: &Fixture, outcome: impl Fn(&str) -> Outcome) {
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    while let Some(claim) = store.claim(&limits(1_000)).await.unwrap() {
        let outcomes = texts(&*claim).iter().map(|text| outcome(text)).collect();
        claim.settle(outcomes).await.unwrap();
    }
}

/// All pages of a list.
async fn listed(fixture: &Fixture, filter: &DeadFilter, limit: u32) -> Vec<DeadMessage> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let (outbox, pool) = (&fixture.outbox, &fixture.pool);
        let page = outbox.dead(pool, filter, after, limit).await.unwrap();
        assert!(page.messages.len() <= limit as usize);
        all.extend(page.messages);
        match page.next {
            Some(next) => after = Some(next),
            None => return all,
        }
    }
}

#[tokio::test]
async fn counts_say_what_is_where_and_how_old() {
    let fixture = Fixture::new().await;
    let nothing = fixture.outbox.counts(&fixture.pool).await.unwrap();
    assert_eq!((nothing.waiting, nothing.oldest_waiting), (0, None));

    let parked = [message("a", "park"), message("a", "behind")];
    fixture.enqueue(&parked).await;
    fixture
        .enqueue(&[message("b", "halt"), message("c", "die")])
        .await;
    settle(&fixture, |text| match text {
        "park" => park(),
        "behind" => Outcome::Behind,
        "halt" => dead(true),
        _ => dead(false),
    })
    .await;
    fixture
        .enqueue(&[message("d", "waits"), message("b", "waits")])
        .await;
    fixture
        .execute("UPDATE outbox_message SET enqueued_at = enqueued_at - 60000")
        .await
        .unwrap();
    let counts = fixture.outbox.counts(&fixture.pool).await.unwrap();
    assert_eq!((counts.waiting, counts.parked, counts.dead), (2, 2, 2));
    assert_eq!((counts.blocked_keys, counts.halted_keys), (2, 1));
    let oldest = counts.oldest_waiting.unwrap();
    assert!((60..120).contains(&oldest.as_secs()), "{oldest:?}");
}

#[tokio::test]
async fn dead_messages_are_listed_in_pages_with_their_reasons() {
    let fixture = Fixture::new().await;
    let mut all: Vec<Message> = (0..5).map(|n| message("k", &n.to_string())).collect();
    all.push(Message::to("other").tombstone().unwrap());
    let before = SystemTime::now() - Duration::from_secs(1);
    fixture.enqueue(&all).await;
    settle(&fixture, |_| dead(false)).await;

    let listed = listed(&fixture, &DeadFilter::all(), 4).await;
    let ids = |messages: &[Message]| messages.iter().map(Message::id).collect::<Vec<Uuid>>();
    assert_eq!(
        listed.iter().map(|dead| dead.id).collect::<Vec<_>>(),
        ids(&all)
    );
    let first = &listed[0];
    assert_eq!(
        (first.topic.as_str(), first.key.as_deref()),
        ("test", Some("k"))
    );
    assert_eq!((first.parked, first.failures, first.halted), (0, 1, false));
    assert_eq!(
        (first.error_kind.as_str(), first.error.as_str()),
        ("rejected", "too large")
    );
    assert_eq!(first.payload_bytes, Some(1));
    assert!(before <= first.enqueued_at && first.enqueued_at <= first.died_at);
    assert!(first.died_at <= SystemTime::now() + Duration::from_secs(1));
    assert_eq!((&listed[5].key, listed[5].payload_bytes), (&None, None));
}

#[tokio::test]
async fn decisions_count_what_they_decided() {
    let fixture = Fixture::new().await;
    // More than one step.
    let all: Vec<Message> = (0..1_500).map(|n| message("k", &n.to_string())).collect();
    fixture.enqueue(&all).await;
    settle(&fixture, |_| dead(false)).await;
    let (outbox, pool) = (&fixture.outbox, &fixture.pool);
    let unknown = Uuid::now_v7();
    let some = |ids: &[Uuid]| DeadFilter::ids(ids.iter().copied());
    let done = async |steps: DeadSteps| steps.finish().await.unwrap().messages;
    assert_eq!(done(outbox.replay(pool, some(&[unknown]))).await, 0);
    let one = some(&[unknown, all[0].id()]);
    assert_eq!(done(outbox.discard(pool, one)).await, 1);
    let twice = some(&[all[1].id(), all[1].id()]);
    assert_eq!(done(outbox.replay(pool, twice)).await, 1);
    let rest = DeadFilter::all;
    assert_eq!(done(outbox.discard(pool, rest()).limit(8)).await, 8);
    assert_eq!(done(outbox.replay(pool, rest()).limit(1_200)).await, 1_200);
    assert_eq!(done(outbox.count_dead(pool, rest())).await, 290);
    assert_eq!(done(outbox.discard(pool, rest())).await, 290);
    assert_eq!(fixture.places().await, [0, 1_201, 0, 1]);

    let store = outbox.store(pool).await.unwrap();
    let expected: Vec<String> = std::iter::once(1)
        .chain(10..1_210)
        .map(|n| n.to_string())
        .collect();
    assert_eq!(deliver(&store, 1_201).await, expected);
    assert_eq!(fixture.places().await, [0, 0, 0, 0]);
}

/// A person need not stop the relay, nor wait for what it has in hand.
#[tokio::test]
async fn a_decision_during_a_claim_of_the_key_is_kept() {
    let fixture = Fixture::new().await;
    fixture.enqueue(&[message("k", "dead")]).await;
    settle(&fixture, |_| dead(false)).await;
    fixture
        .enqueue(&["0", "1", "2"].map(|text| message("k", text)))
        .await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    let claim = store.claim(&limits(1_000)).await.unwrap().unwrap();
    let replay = fixture.outbox.replay(&fixture.pool, DeadFilter::all());
    assert_eq!(replay.finish().await.unwrap().messages, 1);
    let outcomes = vec![Outcome::Delivered, Outcome::Released, Outcome::Released];
    claim.settle(outcomes).await.unwrap();
    assert_eq!(deliver(&store, 3).await, ["dead", "1", "2"]);
    assert_eq!(fixture.places().await, [0, 0, 0, 0]);
}

/// A store that waits is told of what a person has put back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_ends_the_wait() {
    let fixture = Fixture::new().await;
    fixture
        .enqueue(&[message("k", "again"), message("k", "next")])
        .await;
    settle(&fixture, |text| match text {
        "again" => dead(true),
        _ => Outcome::Behind,
    })
    .await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    let waits = outbox_core::ClaimLimits {
        wait: support::DEADLINE,
        ..limits(1_000)
    };
    let call = tokio::spawn(async move { texts(&*store.claim(&waits).await.unwrap().unwrap()) });
    let discard = fixture.outbox.discard(&fixture.pool, DeadFilter::all());
    assert_eq!(discard.finish().await.unwrap().messages, 1);
    assert_eq!(call.await.unwrap(), ["next"]);
}

/// Many dead messages, each of a key of its own.
async fn many(fixture: &Fixture, first: i64, last: i64) {
    fixture
        .execute(&format!(
            "WITH RECURSIVE n (n) AS (VALUES ({first}) UNION ALL SELECT n + 1 FROM n WHERE n < {last})
             INSERT INTO outbox_dead (position, line, id, topic, enqueued_at, parked, failures, error_kind,
                                      error, halted)
             SELECT n, n, randomblob(16), 't', 0, 1, 1, 'rejected', 'refused', 0 FROM n"
        ))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_filter_means_what_fits_all_that_it_asks_for() {
    const DAY: Duration = Duration::from_secs(24 * 3_600);
    let fixture = Fixture::new().await;
    let to = |topic: &str, key: &str, kind: &'static str| {
        let message = Message::to(topic).key(key).bytes(kind).unwrap();
        (message, kind)
    };
    let all = [
        to("orders.placed", "k", "rejected"),
        to("orders.placed", "k", "retryable"),
        to("orders.paid", "schlüssel 🔑", "rejected"),
        to("a[?]x", "", "rejected"),
        to("ab?x", "other", "rejected"),
    ];
    let messages: Vec<Message> = all.iter().map(|(message, _)| message.clone()).collect();
    fixture.enqueue(&messages).await;
    settle(&fixture, |kind| Outcome::Dead {
        error: match kind {
            "retryable" => PublishError::retryable("not now"),
            _ => PublishError::rejected("no"),
        },
        halt: false,
    })
    .await;
    fixture
        .execute("UPDATE outbox_dead SET died_at = died_at - 100000000 WHERE position > 1")
        .await
        .unwrap();
    let any = DeadFilter::all;
    let topic = |pattern: &str| any().topic(pattern.parse().unwrap());
    let some = [all[4].0.id(), all[1].0.id(), Uuid::nil()];
    for (filter, expected) in [
        (any(), &[1, 2, 3, 4, 5][..]),
        (topic("orders.placed"), &[1, 2]),
        (topic("ORDERS.placed"), &[]),
        (topic("orders.*"), &[1, 2, 3]),
        (topic("a[?]*"), &[4]),
        (topic("*?x"), &[5]),
        (any().key("k"), &[1, 2]),
        (any().key("schlüssel 🔑"), &[3]),
        (any().key(""), &[4]),
        (any().error_kind("retryable"), &[2]),
        (any().older_than(DAY), &[2, 3, 4, 5]),
        (any().older_than(Duration::MAX), &[]),
        (any().younger_than(DAY), &[1]),
        (any().younger_than(Duration::MAX), &[1, 2, 3, 4, 5]),
        (topic("orders.*").key("k").older_than(DAY), &[2]),
        (DeadFilter::ids([]), &[]),
        (DeadFilter::ids(some), &[2, 5]),
        (DeadFilter::ids(some).key("k"), &[2]),
    ] {
        for limit in [1, 2, 10] {
            let found = listed(&fixture, &filter, limit).await;
            let found: Vec<i64> = found.iter().map(|dead| dead.position).collect();
            assert_eq!(found, expected, "{filter:?}");
        }
        let counted = fixture.outbox.count_dead(&fixture.pool, filter.clone());
        let counted = counted.finish().await.unwrap();
        assert_eq!(counted.messages, expected.len() as u64, "{filter:?}");
    }
    let old = topic("orders.*").older_than(DAY);
    let discarded = fixture.outbox.discard(&fixture.pool, old).finish().await;
    assert_eq!(discarded.unwrap().messages, 2);
    let replayed = fixture.outbox.replay(&fixture.pool, any()).finish().await;
    let replayed = replayed.unwrap();
    assert_eq!(replayed.messages, 3);
    assert!(replayed.youngest.unwrap() < DAY);
}

#[tokio::test]
async fn a_look_has_a_bound_where_nothing_fits() {
    let fixture = Fixture::new().await;
    many(&fixture, 1, 25_000).await;
    let (outbox, pool) = (&fixture.outbox, &fixture.pool);
    let filter = DeadFilter::all().topic("other".parse().unwrap());
    let page = outbox.dead(pool, &filter, None, 5).await.unwrap();
    assert_eq!((page.messages, page.next), (vec![], Some(10_000)));
    let replayed = outbox.replay(pool, filter).finish().await.unwrap();
    assert_eq!((replayed.messages, replayed.looked_at), (0, 25_000));
    assert_eq!(replayed.youngest, None);
}

/// The new one comes before a counted one, and would take its place in the number.
#[tokio::test]
async fn what_dies_after_the_counting_is_not_decided_about() {
    let fixture = Fixture::new().await;
    let all: Vec<Message> = (0..3).map(|n| message("k", &n.to_string())).collect();
    fixture.enqueue(&all).await;
    settle(&fixture, |_| dead(false)).await;
    for aside in [
        "CREATE TABLE aside AS SELECT * FROM outbox_dead WHERE position = 1",
        "DELETE FROM outbox_dead WHERE position = 1",
    ] {
        fixture.execute(aside).await.unwrap();
    }
    let mut counting = fixture.outbox.count_dead(&fixture.pool, DeadFilter::all());
    assert!(!counting.step().await.unwrap());
    assert_eq!(counting.done().messages, 2);

    // The database's clock counts milliseconds.
    let counted = SystemTime::now();
    while SystemTime::now() < counted + Duration::from_millis(2) {
        tokio::task::yield_now().await;
    }
    for death in [
        "INSERT INTO outbox_dead SELECT * FROM aside",
        "UPDATE outbox_dead SET died_at = CAST(round(unixepoch('subsec') * 1000) AS INTEGER) WHERE position = 1",
    ] {
        fixture.execute(death).await.unwrap();
    }
    assert_eq!(counting.discard().finish().await.unwrap().messages, 2);
    let left = listed(&fixture, &DeadFilter::all(), 4).await;
    let left: Vec<Uuid> = left.iter().map(|message| message.id).collect();
    assert_eq!(left, [all[0].id()]);
}

#[tokio::test]
async fn what_dies_again_meanwhile_is_left_alone() {
    let fixture = Fixture::new().await;
    many(&fixture, 1, 5_000).await;
    let mut steps = fixture.outbox.replay(&fixture.pool, DeadFilter::all());
    assert!(steps.step().await.unwrap());
    assert_eq!(steps.done().messages, 4_000);
    fixture
        .execute(
            "DELETE FROM outbox_parked WHERE position IN (10, 4000);
             DELETE FROM outbox_dead WHERE position = 4500",
        )
        .await
        .unwrap();
    for position in [10, 4_000, 4_500, 6_000] {
        many(&fixture, position, position).await;
    }
    fixture
        .execute("UPDATE outbox_dead SET died_at = died_at + 1000 WHERE position IN (10, 4000, 4500, 6000)")
        .await
        .unwrap();
    assert_eq!(steps.finish().await.unwrap().messages, 4_999);
    assert_eq!(fixture.places().await, [0, 4_997, 4, 4_999]);
}

/// Two people replay, one discards, all at once: each message is decided about by one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_decisions_at_once_each_message_has_one() {
    let fixture = Fixture::new().await;
    many(&fixture, 1, 3_000).await;
    let (outbox, pool, all) = (&fixture.outbox, &fixture.pool, DeadFilter::all);
    let (a, b, c) = tokio::join!(
        outbox.replay(pool, all()).finish(),
        outbox.replay(pool, all()).finish(),
        outbox.discard(pool, all()).finish(),
    );
    let (replayed, discarded) = (
        a.unwrap().messages + b.unwrap().messages,
        c.unwrap().messages,
    );
    assert_eq!(replayed + discarded, 3_000);
    assert_eq!(fixture.places().await, [0, replayed, 0, replayed]);
}

#[tokio::test]
async fn content_is_shown_unharmed() {
    let fixture = Fixture::new().await;
    let payload: Vec<u8> = (0..=255).chain([0; 3]).collect();
    let message = Message::to("bestellungen.größe 🚚\n\"x\"")
        .key("schlüssel\t\u{202e}'; --")
        .header("größe", "a\nb\u{1b}[31m")
        .bytes(payload)
        .unwrap();
    fixture.enqueue(std::slice::from_ref(&message)).await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    let claim = store.claim(&limits(1)).await.unwrap().unwrap();
    claim.settle(vec![dead(false)]).await.unwrap();
    let shown = fixture
        .outbox
        .dead_content(&fixture.pool, message.id())
        .await;
    let shown = shown.unwrap().unwrap();
    assert_eq!(shown.message.topic, message.topic());
    assert_eq!(shown.message.key.as_deref(), message.key());
    assert_eq!(shown.payload.as_ref(), message.payload());
    let headers = Headers::from_json(shown.headers.as_deref().unwrap()).unwrap();
    assert_eq!(&headers, message.headers());
    let nothing = fixture
        .outbox
        .dead_content(&fixture.pool, Uuid::nil())
        .await;
    assert_eq!(nothing.unwrap(), None);
}

/// `a` waits with one behind it, `h` is halted with one behind it, and a message without a key waits.
async fn three_keys(fixture: &Fixture) {
    let alone = Message::to("alone").bytes("park").unwrap();
    fixture
        .enqueue(&[
            message("a", "park"),
            message("a", "behind"),
            message("h", "halt"),
            message("h", "behind"),
            alone,
        ])
        .await;
    settle(fixture, |text| match text {
        "park" => park(),
        "halt" => dead(true),
        _ => Outcome::Behind,
    })
    .await;
}

async fn held(fixture: &Fixture, filter: &KeyFilter, limit: u32) -> Vec<(String, HeldKey)> {
    let (mut all, mut from) = (Vec::new(), None);
    loop {
        let (outbox, pool) = (&fixture.outbox, &fixture.pool);
        let page = outbox.held_keys(pool, filter, from, limit).await.unwrap();
        assert!(page.keys.len() <= limit as usize);
        all.extend(page.keys.into_iter().map(|held| {
            let key = held.head.as_ref().and_then(|head| head.key.clone());
            (key.unwrap_or("-".to_owned()), held)
        }));
        match page.next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all
}

#[tokio::test]
async fn held_keys_are_listed_and_tried_at_once() {
    let fixture = Fixture::new().await;
    assert_eq!(held(&fixture, &KeyFilter::all(), 10).await, []);
    three_keys(&fixture).await;
    let any = KeyFilter::all;
    let topic = |pattern: &str| any().topic(pattern.parse().unwrap());
    for (filter, expected) in [
        (any(), &["-", "a", "h"][..]),
        (topic("alone"), &["-"]),
        (topic("t*"), &["a", "h"]),
        (topic("none"), &[]),
        (any().key("h"), &["h"]),
        (any().key("none"), &[]),
        (any().halted(true), &["h"]),
        (any().halted(false), &["-", "a"]),
    ] {
        for limit in [1, 10] {
            let found = held(&fixture, &filter, limit).await;
            let found: Vec<&str> = found.iter().map(|(key, _)| key.as_str()).collect();
            assert_eq!(found, expected, "{filter:?}");
        }
    }
    let all = held(&fixture, &any(), 10).await;
    let [(_, alone), (_, a), (_, h)] = &all[..] else {
        panic!("{all:?}");
    };
    let head = a.head.as_ref().unwrap();
    assert_eq!((head.position, head.parked, head.failures), (1, 1, 1));
    assert_eq!(
        (a.error.as_deref(), a.followers),
        (Some("not now"), Count::Exact(1))
    );
    assert!(a.next_try.unwrap() > SystemTime::now() + Duration::from_secs(3_000) && !a.halted);
    let head = h.head.as_ref().unwrap();
    assert_eq!(
        (head.position, h.followers, h.halted),
        (3, Count::Exact(1), true)
    );
    assert_eq!((h.next_try, h.error.as_deref()), (None, Some("too large")));
    assert_eq!(alone.followers, Count::Exact(0));

    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    assert!(store.claim(&limits(10)).await.unwrap().is_none());
    let retry = async |filter| {
        let retried = fixture
            .outbox
            .retry_now(&fixture.pool, filter)
            .finish()
            .await;
        retried.unwrap().keys
    };
    assert_eq!(retry(topic("none")).await, 0);
    assert_eq!(retry(any().key("h")).await, 0, "it waits for a decision");
    assert_eq!(retry(topic("alone")).await, 1);
    assert_eq!(retry(any()).await, 1);
    assert_eq!(retry(any()).await, 0);
    let claim = store.claim(&limits(10)).await.unwrap().unwrap();
    let mut counted: Vec<(u32, u32)> = claim
        .messages()
        .iter()
        .map(|claimed| (claimed.parked, claimed.failures))
        .collect();
    counted.sort_unstable();
    assert_eq!(counted, [(0, 0), (1, 1), (1, 1)]);
}

#[tokio::test]
async fn a_pause_is_kept_until_it_is_resumed() {
    let fixture = Fixture::new().await;
    let (outbox, pool) = (&fixture.outbox, &fixture.pool);
    let pattern = |pattern: &str| pattern.parse::<TopicPattern>().unwrap();
    assert_eq!(outbox.paused(pool).await.unwrap(), []);
    assert!(outbox.pause(pool, &pattern("al*"), "Größe").await.unwrap());
    assert!(outbox.pause(pool, &pattern("b"), "me").await.unwrap());
    assert!(!outbox.pause(pool, &pattern("b"), "you").await.unwrap());
    let paused = outbox.paused(pool).await.unwrap();
    let shown: Vec<_> = paused
        .iter()
        .map(|it| (it.topic.as_str(), it.by.as_str()))
        .collect();
    assert_eq!(shown, [("al*", "Größe"), ("b", "me")]);
    three_keys(&fixture).await;
    let nothing = outbox.resume(pool, &pattern("c")).await.unwrap();
    assert_eq!((nothing.was_paused, nothing.keys), (false, 0));
    let resumed = outbox.resume(pool, &pattern("al*")).await.unwrap();
    assert_eq!((resumed.was_paused, resumed.keys), (true, 1));
    assert_eq!(outbox.paused(pool).await.unwrap(), paused[1..]);
}

#[tokio::test]
async fn a_status_says_how_everything_stands() {
    let fixture = Fixture::new().await;
    let (outbox, pool) = (&fixture.outbox, &fixture.pool);
    let empty = outbox.status(pool).await.unwrap();
    assert_eq!(
        (empty.waiting, empty.dead),
        (Count::Exact(0), Count::Exact(0))
    );
    assert_eq!((empty.oldest_waiting, empty.next_due), (None, None));
    three_keys(&fixture).await;
    fixture.enqueue(&[message("free", "waits")]).await;
    outbox
        .pause(pool, &"b".parse().unwrap(), "me")
        .await
        .unwrap();
    let seen = outbox.status(pool).await.unwrap();
    assert_eq!(
        (seen.waiting, seen.parked, seen.dead),
        (Count::Exact(1), Count::Exact(4), Count::Exact(1))
    );
    assert_eq!(
        (seen.held_keys, seen.halted_keys),
        (Count::Exact(3), Count::Exact(1))
    );
    assert!(seen.oldest_waiting_age().unwrap() < Duration::from_secs(60));
    assert!(seen.oldest_held_age().unwrap() < Duration::from_secs(60));
    assert!(seen.next_due.unwrap() > seen.now + Duration::from_secs(3_000));
    let counts = |topic: &str, waiting, parked, dead| TopicCounts {
        topic: topic.to_owned(),
        waiting,
        parked,
        dead,
    };
    assert_eq!(
        seen.topics,
        [counts("test", 1, 3, 1), counts("alone", 0, 1, 0)]
    );
    assert_eq!(seen.paused.len(), 1);
    let gauges = outbox.gauges(pool).await.unwrap();
    assert_eq!((gauges.waiting, gauges.parked), (seen.waiting, seen.parked));
    assert_eq!((gauges.dead, gauges.held_keys), (seen.dead, seen.held_keys));
    assert_eq!(gauges.halted_keys, seen.halted_keys);
    assert!(gauges.oldest_waiting.unwrap() < Duration::from_secs(60));
    assert!(gauges.oldest_held.unwrap() < Duration::from_secs(60));
    assert_eq!(gauges.paused_topics, 1);
    assert_eq!((gauges.lanes_held, gauges.floor_lag), (None, None));
    many(&fixture, 1_000, 120_000).await;
    let gauges = outbox.gauges(pool).await.unwrap();
    assert_eq!(gauges.dead, Count::AtLeast(10_000));
    let seen = outbox.status(pool).await.unwrap();
    assert_eq!(seen.dead, Count::AtLeast(100_000));
    assert!(seen.more_topics);
}

#[tokio::test]
async fn the_doctor_finds_what_is_as_it_should_be_and_what_is_not() {
    let fixture =
        Fixture::with_options(|options| options.synchronous(SqliteSynchronous::Normal)).await;
    let findings = fixture.outbox.doctor(&fixture.pool).await.unwrap();
    let of = |check: &str| findings.iter().find(|it| it.check == check).unwrap();
    for check in [
        "version",
        "file",
        "journal",
        "busy timeout",
        "write-ahead log",
        "migrations",
        "writes",
    ] {
        assert_eq!(of(check).severity, Severity::Fine, "{:?}", of(check));
    }
    assert_eq!(of("durability").severity, Severity::Warning);
    let other = Outbox::with_prefix("other_").unwrap();
    let findings = other.doctor(&fixture.pool).await.unwrap();
    let migrations = findings.iter().find(|it| it.check == "migrations").unwrap();
    assert_eq!(migrations.severity, Severity::Problem);
}
