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

    async fn id(&self, server: usize) -> String {
        let client = self.servers[server].client();
        let Value::BulkString(id) = ask(&client, &["CLUSTER", "MYID"]).await else {
            panic!("a server has an id");
        };
        String::from_utf8(id).expect("text")
    }

    /// Begins to move a slot: its server has what it has, and for the rest names the other one.
    async fn begin_to_move_slot(&self, slot: &str, from: usize, to: usize) {
        let id = self.id(from).await;
        let client = self.servers[to].client();
        ask(&client, &["CLUSTER", "SETSLOT", slot, "IMPORTING", &id]).await;
        let id = self.id(to).await;
        let client = self.servers[from].client();
        ask(&client, &["CLUSTER", "SETSLOT", slot, "MIGRATING", &id]).await;
    }

    /// Gives a slot to another server, as a resharding does.
    async fn move_slot(&self, slot: &str, to: usize) {
        let id = self.id(to).await;
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

    // Half-way to another server: a stream that is there is written to, and one that is not waits.
    cluster.begin_to_move_slot("11826", 0, 2).await;
    let batch = [message("{u}.new", "k", "3"), message("u", "k", "4")];
    for _ in 0..2 {
        let answers = publisher.publish_all(&batch, WITHIN).await;
        let (kind, reason) = refusal(&answers[0]);
        assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
        assert!(reason.starts_with("ASK 11826 "), "{reason}");
        assert_eq!(answers[1], CONFIRMED);
    }
    for server in &cluster.servers {
        let stays = ["CLUSTER", "SETSLOT", "11826", "STABLE"];
        ask(&server.client(), &stays).await;
    }
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!(answers, [CONFIRMED, CONFIRMED]);
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

/// As the servers say it to a publisher that is not told of the cluster.
#[tokio::test]
async fn a_slot_that_nobody_has_is_its_topics_trouble_and_a_cluster_that_is_down_an_outage() {
    let server = Server::start(&["--cluster-enabled", "yes"]);
    let client = server.client();
    let publisher = RedisPublisher::new(RedisConfig::new(client.clone())).expect("a configuration");
    let all_fail_as = async |kind: PublishErrorKind, said: &str| {
        for answer in publisher.publish_all(&one_each(), WITHIN).await {
            let (answered, reason) = refusal(&answer);
            assert_eq!(answered, kind, "{reason}");
            assert!(reason.starts_with(said), "{reason}");
        }
    };
    let said = "CLUSTERDOWN Hash slot not served";
    all_fail_as(PublishErrorKind::TopicUnavailable, said).await;

    // It has all but one, and demands all.
    ask(&client, &["CLUSTER", "ADDSLOTSRANGE", "1", "16383"]).await;
    let said = "CLUSTERDOWN The cluster is down";
    all_fail_as(PublishErrorKind::BrokerUnavailable, said).await;

    ask(&client, &["CLUSTER", "ADDSLOTS", "0"]).await;
    until("the cluster is complete", async || {
        publisher.publish_all(&one_each(), WITHIN).await == vec![CONFIRMED; 3]
    })
    .await;
}
