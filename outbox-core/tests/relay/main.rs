//! The relay against a store and a broker that misbehave on demand, under paused time.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod fakes;
mod log;
mod recorder;
mod routed;
mod traced;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use fakes::{Act, FakeBroker, FakeStore, Fault};
use log::Log;
use outbox_core::memory::{MemoryCounts, MemoryPublisher, MemoryStore};
use outbox_core::{
    Claimed, ExponentialBackoff, Message, OrderMode, PublishError, Relay, RelayBuilder,
    RetryPolicy, Router, Uuid,
};
use recorder::Recorder;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tracing::Level;

const SOON: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const NOTHING_LEFT: MemoryCounts = MemoryCounts {
    waiting: 0,
    parked: 0,
    dead: 0,
    delayed: 0,
};

fn message(key: &str) -> Message {
    Message::to("topic").key(key).tombstone().unwrap()
}

fn messages_of_keys(keys: impl IntoIterator<Item = usize>) -> Vec<Message> {
    keys.into_iter()
        .map(|key| message(&format!("k{key}")))
        .collect()
}

fn ids(messages: &[Message]) -> Vec<Uuid> {
    messages.iter().map(Message::id).collect()
}

/// A relay that runs until it is told to stop.
struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    fn start(relay: RelayBuilder) -> Self {
        let relay = relay.seed(1).build().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(relay.run_until(async {
            let _ = stopped.await;
        }));
        Self { stop, task }
    }

    /// Stops it and says how long that took.
    async fn stop(self) -> Duration {
        let start = Instant::now();
        self.stop.send(()).unwrap();
        timeout(SOON, self.task).await.unwrap().unwrap();
        start.elapsed()
    }
}

/// Every message was claimed as one that nothing had happened to.
fn nothing_was_parked(store: &FakeStore) {
    for claimed in store.claimed() {
        assert_eq!((claimed.parked, claimed.failures), (0, 0), "{claimed:?}");
    }
}

/// Waits for something that other tasks bring about, looking less often the longer it takes.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        let waited = start.elapsed();
        assert!(waited < 2 * HOUR, "waited for two hours until {what}");
        let step = waited / 100;
        tokio::time::sleep(step.clamp(Duration::from_millis(1), Duration::from_secs(1))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn delivers_everything_in_order_and_stops_at_once() {
    let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
    let messages = messages_of_keys((0..500).map(|n| n % 7));
    store.enqueue(&messages);
    let running =
        Running::start(Relay::builder(store.clone(), publisher.clone()).batch_messages(20));
    let published = publisher.wait_for(500, SOON).await;
    assert_eq!(running.stop().await, Duration::ZERO);
    assert_eq!(published.len(), 500);
    assert_eq!(store.counts(), NOTHING_LEFT);
    for key in 0..7 {
        let key = format!("k{key}");
        let of_key = |messages: &[Message]| -> Vec<Uuid> {
            messages
                .iter()
                .filter(|message| message.key() == Some(&key))
                .map(Message::id)
                .collect()
        };
        assert_eq!(of_key(&published), of_key(&messages));
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_relay_has_one_claim_waiting_and_passes_the_turn_on() {
    let store = FakeStore::default();
    let broker = FakeBroker::default();
    let running = Running::start(
        Relay::builder(store.clone(), broker.clone())
            .workers(4)
            .claim_wait(Duration::from_secs(10)),
    );
    tokio::time::sleep(Duration::from_secs(3595)).await;
    assert_eq!(store.most_claims_at_once(), 1);
    // One look in ten seconds for an hour, and not more.
    assert_eq!(store.claims(), 360);
    assert_eq!(running.stop().await, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_burst_wakes_every_worker() {
    let store = FakeStore::default();
    let broker = FakeBroker::new(|_| Act::Hang);
    let running = Running::start(
        Relay::builder(store.clone(), broker.clone())
            .workers(4)
            .batch_messages(10),
    );
    until("a claim waits", || store.claims() == 1).await;
    let start = Instant::now();
    store.enqueue(&messages_of_keys(0..40));
    until("four batches are in flight", || broker.batches().len() == 4).await;
    assert!(start.elapsed() <= Duration::from_millis(1));
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn busy_workers_claim_side_by_side() {
    let store = FakeStore::default();
    store.answer_claims_after(Duration::from_millis(5));
    store.enqueue(&messages_of_keys(0..400));
    let broker = FakeBroker::default();
    let running = Running::start(
        Relay::builder(store.clone(), broker.clone())
            .workers(4)
            .batch_messages(10),
    );
    until("everything is delivered", || store.counts() == NOTHING_LEFT).await;
    assert_eq!(store.most_claims_at_once(), 4);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_counts_nothing_probes_with_one_message_and_grows_again() {
    let log = Log::capture();
    let store = FakeStore::default();
    let start = Instant::now();
    let back = start + HOUR;
    let broker = FakeBroker::new(move |_| {
        if Instant::now() < back {
            Act::Answer(Err(PublishError::broker_unavailable("refused")))
        } else {
            Act::Answer(Ok(()))
        }
    });
    store.enqueue(&messages_of_keys(0..2000));
    let running = Running::start(
        Relay::builder(store.clone(), broker.clone())
            .workers(4)
            .batch_messages(100)
            .backoff_longest(Duration::from_secs(10)),
    );
    until("everything is delivered", || store.counts() == NOTHING_LEFT).await;
    assert!(Instant::now() < back + Duration::from_secs(11));
    running.stop().await;

    let batches = broker.batches();
    let (during, after): (Vec<_>, Vec<_>) = batches.into_iter().partition(|batch| batch.at < back);
    // The workers that were busy when it began, then one message at a time, with pauses of up to 10 s.
    let (busy, probes): (Vec<_>, Vec<_>) =
        during.iter().partition(|batch| batch.at == during[0].at);
    assert!(busy.len() <= 4, "{} busy workers", busy.len());
    assert!(busy.iter().all(|batch| batch.messages.len() <= 100));
    assert!(probes.iter().all(|batch| batch.messages.len() == 1));
    assert!(
        (360..=800).contains(&probes.len()),
        "{} probes",
        probes.len()
    );
    assert!(probes.windows(2).all(|pair| pair[0].at < pair[1].at));
    let sizes: Vec<usize> = after.iter().map(|batch| batch.messages.len()).collect();
    assert_eq!(sizes[..9], [1, 2, 4, 8, 16, 32, 64, 100, 100]);
    // Nothing was parked on the way, and it was said once.
    nothing_was_parked(&store);
    assert_eq!(log.count(Level::WARN, "the broker is away"), 1);
    assert_eq!(log.count(Level::INFO, "the broker is back"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_refused_without_the_broker_ends_no_outage() {
    let log = Log::capture();
    let store = FakeStore::default();
    let start = Instant::now();
    let known = start + Duration::from_secs(60);
    let back = start + HOUR;
    // Invalid messages are refused by the adapter itself, as soon as it has found out that they are.
    let broker = FakeBroker::new(move |message| {
        let now = Instant::now();
        if message.key() == Some("invalid") && now >= known {
            Act::Answer(Err(PublishError::rejected("an invalid topic")))
        } else if now < back {
            Act::Answer(Err(PublishError::broker_unavailable("refused")))
        } else {
            Act::Answer(Ok(()))
        }
    });
    store.enqueue(&[message("invalid"), message("invalid"), message("invalid")]);
    store.enqueue(&messages_of_keys(0..50));
    let running = Running::start(Relay::builder(store.clone(), broker.clone()));
    let delivered = MemoryCounts {
        dead: 3,
        ..NOTHING_LEFT
    };
    until("all others are delivered", || store.counts() == delivered).await;
    running.stop().await;
    assert!(Instant::now() < back + Duration::from_secs(11));
    assert_eq!(log.count(Level::WARN, "the broker is away"), 1);
    assert_eq!(log.count(Level::INFO, "the broker is back"), 1);
    let probes = broker.batches();
    let during = probes.iter().filter(|batch| batch.at < back).skip(4);
    // Two that are refused go alone, since they have one key; of the four after them one is.
    let sizes = during.map(|batch| batch.messages.len());
    let larger: Vec<_> = sizes.filter(|size| *size > 1).collect();
    assert_eq!(larger, [4]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_the_broker_ends_no_outage() {
    let log = Log::capture();
    let store = FakeStore::default();
    let back = Instant::now() + HOUR;
    // A publisher in front of the adapter keeps a topic back, whatever the broker is at.
    let broker = FakeBroker::new(move |message| {
        Act::Answer(match (message.key(), Instant::now() < back) {
            (Some("paused"), _) => {
                Err(PublishError::topic_unavailable("paused by me").without_broker())
            }
            (_, true) => Err(PublishError::broker_unavailable("refused")),
            (_, false) => Ok(()),
        })
    });
    let paused = message("paused");
    store.enqueue(std::slice::from_ref(&paused));
    store.enqueue(&messages_of_keys(0..50));
    let running = Running::start(Relay::builder(store.clone(), broker.clone()));
    until("all others are delivered", || store.left().len() == 1).await;
    running.stop().await;
    assert!(Instant::now() < back + Duration::from_secs(11));
    let probes = broker.batches();
    let alone = probes
        .iter()
        .filter(|batch| batch.at < back && batch.messages == [paused.id()]);
    assert!(alone.count() > 5);
    assert_eq!(log.count(Level::WARN, "the broker is away"), 1);
    assert_eq!(log.count(Level::INFO, "the broker is back"), 1);
}

#[tokio::test(start_paused = true)]
async fn many_messages_that_are_refused_without_the_broker_do_not_hold_up_an_outages_end() {
    let log = Log::capture();
    let store = FakeStore::default();
    let back = Instant::now() + Duration::from_secs(600);
    let broker = FakeBroker::new(
        move |message| match (message.key(), Instant::now() < back) {
            (_, true) => Act::Answer(Err(PublishError::broker_unavailable("refused"))),
            (Some("k0"), false) => Act::Answer(Ok(())),
            _ => Act::Answer(Err(PublishError::rejected("an invalid topic"))),
        },
    );
    store.enqueue(&messages_of_keys(1..=1000));
    store.enqueue(&messages_of_keys([0]));
    let running = Running::start(
        Relay::builder(store.clone(), broker.clone())
            .workers(1)
            .batch_messages(1000),
    );
    let done = MemoryCounts {
        dead: 1000,
        ..NOTHING_LEFT
    };
    until("the one that can be sent is", || store.counts() == done).await;
    running.stop().await;
    let probes = broker.batches();
    let after = probes.iter().filter(|batch| batch.at >= back);
    let sizes: Vec<_> = after.map(|batch| batch.messages.len()).collect();
    assert_eq!(sizes, [1, 2, 4, 8, 16, 32, 64, 128, 256, 490]);
    assert_eq!(log.count(Level::INFO, "the broker is back"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_begins_while_another_worker_waits_is_tried_again_after_a_pause() {
    let store = FakeStore::default();
    let mut tries = 0;
    let broker = FakeBroker::new(move |_| {
        tries += 1;
        let refused = PublishError::broker_unavailable("refused");
        match tries {
            1 => Act::FailAfter(Duration::from_secs(1), refused),
            _ => Act::Answer(Ok(())),
        }
    });
    let running = Running::start(
        Relay::builder(store.clone(), broker.clone())
            .workers(2)
            .backoff_first(Duration::from_secs(10)),
    );
    until("one worker waits in a claim", || store.claims() == 1).await;
    store.enqueue(&messages_of_keys([0]));
    until("the other one waits in a claim", || store.claims() == 2).await;
    // Now it is released, and the one that waits gets it.
    until("it is delivered", || store.counts() == NOTHING_LEFT).await;
    running.stop().await;
    // The two workers and the probe.
    assert_eq!(store.claimed().len(), 3);
    let tries = broker.batches();
    assert_eq!(tries.len(), 2);
    let pause = tries[1].at - tries[0].at;
    assert!(
        pause >= Duration::from_secs(6),
        "tried again after {pause:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn silence_of_the_whole_batch_is_an_outage_and_ends_by_itself() {
    let store = FakeStore::default();
    let back = Instant::now() + Duration::from_secs(600);
    let broker = FakeBroker::new(move |_| match Instant::now() < back {
        true => Act::Hang,
        false => Act::Answer(Ok(())),
    });
    store.enqueue(&messages_of_keys(0..50));
    let running = Running::start(Relay::builder(store.clone(), broker.clone()));
    until("everything is delivered", || store.counts() == NOTHING_LEFT).await;
    running.stop().await;
    assert!(Instant::now() < back + Duration::from_secs(60));
    nothing_was_parked(&store);
}

#[tokio::test(start_paused = true)]
async fn one_message_that_is_never_answered_is_no_outage_for_ever() {
    let store = FakeStore::default();
    let silent = message("silent");
    let id = silent.id();
    let broker = FakeBroker::new(move |message| match message.id() == id {
        true => Act::Hang,
        false => Act::Answer(Ok(())),
    });
    // Alone and in front it looks like an outage.
    store.enqueue(&[silent]);
    store.enqueue(&messages_of_keys(0..50));
    let running = Running::start(Relay::builder(store.clone(), broker.clone()).batch_messages(8));
    until("the others are delivered", || {
        broker.confirmed().len() == 50
    })
    .await;
    until("its failure counts", || {
        store.claimed().iter().any(|claimed| claimed.failures > 0)
    })
    .await;
    running.stop().await;
    let failed: Vec<Uuid> = store
        .claimed()
        .iter()
        .filter(|claimed| claimed.failures > 0)
        .map(|claimed| claimed.message.id())
        .collect();
    assert!(failed.iter().all(|failed| *failed == id));
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_publisher_is_a_failure_of_what_it_had_not_answered() {
    let store = FakeStore::default();
    let messages = messages_of_keys(0..3);
    let poison = messages[1].id();
    let broker = FakeBroker::new(move |message| match message.id() == poison {
        true => Act::PanicOnce,
        false => Act::Answer(Ok(())),
    });
    store.enqueue(&messages);
    let running = Running::start(Relay::builder(store.clone(), broker.clone()).workers(1));
    until("everything is delivered", || store.counts() == NOTHING_LEFT).await;
    running.stop().await;
    // The first was answered before the panic, and is not sent again.
    assert_eq!(broker.batches()[0].messages, ids(&messages));
    let mut again: Vec<Uuid> = broker.batches()[1..]
        .iter()
        .flat_map(|batch| batch.messages.clone())
        .collect();
    again.sort();
    let mut expected = ids(&messages[1..]);
    expected.sort();
    assert_eq!(again, expected);
    let failures: Vec<u32> = store
        .claimed()
        .iter()
        .map(|claimed| claimed.failures)
        .collect();
    assert_eq!(failures, [0, 0, 0, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_broker_is_given_its_time_and_fails_no_message() {
    let store = FakeStore::default();
    let broker = FakeBroker::new(|_| Act::AnswerAfter(Duration::from_millis(50)));
    // One key: 1000 waves of 50 ms do not fit into 30 s.
    store.enqueue(&messages_of_keys(std::iter::repeat_n(0, 1000)));
    let running = Running::start(Relay::builder(store.clone(), broker.clone()));
    until("everything is delivered", || store.counts() == NOTHING_LEFT).await;
    running.stop().await;
    assert_eq!(broker.confirmed().len(), 1000);
    nothing_was_parked(&store);
}

#[tokio::test(start_paused = true)]
async fn no_claim_outlives_what_the_store_was_told() {
    let store = FakeStore::default();
    let broker = FakeBroker::new(|message| match message.key() {
        Some("k0") => Act::AnswerAfter(Duration::from_millis(10)),
        _ => Act::Hang,
    });
    store.enqueue(&messages_of_keys([0, 0, 0, 1]));
    let running = Running::start(
        Relay::builder(store.clone(), broker.clone())
            .publish_timeout(Duration::from_secs(3))
            .settle_timeout(Duration::from_secs(2)),
    );
    until("the silent one failed", || store.counts().parked == 1).await;
    running.stop().await;
    assert_eq!(store.hold(), Some(Duration::from_secs(5)));
    assert_eq!(store.longest_hold(), Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn stopping_settles_what_was_confirmed_and_releases_the_rest_within_the_grace() {
    let store = FakeStore::default();
    let messages = messages_of_keys([0, 1, 2]);
    let silent = messages[1].id();
    let broker = FakeBroker::new(move |message| match message.id() == silent {
        true => Act::Hang,
        false => Act::Answer(Ok(())),
    });
    store.enqueue(&messages);
    let running = Running::start(
        Relay::builder(store.clone(), broker.clone()).stop_grace(Duration::from_secs(2)),
    );
    until("a batch is in flight", || !broker.batches().is_empty()).await;
    assert_eq!(running.stop().await, Duration::from_secs(2));
    let left = store.left();
    assert_eq!(left, [silent]);
    assert_eq!(
        store.counts().waiting,
        1,
        "released, neither parked nor counted"
    );
}

#[tokio::test(start_paused = true)]
async fn after_the_signal_no_wave_starts() {
    let store = FakeStore::default();
    let messages = messages_of_keys([0, 0, 0]);
    let broker = FakeBroker::new(|_| Act::AnswerAfter(Duration::from_secs(1)));
    store.enqueue(&messages);
    let running = Running::start(Relay::builder(store.clone(), broker.clone()));
    until("the second wave is in flight", || {
        broker.batches().len() == 2
    })
    .await;
    let took = running.stop().await;
    assert!(took <= Duration::from_secs(1), "{took:?}");
    assert_eq!(broker.confirmed(), ids(&messages[..2]));
    assert_eq!(store.left(), ids(&messages[2..]));
}

#[tokio::test(start_paused = true)]
async fn stopping_in_an_outage_and_in_trouble_of_the_store_is_prompt() {
    let store = FakeStore::default();
    let broker = FakeBroker::new(|_| Act::Answer(Err(PublishError::broker_unavailable("refused"))));
    store.enqueue(&messages_of_keys(0..3));
    let running = Running::start(Relay::builder(store.clone(), broker.clone()));
    until("probes fail", || broker.batches().len() > 8).await;
    assert_eq!(running.stop().await, Duration::ZERO);

    store.fail_claims(|_| Some(Fault::Hang));
    let running = Running::start(Relay::builder(store.clone(), FakeBroker::default()));
    until("the store hangs", || store.claims_at_once() == 1).await;
    assert_eq!(running.stop().await, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_is_dropped_lets_go_of_everything() {
    let store = FakeStore::default();
    let broker = FakeBroker::new(|_| Act::Hang);
    store.enqueue(&messages_of_keys(0..40));
    let running = Running::start(
        Relay::builder(store.clone(), broker.clone())
            .workers(4)
            .batch_messages(10),
    );
    until("four batches are in flight", || broker.batches().len() == 4).await;
    running.task.abort();
    until("every claim is let go", || store.held() == 0).await;
    assert_eq!(store.counts().waiting, 40);
}

#[tokio::test(start_paused = true)]
async fn trouble_of_the_store_is_said_once_and_survived() {
    for fault in [Fault::Error, Fault::Hang, Fault::Panic] {
        for of_settle in [false, true] {
            let log = Log::capture();
            let store = FakeStore::default();
            let broker = FakeBroker::default();
            let end = Instant::now() + Duration::from_secs(600);
            let faulty = move |_| (Instant::now() < end).then_some(fault);
            match of_settle {
                false => store.fail_claims(faulty),
                true => store.fail_settles(faulty),
            }
            store.enqueue(&messages_of_keys(0..30));
            let running = Running::start(
                Relay::builder(store.clone(), broker.clone())
                    .workers(3)
                    .batch_messages(10),
            );
            until("everything is delivered", || store.counts() == NOTHING_LEFT).await;
            running.stop().await;
            let case = format!("{fault:?}, of settle: {of_settle}");
            assert!(Instant::now() < end + Duration::from_secs(60), "{case}");
            assert_eq!(log.count(Level::WARN, "the store fails"), 1, "{case}");
            assert_eq!(log.count(Level::INFO, "the store works again"), 1, "{case}");
            // Each failing settle means that a batch is published again: not often.
            let batches = broker.batches().len();
            assert!(batches < 150, "{batches} batches: {case}");
        }
    }
}

/// Whatever the failures are, they are about messages and not about the broker, and what comes behind
/// them does not wait for them.
#[tokio::test(start_paused = true)]
async fn batches_of_nothing_but_failures_hold_up_nothing() {
    for failure in [
        PublishError::rejected("too large"),
        PublishError::retryable("nack"),
        PublishError::topic_unavailable("no leader"),
    ] {
        let store = FakeStore::default();
        let refused = failure.clone();
        let broker = FakeBroker::new(move |message| match message.key() {
            Some("good") => Act::Answer(Ok(())),
            _ => Act::Answer(Err(refused.clone())),
        });
        store.enqueue(&messages_of_keys(0..100));
        store.enqueue(&[message("good")]);
        let running = Running::start(
            Relay::builder(store.clone(), broker.clone())
                .workers(2)
                .batch_messages(10),
        );
        let start = Instant::now();
        until("the one behind is delivered", || {
            broker.confirmed().len() == 1
        })
        .await;
        let took = start.elapsed();
        assert!(took < Duration::from_millis(100), "{took:?}: {failure:?}");
        let counts = store.counts();
        assert_eq!(counts.parked + counts.dead, 100, "{failure:?}");
        running.stop().await;
    }
}

/// The error path itself fails: what the broker refused cannot be recorded.
#[tokio::test(start_paused = true)]
async fn failures_that_cannot_be_recorded_are_met_again_and_then_counted() {
    let log = Log::capture();
    let store = FakeStore::default();
    let back = Instant::now() + Duration::from_secs(600);
    store.fail_settles(move |_| (Instant::now() < back).then_some(Fault::Error));
    let broker = FakeBroker::new(|message| {
        Act::Answer(Err(match message.key() {
            Some("k0") => PublishError::rejected("too large"),
            _ => PublishError::retryable("nack"),
        }))
    });
    store.enqueue(&messages_of_keys(0..2));
    let retry = ExponentialBackoff::new(Duration::from_secs(1), Duration::from_secs(1), 3).unwrap();
    let running = Running::start(Relay::builder(store.clone(), broker.clone()).retry(retry));
    until("both are dead", || store.counts().dead == 2).await;
    running.stop().await;
    assert!(Instant::now() < back + Duration::from_secs(60));
    // Nothing was counted before it could be kept, and then each failure was.
    let failures: Vec<u32> = store
        .claimed()
        .iter()
        .filter(|claimed| claimed.message.key() == Some("k1"))
        .map(|claimed| claimed.failures)
        .collect();
    let (lost, kept) = failures.split_at(failures.len() - 3);
    assert!(!lost.is_empty() && lost.iter().all(|failures| *failures == 0));
    assert_eq!(kept, [0, 1, 2]);
    assert!(broker.batches().len() < 150, "the relay did not wait");
    assert_eq!(log.count(Level::WARN, "the store fails"), 1);
    assert_eq!(log.count(Level::INFO, "the store works again"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_retry_policy_is_survived() {
    struct Panics;
    impl RetryPolicy for Panics {
        fn retry_after(&self, _: &Claimed, _: &PublishError) -> Option<Duration> {
            panic!("no policy")
        }
    }
    let store = FakeStore::default();
    let start = Instant::now();
    let broker = FakeBroker::new(move |_| match start.elapsed() < Duration::from_secs(60) {
        true => Act::Answer(Err(PublishError::retryable("nack"))),
        false => Act::Answer(Ok(())),
    });
    store.enqueue(&messages_of_keys(0..3));
    let running = Running::start(Relay::builder(store.clone(), broker.clone()).retry(Panics));
    until("everything is delivered", || store.counts() == NOTHING_LEFT).await;
    assert!(broker.batches().len() < 60);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_modes_send_waves_or_whole_batches() {
    for (order, batches) in [
        (OrderMode::PerKey, vec![2, 2, 1]),
        (OrderMode::PerKeyPipelined, vec![5]),
        (OrderMode::Unordered, vec![5]),
    ] {
        let store = FakeStore::default();
        let broker = FakeBroker::default();
        store.enqueue(&messages_of_keys([0, 0, 1, 1, 0]));
        let running = Running::start(Relay::builder(store.clone(), broker.clone()).order(order));
        until("everything is delivered", || store.counts() == NOTHING_LEFT).await;
        running.stop().await;
        let sizes: Vec<usize> = broker
            .batches()
            .iter()
            .map(|batch| batch.messages.len())
            .collect();
        assert_eq!(sizes, batches, "{order:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_message_is_told_without_its_payload() {
    let log = Log::capture();
    let store = FakeStore::default();
    let broker = FakeBroker::new(|_| Act::Answer(Err(PublishError::rejected("too large"))));
    let message = Message::to("orders")
        .key("customer")
        .header("h", "header-value")
        .bytes("payload")
        .unwrap();
    store.enqueue(std::slice::from_ref(&message));
    let running = Running::start(Relay::builder(store.clone(), broker.clone()));
    until("it is dead", || store.counts().dead == 1).await;
    running.stop().await;
    let lines = log.lines();
    let line = lines
        .iter()
        .find(|line| line.contains("a message is given up"))
        .unwrap();
    for told in [
        message.id().to_string().as_str(),
        "orders",
        "rejected",
        "too large",
    ] {
        assert!(line.contains(told), "{told} is not in {line}");
    }
    for secret in ["customer", "payload", "header-value"] {
        assert!(
            lines.iter().all(|line| !line.contains(secret)),
            "{secret} is told"
        );
    }
}

#[test]
fn the_documented_metrics_are_told_and_no_others() {
    let recorder = Recorder::default();
    metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(one_of_everything());
    });
    let documented: BTreeSet<String> = include_str!("../../src/relay.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `outbox_")?.split('`').next())
        .map(|name| format!("outbox_{name}"))
        .collect();
    assert_eq!(recorder.told(), documented);
    assert_eq!(recorder.described(), documented);

    let counters = [
        ("outbox_messages_claimed_total", 11),
        ("outbox_messages_published_total", 6),
        ("outbox_messages_delivered_total", 5),
        ("outbox_messages_parked_total", 3),
        ("outbox_messages_dead_total", 1),
        ("outbox_messages_released_total", 1),
        ("outbox_publisher_panics_total", 1),
        ("outbox_publish_failures_total kind=broker_unavailable", 1),
        ("outbox_publish_failures_total kind=topic_unavailable", 1),
        ("outbox_publish_failures_total kind=retryable", 1),
        ("outbox_publish_failures_total kind=rejected", 1),
        ("outbox_publish_failures_total kind=unanswered", 1),
        ("outbox_store_errors_total doing=claim", 1),
        ("outbox_store_errors_total doing=settle", 1),
    ];
    for (name, count) in counters {
        assert_eq!(recorder.counter(name), count, "{name}");
    }
    assert_eq!(recorder.gauge("outbox_outage"), Some(0.0));
    assert_eq!(recorder.sum("outbox_batch_messages"), Some(11.0));
    assert_eq!(recorder.sum("outbox_publish_seconds"), Some(0.5));
}

#[test]
fn every_counter_is_there_from_the_start() {
    let recorder = Recorder::default();
    metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let relay = Relay::builder(MemoryStore::new(), MemoryPublisher::new());
        runtime.block_on(relay.build().unwrap().run_until(async {}));
    });
    let counters: BTreeSet<String> = include_str!("../../src/relay.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `")?.split_once("` | counter"))
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_eq!(counters.len(), 9);
    let told = recorder.told();
    assert!(counters.is_subset(&told), "{told:?}");
}

/// Six messages, one at a time, each with a course of its own.
async fn one_of_everything() {
    let store = FakeStore::default();
    store.fail_claims(|number| (number == 1).then_some(Fault::Error));
    store.fail_settles(|number| (number == 1).then_some(Fault::Error));
    let messages = messages_of_keys(0..6);
    store.enqueue(&messages);
    let mut tries = HashMap::new();
    let broker = FakeBroker::new(move |message| {
        let tries: &mut u32 = tries.entry(message.id()).or_default();
        *tries += 1;
        match (message.key(), *tries) {
            (Some("k0"), 1) => Act::AnswerAfter(Duration::from_millis(500)),
            (Some("k1"), 1) => Act::Answer(Err(PublishError::retryable("nack"))),
            (Some("k2"), 1) => Act::Answer(Err(PublishError::topic_unavailable("no leader"))),
            (Some("k3"), 1) => Act::Answer(Err(PublishError::rejected("too large"))),
            (Some("k4"), 1) => Act::Answer(Err(PublishError::broker_unavailable("refused"))),
            (Some("k5"), _) => Act::PanicOnce,
            _ => Act::Answer(Ok(())),
        }
    });
    // What several brokers tell is tested in `routed.rs`.
    drop(
        Router::builder()
            .broker("a", MemoryPublisher::new())
            .broker("b", MemoryPublisher::new())
            .route("a", "a")
            .otherwise("b")
            .build(),
    );
    let running = Running::start(
        Relay::builder(store.clone(), broker)
            .workers(1)
            .batch_messages(1),
    );
    until("one is dead and nothing else is left", || {
        store.counts()
            == MemoryCounts {
                dead: 1,
                ..NOTHING_LEFT
            }
    })
    .await;
    running.stop().await;
}
