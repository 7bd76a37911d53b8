//! What no test may do to a shared server: it is away, it is silent, it forgets the producer. Played by
//! a closed port, by a listener that says nothing, and by the client's mock cluster.

mod support;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use outbox_core::{Message, PublishErrorKind, PublisherExt};
use outbox_kafka::{ClientConfig, KafkaPublisher};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use support::{fails_as, new_topic, read_from, within};

const WITHIN: Duration = Duration::from_secs(30);

fn publisher(servers: &str) -> KafkaPublisher {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", servers)
        .set("delivery.timeout.ms", "1500")
        .set("reconnect.backoff.ms", "10")
        .set("reconnect.backoff.max.ms", "100");
    KafkaPublisher::new(config).expect("a configuration that is accepted")
}

fn cluster() -> MockCluster<'static, DefaultProducerContext> {
    MockCluster::new(1).expect("a mock cluster")
}

fn message(topic: &str, name: &str) -> Message {
    Message::to(topic)
        .key("k")
        .bytes(name.to_owned())
        .expect("valid")
}

/// A port where nothing listens.
fn closed_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").to_string()
}

#[tokio::test]
async fn a_broker_that_is_away_is_an_outage_with_its_reason() {
    let publisher = publisher(&closed_port());
    let answers = publisher.publish_all(&[message("t", "1")], WITHIN).await;
    let reason = fails_as(&answers[0], PublishErrorKind::BrokerUnavailable);
    assert!(reason.contains("not confirmed within 1500 ms"), "{reason}");
    assert!(reason.contains("Connection refused"), "{reason}");
}

#[tokio::test]
async fn a_broker_that_says_nothing_is_an_outage() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let publisher = publisher(&listener.local_addr().expect("its address").to_string());
    let start = Instant::now();
    let answers = publisher.publish_all(&[message("t", "1")], WITHIN).await;
    within(Duration::from_secs(10), start);
    fails_as(&answers[0], PublishErrorKind::BrokerUnavailable);
}

#[tokio::test]
async fn a_broker_that_stops_answering_is_an_outage_until_it_answers() {
    let cluster = cluster();
    let topic = new_topic();
    cluster.create_topic(&topic, 1, 1).expect("a topic");
    let publisher = publisher(&cluster.bootstrap_servers());
    let batch = [message(&topic, "1")];
    assert_eq!(publisher.publish_all(&batch, WITHIN).await, [Some(Ok(()))]);
    cluster
        .broker_round_trip_time(1, Duration::from_secs(3_600))
        .expect("a frozen broker");
    let start = Instant::now();
    let answers = publisher.publish_all(&batch, WITHIN).await;
    within(Duration::from_secs(10), start);
    fails_as(&answers[0], PublishErrorKind::BrokerUnavailable);
    cluster
        .broker_round_trip_time(1, Duration::ZERO)
        .expect("a broker that answers");
    // Connections that were opened meanwhile are still frozen, until the client gives them up.
    let deadline = Instant::now() + WITHIN;
    while publisher.publish_all(&batch, WITHIN).await != [Some(Ok(()))] {
        assert!(
            Instant::now() < deadline,
            "a broker that answers is not used"
        );
    }
}

#[tokio::test]
async fn a_broker_that_comes_back_takes_messages_again() {
    let cluster = cluster();
    let topic = new_topic();
    cluster.create_topic(&topic, 1, 1).expect("a topic");
    let publisher = publisher(&cluster.bootstrap_servers());
    let batch = [message(&topic, "1")];
    assert_eq!(publisher.publish_all(&batch, WITHIN).await, [Some(Ok(()))]);
    cluster.broker_down(1).expect("down");
    let answers = publisher.publish_all(&batch, WITHIN).await;
    fails_as(&answers[0], PublishErrorKind::BrokerUnavailable);
    cluster.broker_up(1).expect("up");
    assert_eq!(publisher.publish_all(&batch, WITHIN).await, [Some(Ok(()))]);
}

#[tokio::test]
async fn a_partition_without_a_leader_is_the_topics_trouble() {
    let cluster = cluster();
    let (there, headless) = (new_topic(), new_topic());
    cluster.create_topic(&there, 1, 1).expect("a topic");
    cluster.create_topic(&headless, 1, 1).expect("a topic");
    cluster
        .partition_leader(&headless, 0, None)
        .expect("no leader");
    let publisher = publisher(&cluster.bootstrap_servers());
    let batch = [message(&headless, "1"), message(&there, "2")];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    fails_as(&answers[0], PublishErrorKind::TopicUnavailable);
    assert_eq!(answers[1], Some(Ok(())));
}

/// The client calls that delivered, and counts offsets from -1 on.
#[tokio::test]
async fn a_duplicate_without_an_offset_is_not_confirmed() {
    let cluster = cluster();
    let topic = new_topic();
    cluster.create_topic(&topic, 1, 1).expect("a topic");
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .set("linger.ms", "50");
    let publisher = KafkaPublisher::new(config).expect("a configuration that is accepted");
    let warm_up = [message(&topic, "0")];
    assert_eq!(
        publisher.publish_all(&warm_up, WITHIN).await,
        [Some(Ok(()))]
    );
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_DUPLICATE_SEQUENCE_NUMBER],
    );
    let batch = ["1", "2", "3"].map(|name| Message::to(&topic).key(name).bytes(name));
    let batch = batch.map(|message| message.expect("valid"));
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!(answers, vec![Some(Ok(())); 3]);
    let records = read_from(&cluster.bootstrap_servers(), &topic).await;
    let values: Vec<_> = records.into_iter().filter_map(|it| it.value).collect();
    assert_eq!(values, [b"0", b"1", b"2", b"3"]);
}

#[tokio::test]
async fn too_few_replicas_are_the_topics_trouble() {
    let cluster = cluster();
    let topic = new_topic();
    cluster.create_topic(&topic, 1, 1).expect("a topic");
    let publisher = publisher(&cluster.bootstrap_servers());
    // The client repeats it until the delivery timeout.
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS; 100],
    );
    let batch = [message(&topic, "1")];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    let reason = fails_as(&answers[0], PublishErrorKind::TopicUnavailable);
    assert!(
        reason.contains("within 1500 ms, though the cluster answers"),
        "{reason}"
    );
    cluster.clear_request_errors(RDKafkaApiKey::Produce);
    assert_eq!(publisher.publish_all(&batch, WITHIN).await, [Some(Ok(()))]);
}

#[tokio::test]
async fn a_lost_producer_is_an_outage_and_is_replaced() {
    let cluster = cluster();
    let topic = new_topic();
    cluster.create_topic(&topic, 1, 1).expect("a topic");
    // It takes the client's right to be an idempotent producer, once: a fatal error of the client.
    cluster.request_errors(
        RDKafkaApiKey::InitProducerId,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED],
    );
    let publisher = publisher(&cluster.bootstrap_servers());
    let batch = [message(&topic, "1"), message(&topic, "2")];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    for answer in &answers {
        let reason = fails_as(answer, PublishErrorKind::BrokerUnavailable);
        assert!(reason.contains("ClusterAuthorizationFailed"), "{reason}");
    }
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!(answers, [Some(Ok(())), Some(Ok(()))]);
}

#[tokio::test]
async fn what_a_dropped_call_left_behind_stays_in_front_of_its_repeat() {
    let cluster = cluster();
    let topic = new_topic();
    cluster.create_topic(&topic, 1, 1).expect("a topic");
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .set("reconnect.backoff.max.ms", "100");
    let publisher = KafkaPublisher::new(config).expect("a configuration that is accepted");
    let warm = [message(&topic, "0")];
    assert_eq!(publisher.publish_all(&warm, WITHIN).await, [Some(Ok(()))]);

    cluster.broker_down(1).expect("down");
    let batch = [message(&topic, "1"), message(&topic, "2")];
    let answers = publisher
        .publish_all(&batch[..1], Duration::from_millis(300))
        .await;
    assert_eq!(answers, [None]);
    cluster.broker_up(1).expect("up");
    for one in batch.chunks(1) {
        assert_eq!(publisher.publish_all(one, WITHIN).await, [Some(Ok(()))]);
    }
    let order: Vec<_> = read_from(&cluster.bootstrap_servers(), &topic)
        .await
        .into_iter()
        .filter_map(|record| record.value)
        .collect();
    assert_eq!(order, [b"0", b"1", b"1", b"2"]);
}

#[tokio::test]
async fn dropping_the_publisher_in_an_outage_does_not_hold_up_the_runtime() {
    let batch: Vec<Message> = (0..1_000).map(|n| message("t", &n.to_string())).collect();
    let mut all = Duration::ZERO;
    for _ in 0..5 {
        let publisher = publisher(&closed_port());
        publisher
            .publish_all(&batch, Duration::from_millis(50))
            .await;
        let start = Instant::now();
        drop(publisher);
        all += start.elapsed();
    }
    assert!(all < Duration::from_millis(400), "five drops took {all:?}");
}

#[tokio::test]
async fn a_publisher_needs_no_broker_to_begin_with() {
    let start = Instant::now();
    let publisher = publisher(&closed_port());
    within(Duration::from_secs(1), start);
    assert_eq!(publisher.publish_all(&[], WITHIN).await, []);
}

#[test]
fn what_the_client_refuses_is_named_without_secrets() {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", closed_port())
        .set("sasl.password", "hunter2")
        .set("no.such.property", "hunter2");
    let error = KafkaPublisher::new(config).expect_err("a property that does not exist");
    assert_eq!(
        error.to_string(),
        "the Kafka client refuses the configuration: `no.such.property`: No such configuration \
         property: \"no.such.property\""
    );
}

#[test]
fn debug_shows_no_secret() {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", closed_port())
        .set("sasl.password", "hunter2");
    let publisher = KafkaPublisher::new(config).expect("a configuration that is accepted");
    assert!(!format!("{publisher:?}").contains("hunter2"));
}
