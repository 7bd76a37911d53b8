//! What the real server makes of a chain: it ends at what the server refuses, in its own words, and
//! nothing behind that is added.

mod support;

use std::time::Duration;

use outbox_conformance::publisher::{publish_chained, refusal};
use outbox_core::{Message, PublishError, PublishErrorKind, Publisher as _, PublisherExt as _};
use outbox_redis::{RedisConfig, RedisPublisher, Trim};
use support::server::Server;
use support::{ask, info, message, payloads};

const WITHIN: Duration = Duration::from_secs(30);
const CONFIRMED: Option<Result<(), PublishError>> = Some(Ok(()));

fn with(config: RedisConfig) -> RedisPublisher {
    RedisPublisher::new(config).expect("a configuration that is accepted")
}

/// A publisher that has spoken to its server, and so knows whether it chains.
async fn publisher(config: RedisConfig) -> RedisPublisher {
    let publisher = with(config);
    let first = message("first", "first", "first");
    publisher.publish_all(&[first], WITHIN).await;
    publisher
}

async fn chained(publisher: &RedisPublisher, batch: &[Message]) -> Answers {
    publish_chained(publisher, batch, WITHIN).await
}

type Answers = Vec<Option<Result<(), PublishError>>>;

/// Messages of one key to these topics; the payload is the place.
fn chain(topics: &[&str]) -> Vec<Message> {
    let places = topics.iter().enumerate();
    places
        .map(|(place, topic)| message(topic, "k", place.to_string()))
        .collect()
}

/// So many were confirmed, the next one failed so, and nothing is said of the others, or in an outage the
/// same.
fn ends(answers: &Answers, confirmed: usize, kind: PublishErrorKind, said: &str) {
    for (place, answer) in answers.iter().enumerate() {
        if place < confirmed {
            assert_eq!(answer, &CONFIRMED, "place {place}");
        } else if place > confirmed && answer.is_none() {
            // It was not sent.
        } else {
            let outage = kind == PublishErrorKind::BrokerUnavailable;
            assert!(place == confirmed || outage, "place {place}: {answer:?}");
            let (found, reason) = refusal(answer);
            assert_eq!(found, kind, "place {place}: {reason}");
            assert!(reason.starts_with(said), "place {place}: {reason}");
        }
    }
}

#[tokio::test]
async fn a_publisher_knows_that_it_chains_when_it_has_a_connection() {
    let server = Server::start(&[]);
    let publisher = with(RedisConfig::new(server.client()));
    assert!(!publisher.chains_keys());
    let answers = publisher.publish_all(&chain(&["t"]), WITHIN).await;
    assert_eq!(answers, [CONFIRMED]);
    assert!(publisher.chains_keys());
}

#[tokio::test]
async fn a_chain_ends_at_a_key_that_is_no_stream_or_does_not_exist() {
    let server = Server::start(&[]);
    ask(&server.client(), &["SET", "string", "a string"]).await;
    let kind = PublishErrorKind::TopicUnavailable;
    let making = publisher(RedisConfig::new(server.client())).await;
    let answers = chained(&making, &chain(&["a", "b", "a", "string", "a", "b"])).await;
    ends(&answers, 3, kind, "WRONGTYPE ");
    assert_eq!(payloads(&server.client(), "a").await, ["0", "2"]);
    assert_eq!(payloads(&server.client(), "b").await, ["1"]);

    let config = RedisConfig::new(server.client()).create_streams(false);
    let publisher = publisher(config).await;
    let answers = chained(&publisher, &chain(&["a", "missing", "a"])).await;
    ends(&answers, 1, kind, "the stream does not exist");
    assert_eq!(payloads(&server.client(), "a").await, ["0", "2", "0"]);
    let answers = chained(&publisher, &chain(&["missing", "a"])).await;
    ends(&answers, 0, kind, "the stream does not exist");
}

/// 3,000 messages are twelve scripts: none is sent before the one before it is answered.
#[tokio::test]
async fn a_long_chain_ends_in_its_script_and_no_later_one_is_sent() {
    let server = Server::start(&[]);
    let publisher = publisher(RedisConfig::new(server.client())).await;
    let used = info(&server.client(), "used_memory").await;
    let limit = (used + 1_000_000).to_string();
    ask(&server.client(), &["CONFIG", "SET", "maxmemory", &limit]).await;
    let batch: Vec<Message> = (0..3_000)
        .map(|n| message("t", "k", format!("{n:01000}")))
        .collect();
    let answers = chained(&publisher, &batch).await;
    let confirmed = answers
        .iter()
        .filter(|answer| **answer == CONFIRMED)
        .count();
    assert!((1..3_000).contains(&confirmed), "{confirmed}");
    ends(
        &answers,
        confirmed,
        PublishErrorKind::BrokerUnavailable,
        "OOM ",
    );
    let there = payloads(&server.client(), "t").await;
    assert_eq!(there.len(), confirmed);
    let refused = ask(&server.client(), &["INFO", "errorstats"]).await;
    let refused = format!("{refused:?}");
    assert!(refused.contains("errorstat_OOM:count=1\\r"), "{refused}");

    ask(&server.client(), &["CONFIG", "SET", "maxmemory", "0"]).await;
    let answers = chained(&publisher, &batch[confirmed..]).await;
    assert!(answers.iter().all(|answer| *answer == CONFIRMED));
    let there = payloads(&server.client(), "t").await;
    let sent: Vec<&[u8]> = batch
        .iter()
        .filter_map(|it| it.payload().map(|it| &it[..]))
        .collect();
    assert!(there.iter().map(String::as_bytes).eq(sent));
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_an_outage() {
    let server = Server::start(&[]);
    let publisher = publisher(RedisConfig::new(server.client())).await;
    let away = PublishErrorKind::BrokerUnavailable;
    let batch = chain(&["t", "t", "t"]);
    ask(&server.client(), &["REPLICAOF", "127.0.0.1", "1"]).await;
    ends(&chained(&publisher, &batch).await, 0, away, "READONLY ");
    ask(&server.client(), &["REPLICAOF", "NO", "ONE"]).await;

    server.fail_to_save().await;
    ends(&chained(&publisher, &batch).await, 0, away, "MISCONF ");
    ask(&server.client(), &["CONFIG", "SET", "save", ""]).await;

    let enough = ["CONFIG", "SET", "min-replicas-to-write", "1"];
    ask(&server.client(), &enough).await;
    ends(&chained(&publisher, &batch).await, 0, away, "NOREPLICAS ");
    let enough = ["CONFIG", "SET", "min-replicas-to-write", "0"];
    ask(&server.client(), &enough).await;
    assert_eq!(payloads(&server.client(), "t").await, [""; 0]);
    assert!(publisher.chains_keys());
    assert_eq!(chained(&publisher, &batch).await, vec![CONFIRMED; 3]);
}

/// The script travels with each command, so a server that has forgotten all scripts has forgotten nothing.
#[tokio::test]
async fn a_server_that_was_started_again_or_has_lost_its_scripts_chains_at_once() {
    let mut server = Server::start(&[]);
    let publisher = publisher(RedisConfig::new(server.client())).await;
    let batch = chain(&["t", "t", "t"]);
    ask(&server.client(), &["SCRIPT", "FLUSH"]).await;
    assert_eq!(chained(&publisher, &batch).await, vec![CONFIRMED; 3]);
    server.kill();
    let answers = chained(&publisher, &batch).await;
    let (kind, reason) = refusal(&answers[0]);
    assert_eq!(kind, PublishErrorKind::BrokerUnavailable, "{reason}");
    server.start_again();
    assert_eq!(chained(&publisher, &batch).await, vec![CONFIRMED; 3]);
}

#[tokio::test]
async fn a_user_without_the_right_to_scripts_does_not_chain() {
    let server = Server::start(&[]);
    let user = ["ACL", "SETUSER", "writer", "on", ">pw", "~*", "+xadd"];
    ask(&server.client(), &user).await;
    let config = RedisConfig::new(server.client_as("user=writer&pass=pw"));
    let publisher = publisher(config.clone()).await;
    assert!(!publisher.chains_keys());
    let answers = publisher.publish_all(&chain(&["t"]), WITHIN).await;
    assert_eq!(answers, [CONFIRMED]);
}

/// Nothing was added, so the first of the chain is asked by itself; from then on there are no chains.
#[tokio::test]
async fn a_right_to_scripts_that_is_taken_away_costs_no_message_and_ends_the_chains() {
    let server = Server::start(&[]);
    let user = [
        "ACL", "SETUSER", "writer", "on", ">pw", "~*", "+xadd", "+eval",
    ];
    ask(&server.client(), &user).await;
    let config = RedisConfig::new(server.client_as("user=writer&pass=pw"));
    let publisher = publisher(config).await;
    assert!(publisher.chains_keys());
    ask(&server.client(), &["ACL", "SETUSER", "writer", "-eval"]).await;
    let answers = chained(&publisher, &chain(&["t", "t", "t"])).await;
    assert_eq!(answers, [CONFIRMED, None, None]);
    assert!(!publisher.chains_keys());
    assert_eq!(payloads(&server.client(), "t").await, ["0"]);
}

/// Such a script is refused as a whole, which must not be the end of the messages before that one.
#[tokio::test]
async fn a_stream_that_the_user_may_not_touch_ends_a_chain_where_it_comes() {
    let server = Server::start(&[]);
    let user = [
        "ACL", "SETUSER", "writer", "on", ">pw", "~a", "~first", "+xadd", "+eval",
    ];
    ask(&server.client(), &user).await;
    let config = RedisConfig::new(server.client_as("user=writer&pass=pw"));
    let publisher = publisher(config).await;
    assert!(publisher.chains_keys());
    let batch = chain(&["a", "a", "secret", "a"]);
    let answers = chained(&publisher, &batch).await;
    assert_eq!(answers, [CONFIRMED, None, None, None]);
    let answers = chained(&publisher, &batch[1..]).await;
    assert_eq!(answers, [CONFIRMED, None, None]);
    let answers = chained(&publisher, &batch[2..]).await;
    ends(&answers, 0, PublishErrorKind::TopicUnavailable, "NOPERM ");
    assert!(publisher.chains_keys());
    assert_eq!(payloads(&server.client(), "a").await, ["0", "1"]);
}

#[tokio::test]
async fn what_the_commands_of_a_script_may_not_do_is_an_outage() {
    let server = Server::start(&[]);
    let user = [
        "ACL", "SETUSER", "writer", "on", ">pw", "~*", "+eval", "+xadd",
    ];
    ask(&server.client(), &user).await;
    let config = RedisConfig::new(server.client_as("user=writer&pass=pw"));
    let publisher = publisher(config).await;
    ask(&server.client(), &["ACL", "SETUSER", "writer", "-xadd"]).await;
    let answers = chained(&publisher, &chain(&["t", "t"])).await;
    let (kind, reason) = refusal(&answers[0]);
    assert_eq!(kind, PublishErrorKind::BrokerUnavailable, "{reason}");
    assert_eq!(payloads(&server.client(), "t").await, [""; 0]);
}

#[tokio::test]
async fn what_replicas_do_not_have_is_not_confirmed() {
    let server = Server::start(&[]);
    let config = RedisConfig::new(server.client());
    let config = config.wait_for_replicas(1, Duration::from_millis(50));
    let publisher = publisher(config).await;
    let batch: Vec<Message> = (0..600).map(|n| message("t", "k", n.to_string())).collect();
    let answers = chained(&publisher, &batch).await;
    ends(&answers, 0, PublishErrorKind::BrokerUnavailable, "");
    assert!(refusal(&answers[0]).1.contains("0 have it"));
    // The first script alone has run: a prefix.
    let there = payloads(&server.client(), "t").await;
    let expected: Vec<String> = (0..256).map(|n| n.to_string()).collect();
    assert_eq!(there, expected);
}

#[tokio::test]
async fn a_chain_trims_as_single_entries_do() {
    let server = Server::start(&["--stream-node-max-entries", "10"]);
    let config = RedisConfig::new(server.client());
    let publisher = publisher(config.trim(Trim::Entries(50))).await;
    let batch: Vec<Message> = (0..500).map(|n| message("t", "k", n.to_string())).collect();
    let answers = chained(&publisher, &batch).await;
    assert!(answers.iter().all(|answer| *answer == CONFIRMED));
    let there = payloads(&server.client(), "t").await;
    assert!((50..=60).contains(&there.len()), "{}", there.len());
    assert_eq!(there.last().map(String::as_str), Some("499"));
}

/// A large message travels by itself, and in its place.
#[tokio::test]
async fn a_large_message_in_a_chain_keeps_its_place() {
    let server = Server::start(&["--proto-max-bulk-len", "1048576"]);
    let publisher = publisher(RedisConfig::new(server.client())).await;
    let sizes = [10, 300_000, 10, 700_000, 400_000, 10];
    let batch: Vec<Message> = sizes
        .iter()
        .map(|&size| message("t", "k", vec![b'x'; size]))
        .collect();
    assert_eq!(chained(&publisher, &batch).await, vec![CONFIRMED; 6]);
    let there = payloads(&server.client(), "t").await;
    assert!(there.iter().map(String::len).eq(sizes));

    let batch: Vec<Message> = [10, 2_000_000, 10]
        .iter()
        .map(|&size| message("u", "k", vec![b'x'; size]))
        .collect();
    let answers = chained(&publisher, &batch).await;
    assert_eq!((&answers[0], &answers[2]), (&CONFIRMED, &None));
    refusal(&answers[1]);
    assert_eq!(payloads(&server.client(), "u").await.len(), 1);
}
