//! What the tests know of the real server: queues of their own, and what arrived in them, read with
//! the client and none of our crates.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{
    BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, ExchangeDeclareOptions,
    ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use outbox_conformance::address;
use outbox_core::Uuid;

/// How long the server has for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A message as a consumer sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Received {
    pub(crate) routing_key: String,
    pub(crate) message_id: Option<String>,
    pub(crate) delivery_mode: Option<u8>,
    pub(crate) headers: BTreeMap<String, AMQPValue>,
    pub(crate) body: Vec<u8>,
}

/// A name that nobody else uses.
pub(crate) fn new_name() -> String {
    format!("test-{}", Uuid::now_v7().simple())
}

/// The address of the server that tests share.
pub(crate) fn url() -> String {
    address("OUTBOX_TEST_RABBITMQ_URL")
}

/// The address of the server that one test at a time may break.
pub(crate) fn faults_url() -> String {
    address("OUTBOX_TEST_RABBITMQ_FAULTS_URL")
}

/// Runs rabbitmqctl against a node.
pub(crate) async fn rabbitmqctl(node: &'static str, arguments: &[&str]) {
    let mut all = vec!["rabbitmqctl".to_owned(), node.to_owned(), "-q".to_owned()];
    all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    tokio::task::spawn_blocking(move || services(&all))
        .await
        .expect("scripts/services");
}

/// Runs `scripts/services`.
pub(crate) fn services(arguments: &[impl AsRef<std::ffi::OsStr>]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/services");
    let output = Command::new(script)
        .args(arguments)
        .output()
        .expect("scripts/services");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/services: {said}");
}

/// A connection of the test's own, with a channel.
pub(crate) struct Server {
    connection: Connection,
    pub(crate) channel: Channel,
}

impl Server {
    pub(crate) async fn connect(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default())
            .await
            .expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        Self {
            connection,
            channel,
        }
    }

    /// Makes a durable queue. Its name, which need not be the one that was asked for.
    pub(crate) async fn queue(&self, name: &str) -> String {
        self.queue_with(name, &[]).await
    }

    /// Makes a durable queue with arguments.
    pub(crate) async fn queue_with(&self, name: &str, arguments: &[(&str, AMQPValue)]) -> String {
        let mut table = FieldTable::default();
        for (name, value) in arguments {
            table.insert((*name).into(), value.clone());
        }
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        self.channel
            .queue_declare(name.into(), options, table)
            .await
            .expect("a queue")
            .name()
            .to_string()
    }

    /// Makes an exchange and binds a queue to it.
    pub(crate) async fn exchange(
        &self,
        name: &str,
        kind: ExchangeKind,
        queue: &str,
        pattern: &str,
    ) {
        let options = ExchangeDeclareOptions::default();
        self.channel
            .exchange_declare(name.into(), kind, options, FieldTable::default())
            .await
            .expect("an exchange");
        self.channel
            .queue_bind(
                queue.into(),
                name.into(),
                pattern.into(),
                QueueBindOptions::default(),
                FieldTable::default(),
            )
            .await
            .expect("a binding");
    }

    pub(crate) async fn delete_queue(&self, name: &str) {
        self.channel
            .queue_delete(name.into(), QueueDeleteOptions::default())
            .await
            .expect("the end of a queue");
    }

    pub(crate) async fn delete_exchange(&self, name: &str) {
        self.channel
            .exchange_delete(name.into(), ExchangeDeleteOptions::default())
            .await
            .expect("the end of an exchange");
    }

    /// All that is in a queue now, in its order. It stays there.
    pub(crate) async fn read(&self, queue: &str) -> Vec<Received> {
        let count = self.count(queue).await;
        let mut received = Vec::new();
        if count == 0 {
            return received;
        }
        let mut consumer = self
            .channel
            .basic_consume(
                queue.into(),
                "test".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await
            .expect("a consumer");
        while received.len() < count {
            let next = tokio::time::timeout(PATIENCE, consumer.next()).await;
            let delivery = next.expect("in time").expect("more").expect("a message");
            let table = delivery.properties.headers().clone().unwrap_or_default();
            received.push(Received {
                routing_key: delivery.routing_key.to_string(),
                message_id: delivery
                    .properties
                    .message_id()
                    .as_ref()
                    .map(ToString::to_string),
                delivery_mode: *delivery.properties.delivery_mode(),
                headers: table
                    .into_iter()
                    .map(|(name, value)| (name.to_string(), value.clone()))
                    .collect(),
                body: delivery.data.clone(),
            });
        }
        self.channel
            .basic_cancel("test".into(), BasicCancelOptions::default())
            .await
            .expect("the end of the consumer");
        let all = BasicNackOptions {
            multiple: true,
            requeue: true,
        };
        self.channel.basic_nack(0, all).await.expect("all put back");
        // They are back when the queue has answered.
        self.count(queue).await;
        received
    }

    /// How many messages are in a queue.
    pub(crate) async fn count(&self, queue: &str) -> usize {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let queue = self
            .channel
            .queue_declare(queue.into(), options, FieldTable::default())
            .await
            .expect("a queue that is there");
        queue.message_count() as usize
    }

    pub(crate) async fn close(self) {
        self.connection
            .close(200, "done".into())
            .await
            .expect("the end of the connection");
    }
}
