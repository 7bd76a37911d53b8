//! Kills the program in mid-work.

#![allow(clippy::unwrap_used)]

use consumer::killed::{Server, address, killed_in_mid_work};
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use outbox::{Uuid, async_trait};

struct RabbitMq(String);

impl RabbitMq {
    async fn channel(&self) -> Channel {
        let connection = Connection::connect(&self.0, ConnectionProperties::default());
        connection.await.unwrap().create_channel().await.unwrap()
    }
}

#[async_trait]
impl Server for RabbitMq {
    async fn create(&self, queue: &str) {
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let channel = self.channel().await;
        let declared = channel.queue_declare(queue.into(), options, FieldTable::default());
        declared.await.unwrap();
    }

    async fn publish(&self, queue: &str, messages: &[(Uuid, String)]) {
        let channel = self.channel().await;
        let options = ConfirmSelectOptions::default();
        channel.confirm_select(options).await.unwrap();
        for (id, payload) in messages {
            let properties = BasicProperties::default()
                .with_delivery_mode(2)
                .with_message_id(id.to_string().into());
            let options = BasicPublishOptions::default();
            let sent = channel.basic_publish(
                "".into(),
                queue.into(),
                options,
                payload.as_bytes(),
                properties,
            );
            sent.await.unwrap().await.unwrap();
        }
    }

    async fn remove(&self, queue: &str) {
        let channel = self.channel().await;
        let options = QueueDeleteOptions::default();
        channel.queue_delete(queue.into(), options).await.unwrap();
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("AMQP_URL", self.0.clone())]
    }
}

#[tokio::test]
async fn killed_in_mid_work_it_bills_each_order_once() {
    let rabbitmq = RabbitMq(address("OUTBOX_TEST_RABBITMQ_URL"));
    killed_in_mid_work(env!("CARGO_BIN_EXE_consumer-amqp"), &rabbitmq).await;
}
