//! Kills the program in mid-work.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::{self, Context, stream};
use consumer::BATCH;
use consumer::killed::{Server, address, killed_in_mid_work};
use outbox::{Uuid, async_trait};

struct Nats(String);

impl Nats {
    async fn jetstream(&self) -> Context {
        jetstream::new(async_nats::connect(&self.0).await.unwrap())
    }
}

#[async_trait]
impl Server for Nats {
    async fn create(&self, name: &str) {
        let config = stream::Config {
            name: name.to_owned(),
            subjects: vec![name.to_owned()],
            ..stream::Config::default()
        };
        let stream = self.jetstream().await.create_stream(config).await.unwrap();
        // The one that the program would make, but that a message of a killed process comes again soon.
        let config = pull::Config {
            durable_name: Some("billing".to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: Duration::from_secs(1),
            max_ack_pending: i64::try_from(BATCH).unwrap(),
            ..pull::Config::default()
        };
        stream.create_consumer(config).await.unwrap();
    }

    async fn publish(&self, subject: &str, messages: &[(Uuid, String)]) {
        let jetstream = self.jetstream().await;
        for (id, payload) in messages {
            let mut headers = HeaderMap::new();
            headers.insert("Nats-Msg-Id", id.to_string());
            let payload = payload.clone().into();
            let sent = jetstream.publish_with_headers(subject.to_owned(), headers, payload);
            sent.await.unwrap().await.unwrap();
        }
    }

    async fn remove(&self, name: &str) {
        self.jetstream().await.delete_stream(name).await.unwrap();
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("NATS_URL", self.0.clone())]
    }
}

#[tokio::test]
async fn killed_in_mid_work_it_bills_each_order_once() {
    let nats = Nats(address("OUTBOX_TEST_NATS_URL"));
    killed_in_mid_work(env!("CARGO_BIN_EXE_consumer-nats"), &nats).await;
}
