//! Kills the program in mid-work, and has it meet what stops a consumer that is not ready for it.

#![allow(clippy::unwrap_used)]

use consumer::killed::{Server, address, killed_in_mid_work, with_scene};
use consumer::prepare;
use outbox::{Uuid, async_trait};
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd};
use sqlx::PgPool;

const PROGRAM: &str = env!("CARGO_BIN_EXE_consumer-redis");

struct Redis(String);

impl Redis {
    async fn execute(&self, command: &Cmd) {
        let client = Client::open(self.0.as_str()).unwrap();
        let mut connection: MultiplexedConnection =
            client.get_multiplexed_async_connection().await.unwrap();
        command.exec_async(&mut connection).await.unwrap();
    }
}

impl Redis {
    /// Makes what an instance has not acknowledged look so many milliseconds old.
    async fn idle(&self, stream: &str, instance: &str, milliseconds: &str) {
        let client = Client::open(self.0.as_str()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut pending = redis::cmd("XPENDING");
        pending.arg(&[stream, "billing", "-", "+", "1000", instance]);
        let pending: Vec<(String, String, u64, u64)> =
            pending.query_async(&mut connection).await.unwrap();
        for (id, ..) in pending {
            let mut claim = redis::cmd("XCLAIM");
            claim.arg(&[stream, "billing", instance, "0", &id, "IDLE", milliseconds]);
            self.execute(&claim).await;
        }
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
    killed_in_mid_work(PROGRAM, &redis).await;
}

async fn billed(pool: &PgPool) -> Vec<i64> {
    sqlx::query_scalar("SELECT order_id FROM invoice ORDER BY number")
        .fetch_all(pool)
        .await
        .unwrap()
}

/// Behind more entries that an instance at work has not acknowledged yet than one `XAUTOCLAIM` looks at, and
/// before a stream that gives a full batch at each read.
#[tokio::test]
async fn what_a_dead_instance_left_is_taken_over_while_new_entries_keep_coming() {
    const AT_WORK: i64 = 150;
    const LEFT: i64 = AT_WORK + 1;
    const ALL: i64 = LEFT + 300;
    let redis = Redis(address("OUTBOX_TEST_REDIS_URL"));
    with_scene(PROGRAM, &redis, async |scene| {
        prepare(&scene.pool).await.unwrap();
        scene.publish(&redis, 1..=LEFT).await;
        let stream = scene.topic.as_str();
        let mut group = redis::cmd("XGROUP");
        group.arg(&["CREATE", stream, "billing", "0"]);
        redis.execute(&group).await;
        for (instance, count) in [("at-work", AT_WORK), ("dead", 1)] {
            let mut read = redis::cmd("XREADGROUP");
            read.arg(&["GROUP", "billing", instance, "COUNT"])
                .arg(count);
            redis.execute(read.arg(&["STREAMS", stream, ">"])).await;
        }
        redis.idle(stream, "dead", "120000").await;
        scene.publish(&redis, LEFT + 1..=ALL).await;

        let all_new = "SELECT count(DISTINCT order_id) >= 301 AND $1 > 0 FROM invoice";
        scene.run_until(&redis, all_new, LEFT).await;
        let billed = billed(&scene.pool).await;
        let place = billed.iter().position(|&order| order == LEFT);
        assert!(place.is_some_and(|place| place < 100), "{billed:?}");
    })
    .await;
}

#[tokio::test]
async fn it_stops_without_acknowledging_while_the_database_refuses() {
    let redis = Redis(address("OUTBOX_TEST_REDIS_URL"));
    with_scene(PROGRAM, &redis, async |scene| {
        prepare(&scene.pool).await.unwrap();
        // A sequence counts what is rolled back too.
        let refusal = "CREATE SEQUENCE tried;
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM nextval('tried');
                RAISE 'not now';
            END $$;
            CREATE TRIGGER refuse BEFORE INSERT ON invoice FOR EACH ROW EXECUTE FUNCTION refuse()";
        sqlx::raw_sql(refusal).execute(&scene.pool).await.unwrap();
        scene.publish(&redis, 1..=1).await;
        let tried = "SELECT is_called AND $1 > 0 FROM tried";
        assert_eq!(scene.run_until(&redis, tried, 1).await, 0);
        let relent = sqlx::raw_sql("DROP TRIGGER refuse ON invoice");
        relent.execute(&scene.pool).await.unwrap();
        let all = "SELECT count(*) = $1 FROM invoice";
        assert_eq!(scene.run_until(&redis, all, 1).await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_record_without_an_id_is_set_aside_and_stops_nothing() {
    let redis = Redis(address("OUTBOX_TEST_REDIS_URL"));
    with_scene(PROGRAM, &redis, async |scene| {
        prepare(&scene.pool).await.unwrap();
        for fields in [&["payload", "{}"][..], &["id", "7", "payload", "{}"][..]] {
            let mut add = redis::cmd("XADD");
            redis
                .execute(add.arg(&scene.topic).arg("*").arg(fields))
                .await;
        }
        scene.publish(&redis, 1..=1).await;
        let all = "SELECT count(*) = $1 FROM invoice";
        scene.run_until(&redis, all, 1).await;
        let reasons: Vec<String> = sqlx::query_scalar("SELECT reason FROM refused ORDER BY reason")
            .fetch_all(&scene.pool)
            .await
            .unwrap();
        assert_eq!(reasons.len(), 2, "{reasons:?}");
        assert_eq!(reasons[0], "an entry has no field `id`");
    })
    .await;
}
