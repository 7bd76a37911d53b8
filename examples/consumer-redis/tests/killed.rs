//! Kills the program in mid-work.

#![allow(clippy::unwrap_used)]

use consumer::killed::{Server, address, killed_in_mid_work};
use outbox::{Uuid, async_trait};
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd};

struct Redis(String);

impl Redis {
    async fn execute(&self, command: &Cmd) {
        let client = Client::open(self.0.as_str()).unwrap();
        let mut connection: MultiplexedConnection =
            client.get_multiplexed_async_connection().await.unwrap();
        command.exec_async(&mut connection).await.unwrap();
    }
}

#[async_trait]
impl Server for Redis {
    async fn create(&self, _stream: &str) {
        // The first message makes it.
    }

    async fn publish(&self, stream: &str, messages: &[(Uuid, String)]) {
        for (id, payload) in messages {
            let mut command = redis::cmd("XADD");
            command.arg(stream).arg("*");
            command
                .arg("id")
                .arg(id.to_string())
                .arg("payload")
                .arg(payload);
            self.execute(&command).await;
        }
    }

    async fn remove(&self, stream: &str) {
        let mut command = redis::cmd("DEL");
        command.arg(stream);
        self.execute(&command).await;
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("REDIS_URL", self.0.clone()),
            ("INSTANCE", "one".to_owned()),
        ]
    }
}

#[tokio::test]
async fn killed_in_mid_work_it_bills_each_order_once() {
    let redis = Redis(address("OUTBOX_TEST_REDIS_URL"));
    killed_in_mid_work(env!("CARGO_BIN_EXE_consumer-redis"), &redis).await;
}
