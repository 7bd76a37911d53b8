//! What no test may do to a shared server: it is away, it is silent, it is killed, the network fails.
//! Played by a server of the test's own, and by a proxy in front of it.

mod support;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use outbox_conformance::publisher::refusal;
use outbox_core::{Message, PublishError, PublishErrorKind, PublisherExt};
use outbox_redis::{Client, RedisConfig, RedisPublisher};
use support::proxy::{Mode, Proxy};
use support::server::Server;
use support::{ask, message, payloads, until};

const WITHIN: Duration = Duration::from_secs(30);
const CONFIRMED: Option<Result<(), PublishError>> = Some(Ok(()));

fn publisher(client: Client) -> RedisPublisher {
    let config = RedisConfig::new(client)
        .response_timeout(Duration::from_secs(2))
        .connect_timeout(Duration::from_secs(2));
    RedisPublisher::new(config).expect("a configuration that is accepted")
}

fn messages(count: usize, bytes: usize) -> Vec<Message> {
    (0..count)
        .map(|n| message("t", &format!("key-{n}"), format!("{n:0bytes$}")))
        .collect()
}

fn closed_port() -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    Client::open(format!("redis://:hunter2@{address}/")).expect("an address")
}

/// All of a batch is an outage, known before `soon`.
async fn outage(publisher: &RedisPublisher, batch: &[Message], soon: Duration) -> String {
    let start = Instant::now();
    let answers = publisher.publish_all(batch, WITHIN).await;
    assert!(start.elapsed() < soon, "it took {:?}", start.elapsed());
    for answer in &answers {
        let (kind, reason) = refusal(answer);
        assert_eq!(kind, PublishErrorKind::BrokerUnavailable, "{reason}");
    }
    refusal(&answers[0]).1.to_owned()
}

#[tokio::test]
async fn a_server_that_is_away_is_an_outage_at_once() {
    let publisher = publisher(closed_port());
    let reason = outage(&publisher, &messages(1_000, 10), Duration::from_secs(5)).await;
    assert!(reason.starts_with("connecting: "), "{reason}");
    assert!(reason.contains("refused"), "{reason}");
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_is_an_outage() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let publisher = publisher(Client::open(format!("redis://{address}/")).expect("an address"));
    let reason = outage(&publisher, &messages(10, 10), Duration::from_secs(10)).await;
    assert!(reason.starts_with("connecting: "), "{reason}");
}

#[tokio::test]
async fn a_server_that_stops_answering_is_an_outage_until_it_answers() {
    let server = Server::start(&[]);
    let publisher = publisher(server.client());
    let batch = messages(2_000, 10);
    let warm = publisher.publish_all(&batch[..1], WITHIN).await;
    assert_eq!(warm, [CONFIRMED]);
    ask(&server.client(), &["CLIENT", "PAUSE", "600000", "WRITE"]).await;
    let reason = outage(&publisher, &batch, Duration::from_secs(10)).await;
    assert_eq!(reason, "no answer in time");
    ask(&server.client(), &["CLIENT", "UNPAUSE"]).await;
    assert_eq!(
        publisher.publish_all(&batch, WITHIN).await,
        vec![CONFIRMED; 2_000]
    );
}

#[tokio::test]
async fn a_server_that_is_killed_is_an_outage_until_it_is_back() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    for client in [server.client(), server.tcp_client()] {
        let publisher = publisher(client);
        let batch = messages(10, 10);
        assert_eq!(
            publisher.publish_all(&batch, WITHIN).await,
            vec![CONFIRMED; 10]
        );
        server.kill();
        for _ in 0..3 {
            outage(&publisher, &batch, Duration::from_secs(5)).await;
        }
        server.start_again();
        assert_eq!(
            publisher.publish_all(&batch, WITHIN).await,
            vec![CONFIRMED; 10]
        );
    }
    // What was confirmed before a crash is there after it: appendfsync was always.
    assert_eq!(payloads(&server.client(), "t").await.len(), 40);
}

#[tokio::test]
async fn what_was_confirmed_before_the_connection_is_cut_stays_confirmed() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(&server.address()).await;
    let publisher = publisher(proxy.client());
    let batch = messages(2_000, 100);
    let warm = publisher.publish_all(&batch[..1], WITHIN).await;
    assert_eq!(warm, [CONFIRMED]);
    // An answer has 22 bytes, so that this is in the second of the pipelines.
    proxy.set(Mode::CutAfter(10_000));
    let answers = publisher.publish_all(&batch, WITHIN).await;
    let confirmed = answers.iter().filter(|it| **it == CONFIRMED).count();
    assert_eq!(confirmed, 256);
    assert_eq!(answers[..confirmed], vec![CONFIRMED; confirmed]);
    for answer in &answers[confirmed..] {
        let (kind, reason) = refusal(answer);
        assert_eq!(kind, PublishErrorKind::BrokerUnavailable, "{reason}");
    }
    // Some were added and their answers lost; none was sent twice.
    let mut there = payloads(&server.client(), "t").await.split_off(1);
    assert!(there.len() >= confirmed, "{} are there", there.len());
    let count = there.len();
    there.sort();
    there.dedup();
    assert_eq!(there.len(), count);

    proxy.set(Mode::Forward);
    assert_eq!(
        publisher.publish_all(&batch, WITHIN).await,
        vec![CONFIRMED; 2_000]
    );
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_is_no_outage() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(&server.address()).await;
    let publisher = publisher(proxy.client());
    let batch = messages(1, 10);
    assert_eq!(publisher.publish_all(&batch, WITHIN).await, [CONFIRMED]);
    proxy.set(Mode::Cut);
    until("the connection is closed", async || proxy.open() == 0).await;
    proxy.set(Mode::Forward);
    let idle_since = Instant::now();
    until("the connection counts as idle", async || {
        idle_since.elapsed() > Duration::from_secs(1)
    })
    .await;
    assert_eq!(publisher.publish_all(&batch, WITHIN).await, [CONFIRMED]);
    assert_eq!(proxy.accepted(), 2);
}

#[tokio::test]
async fn an_idle_connection_into_a_frozen_network_is_an_outage_soon() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(&server.address()).await;
    let publisher = publisher(proxy.client());
    let batch = messages(1, 10);
    assert_eq!(publisher.publish_all(&batch, WITHIN).await, [CONFIRMED]);
    let idle_since = Instant::now();
    until("the connection counts as idle", async || {
        idle_since.elapsed() > Duration::from_secs(1)
    })
    .await;
    proxy.set(Mode::Frozen);
    outage(&publisher, &batch, Duration::from_secs(10)).await;
    proxy.set(Mode::Forward);
    assert_eq!(publisher.publish_all(&batch, WITHIN).await, [CONFIRMED]);
}

#[tokio::test]
async fn little_of_a_dropped_call_can_arrive_after_it() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(&server.address()).await;
    let publisher = publisher(proxy.client());
    let warm = publisher.publish_all(&messages(1, 10), WITHIN).await;
    assert_eq!(warm, [CONFIRMED]);
    let before = proxy.sent();
    proxy.set(Mode::Frozen);
    // 20 MB, of which no more than the pipelines of one call may have left.
    let batch = messages(2_000, 10_000);
    let answers = publisher
        .publish_all(&batch, Duration::from_millis(100))
        .await;
    assert_eq!(answers, vec![None; 2_000]);
    proxy.set(Mode::Swallow);
    until("the connection is closed", async || proxy.open() == 0).await;
    let late = proxy.sent() - before;
    assert!(late <= 1_200_000, "{late} bytes came after the call");

    proxy.set(Mode::Forward);
    let answers = publisher.publish_all(&batch[..10], WITHIN).await;
    assert_eq!(answers, vec![CONFIRMED; 10]);
    assert_eq!(payloads(&server.client(), "t").await.len(), 11);
}

#[tokio::test]
async fn a_frozen_server_holds_a_call_no_longer_than_the_response_timeout() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(&server.address()).await;
    let publisher = publisher(proxy.client());
    let warm = publisher.publish_all(&messages(1, 10), WITHIN).await;
    assert_eq!(warm, [CONFIRMED]);
    proxy.set(Mode::Frozen);
    // Also where the messages do not fit into what the network takes.
    let large = [message("t", "k", vec![b'x'; 30_000_000])];
    let reason = outage(&publisher, &large, Duration::from_secs(10)).await;
    assert_eq!(reason, "no answer in time");
}

#[tokio::test]
async fn dropping_the_publisher_closes_its_connections() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(&server.address()).await;
    let publisher = publisher(proxy.client());
    let batch = messages(8, 10);
    let calls = batch
        .chunks(1)
        .map(|one| publisher.publish_all(one, WITHIN));
    for answers in futures(calls).await {
        assert_eq!(answers, [CONFIRMED]);
    }
    assert!((1..=8).contains(&proxy.open()), "{} open", proxy.open());
    drop(publisher);
    until("all are closed", async || proxy.open() == 0).await;
}

/// All of them at the same time.
async fn futures<T>(calls: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut calls: Vec<_> = calls.map(|call| (Box::pin(call), None)).collect();
    std::future::poll_fn(|context| {
        for (call, result) in &mut calls {
            if result.is_none()
                && let std::task::Poll::Ready(done) = call.as_mut().poll(context)
            {
                *result = Some(done);
            }
        }
        match calls.iter().all(|(_, result)| result.is_some()) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    calls.into_iter().filter_map(|(_, result)| result).collect()
}

#[tokio::test]
async fn a_publisher_needs_no_server_to_begin_with() {
    let publisher = publisher(closed_port());
    assert_eq!(publisher.publish_all(&[], WITHIN).await, []);
}

#[test]
fn debug_shows_no_secret() {
    let shown = format!("{:?}", publisher(closed_port()));
    assert!(shown.contains("address: 127.0.0.1:"), "{shown}");
    assert!(!shown.contains("hunter2"), "{shown}");
}
