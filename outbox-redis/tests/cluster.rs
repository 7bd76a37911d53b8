//! A cluster of real servers: three, each with a third of the slots, which move and go away.

mod support;

use std::collections::HashSet;
use std::time::Duration;

use outbox_conformance::publisher::refusal;
use outbox_core::{Message, PublishError, PublishErrorKind, PublisherExt};
use outbox_redis::{RedisConfig, RedisPublisher};
use redis::Value;
use support::server::Server;
use support::{ask, message, payloads, until};

const WITHIN: Duration = Duration::from_secs(30);
const CONFIRMED: Option<Result<(), PublishError>> = Some(Ok(()));

/// Topics whose slots are on the first, the second and the third server.
const TOPICS: [&str; 3] = ["orders", "c", "t"];

struct Cluster {
    servers: Vec<Server>,
}

impl Cluster {
    async fn start() -> Self {
        let servers: Vec<Server> = (0..3)
            .map(|_| {
                Server::start(&[
                    "--cluster-enabled",
                    "yes",
                    "--cluster-require-full-coverage",
                    "no",
                ])
            })
            .collect();
        let slots = [["0", "5460"], ["5461", "10922"], ["10923", "16383"]];
        for (number, (server, [first, last])) in servers.iter().zip(slots).enumerate() {
            let client = server.client();
            ask(&client, &["CLUSTER", "ADDSLOTSRANGE", first, last]).await;
            let epoch = (number + 1).to_string();
            ask(&client, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
            let first = servers[0].port().to_string();
            ask(&client, &["CLUSTER", "MEET", "127.0.0.1", &first]).await;
        }
        let cluster = Self { servers };
        for server in &cluster.servers {
            until("the cluster is complete", async || {
                let info = ask(&server.client(), &["CLUSTER", "INFO"]).await;
                let info = format!("{info:?}");
                info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
            })
            .await;
        }
        cluster
    }

    fn publisher(&self) -> RedisPublisher {
        let config = RedisConfig::new(self.servers[0].tcp_client())
            .cluster(true)
            .connect_timeout(Duration::from_secs(2))
            .response_timeout(Duration::from_secs(2));
        RedisPublisher::new(config).expect("a configuration that is accepted")
    }

    /// Gives a slot to another server, as a resharding does.
    async fn move_slot(&self, slot: &str, to: usize) {
        let Value::BulkString(id) = ask(&self.servers[to].client(), &["CLUSTER", "MYID"]).await
        else {
            panic!("a server has an id");
        };
        let id = String::from_utf8(id).expect("text");
        // The one that gets it first, so that it is never without a server.
        let others = (0..self.servers.len()).filter(|number| *number != to);
        for number in [to].into_iter().chain(others) {
            let client = self.servers[number].client();
            ask(&client, &["CLUSTER", "SETSLOT", slot, "NODE", &id]).await;
        }
    }
}

/// One message to each of the topics.
fn one_each() -> Vec<Message> {
    TOPICS.map(|topic| message(topic, "k", topic)).into()
}

#[tokio::test]
async fn every_stream_is_found_at_its_server_and_in_order() {
    let cluster = Cluster::start().await;
    let publisher = cluster.publisher();
    let batch: Vec<Message> = (0..3_000)
        .map(|n| message(&format!("topic-{}", n % 100), "k", n.to_string()))
        .collect();
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!(answers, vec![CONFIRMED; 3_000]);
    let mut used = HashSet::new();
    for topic in 0..100 {
        let stream = format!("topic-{topic}");
        let mut found = Vec::new();
        for (number, server) in cluster.servers.iter().enumerate() {
            let Value::Array(keys) = ask(&server.client(), &["KEYS", &stream]).await else {
                panic!("KEYS answers with an array");
            };
            if !keys.is_empty() {
                found = payloads(&server.client(), &stream).await;
                used.insert(number);
            }
        }
        let sent: Vec<String> = (0..30).map(|n| (n * 100 + topic).to_string()).collect();
        assert_eq!(found, sent, "{stream}");
    }
    assert_eq!(used.len(), 3);
}

#[tokio::test]
async fn without_the_setting_what_lives_elsewhere_is_its_topics_trouble() {
    let cluster = Cluster::start().await;
    let config = RedisConfig::new(cluster.servers[1].client());
    let publisher = RedisPublisher::new(config).expect("a configuration that is accepted");
    let answers = publisher.publish_all(&one_each(), WITHIN).await;
    assert_eq!(answers[1], CONFIRMED);
    for elsewhere in [&answers[0], &answers[2]] {
        let (kind, reason) = refusal(elsewhere);
        assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
        assert!(reason.starts_with("MOVED "), "{reason}");
    }
}

#[tokio::test]
async fn a_slot_that_moves_is_found_again_by_the_next_call() {
    let cluster = Cluster::start().await;
    let publisher = cluster.publisher();
    let confirmed = vec![CONFIRMED; 3];
    assert_eq!(publisher.publish_all(&one_each(), WITHIN).await, confirmed);
    // That of the topic `u`, which nobody has written to.
    cluster.move_slot("11826", 0).await;
    let batch = [message("u", "k", "1"), message("orders", "k", "2")];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    let (kind, reason) = refusal(&answers[0]);
    assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
    assert!(reason.starts_with("MOVED 11826 "), "{reason}");
    assert_eq!(answers[1], CONFIRMED);
    until("its new server is known", async || {
        publisher.publish_all(&batch, WITHIN).await == vec![CONFIRMED; 2]
    })
    .await;
    assert_eq!(payloads(&cluster.servers[0].client(), "u").await, ["1"]);
}

#[tokio::test]
async fn a_server_that_is_away_is_the_trouble_of_its_topics_and_all_of_them_are_an_outage() {
    let mut cluster = Cluster::start().await;
    let publisher = cluster.publisher();
    let confirmed = vec![CONFIRMED; 3];
    assert_eq!(publisher.publish_all(&one_each(), WITHIN).await, confirmed);
    cluster.servers[2].kill();
    for _ in 0..3 {
        let answers = publisher.publish_all(&one_each(), WITHIN).await;
        assert_eq!(answers[..2], confirmed[..2]);
        let (kind, reason) = refusal(&answers[2]);
        assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
    }
    cluster.servers[2].start_again();
    until("the server is used again", async || {
        publisher.publish_all(&one_each(), WITHIN).await == confirmed
    })
    .await;

    for server in &mut cluster.servers {
        server.kill();
    }
    until("nobody can be asked", async || {
        let answers = publisher.publish_all(&one_each(), WITHIN).await;
        answers
            .iter()
            .all(|answer| refusal(answer).0 == PublishErrorKind::BrokerUnavailable)
    })
    .await;
}

#[tokio::test]
async fn a_server_of_no_cluster_is_an_outage_with_its_reason() {
    let server = Server::start(&[]);
    let config = RedisConfig::new(server.client()).cluster(true);
    let publisher = RedisPublisher::new(config).expect("a configuration that is accepted");
    for answer in publisher.publish_all(&one_each(), WITHIN).await {
        let (kind, reason) = refusal(&answer);
        assert_eq!(kind, PublishErrorKind::BrokerUnavailable, "{reason}");
        assert!(reason.contains("cluster support disabled"), "{reason}");
    }
}

#[tokio::test]
async fn a_cluster_without_slots_is_the_topics_trouble() {
    let server = Server::start(&["--cluster-enabled", "yes"]);
    let config = RedisConfig::new(server.client()).cluster(true);
    let publisher = RedisPublisher::new(config).expect("a configuration that is accepted");
    for answer in publisher.publish_all(&one_each(), WITHIN).await {
        let (kind, reason) = refusal(&answer);
        assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
        assert!(
            reason.contains("no server of the cluster has slot"),
            "{reason}"
        );
    }
}
