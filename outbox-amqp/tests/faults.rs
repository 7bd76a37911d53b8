//! What no test may do to a shared server: it is away, it is silent, it is killed, it has no memory left.
//! Played by a closed port, by a listener that says nothing, by a proxy of our own, and by a server
//! that is there to be broken.

mod support;

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_amqp::{AmqpConfig, AmqpPublisher};
use outbox_conformance::proxy::Proxy;
use outbox_conformance::publisher::refusal;
use outbox_core::{Message, PublishErrorKind, PublisherExt};
use support::{PATIENCE, Server, faults_url, new_name, rabbitmqctl, services, url};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

const WITHIN: Duration = Duration::from_secs(60);

/// The timeouts of these tests.
const TIMEOUT: Duration = Duration::from_millis(1_500);

/// What a call may take at most that has to find out that nobody answers: both timeouts, the
/// question whether the broker is there, and room for a busy machine.
const EXPLAINED: Duration = Duration::from_secs(15);

fn publisher(url: &str) -> AmqpPublisher {
    let config = AmqpConfig::new(url)
        .connect_timeout(TIMEOUT)
        .confirm_timeout(TIMEOUT);
    AmqpPublisher::new(config).expect("a configuration that is accepted")
}

fn message(queue: &str, name: &str) -> Message {
    Message::to(queue)
        .key("k")
        .bytes(name.to_owned())
        .expect("valid")
}

/// Publishes one message and gives back the reason of the outage, which must be known in time.
async fn outage(publisher: &AmqpPublisher, queue: &str) -> String {
    let start = Instant::now();
    let answers = publisher
        .publish_all(&[message(queue, "lost")], WITHIN)
        .await;
    assert!(start.elapsed() < EXPLAINED, "{:?}", start.elapsed());
    let (kind, reason) = refusal(&answers[0]);
    assert_eq!(kind, PublishErrorKind::BrokerUnavailable, "{reason}");
    reason.to_owned()
}

/// Publishes until it succeeds.
async fn recovers(publisher: &AmqpPublisher, queue: &str) {
    let deadline = Instant::now() + PATIENCE;
    let batch = [message(queue, "again")];
    loop {
        let answers = publisher.publish_all(&batch, WITHIN).await;
        if answers == [Some(Ok(()))] {
            return;
        }
        let (kind, reason) = refusal(&answers[0]);
        assert_eq!(kind, PublishErrorKind::BrokerUnavailable, "{reason}");
        assert!(Instant::now() < deadline, "it stays away: {reason}");
        // wait: the broker is on its way
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The URL of `url`'s broker at another address.
fn at(url: &str, address: SocketAddr) -> String {
    let (before, rest) = url.split_once('@').expect("a URL with a user");
    let (_, path) = rest.split_once('/').expect("a URL with a vhost");
    format!("{before}@{address}/{path}")
}

/// A proxy to the broker of `url`.
async fn proxy_to(url: &str) -> Proxy {
    let (_, rest) = url.split_once('@').expect("a URL with a user");
    Proxy::to(rest.split('/').next().expect("an address")).await
}

/// A port where nothing listens.
async fn closed_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    listener.local_addr().expect("its address")
}

#[tokio::test]
async fn a_broker_that_is_away_is_an_outage_with_its_reason() {
    let publisher = publisher(&at(&url(), closed_port().await));
    let reason = outage(&publisher, "t").await;
    assert!(reason.contains("Connection refused"), "{reason}");
}

#[tokio::test]
async fn a_broker_that_says_nothing_is_an_outage_and_is_hung_up_on() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let publisher = publisher(&at(&url(), listener.local_addr().expect("its address")));
    let reason = outage(&publisher, "t").await;
    assert_eq!(reason, "no channel within 1.5s");
    // What stays open stays for ever, one more with every try.
    let (mut stream, _) = listener.accept().await.expect("the connection");
    let mut said = Vec::new();
    let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said)).await;
    end.expect("the connection is still open").expect("its end");
    assert!(said.starts_with(b"AMQP"), "{said:?}");
}

#[tokio::test]
async fn a_broker_that_falls_silent_is_an_outage_until_it_speaks() {
    let server = Server::connect(&url()).await;
    let queue = new_name();
    server.queue(&queue).await;
    let proxy = proxy_to(&url()).await;
    let publisher = publisher(&at(&url(), proxy.address()));
    recovers(&publisher, &queue).await;

    proxy.hold();
    let reason = outage(&publisher, &queue).await;
    assert_eq!(
        reason,
        "not confirmed within 1.5s, and the broker does not answer"
    );
    // And so is the next connection.
    let reason = outage(&publisher, &queue).await;
    assert_eq!(reason, "no channel within 1.5s");

    proxy.release();
    recovers(&publisher, &queue).await;
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn a_connection_that_is_cut_is_made_again_in_the_same_call() {
    let server = Server::connect(&url()).await;
    let queue = new_name();
    server.queue(&queue).await;
    let proxy = proxy_to(&url()).await;
    let publisher = publisher(&at(&url(), proxy.address()));
    recovers(&publisher, &queue).await;

    proxy.cut();
    let batch: Vec<Message> = (0..500).map(|n| message(&queue, &n.to_string())).collect();
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!(answers, vec![Some(Ok(())); 500]);
    assert_eq!(proxy.accepted(), 2);

    proxy.refuse();
    proxy.cut();
    outage(&publisher, &queue).await;
    proxy.release();
    recovers(&publisher, &queue).await;
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn calls_share_one_connection() {
    let server = Server::connect(&url()).await;
    let queue = new_name();
    server.queue(&queue).await;
    let proxy = proxy_to(&url()).await;
    // With the timeouts that it has by itself: eight calls on a busy machine take a while.
    let config = AmqpConfig::new(at(&url(), proxy.address()));
    let publisher = Arc::new(AmqpPublisher::new(config).expect("a configuration"));
    let mut calls = Vec::new();
    for call in 0..8 {
        let batch: Vec<Message> = (0..100)
            .map(|n| message(&queue, &format!("{call}-{n}")))
            .collect();
        let publisher = Arc::clone(&publisher);
        calls.push(tokio::spawn(async move {
            for _ in 0..5 {
                let answers = publisher.publish_all(&batch, WITHIN).await;
                assert_eq!(answers, vec![Some(Ok(())); 100]);
            }
        }));
    }
    for call in calls {
        call.await.expect("a call beside others");
    }
    assert_eq!(proxy.accepted(), 1);
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn a_dropped_call_costs_no_connection() {
    let server = Server::connect(&url()).await;
    let queue = new_name();
    server.queue(&queue).await;
    let proxy = proxy_to(&url()).await;
    let publisher = publisher(&at(&url(), proxy.address()));
    recovers(&publisher, &queue).await;
    // More than the client writes at once, so that some of it is still in its queue.
    let large = Message::to(&queue)
        .bytes(vec![b'x'; 6 * 1024 * 1024])
        .expect("valid");
    for _ in 0..5 {
        let batch = vec![large.clone(); 2];
        publisher
            .publish_all(&batch, Duration::from_millis(1))
            .await;
        recovers(&publisher, &queue).await;
    }
    assert_eq!(proxy.accepted(), 1);
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn a_server_that_is_stopped_or_killed_is_an_outage_until_it_is_back() {
    let broken = Broken::take().await;
    let queue = new_name();
    let server = Server::connect(&faults_url()).await;
    server.queue(&queue).await;
    let publisher = publisher(&faults_url());
    for command in ["stop", "kill"] {
        recovers(&publisher, &queue).await;
        broken.run(command).await;
        outage(&publisher, &queue).await;
        broken.run("start").await;
        recovers(&publisher, &queue).await;
    }
    // What was confirmed survived both.
    let server = Server::connect(&faults_url()).await;
    assert!(server.count(&queue).await >= 4);
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn an_alarm_of_memory_or_disk_is_an_outage_until_it_is_over() {
    let _broken = Broken::take().await;
    let queue = new_name();
    let server = Server::connect(&faults_url()).await;
    server.queue(&queue).await;
    let proxy = proxy_to(&faults_url()).await;
    let publisher = publisher(&at(&faults_url(), proxy.address()));
    recovers(&publisher, &queue).await;

    let no_memory = ["set_vm_memory_high_watermark", "0.000001"];
    let no_disk = ["set_disk_free_limit", "1000000000000000"];
    for (alarm, enough, said) in [
        (&no_memory, &ENOUGH_MEMORY[2..], "low on memory"),
        (&no_disk, &ENOUGH_DISK[2..], "low on disk"),
    ] {
        rabbitmqctl(BROKEN, alarm).await;
        // The server tells a connection when it publishes.
        let reason = outage(&publisher, &queue).await;
        assert_eq!(reason, format!("the broker has blocked publishers: {said}"));
        // Then it is known, and nobody is asked.
        let start = Instant::now();
        outage(&publisher, &queue).await;
        assert!(start.elapsed() < Duration::from_secs(1));

        rabbitmqctl(BROKEN, enough).await;
        recovers(&publisher, &queue).await;
    }
    assert_eq!(proxy.accepted(), 1);
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn dropping_the_publisher_in_an_outage_does_not_hold_up_the_runtime() {
    let server = Server::connect(&url()).await;
    let queue = new_name();
    server.queue(&queue).await;
    let proxy = proxy_to(&url()).await;
    let batch: Vec<Message> = (0..1_000)
        .map(|n| message(&queue, &n.to_string()))
        .collect();
    let mut all = Duration::ZERO;
    for _ in 0..5 {
        proxy.release();
        let publisher = publisher(&at(&url(), proxy.address()));
        recovers(&publisher, &queue).await;
        proxy.hold();
        publisher
            .publish_all(&batch, Duration::from_millis(50))
            .await;
        let start = Instant::now();
        drop(publisher);
        all += start.elapsed();
    }
    assert!(all < Duration::from_millis(400), "five drops took {all:?}");
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn a_publisher_needs_no_broker_to_begin_with() {
    let publisher = publisher(&at(&url(), closed_port().await));
    assert_eq!(publisher.publish_all(&[], WITHIN).await, []);
}

#[tokio::test]
async fn neither_debug_nor_a_reason_shows_a_secret() {
    let address = closed_port().await;
    let publisher = publisher(&format!("amqp://shop:hunter2@{address}/%2f"));
    let shown = format!("{publisher:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(shown.contains(&address.to_string()), "{shown}");
    let reason = outage(&publisher, "t").await;
    assert!(!reason.contains("hunter2"), "{reason}");
}

/// The server that may be broken, for this test alone, whichever process or checkout the others run in.
/// It is put back, up and with its memory and disk, when this is dropped.
struct Broken {
    /// Locked as long as it is open.
    _lock: File,
}

const BROKEN: &str = "rabbitmq-faults";
const ENOUGH_MEMORY: [&str; 5] = [
    "rabbitmqctl",
    BROKEN,
    "set_vm_memory_high_watermark",
    "absolute",
    "1GB",
];
const ENOUGH_DISK: [&str; 4] = ["rabbitmqctl", BROKEN, "set_disk_free_limit", "256MB"];

impl Broken {
    async fn take() -> Self {
        let lock = tokio::task::spawn_blocking(|| {
            // The script makes the folder.
            services(&["start", BROKEN]);
            let file = File::create(folder().join(BROKEN).join("tests.lock")).expect("a lock file");
            file.lock().expect("a lock");
            // Whoever had it before may have been killed before it put it back.
            services(&["start", BROKEN]);
            put_back();
            file
        });
        Self {
            _lock: lock.await.expect("the lock"),
        }
    }

    async fn run(&self, command: &'static str) {
        tokio::task::spawn_blocking(move || services(&[command, BROKEN]))
            .await
            .expect("scripts/services");
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        services(&["start", BROKEN]);
        put_back();
    }
}

/// Ends both alarms.
fn put_back() {
    services(&ENOUGH_MEMORY);
    services(&ENOUGH_DISK);
}

/// Where the script keeps its servers.
fn folder() -> PathBuf {
    std::env::var_os("OUTBOX_SERVICES_DIR").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/services")),
        PathBuf::from,
    )
}
