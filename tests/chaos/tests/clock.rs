//! A relay whose host's clock is set back and forward again, while its client of Kafka is replaced.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use outbox_conformance::address;
use outbox_conformance::process::signal;
use outbox_core::Message;
use outbox_postgres::Outbox;
use sqlx::{AssertSqlSafe, PgPool};
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

/// What a stop and the last settle may take, with some seconds for a busy machine.
const STOP: Duration = Duration::from_secs(20);

/// librdkafka waits by the host's clock, also while a client is created. Whoever waits for that must be able to go.
#[tokio::test]
async fn a_clock_that_is_set_back_keeps_no_relay_from_its_end() {
    let (url, database) = (
        address("OUTBOX_TEST_POSTGRES_URL"),
        format!("clock_{}", Uuid::now_v7().simple()),
    );
    let server = PgPool::connect(&url).await.unwrap();
    let execute = async |sql: String| {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&server)
            .await
            .unwrap()
    };
    execute(format!("CREATE DATABASE {database}")).await;
    let url = format!("{}/{database}", url.rsplit_once('/').unwrap().0);
    let pool = PgPool::connect(&url).await.unwrap();
    Outbox::new().migrate(&pool).await.unwrap();
    let messages: Vec<Message> = (0..20)
        .map(|n| Message::to("t").key(n).bytes("x").unwrap())
        .collect();
    let mut conn = pool.acquire().await.unwrap();
    Outbox::new()
        .enqueue_all(&mut conn, &messages)
        .await
        .unwrap();
    drop(conn);
    pool.close().await;

    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&database);
    fs::create_dir_all(&folder).unwrap();
    let (clock, log) = (folder.join("clock"), folder.join("log"));
    let set_clock = |hours: i32| {
        // In one step: it may be read at any time.
        let new = folder.join("new");
        fs::write(&new, format!("{hours:+}h\n")).unwrap();
        fs::rename(new, &clock).unwrap();
    };
    set_clock(0);
    let mut relay = Command::new(env!("CARGO_BIN_EXE_chaos"))
        .arg("relay")
        .arg(format!("--database={url}"))
        .args(["--broker=kafka", "--address=127.0.0.1:1"])
        .env("LD_PRELOAD", "/usr/$LIB/faketime/libfaketimeMT.so.1")
        .env("FAKETIME_TIMESTAMP_FILE", &clock)
        .env("FAKETIME_CACHE_DURATION", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .stdin(Stdio::null())
        .stderr(fs::File::create(&log).unwrap())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !fs::read_to_string(&log).unwrap().contains("is away") {
        assert!(Instant::now() < deadline, "{}", log.display());
        sleep(Duration::from_millis(50)).await; // wait: the poll of a bounded loop
    }
    set_clock(-5_000);
    sleep(Duration::from_secs(9)).await; // wait: until a client was created meanwhile
    set_clock(0);
    sleep(Duration::from_secs(2)).await; // wait: until the relay has seen it
    signal(relay.id().unwrap(), "TERM");
    let ended = timeout(STOP, relay.wait()).await;
    drop(relay);
    execute(format!("DROP DATABASE {database} WITH (FORCE)")).await;
    assert!(
        ended.expect("it does not end").unwrap().success(),
        "{}",
        log.display()
    );
    fs::remove_dir_all(folder).unwrap();
}
