//! What no test may do to a shared server: it is away, it dies, it says nothing, the connection to it is
//! held up or cut. Played by servers and a proxy of each test's own, and where it takes batches by a server that is
//! there to be broken.

#![allow(clippy::unwrap_used)]

mod support;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream::stream::Config;
use async_nats::{Client, ConnectOptions, jetstream};
use outbox_conformance::proxy::Proxy;
use outbox_conformance::publisher::{publish_chained, refusal};
use outbox_core::{Message, PublishError, PublishErrorKind, PublisherExt};
use outbox_nats::{NatsConfig, NatsPublisher};
use support::server::{Server, free_port};
use support::{
    PATIENCE, connect, create, delete, latest_faults_url, message, new_subject, payloads, read,
    stream,
};

const WITHIN: Duration = Duration::from_secs(30);
const ACK_TIMEOUT: Duration = Duration::from_millis(500);

fn publisher(client: &Client) -> NatsPublisher {
    let config = NatsConfig::new().ack_timeout(ACK_TIMEOUT);
    NatsPublisher::new(client.clone(), config).unwrap()
}

/// Publishes until it is confirmed, as a relay does.
async fn confirm(publisher: &NatsPublisher, batch: &[Message]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answers = publisher.publish_all(batch, WITHIN).await;
        if answers.iter().all(|answer| answer == &Some(Ok(()))) {
            return;
        }
        assert!(Instant::now() < deadline, "not confirmed: {answers:?}");
        // wait: the client connects again by itself
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn until_disconnected(client: &Client) {
    let deadline = Instant::now() + PATIENCE;
    while client.connection_state() == State::Connected {
        assert!(Instant::now() < deadline, "the client does not notice");
        // wait: the client reads the end of the connection
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn assert_away(answer: &Option<Result<(), PublishError>>, words: &str) {
    let (kind, reason) = refusal(answer);
    assert_eq!(kind, PublishErrorKind::BrokerUnavailable, "{reason}");
    assert!(reason.contains(words), "{reason}");
}

fn assert_soon(start: Instant, limit: Duration) {
    assert!(start.elapsed() < limit, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_server_that_was_never_there_is_an_outage_at_once() {
    // Nobody listens, or somebody who takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for port in [free_port(), silent.local_addr().unwrap().port()] {
        let client = ConnectOptions::new()
            .retry_on_initial_connect()
            .connect(format!("nats://127.0.0.1:{port}"))
            .await
            .unwrap();
        let publisher = publisher(&client);
        let start = Instant::now();
        let answers = publisher
            .publish_all(&[message("t", "k", "1")], WITHIN)
            .await;
        assert_soon(start, Duration::from_millis(200));
        assert_away(&answers[0], "no connection to the server yet");
        assert_eq!(publisher.publish_all(&[], WITHIN).await, []);
    }
}

#[tokio::test]
async fn a_killed_server_is_an_outage_at_once_until_it_is_back() {
    let mut server = Server::start();
    let client = connect(&server.url()).await;
    create(&client, stream("t")).await;
    let publisher = publisher(&client);
    confirm(&publisher, &[message("t", "k", "1")]).await;

    server.kill();
    until_disconnected(&client).await;
    let batch = [message("t", "k", "2"), message("t", "k", "3")];
    let start = Instant::now();
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_soon(start, Duration::from_millis(200));
    for answer in &answers {
        assert_away(answer, "the connection to the server is lost");
    }
    server.start_again();
    confirm(&publisher, &batch).await;
    assert_eq!(payloads(&client, "t").await, ["1", "2", "3"]);
}

#[tokio::test]
async fn what_was_refused_in_an_outage_is_not_sent_after_it() {
    let mut server = Server::start();
    let client = connect(&server.url()).await;
    create(&client, stream("t")).await;
    let publisher = publisher(&client);
    confirm(&publisher, &[message("t", "k", "before")]).await;

    server.kill();
    until_disconnected(&client).await;
    for number in 0..20 {
        let batch = [message("t", "k", format!("stale {number}"))];
        let answers = publisher.publish_all(&batch, WITHIN).await;
        assert_away(&answers[0], "lost");
    }
    server.start_again();
    // It comes after all that was in the client's queue.
    confirm(&publisher, &[message("t", "k", "after")]).await;
    assert_eq!(payloads(&client, "t").await, ["before", "after"]);
}

#[tokio::test]
async fn a_server_that_dies_in_mid_batch_leaves_no_message_without_an_answer() {
    let mut server = Server::start();
    let client = connect(&server.url()).await;
    create(&client, stream("t")).await;
    let publisher = publisher(&client);
    let batch: Vec<Message> = (0..50_000)
        .map(|n| {
            message(
                "t",
                &format!("key-{n}"),
                format!("message {n} {:.>500}", ""),
            )
        })
        .collect();
    let publishing = publisher.publish_all(&batch, WITHIN);
    let watching = async {
        let deadline = Instant::now() + PATIENCE;
        let context = jetstream::new(client.clone());
        let stream = context.get_stream("t").await.unwrap();
        while stream.get_info().await.unwrap().state.messages < 100 {
            assert!(Instant::now() < deadline, "nothing arrives");
        }
        server.kill();
        Instant::now()
    };
    let (answers, killed) = tokio::join!(publishing, watching);
    assert_soon(killed, Duration::from_secs(5));
    let confirmed = answers
        .iter()
        .filter(|answer| **answer == Some(Ok(())))
        .count();
    assert!(
        (1..batch.len()).contains(&confirmed),
        "{confirmed} confirmed"
    );
    for answer in answers.iter().filter(|answer| **answer != Some(Ok(()))) {
        assert_away(answer, "lost");
    }

    // Killed as it was, it has kept what it had acknowledged.
    server.start_again();
    confirm(&publisher, &[message("t", "k", "after")]).await;
    let there: HashSet<String> = payloads(&client, "t").await.into_iter().collect();
    for (message, answer) in batch.iter().zip(&answers) {
        let payload = std::str::from_utf8(message.payload().unwrap()).unwrap();
        if *answer == Some(Ok(())) {
            assert!(there.contains(payload), "{payload} is lost");
        }
    }
}

/// Chains go to it as atomic batches, one call after the other, as a relay sends them: what is not confirmed
/// comes again, and each key in its order.
#[tokio::test]
async fn a_server_that_dies_in_mid_chain_loses_nothing_confirmed_and_no_order() {
    const KEYS: usize = 20;
    let broken = Broken::take().await;
    let client = connect(&latest_faults_url()).await;
    let subject = new_subject();
    let config = Config {
        allow_atomic_publish: true,
        ..stream(&subject)
    };
    let context = create(&client, config).await;
    let config = NatsConfig::new()
        .atomic_batches(true)
        .ack_timeout(ACK_TIMEOUT);
    let publisher = NatsPublisher::new(client.clone(), config).unwrap();

    // Calls of which it had confirmed a part.
    let (cut_short, over) = (Cell::new(0), Cell::new(false));
    let dying = async {
        let mut stored = 0;
        while cut_short.get() < 3 {
            let enough = stored + 2_000;
            let deadline = Instant::now() + PATIENCE;
            while stored < enough {
                assert!(Instant::now() < deadline, "nothing arrives");
                if let Ok(stream) = context.get_stream(&subject).await {
                    stored = stream.cached_info().state.messages;
                }
            }
            broken.run("kill").await;
            broken.run("start").await;
        }
        over.set(true);
    };
    let publishing = async {
        let mut sent = 0;
        let mut left: Vec<Message> = Vec::new();
        let deadline = Instant::now() + 2 * PATIENCE;
        while !over.get() || !left.is_empty() {
            assert!(Instant::now() < deadline, "{} are left", left.len());
            while !over.get() && left.len() < 10_000 {
                let (key, place) = (sent % KEYS, sent / KEYS);
                left.push(message(&subject, &key.to_string(), place.to_string()));
                sent += 1;
            }
            let mut answers = publish_chained(&publisher, &left, WITHIN).await.into_iter();
            let before = left.len();
            let mut ended = HashSet::new();
            left.retain(|message| match answers.next().flatten() {
                Some(Ok(())) => {
                    assert!(
                        !ended.contains(message.key().unwrap()),
                        "behind what failed"
                    );
                    false
                }
                _ => {
                    ended.insert(message.key().unwrap().to_owned());
                    true
                }
            });
            if (1..before).contains(&left.len()) {
                cut_short.set(cut_short.get() + 1);
            }
            if !left.is_empty() {
                // wait: the client connects again by itself
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        sent
    };
    let (sent, ()) = tokio::join!(publishing, dying);

    let mut next: HashMap<String, usize> = HashMap::new();
    for record in read(&client, &subject).await {
        let place: usize = std::str::from_utf8(&record.payload)
            .unwrap()
            .parse()
            .unwrap();
        let next = next
            .entry(record.headers["Outbox-Key"].clone())
            .or_default();
        // A repeat is no first copy.
        if place >= *next {
            assert_eq!(place, *next, "key {}", record.headers["Outbox-Key"]);
            *next += 1;
        }
    }
    assert_eq!(next.values().sum::<usize>(), sent);
    delete(&client, &subject).await;
}

/// As before an upgrade: it takes no new connections, and closes the old ones.
#[tokio::test]
async fn a_server_that_retires_fails_no_message() {
    let mut server = Server::start_with(
        "jetstream: { store_dir: STORE }, \
         lame_duck_duration: 30s, lame_duck_grace_period: 100ms",
    );
    let client = connect(&server.url()).await;
    create(&client, stream("t")).await;
    let publisher = publisher(&client);
    confirm(&publisher, &[message("t", "k", "0")]).await;
    server.retire();
    let mut confirmed = vec!["0".to_owned()];
    let deadline = Instant::now() + PATIENCE;
    let open = loop {
        let next = confirmed.len().to_string();
        let answers = publisher
            .publish_all(&[message("t", "k", next.as_str())], WITHIN)
            .await;
        if answers[0] != Some(Ok(())) {
            assert_away(&answers[0], "lost");
            break next;
        }
        confirmed.push(next);
        assert!(Instant::now() < deadline, "the server stays");
    };
    server.wait_for_end();
    server.start_again();
    confirm(&publisher, &[message("t", "k", "last")]).await;
    confirmed.push("last".to_owned());
    let mut there = payloads(&client, "t").await;
    // Its answer may have been lost.
    there.retain(|payload| *payload != open);
    assert_eq!(there, confirmed);
}

/// Two of a stream's three servers are away.
#[tokio::test]
async fn a_stream_without_a_leader_is_the_topics_trouble_until_it_has_one() {
    let ports = [(); 3].map(|()| free_port());
    let routes = ports.map(|port| format!("\"nats://127.0.0.1:{port}\""));
    let mut servers = [0, 1, 2].map(|number| {
        Server::start_with(&format!(
            "server_name: n{number}, jetstream: {{ store_dir: STORE }}, \
             cluster: {{ name: c, listen: \"127.0.0.1:{}\", routes: [{}] }}",
            ports[number],
            routes.join(", ")
        ))
    });
    let client = connect(&servers[0].url()).await;
    let mut config = stream("t");
    config.num_replicas = 3;
    let context = jetstream::new(client.clone());
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = context.create_stream(config.clone()).await {
        assert!(Instant::now() < deadline, "no stream: {error}");
        // wait: the servers agree on a leader
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let publisher = publisher(&client);
    confirm(&publisher, &[message("t", "k", "1")]).await;

    for server in &mut servers[1..] {
        server.kill();
    }
    let batch = [message("t", "k", "2")];
    for _ in 0..3 {
        let answers = publisher.publish_all(&batch, WITHIN).await;
        let (kind, reason) = refusal(&answers[0]);
        assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
    }
    for server in &mut servers[1..] {
        server.start_again();
    }
    confirm(&publisher, &batch).await;
    assert_eq!(payloads(&client, "t").await, ["1", "2"]);
}

#[tokio::test]
async fn a_frozen_server_is_an_outage_until_it_is_thawed() {
    let server = Server::start();
    let client = connect(&server.url()).await;
    create(&client, stream("t")).await;
    let publisher = publisher(&client);
    confirm(&publisher, &[message("t", "k", "1")]).await;

    server.freeze();
    let batch = [message("t", "k", "2"), message("t", "l", "3")];
    for _ in 0..2 {
        let start = Instant::now();
        let answers = publisher.publish_all(&batch, WITHIN).await;
        assert_soon(start, Duration::from_secs(5));
        for answer in &answers {
            assert_away(
                answer,
                "nothing was acknowledged within 500ms, and the server does not answer",
            );
        }
    }
    server.thaw();
    confirm(&publisher, &batch).await;
    // What was sent before has arrived too, and in front; the repeats were dropped.
    assert_eq!(payloads(&client, "t").await, ["1", "2", "3"]);
    assert_eq!(publisher.duplicates(), 2);
}

#[tokio::test]
async fn a_connection_that_is_cut_is_an_outage_before_the_answers_time_is_over() {
    let server = Server::start();
    let proxy = Proxy::to(server.address().to_string()).await;
    let client = connect(&format!("nats://{}", proxy.address())).await;
    create(&client, stream("t")).await;
    let config = NatsConfig::new().ack_timeout(Duration::from_secs(20));
    let publisher = NatsPublisher::new(client.clone(), config).unwrap();
    confirm(&publisher, &[message("t", "k", "1")]).await;

    proxy.hold();
    let batch = [message("t", "k", "2")];
    let publishing = publisher.publish_all(&batch, WITHIN);
    let cutting = async {
        let direct = connect(&server.url()).await;
        assert_eq!(payloads(&direct, "t").await, ["1"]);
        proxy.cut();
        // The client is connected again before the publisher looks.
        proxy.release();
        Instant::now()
    };
    let (answers, cut) = tokio::join!(publishing, cutting);
    assert_soon(cut, Duration::from_secs(2));
    assert_away(&answers[0], "lost");
    confirm(&publisher, &batch).await;
    assert_eq!(payloads(&client, "t").await, ["1", "2"]);
}

#[tokio::test]
async fn what_a_dropped_call_left_behind_stays_in_front_of_its_repeat() {
    let server = Server::start();
    let proxy = Proxy::to(server.address().to_string()).await;
    let client = connect(&format!("nats://{}", proxy.address())).await;
    create(&client, stream("t")).await;
    let publisher = publisher(&client);
    confirm(&publisher, &[message("t", "k", "0")]).await;

    proxy.hold();
    let batch = ["1", "2"].map(|name| message("t", "k", name));
    let short = Duration::from_millis(100);
    assert_eq!(publisher.publish_all(&batch[..1], short).await, [None]);
    proxy.release();
    for one in batch.chunks(1) {
        confirm(&publisher, one).await;
    }
    assert_eq!(payloads(&client, "t").await, ["0", "1", "2"]);
    assert_eq!(publisher.duplicates(), 1);
}

#[tokio::test]
async fn a_connection_that_takes_nothing_is_given_nothing_more() {
    let server = Server::start();
    let proxy = Proxy::to(server.address().to_string()).await;
    let client = connect(&format!("nats://{}", proxy.address())).await;
    create(&client, stream("t")).await;
    let publisher = publisher(&client);
    confirm(&publisher, &[message("t", "k", "first")]).await;

    proxy.hold();
    // More than fits into the buffers of the system and the client's own.
    let flood: Vec<Message> = (0..100)
        .map(|n| message("t", &format!("key-{n}"), vec![b'x'; 400_000]))
        .collect();
    let start = Instant::now();
    let answers = publisher.publish_all(&flood, WITHIN).await;
    assert_soon(start, Duration::from_secs(10));
    for answer in &answers {
        assert_away(answer, "nothing was acknowledged");
    }
    for number in 0..5 {
        let start = Instant::now();
        let batch = [message("t", "k", format!("late {number}"))];
        let answers = publisher.publish_all(&batch, WITHIN).await;
        assert_soon(start, Duration::from_secs(3));
        assert_away(&answers[0], "the connection takes nothing");
    }
    proxy.release();
    confirm(&publisher, &[message("t", "k", "last")]).await;
    let there = read(&client, "t").await;
    let small = there.iter().filter(|record| record.payload.len() < 100);
    let small: Vec<&[u8]> = small.map(|record| record.payload.as_slice()).collect();
    assert_eq!(small, [b"first".as_slice(), b"last"]);
}

#[tokio::test]
async fn a_client_that_is_closed_is_an_outage() {
    let server = Server::start();
    let client = connect(&server.url()).await;
    create(&client, stream("t")).await;
    let publisher = publisher(&client);
    confirm(&publisher, &[message("t", "k", "1")]).await;
    client.drain().await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answers = publisher
            .publish_all(&[message("t", "k", "2")], WITHIN)
            .await;
        if answers[0] != Some(Ok(())) {
            assert_away(&answers[0], "the client is closed");
            return;
        }
        assert!(
            Instant::now() < deadline,
            "a client that is closed publishes"
        );
    }
}

#[tokio::test]
async fn debug_shows_no_secret() {
    let server = Server::start_with("authorization: { user: outbox, password: secret }");
    let publisher = publisher(&server.connect_as("outbox").await);
    let shown = format!("{publisher:?}");
    assert!(shown.contains("ack_timeout"), "{shown}");
    assert!(!shown.contains("secret"), "{shown}");
}

/// The server that may be broken, for this test alone, whichever process or checkout the others run in. It is up
/// when this is dropped.
struct Broken {
    /// Locked as long as it is open.
    _lock: File,
}

impl Broken {
    async fn take() -> Self {
        let lock = tokio::task::spawn_blocking(|| {
            // The script makes the folder.
            services("start");
            let file = File::create(folder().join("tests.lock")).unwrap();
            file.lock().unwrap();
            // Whoever had it before may have been killed before it put it back.
            services("start");
            file
        });
        Self {
            _lock: lock.await.unwrap(),
        }
    }

    async fn run(&self, command: &'static str) {
        tokio::task::spawn_blocking(move || services(command))
            .await
            .unwrap();
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        services("start");
    }
}

const BROKEN: &str = "nats-latest-faults";

/// Where the script keeps the server.
fn folder() -> PathBuf {
    let folder = std::env::var_os("OUTBOX_SERVICES_DIR").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/services")),
        PathBuf::from,
    );
    folder.join(BROKEN)
}

fn services(command: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/services");
    let output = Command::new(script)
        .args([command, BROKEN])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/services: {said}");
}
