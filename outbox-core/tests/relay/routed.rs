//! Two brokers behind a router: what goes wrong at one of them is kept from the other.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::memory::{MemoryCounts, MemoryPublisher, MemoryStore};
use outbox_core::{
    BrokerLimits, InvalidConfig, Message, OrderMode, PublishError, PublishErrorKind, PublisherExt,
    Relay, Router, RouterBuilder, Uuid,
};
use tokio::time::Instant;
use tracing::Level;

use crate::fakes::{Act, FakeBroker, FakeStore};
use crate::log::Log;
use crate::recorder::Recorder;
use crate::{HOUR, NOTHING_LEFT, Running, SOON, ids, nothing_was_parked, until};

/// Messages to these topics go to the broker of the same letter.
fn router(a: &FakeBroker, b: &FakeBroker) -> RouterBuilder {
    Router::builder()
        .broker("a", a.clone())
        .broker("b", b.clone())
        .route("a.*", "a")
        .route("b.*", "b")
        .seed(1)
}

fn to(topic: &str, key: &str) -> Message {
    Message::to(topic).key(key).tombstone().unwrap()
}

fn refused() -> PublishError {
    PublishError::broker_unavailable("refused")
}

/// What arrived, at any broker, in the order of arrival.
#[derive(Clone, Default)]
struct Arrivals(Arc<Mutex<Vec<Uuid>>>);

impl Arrivals {
    /// A broker that takes everything but while `act` says otherwise.
    fn broker(&self, mut act: impl FnMut(&Message) -> Option<Act> + Send + 'static) -> FakeBroker {
        let arrivals = self.clone();
        FakeBroker::new(move |message| {
            act(message).unwrap_or_else(|| {
                arrivals.0.lock().unwrap().push(message.id());
                Act::Answer(Ok(()))
            })
        })
    }

    fn of(&self, messages: &[Message]) -> Vec<Uuid> {
        let wanted: HashSet<Uuid> = messages.iter().map(Message::id).collect();
        let arrived = self.0.lock().unwrap();
        arrived
            .iter()
            .copied()
            .filter(|id| wanted.contains(id))
            .collect()
    }
}

fn nothing_was_counted(store: &FakeStore) {
    for claimed in store.claimed() {
        assert_eq!(claimed.failures, 0, "{claimed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn topics_go_where_the_routes_say() -> Result<(), InvalidConfig> {
    let store = MemoryStore::new();
    let [kafka, redis] = [(); 2].map(|()| MemoryPublisher::new());
    let topics = ["orders.placed", "cache.prices", "customers"];
    let messages = topics.map(|topic| to(topic, "k"));
    store.enqueue(&messages);
    let published = [kafka.clone(), redis.clone()];
    let router = Router::builder()
        .broker("kafka", kafka)
        .broker("redis", redis)
        .route("orders.*", "kafka")
        .route("cache.*", "redis")
        .otherwise("kafka")
        .build()?;
    let relay = Relay::builder(store.clone(), router);
    let running = Running::start(relay);
    until("everything is delivered", || store.counts() == NOTHING_LEFT).await;
    running.stop().await;
    let [first, second, third] = messages;
    let published = published.map(|publisher| publisher.published());
    assert_eq!(published, [vec![first, third], vec![second]]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_one_broker_parks_only_its_topics_and_the_keys_behind_them() {
    for hangs in [false, true] {
        let log = Log::capture();
        let store = FakeStore::default();
        let start = Instant::now();
        let back = start + HOUR;
        let arrivals = Arrivals::default();
        let a = arrivals.broker(move |_| match Instant::now() < back {
            true if hangs => Some(Act::Hang),
            true => Some(Act::Answer(Err(refused()))),
            false => None,
        });
        let b = arrivals.broker(|_| None);
        // Keys that go to one broker only, and keys that go to both in turn.
        let mut of_keys: HashMap<String, Vec<Message>> = HashMap::new();
        let mut to_b = Vec::new();
        for n in 0..2000 {
            let topic = ["a.x", "b.x"][n % 2];
            let key = match n % 10 {
                0 | 1 => format!("both{}", n / 10 % 20),
                _ => format!("{topic}{}", n % 1500),
            };
            let message = to(topic, &key);
            store.enqueue(std::slice::from_ref(&message));
            if key.starts_with('b') && !key.starts_with("both") {
                to_b.push(message.clone());
            }
            of_keys.entry(key).or_default().push(message);
        }
        let running = Running::start(
            Relay::builder(store.clone(), router(&a, &b).build().unwrap()).batch_messages(100),
        );
        // A refusal costs the others nothing. A broker that hangs takes two of the four workers with what
        // they hold, until the call timeout, and the others a short wait.
        let arrived = || arrivals.of(&to_b).len() as f64 / to_b.len() as f64;
        until("most that b alone gets is there", || arrived() > 0.8).await;
        let most = Duration::from_secs(if hangs { 5 } else { 1 });
        assert!(start.elapsed() < most, "hangs: {hangs}");
        until("all of it is there", || arrived() == 1.0).await;
        let most = Duration::from_secs(if hangs { 30 } else { 1 });
        assert!(start.elapsed() < most, "hangs: {hangs}");

        until("the outage is long", || start.elapsed() > HOUR / 2).await;
        let of_both = of_keys.iter().filter(|(key, _)| key.starts_with("both"));
        for (key, messages) in of_both {
            assert!(arrivals.of(messages).is_empty(), "{key} was overtaken");
        }
        until("everything is delivered", || store.counts() == NOTHING_LEFT).await;
        // The longest pause of the retry policy, for what was left out at first once more.
        assert!(Instant::now() < back + 3 * Duration::from_secs(300));
        running.stop().await;

        for (key, messages) in &of_keys {
            assert_eq!(arrivals.of(messages), ids(messages), "{key}");
        }
        nothing_was_counted(&store);
        let tries = a.batches();
        let tries: Vec<_> = tries.iter().filter(|batch| batch.at < back).collect();
        let at_once = if hangs { 2 } else { 1 };
        let mut later = tries[at_once..].iter();
        assert!(later.all(|call| call.messages.len() == 1), "hangs: {hangs}");
        // At most one in five seconds, once the pauses are long.
        assert!((60..740).contains(&tries.len()), "{} tries", tries.len());
        assert_eq!(log.count(Level::WARN, "one of the brokers is away"), 1);
        assert_eq!(log.count(Level::INFO, "one of the brokers is back"), 1);
        assert_eq!(log.count(Level::WARN, "the broker is away"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_broker_leaves_workers_to_the_others() {
    let store = FakeStore::default();
    let a = FakeBroker::new(|_| Act::AnswerAfter(Duration::from_secs(8)));
    let b = FakeBroker::default();
    let messages: Vec<Message> = (0..600)
        .map(|n| to(["a.x", "b.x"][usize::from(n % 30 > 0)], &format!("k{n}")))
        .collect();
    store.enqueue(&messages);
    let start = Instant::now();
    let running = Running::start(
        Relay::builder(store.clone(), router(&a, &b).build().unwrap()).batch_messages(30),
    );
    until("b has all of its messages", || b.confirmed().len() == 580).await;
    assert!(start.elapsed() < Duration::from_secs(5));
    running.stop().await;
    nothing_was_counted(&store);
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_before_the_relay_takes_the_router_for_a_broker_that_hangs() {
    let store = FakeStore::default();
    let a = FakeBroker::new(|_| Act::Hang);
    let b = FakeBroker::new(|_| Act::AnswerAfter(Duration::from_millis(400)));
    // The waves of one key to `b` last until late in the claim's time; the last one has one to `a` with it.
    let mut messages: Vec<Message> = (0..5).map(|_| to("b.x", "k")).collect();
    messages.push(to("a.x", "k"));
    store.enqueue(&messages);
    let running = Running::start(
        Relay::builder(store.clone(), router(&a, &b).build().unwrap())
            .publish_timeout(Duration::from_secs(4)),
    );
    until("it was tried often", || a.batches().len() > 22).await;
    running.stop().await;
    nothing_was_counted(&store);
    assert_eq!(b.confirmed(), ids(&messages[..5]));
}

#[tokio::test(start_paused = true)]
async fn a_busy_broker_is_not_taken_for_a_slow_one() {
    let store = FakeStore::default();
    let a = FakeBroker::new(|_| Act::AnswerAfter(Duration::from_millis(10)));
    let b = FakeBroker::default();
    let messages: Vec<Message> = (0..1000).map(|n| to("a.x", &format!("k{n}"))).collect();
    store.enqueue(&messages);
    let running = Running::start(
        Relay::builder(store.clone(), router(&a, &b).build().unwrap())
            .workers(8)
            .batch_messages(20),
    );
    until("everything is delivered", || store.counts() == NOTHING_LEFT).await;
    running.stop().await;
    nothing_was_parked(&store);
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_is_back_gets_more_with_each_success() {
    let start = Instant::now();
    let back = start + SOON;
    let a = FakeBroker::new(move |_| match Instant::now() < back {
        true => Act::Answer(Err(refused())),
        false => Act::Answer(Ok(())),
    });
    let b = FakeBroker::default();
    let router = router(&a, &b).build().unwrap();
    let batch: Vec<Message> = (0..700).map(|n| to("a.x", &format!("k{n}"))).collect();
    let mut delivered = 0;
    while delivered < 700 {
        let answers = router.publish_all(&batch, SOON).await;
        delivered = answers
            .iter()
            .filter(|answer| **answer == Some(Ok(())))
            .count();
        let kinds = answers.iter().flatten().filter_map(|it| it.as_ref().err());
        assert!(
            kinds
                .into_iter()
                .all(|error| error.kind() == PublishErrorKind::TopicUnavailable)
        );
        assert_eq!(
            delivered + answers.iter().flatten().filter(|it| it.is_err()).count(),
            700
        );
        tokio::time::sleep(Duration::from_millis(100)).await; // wait: on the paused clock
    }
    let calls = a.batches();
    let sizes = |after: bool| -> Vec<usize> {
        let calls = calls.iter().filter(|call| (call.at >= back) == after);
        calls.map(|call| call.messages.len()).collect()
    };
    let during = sizes(false);
    assert_eq!(during[0], 700);
    assert!(during.len() > 5 && during[1..].iter().all(|size| *size == 1));
    assert_eq!(sizes(true), [1, 8, 64, 512, 700]);
    // What went was the beginning of the batch.
    assert_eq!(calls[calls.len() - 2].messages, ids(&batch[..512]));
}

#[tokio::test(start_paused = true)]
async fn a_panic_at_one_broker_counts_for_its_unanswered_messages_and_no_others() {
    let log = Log::capture();
    let store = FakeStore::default();
    let a = FakeBroker::new(|message| match message.topic() {
        "a.panics" => Act::PanicOnce,
        _ => Act::Answer(Ok(())),
    });
    let b = FakeBroker::new(|_| Act::AnswerAfter(Duration::from_millis(5)));
    let messages = [
        to("a.before", "k0"),
        to("b.x", "k1"),
        to("a.panics", "k2"),
        to("a.after", "k3"),
        to("b.x", "k4"),
    ];
    store.enqueue(&messages);
    let running = Running::start(Relay::builder(
        store.clone(),
        router(&a, &b).build().unwrap(),
    ));
    until("everything is delivered", || store.counts() == NOTHING_LEFT).await;
    running.stop().await;
    let claimed = store.claimed();
    let failed = claimed.iter().filter(|claimed| claimed.failures > 0);
    let failed: BTreeSet<Uuid> = failed.map(|claimed| claimed.message.id()).collect();
    assert_eq!(failed, BTreeSet::from_iter(ids(&messages[2..4])));
    assert_eq!(b.confirmed().len(), 2, "sent once");
    assert_eq!(log.count(Level::ERROR, "the publisher panicked"), 1);
    assert_eq!(log.count(Level::WARN, "is away"), 0);
}

#[tokio::test(start_paused = true)]
async fn one_message_at_which_a_broker_hangs_is_counted_beside_others() {
    let store = FakeStore::default();
    let poison = to("a.poison", "poison");
    let a = FakeBroker::new(|message| match message.topic() {
        "a.poison" => Act::Hang,
        _ => Act::Answer(Ok(())),
    });
    let b = FakeBroker::default();
    store.enqueue(&[poison.clone(), to("a.x", "k"), to("b.x", "l")]);
    let running = Running::start(Relay::builder(
        store.clone(),
        router(&a, &b).build().unwrap(),
    ));
    until("its failure counts", || store.counts().parked == 1).await;
    until("it is tried again", || store.claimed().len() == 4).await;
    running.stop().await;
    let again = &store.claimed()[3];
    assert_eq!((again.message.id(), again.failures), (poison.id(), 1));
}

#[tokio::test(start_paused = true)]
async fn a_topic_without_a_route_is_parked_and_goes_on_when_it_has_one() {
    let store = FakeStore::default();
    let (a, b) = (FakeBroker::default(), FakeBroker::default());
    let messages = [to("c.x", "k"), to("a.x", "k"), to("a.x", "l")];
    store.enqueue(&messages);
    let router_before = router(&a, &b).build().unwrap();
    let answers = router_before.publish_all(&messages[..1], SOON).await;
    let no_route = PublishError::topic_unavailable("no route for topic \"c.x\"");
    assert_eq!(answers, [Some(Err(no_route.without_broker()))]);
    let running = Running::start(Relay::builder(store.clone(), router_before));
    let parked = MemoryCounts {
        parked: 2,
        ..NOTHING_LEFT
    };
    until("the key of it waits", || store.counts() == parked).await;
    running.stop().await;
    assert_eq!(a.confirmed(), ids(&messages[2..]));

    let running = Running::start(Relay::builder(
        store.clone(),
        router(&a, &b).route("c.*", "b").build().unwrap(),
    ));
    until("it is delivered", || store.counts() == NOTHING_LEFT).await;
    running.stop().await;
    assert_eq!(b.confirmed(), ids(&messages[..1]));
    nothing_was_counted(&store);
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_only_broker_is_the_relays_and_parks_nothing() {
    for hangs in [false, true] {
        let log = Log::capture();
        let store = FakeStore::default();
        let back = Instant::now() + HOUR;
        let only = FakeBroker::new(move |_| match (Instant::now() < back, hangs) {
            (true, true) => Act::Hang,
            (true, false) => Act::Answer(Err(refused())),
            (false, _) => Act::Answer(Ok(())),
        });
        let messages: Vec<Message> = (0..500).map(|n| to("a.x", &format!("k{n}"))).collect();
        store.enqueue(&messages);
        let router = Router::builder()
            .broker("only", only)
            .route("a.*", "only")
            .build();
        let running = Running::start(Relay::builder(store.clone(), router.unwrap()));
        until("everything is delivered", || store.counts() == NOTHING_LEFT).await;
        running.stop().await;
        nothing_was_parked(&store);
        assert_eq!(log.count(Level::WARN, "the broker is away"), 1);
        assert_eq!(log.count(Level::INFO, "the broker is back"), 1);
        assert_eq!(log.count(Level::WARN, "one of the brokers"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_all_brokers_counts_nothing_and_each_comes_back_by_itself() {
    let log = Log::capture();
    let store = FakeStore::default();
    let start = Instant::now();
    let away = move |until: Duration| {
        move |_: &Message| match start.elapsed() < until {
            true => Act::Answer(Err(refused())),
            false => Act::Answer(Ok(())),
        }
    };
    // The first one's messages stand in front of the other one's, which is back much earlier.
    let (a, b) = (
        FakeBroker::new(away(HOUR)),
        FakeBroker::new(away(HOUR / 10)),
    );
    let of = |topic: &str| -> Vec<Message> {
        let keys = (0..300).map(|n| to(topic, &format!("{topic}{n}")));
        keys.collect()
    };
    store.enqueue(&of("a.x"));
    store.enqueue(&of("b.x"));
    let running = Running::start(
        Relay::builder(store.clone(), router(&a, &b).build().unwrap()).batch_messages(50),
    );
    until("b has all of its messages", || b.confirmed().len() == 300).await;
    assert!(start.elapsed() < HOUR / 10 + 2 * Duration::from_secs(300));
    assert!(a.confirmed().is_empty());
    until("everything is delivered", || store.counts() == NOTHING_LEFT).await;
    running.stop().await;
    nothing_was_counted(&store);
    assert_eq!(log.count(Level::WARN, "one of the brokers is away"), 2);
    assert_eq!(log.count(Level::INFO, "one of the brokers is back"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_keeps_what_was_reported_and_leaves_nothing_behind() {
    let start = Instant::now();
    let a = FakeBroker::new(move |message| match message.topic() {
        "a.away" => Act::Answer(Err(refused())),
        "a.hangs" => Act::Hang,
        _ => Act::Answer(Ok(())),
    });
    let b = FakeBroker::default();
    let limits = BrokerLimits::new().calls(1);
    let router = Router::builder()
        .broker_with("a", a.clone(), limits)
        .broker("b", b)
        .route("a.*", "a")
        .otherwise("b")
        .build()
        .unwrap();
    let one = |topic| [to(topic, "k")];
    let soon = Duration::from_secs(5);
    router.publish_all(&one("a.away"), soon).await;
    tokio::time::sleep(soon).await; // wait: until a trial is due, on the paused clock

    // The trial is dropped: it found nothing out, and the next call is a trial, with the only place.
    let batch = [to("a.hangs", "k"), to("b.x", "l")];
    let answers = router.publish_all(&batch, soon).await;
    assert_eq!(answers, [None, Some(Ok(()))]);
    assert_eq!(router.publish_all(&one("a.x"), soon).await, [Some(Ok(()))]);
    assert_eq!(start.elapsed(), 2 * soon);

    // What a dropped call has heard is remembered.
    let batch = [to("a.away", "k"), to("a.hangs", "l")];
    let answers = router.publish_all(&batch, soon).await;
    let away = Some(Err(PublishError::topic_unavailable("refused")));
    assert_eq!(answers, [away, None]);
    let calls = a.batches().len();
    let answers = router.publish_all(&one("a.x"), soon).await;
    let away = PublishError::topic_unavailable("a is away, not tried: refused");
    assert_eq!(answers, [Some(Err(away.without_broker()))]);
    assert_eq!(a.batches().len(), calls);
}

#[tokio::test(start_paused = true)]
async fn what_is_silent_beside_a_broker_that_says_it_is_away_is_not_counted() {
    let a = FakeBroker::new(move |message| match message.topic() {
        "a.away" => Act::Answer(Err(refused())),
        "a.hangs" => Act::Hang,
        "a.panics" => Act::PanicOnce,
        _ => Act::Answer(Ok(())),
    });
    let b = FakeBroker::default();
    let router = router(&a, &b).build().unwrap();
    for silent in ["a.hangs", "a.panics"] {
        let batch = [to("a.away", "k"), to(silent, "l")];
        let answers = router.publish_all(&batch, SOON).await;
        let away = Some(Err(PublishError::topic_unavailable("refused")));
        assert_eq!(answers, [away.clone(), away], "{silent}");
        tokio::time::sleep(SOON).await; // wait: until a trial is due, on the paused clock
        let answers = router.publish_all(&[to("a.x", "m")], SOON).await;
        assert_eq!(answers, [Some(Ok(()))]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_router_behind_a_router_is_heard() {
    let (a, b, c) = (
        FakeBroker::new(|message| match message.topic() {
            "a.hangs" => Act::Hang,
            "a.away" => Act::Answer(Err(refused())),
            _ => Act::Answer(Ok(())),
        }),
        FakeBroker::default(),
        FakeBroker::default(),
    );
    let outer = Router::builder()
        .broker("inner", router(&a, &b).build().unwrap())
        .broker("c", c)
        .route("c.*", "c")
        .otherwise("inner")
        .build()
        .unwrap();
    // Both time out; to the outer one something was confirmed, so its broker is there.
    let batch = [to("a.hangs", "k"), to("b.x", "l")];
    let answers = outer.publish_all(&batch, SOON).await;
    assert_eq!(answers[1], Some(Ok(())));
    assert_eq!(outer.publish_all(&batch[1..], SOON).await, [Some(Ok(()))]);
    // An outage of one of the inner ones is none of the inner router.
    outer.publish_all(&[to("a.away", "k")], SOON).await;
    assert_eq!(outer.publish_all(&batch[1..], SOON).await, [Some(Ok(()))]);
}

#[tokio::test(start_paused = true)]
async fn pipelined_a_key_keeps_its_order_within_each_broker() {
    let store = MemoryStore::new();
    let (a, b) = (MemoryPublisher::new(), MemoryPublisher::new());
    let router = Router::builder()
        .broker("a", a.clone())
        .broker("b", b.clone())
        .route("a.*", "a")
        .otherwise("b")
        .build();
    let messages: Vec<Message> = (0..100).map(|n| to(["a.x", "b.x"][n % 2], "k")).collect();
    store.enqueue(&messages);
    let relay = Relay::builder(store.clone(), router.unwrap()).order(OrderMode::PerKeyPipelined);
    let running = Running::start(relay);
    until("everything is delivered", || store.counts() == NOTHING_LEFT).await;
    running.stop().await;
    let every_second =
        |from: usize| -> Vec<Message> { messages.iter().skip(from).step_by(2).cloned().collect() };
    assert_eq!(a.published(), every_second(0));
    assert_eq!(b.published(), every_second(1));
}

#[test]
fn the_gauge_of_a_broker_is_one_in_its_outage() {
    let recorder = Recorder::default();
    metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut tries = 0;
            let a = FakeBroker::new(move |_| {
                tries += 1;
                match tries {
                    1 => Act::Answer(Err(refused())),
                    2 => Act::Answer(Ok(())),
                    _ => Act::PanicOnce,
                }
            });
            let router = router(&a, &FakeBroker::default()).build().unwrap();
            let outage =
                |broker: &str| recorder.gauge(&format!("outbox_broker_outage broker={broker}"));
            assert_eq!((outage("a"), outage("b")), (Some(0.0), Some(0.0)));
            let batch = [to("a.x", "k"), to("b.x", "k")];
            for expected in [1.0, 0.0, 0.0] {
                router.publish_all(&batch, SOON).await;
                assert_eq!((outage("a"), outage("b")), (Some(expected), Some(0.0)));
                tokio::time::sleep(SOON).await; // wait: until a trial is due, on the paused clock
            }
        });
    });
    assert_eq!(recorder.counter("outbox_publisher_panics_total"), 1);
}
