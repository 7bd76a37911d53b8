//! Kills the program in mid-work.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use consumer::killed::{Server, address, killed_in_mid_work};
use outbox::{Uuid, async_trait};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};

const PATIENCE: Duration = Duration::from_secs(30);

struct Kafka(String);

impl Kafka {
    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.0);
        config
    }

    fn admin(&self) -> (AdminClient<DefaultClientContext>, AdminOptions) {
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
        (self.config().create().unwrap(), options)
    }
}

#[async_trait]
impl Server for Kafka {
    async fn create(&self, topic: &str) {
        let (admin, options) = self.admin();
        let new = NewTopic::new(topic, 1, TopicReplication::Fixed(1));
        let created = admin.create_topics([&new], &options).await.unwrap();
        created[0].as_ref().unwrap();
    }

    async fn publish(&self, topic: &str, messages: &[(Uuid, String)]) {
        let producer: FutureProducer = self.config().create().unwrap();
        for (id, payload) in messages {
            let id = id.to_string();
            let header = Header {
                key: "outbox-id",
                value: Some(&id),
            };
            let record = FutureRecord::<(), _>::to(topic)
                .payload(payload)
                .headers(OwnedHeaders::new().insert(header));
            producer.send(record, PATIENCE).await.unwrap();
        }
    }

    async fn remove(&self, topic: &str) {
        let (admin, options) = self.admin();
        let deleted = admin.delete_topics(&[topic], &options).await.unwrap();
        deleted[0].as_ref().unwrap();
        // The name of the group is that of the topic. It is empty once its member has left, which is when the
        // session of a member with a name has timed out; what is left of it then expires by itself.
        drop(admin.delete_groups(&[topic], &options).await);
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("KAFKA_BROKERS", self.0.clone()),
            ("INSTANCE", "one".to_owned()),
        ]
    }
}

#[tokio::test]
async fn killed_in_mid_work_it_bills_each_order_once() {
    let kafka = Kafka(address("OUTBOX_TEST_KAFKA"));
    killed_in_mid_work(env!("CARGO_BIN_EXE_consumer-kafka"), &kafka).await;
}
