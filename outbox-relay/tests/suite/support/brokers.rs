//! What is at each real broker, by the client's own means: topics that are made and removed, and what a
//! consumer finds in them.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt as _;
use outbox_conformance::address;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::PATIENCE;

pub(crate) type Ids = BTreeSet<String>;

/// The settings of all four, under the names of their kinds. Redis is the last, to go on with its settings.
pub(crate) fn settings() -> String {
    format!(
        "[broker.amqp]\nkind = \"amqp\"\nurl = \"{}\"\n\
         [broker.kafka]\nkind = \"kafka\"\nproperties.\"bootstrap.servers\" = \"{}\"\n\
         [broker.nats]\nkind = \"nats\"\nurl = \"{}\"\n\
         [broker.redis]\nkind = \"redis\"\nurl = \"{}\"\n",
        address("OUTBOX_TEST_RABBITMQ_URL"),
        address("OUTBOX_TEST_KAFKA"),
        address("OUTBOX_TEST_NATS_URL"),
        address("OUTBOX_TEST_REDIS_URL"),
    )
}

fn kafka() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", address("OUTBOX_TEST_KAFKA"));
    config
}

pub(crate) async fn create_kafka_topic(topic: &str) {
    let admin: AdminClient<_> = kafka().create().expect("an admin client");
    let new = NewTopic::new(topic, 1, TopicReplication::Fixed(1));
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    let created = admin
        .create_topics([&new], &options)
        .await
        .expect("an answer");
    for result in created {
        result.expect("a topic is created");
    }
}

pub(crate) async fn delete_kafka_topic(topic: &str) {
    let admin: AdminClient<_> = kafka().create().expect("an admin client");
    let deleted = admin.delete_topics(&[topic], &AdminOptions::new()).await;
    for result in deleted.expect("an answer to the deletion of a topic") {
        result.expect("a topic is deleted");
    }
}

/// Reads until there are so many.
pub(crate) async fn kafka_ids(topic: &str, count: usize) -> Ids {
    let topic = topic.to_owned();
    let reading = tokio::task::spawn_blocking(move || {
        let consumer: BaseConsumer = kafka()
            .set("group.id", "outbox-test")
            .set("enable.auto.commit", "false")
            .create()
            .expect("a consumer");
        let mut assignment = TopicPartitionList::new();
        let assigned = assignment.add_partition_offset(&topic, 0, Offset::Beginning);
        assigned.expect("an offset");
        consumer.assign(&assignment).expect("an assignment");
        let start = std::time::Instant::now();
        let mut ids = Ids::new();
        while ids.len() < count {
            assert!(start.elapsed() < PATIENCE, "{topic} was not read in time");
            let Some(message) = consumer.poll(Duration::from_millis(100)) else {
                continue;
            };
            let message = message.expect("a message");
            let headers = message.headers().expect("headers");
            let id = headers.iter().find(|header| header.key == "outbox-id");
            let id = id.and_then(|header| header.value).expect("a message id");
            ids.insert(String::from_utf8(id.to_vec()).expect("text"));
        }
        ids
    });
    reading.await.expect("reading")
}

pub(crate) async fn create_queue(queue: &str) {
    let channel = channel().await;
    let options = lapin::options::QueueDeclareOptions {
        durable: true,
        ..Default::default()
    };
    let declared = channel.queue_declare(queue.into(), options, Default::default());
    declared.await.expect("a queue");
}

pub(crate) async fn delete_queue(queue: &str) {
    let channel = channel().await;
    let deleted = channel.queue_delete(queue.into(), Default::default());
    deleted.await.expect("it is deleted");
}

pub(crate) async fn queue_ids(queue: &str) -> Ids {
    let channel = channel().await;
    let mut ids = Ids::new();
    let options = lapin::options::BasicGetOptions { no_ack: true };
    while let Some(got) = channel
        .basic_get(queue.into(), options)
        .await
        .expect("an answer")
    {
        let id = got.delivery.properties.message_id().clone();
        ids.insert(id.expect("a message id").to_string());
    }
    ids
}

async fn channel() -> lapin::Channel {
    let url = address("OUTBOX_TEST_RABBITMQ_URL");
    let connection = lapin::Connection::connect(&url, lapin::ConnectionProperties::default());
    let connection = connection.await.expect("RabbitMQ");
    connection.create_channel().await.expect("a channel")
}

async fn jetstream() -> async_nats::jetstream::Context {
    let client = async_nats::connect(address("OUTBOX_TEST_NATS_URL")).await;
    async_nats::jetstream::new(client.expect("NATS"))
}

pub(crate) async fn create_stream(name: &str, subject: &str) {
    let config = async_nats::jetstream::stream::Config {
        name: name.to_owned(),
        subjects: vec![subject.to_owned()],
        ..Default::default()
    };
    let created = jetstream().await.create_stream(config).await;
    created.expect("a stream is created");
}

pub(crate) async fn delete_stream(name: &str) {
    let deleted = jetstream().await.delete_stream(name).await;
    deleted.expect("a stream is deleted");
}

pub(crate) async fn stream_ids(name: &str, count: usize) -> Ids {
    use async_nats::jetstream::consumer::{AckPolicy, pull};
    let stream = jetstream()
        .await
        .get_stream(name)
        .await
        .expect("the stream");
    let config = pull::Config {
        ack_policy: AckPolicy::None,
        ..Default::default()
    };
    let consumer = stream.create_consumer(config).await.expect("a consumer");
    let fetching = consumer.fetch().max_messages(count).messages();
    let mut batch = fetching.await.expect("a batch");
    let mut ids = Ids::new();
    while let Some(message) = batch.next().await {
        let message = message.expect("a message");
        let headers = message.headers.as_ref().expect("headers");
        let id = headers.get("Nats-Msg-Id").expect("a message id");
        ids.insert(id.to_string());
    }
    ids
}

type Fields = Vec<(String, Vec<u8>)>;

/// The entries of a stream at Redis: for each the fields by name.
pub(crate) async fn redis_entries(stream: &str) -> Vec<Fields> {
    let mut connection = redis_connection().await;
    let entries: Vec<(String, Fields)> = redis::cmd("XRANGE")
        .arg(stream)
        .arg("-")
        .arg("+")
        .query_async(&mut connection)
        .await
        .expect("all entries of a stream");
    entries.into_iter().map(|(_, fields)| fields).collect()
}

/// The number of entries of a stream at Redis.
pub(crate) async fn redis_length(stream: &str) -> u64 {
    let mut connection = redis_connection().await;
    let mut length = redis::cmd("XLEN");
    let length = length.arg(stream).query_async(&mut connection).await;
    length.expect("the length of a stream")
}

pub(crate) async fn redis_ids(stream: &str) -> Ids {
    let entries = redis_entries(stream).await;
    let id = |fields: Fields| fields.into_iter().find(|(name, _)| name == "id");
    entries
        .into_iter()
        .filter_map(id)
        .map(|(_, id)| String::from_utf8(id).expect("text"))
        .collect()
}

/// Makes a stream with a first entry: Redis has no empty ones.
pub(crate) async fn create_redis_stream(stream: &str) {
    let mut connection = redis_connection().await;
    let mut add = redis::cmd("XADD");
    let added = add.arg(stream).arg("*").arg("first").arg("");
    let added = added.exec_async(&mut connection).await;
    added.expect("a stream is created");
}

pub(crate) async fn delete_redis_stream(stream: &str) {
    let mut connection = redis_connection().await;
    let deleted: redis::RedisResult<u32> = redis::cmd("DEL")
        .arg(stream)
        .query_async(&mut connection)
        .await;
    deleted.expect("a stream is deleted");
}

async fn redis_connection() -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(address("OUTBOX_TEST_REDIS_URL")).expect("an address");
    // The machine may be busy, and the client's own patience is short.
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    connection.await.expect("Redis")
}
