//! What the real server's answers become, one kind at a time.

mod support;

use std::time::{Duration, Instant};

use outbox_conformance::publisher::refusal;
use outbox_core::{Message, PublishErrorKind, PublisherExt};
use outbox_redis::{Client, RedisConfig, RedisPublisher, Trim};
use redis::Value;
use support::server::Server;
use support::{ask, connection, delete, message, new_topic, payloads, read, shared, until};

const WITHIN: Duration = Duration::from_secs(30);
const CONFIRMED: Option<Result<(), outbox_core::PublishError>> = Some(Ok(()));

fn with(config: RedisConfig) -> RedisPublisher {
    RedisPublisher::new(config).expect("a configuration that is accepted")
}

fn publisher(client: Client) -> RedisPublisher {
    with(RedisConfig::new(client))
}

/// All of a batch have failed so, with this in the reason.
async fn all_fail(
    publisher: &RedisPublisher,
    batch: &[Message],
    kind: PublishErrorKind,
    said: &str,
) {
    let answers = publisher.publish_all(batch, WITHIN).await;
    for answer in &answers {
        let (answered, reason) = refusal(answer);
        assert_eq!(answered, kind, "{reason}");
        assert!(reason.contains(said), "{reason}");
    }
}

async fn all_pass(publisher: &RedisPublisher, batch: &[Message]) {
    let answers = publisher.publish_all(batch, WITHIN).await;
    for answer in &answers {
        assert_eq!(answer, &CONFIRMED);
    }
}

fn three(topic: &str) -> Vec<Message> {
    (0..3).map(|n| message(topic, "k", n.to_string())).collect()
}

#[tokio::test]
async fn a_confirmed_message_is_an_entry() {
    let topic = new_topic();
    let sent = Message::to(&topic)
        .key("7")
        .header("trace", "abc")
        .bytes("hello")
        .expect("valid");
    let publisher = with(RedisConfig::new(shared()).stream_prefix("outbox:"));
    all_pass(&publisher, std::slice::from_ref(&sent)).await;
    let stream = format!("outbox:{topic}");
    assert_eq!(
        read(&shared(), &stream).await,
        [[
            ("id".to_owned(), sent.id().to_string().into_bytes()),
            ("key".to_owned(), b"7".to_vec()),
            ("payload".to_owned(), b"hello".to_vec()),
            ("header:trace".to_owned(), b"abc".to_vec()),
        ]]
    );
    delete(&[stream]).await;
}

#[tokio::test]
async fn a_key_that_is_no_stream_is_the_topics_trouble() {
    let (good, bad) = (new_topic(), new_topic());
    ask(&shared(), &["SET", &bad, "a string"]).await;
    let publisher = publisher(shared());
    let batch = [
        message(&good, "a", "1"),
        message(&bad, "b", "2"),
        message(&good, "c", "3"),
    ];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!((&answers[0], &answers[2]), (&CONFIRMED, &CONFIRMED));
    let (kind, reason) = refusal(&answers[1]);
    assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
    assert!(reason.starts_with("WRONGTYPE "), "{reason}");
    assert_eq!(payloads(&shared(), &good).await, ["1", "3"]);

    ask(&shared(), &["DEL", &bad]).await;
    all_pass(&publisher, &batch[1..2]).await;
    delete(&[good, bad]).await;
}

#[tokio::test]
async fn a_stream_at_its_last_id_is_the_topics_trouble() {
    let topic = new_topic();
    let last = "18446744073709551615-18446744073709551615";
    ask(&shared(), &["XADD", &topic, last, "f", "v"]).await;
    let publisher = publisher(shared());
    let batch = [message(&topic, "k", "1")];
    all_fail(
        &publisher,
        &batch,
        PublishErrorKind::TopicUnavailable,
        "ERR ",
    )
    .await;
    delete(&[topic]).await;
}

#[tokio::test]
async fn a_server_out_of_memory_is_an_outage_until_it_has_some() {
    let server = Server::start(&["--maxmemory", "1"]);
    let publisher = publisher(server.client());
    // More than is under way at once: what follows is not even sent.
    let batch: Vec<Message> = (0..3_000)
        .map(|n| message("t", "k", n.to_string()))
        .collect();
    all_fail(
        &publisher,
        &batch,
        PublishErrorKind::BrokerUnavailable,
        "OOM ",
    )
    .await;
    let calls = ask(&server.client(), &["INFO", "errorstats"]).await;
    assert!(
        format!("{calls:?}").contains("errorstat_OOM:count=1024"),
        "{calls:?}"
    );
    ask(&server.client(), &["CONFIG", "SET", "maxmemory", "0"]).await;
    all_pass(&publisher, &batch).await;
}

#[tokio::test]
async fn what_was_added_before_the_memory_ran_out_stays_confirmed() {
    let server = Server::start(&[]);
    let publisher = publisher(server.client());
    all_pass(&publisher, &three("t")).await;
    let used = support::info(&server.client(), "used_memory").await;
    let limit = (used + 1_000_000).to_string();
    ask(&server.client(), &["CONFIG", "SET", "maxmemory", &limit]).await;
    let batch: Vec<Message> = (0..3_000)
        .map(|n| message("t", "k", format!("{n:01000}")))
        .collect();
    let answers = publisher.publish_all(&batch, WITHIN).await;
    let confirmed = answers
        .iter()
        .filter(|answer| **answer == CONFIRMED)
        .count();
    assert!(
        (1..batch.len()).contains(&confirmed),
        "{confirmed} confirmed"
    );
    for answer in answers.iter().filter(|answer| **answer != CONFIRMED) {
        let (kind, reason) = refusal(answer);
        assert_eq!(kind, PublishErrorKind::BrokerUnavailable, "{reason}");
        assert!(reason.starts_with("OOM "), "{reason}");
    }
    let there = payloads(&server.client(), "t").await.split_off(3);
    let told = batch.iter().zip(&answers);
    let told = told.filter(|(_, answer)| **answer == CONFIRMED);
    let told: Vec<_> = told.filter_map(|(it, _)| it.payload()).collect();
    assert_eq!(there.len(), told.len());
    for (there, told) in there.iter().zip(told) {
        assert_eq!(there.as_bytes(), told);
    }
}

#[tokio::test]
async fn a_server_that_cannot_save_is_an_outage() {
    let server = Server::start(&[]);
    let publisher = publisher(server.client());
    all_pass(&publisher, &three("t")).await;
    server.fail_to_save().await;
    all_fail(
        &publisher,
        &three("t"),
        PublishErrorKind::BrokerUnavailable,
        "MISCONF ",
    )
    .await;
    ask(&server.client(), &["CONFIG", "SET", "save", ""]).await;
    all_pass(&publisher, &three("t")).await;
}

#[tokio::test]
async fn a_replica_is_an_outage_until_it_is_promoted() {
    let server = Server::start(&[]);
    let publisher = publisher(server.client());
    all_pass(&publisher, &three("t")).await;
    ask(&server.client(), &["REPLICAOF", "127.0.0.1", "1"]).await;
    all_fail(
        &publisher,
        &three("t"),
        PublishErrorKind::BrokerUnavailable,
        "READONLY ",
    )
    .await;
    ask(
        &server.client(),
        &[
            "CONFIG",
            "SET",
            "replica-serve-stale-data",
            "no",
            "replica-read-only",
            "no",
        ],
    )
    .await;
    all_fail(
        &publisher,
        &three("t"),
        PublishErrorKind::BrokerUnavailable,
        "MASTERDOWN ",
    )
    .await;
    ask(&server.client(), &["REPLICAOF", "NO", "ONE"]).await;
    all_pass(&publisher, &three("t")).await;
}

#[tokio::test]
async fn a_server_with_too_few_replicas_for_itself_is_an_outage() {
    let server = Server::start(&["--min-replicas-to-write", "1"]);
    let publisher = publisher(server.client());
    all_fail(
        &publisher,
        &three("t"),
        PublishErrorKind::BrokerUnavailable,
        "NOREPLICAS ",
    )
    .await;
    assert_eq!(payloads(&server.client(), "t").await, [""; 0]);
    let enough = ["CONFIG", "SET", "min-replicas-to-write", "0"];
    ask(&server.client(), &enough).await;
    all_pass(&publisher, &three("t")).await;
}

#[tokio::test]
async fn a_server_that_loads_its_data_is_an_outage() {
    let mut server = Server::start(&[]);
    let publisher = publisher(server.client());
    let fill: Vec<Message> = (0..500)
        .map(|n| message(&format!("t{n}"), "k", "1"))
        .collect();
    all_pass(&publisher, &fill).await;
    ask(&server.client(), &["SAVE"]).await;
    server.kill();
    // Microseconds a key, and how often it looks up from loading, in bytes.
    server.start_loading(&["--key-load-delay", "10000"]);
    // Over the connection that was cut by the crash.
    all_fail(
        &publisher,
        &three("t"),
        PublishErrorKind::BrokerUnavailable,
        "",
    )
    .await;
    all_fail(
        &publisher,
        &three("t"),
        PublishErrorKind::BrokerUnavailable,
        "LOADING ",
    )
    .await;
    until("the data is loaded", async || {
        publisher.publish_all(&three("t"), WITHIN).await == vec![CONFIRMED; 3]
    })
    .await;
}

#[tokio::test]
async fn a_busy_server_is_an_outage() {
    let server = Server::start(&["--busy-reply-threshold", "1"]);
    let publisher = publisher(server.client());
    let client = server.client();
    let script = tokio::spawn(async move {
        let mut connection = connection(&client).await;
        let mut command = redis::cmd("EVAL");
        command.arg("while true do end").arg(0);
        // It is killed, so its answer is an error.
        let _ = command.query_async::<Value>(&mut connection).await;
    });
    until("the script is running", async || {
        let answers = publisher.publish_all(&three("t"), WITHIN).await;
        answers != vec![CONFIRMED; 3]
    })
    .await;
    all_fail(
        &publisher,
        &three("t"),
        PublishErrorKind::BrokerUnavailable,
        "BUSY ",
    )
    .await;
    ask(&server.client(), &["SCRIPT", "KILL"]).await;
    script.await.expect("a script that was killed");
    all_pass(&publisher, &three("t")).await;
}

#[tokio::test]
async fn rights_that_are_missing_are_the_topics_or_the_servers_trouble() {
    let server = Server::start(&[]);
    for words in [
        [
            "ACL",
            "SETUSER",
            "orders",
            "on",
            ">pw",
            "~orders.*",
            "+xadd",
        ],
        ["ACL", "SETUSER", "reader", "on", ">pw", "~*", "+xread"],
    ] {
        ask(&server.client(), &words).await;
    }
    let orders = publisher(server.client_as("user=orders&pass=pw"));
    let batch = [
        message("orders.placed", "a", "1"),
        message("secret", "b", "2"),
        message("orders.placed", "c", "3"),
    ];
    let answers = orders.publish_all(&batch, WITHIN).await;
    assert_eq!((&answers[0], &answers[2]), (&CONFIRMED, &CONFIRMED));
    let (kind, reason) = refusal(&answers[1]);
    assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
    assert!(reason.starts_with("NOPERM "), "{reason}");
    ask(&server.client(), &["ACL", "SETUSER", "orders", "~secret"]).await;
    all_pass(&orders, &batch).await;

    let reader = publisher(server.client_as("user=reader&pass=pw"));
    all_fail(
        &reader,
        &batch,
        PublishErrorKind::BrokerUnavailable,
        "NOPERM ",
    )
    .await;
    ask(&server.client(), &["ACL", "SETUSER", "reader", "+xadd"]).await;
    all_pass(&reader, &batch).await;
}

#[tokio::test]
async fn a_login_that_is_refused_is_an_outage_and_shows_no_password() {
    let server = Server::start(&["--requirepass", "right"]);
    for (login, said) in [("", "NOAUTH"), ("pass=hunter2", "authentication failed")] {
        let publisher = publisher(server.client_as(login));
        all_fail(
            &publisher,
            &three("t"),
            PublishErrorKind::BrokerUnavailable,
            said,
        )
        .await;
        let answers = publisher.publish_all(&three("t"), WITHIN).await;
        assert!(!refusal(&answers[0]).1.contains("hunter2"));
    }
    all_pass(&publisher(server.client_as("pass=right")), &three("t")).await;
}

#[tokio::test]
async fn a_server_full_of_clients_is_an_outage() {
    let server = Server::start(&[]);
    let mut other = connection(&server.client()).await;
    let mut limit = redis::cmd("CONFIG");
    limit.arg("SET").arg("maxclients");
    let _: Value = limit
        .clone()
        .arg(1)
        .query_async(&mut other)
        .await
        .expect("a limit");
    let publisher = publisher(server.client());
    let batch = three("t");
    all_fail(
        &publisher,
        &batch,
        PublishErrorKind::BrokerUnavailable,
        "connecting: ",
    )
    .await;
    let _: Value = limit
        .arg(100)
        .query_async(&mut other)
        .await
        .expect("a limit");
    all_pass(&publisher, &batch).await;
}

#[tokio::test]
async fn a_server_without_streams_is_an_outage() {
    let server = Server::start(&["--rename-command", "XADD", ""]);
    let publisher = publisher(server.client());
    let kind = PublishErrorKind::BrokerUnavailable;
    all_fail(&publisher, &three("t"), kind, "ERR unknown command").await;
}

#[tokio::test]
async fn a_message_over_the_configured_limit_is_rejected_with_both_sizes() {
    let topic = new_topic();
    let publisher = with(RedisConfig::new(shared()).max_message_bytes(5_000));
    let batch = [
        message(&topic, "a", "small"),
        message(&topic, "b", vec![b'x'; 5_000]),
        message(&topic, "c", "small"),
    ];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!((&answers[0], &answers[2]), (&CONFIRMED, &CONFIRMED));
    let (kind, reason) = refusal(&answers[1]);
    assert_eq!(kind, PublishErrorKind::Rejected);
    // Fields and values: 2 + 36, 3 + 1, 7 + 5000.
    assert_eq!(reason, "the entry has 5049 bytes, the limit is 5000");
    delete(&[topic]).await;
}

#[tokio::test]
async fn a_message_over_the_servers_limit_fails_alone() {
    for setting in ["--proto-max-bulk-len", "--client-query-buffer-limit"] {
        let server = Server::start(&[setting, "1mb"]);
        let publisher = publisher(server.client());
        let batch = [
            message("t", "a", "1"),
            message("t", "b", vec![b'x'; 3_000_000]),
            message("t", "c", "3"),
        ];
        for _ in 0..3 {
            let answers = publisher.publish_all(&batch, WITHIN).await;
            assert_eq!((&answers[0], &answers[2]), (&CONFIRMED, &CONFIRMED));
            let (kind, reason) = refusal(&answers[1]);
            // The server's answer may be lost, since it closes the connection after it.
            let said = reason.contains("invalid bulk length");
            let guessed = reason.contains("closed over this message");
            assert!(said || guessed, "{setting}: {reason}");
            let expected = match said {
                true => PublishErrorKind::Rejected,
                false => PublishErrorKind::Retryable,
            };
            assert_eq!(kind, expected, "{setting}: {reason}");
        }
        assert_eq!(
            payloads(&server.client(), "t").await,
            ["1", "3", "1", "3", "1", "3"]
        );
    }
}

#[tokio::test]
async fn nothing_is_trimmed_unless_asked() {
    let topic = new_topic();
    let batch: Vec<Message> = (0..2_000)
        .map(|n| message(&topic, "k", n.to_string()))
        .collect();
    all_pass(&publisher(shared()), &batch).await;
    let length = ask(&shared(), &["XLEN", &topic]).await;
    assert_eq!(length, Value::Int(2_000));

    // The server removes whole nodes, of a hundred entries here.
    let trimming = with(RedisConfig::new(shared()).trim(Trim::Entries(100)));
    all_pass(&trimming, &batch[..1]).await;
    let length = ask(&shared(), &["XLEN", &topic]).await;
    assert!(
        matches!(length, Value::Int(100..=300)),
        "{length:?} entries are left"
    );
    delete(&[topic]).await;
}

#[tokio::test]
async fn what_is_trimmed_by_age_is_old_by_the_servers_clock() {
    let topic = new_topic();
    // Entries of 1970, and of a second that is not over.
    let mut add = redis::pipe();
    for n in 1..=1_000 {
        add.cmd("XADD").arg(&topic).arg(n).arg("payload").arg("old");
    }
    let mut connection = connection(&shared()).await;
    add.exec_async(&mut connection).await.expect("old entries");
    let recent: Vec<Message> = (0..300)
        .map(|n| message(&topic, "k", n.to_string()))
        .collect();
    all_pass(&publisher(shared()), &recent).await;

    let trimming = with(RedisConfig::new(shared()).trim(Trim::Age(Duration::from_secs(3_600))));
    all_pass(&trimming, &[message(&topic, "k", "last")]).await;
    let left = payloads(&shared(), &topic).await;
    let old = left.iter().filter(|payload| *payload == "old").count();
    // The rest of a node of a hundred stays.
    assert!(old < 100, "{old} old entries are left");
    assert_eq!(left.len() - old, 301);
    delete(&[topic]).await;
}

#[tokio::test]
async fn replicas_that_are_waited_for_have_the_message_or_it_is_an_outage() {
    let primary = Server::start(&[]);
    let second = Duration::from_secs(1);
    let config = RedisConfig::new(primary.client());
    let impatient = with(config.clone().wait_for_replicas(1, second / 10));
    let start = Instant::now();
    let batch = [message("t", "k", "1")];
    let kind = PublishErrorKind::BrokerUnavailable;
    let said = "added, and not confirmed by 1 replicas within 100ms: 0 have it";
    all_fail(&impatient, &batch, kind, said).await;
    assert!(start.elapsed() < second * 10, "{:?}", start.elapsed());

    let port = primary.port().to_string();
    let replica = Server::start(&["--replicaof", &format!("127.0.0.1 {port}")]);
    let patient = with(config.wait_for_replicas(1, second * 20));
    let batch: Vec<Message> = (0..1_000)
        .map(|n| message("u", "k", n.to_string()))
        .collect();
    all_pass(&patient, &batch).await;
    assert_eq!(payloads(&replica.client(), "u").await.len(), 1_000);

    // A key that is no stream is told apart from replicas that are there.
    ask(&primary.client(), &["SET", "v", "a string"]).await;
    let answers = patient
        .publish_all(&[message("u", "k", "2"), message("v", "k", "3")], WITHIN)
        .await;
    assert_eq!(answers[0], CONFIRMED);
    assert_eq!(refusal(&answers[1]).0, PublishErrorKind::TopicUnavailable);
}

#[tokio::test]
async fn a_thousand_messages_take_no_round_trip_each() {
    let server = Server::start(&[]);
    let publisher = publisher(server.client());
    all_pass(&publisher, &three("t")).await;
    let batch: Vec<Message> = (0..1_000)
        .map(|n| message("t", "k", n.to_string()))
        .collect();
    let before = support::info(&server.client(), "total_reads_processed").await;
    all_pass(&publisher, &batch).await;
    let after = support::info(&server.client(), "total_reads_processed").await;
    assert!(after - before < 100, "{} reads", after - before);
    let connections = support::info(&server.client(), "total_connections_received").await;
    for one in batch.chunks(20) {
        all_pass(&publisher, one).await;
    }
    let again = support::info(&server.client(), "total_connections_received").await;
    assert_eq!(again - connections, 1, "but the one that asks");
}
