//! The same commands on an outbox in SQLite, with nothing but the program.

use outbox_conformance::address;
use redis::aio::MultiplexedConnection;
use uuid::Uuid;

use crate::scene::{Program, redis, until};

#[tokio::test]
async fn an_operator_of_an_embedded_outbox() {
    let url = address("OUTBOX_TEST_REDIS_URL");
    let prefix = format!("{}:", Uuid::now_v7().simple());
    let program = Program::with(&format!(
        "[store]\nkind = \"sqlite\"\npath = \"shop.db\"\n\n\
         [relay]\nretry_first = \"1m\"\non_dead = \"halt_key\"\n\n\
         [broker.events]\nkind = \"redis\"\nurl = \"{url}\"\nstream_prefix = \"{prefix}\"\n\
         create_streams = false\nmax_message_bytes = \"10KiB\"\n"
    ));

    // Without the file, and then without the tables.
    for _ in 0..2 {
        for arguments in [
            &["status"][..],
            &["keys"],
            &["dead", "list"],
            &["check", "--max-dead", "0"],
        ] {
            let answer = program.outbox(arguments).await;
            assert_eq!(answer.code, 1, "{arguments:?} {answer:?}");
            assert!(
                answer.err.contains("outbox migrate"),
                "{arguments:?} {answer:?}"
            );
        }
        program.write("shop.db", b"");
    }
    program.done(&["migrate"]).await;
    assert!(program.done(&["status"]).await.contains("IDLE: "));

    // A relay cannot be seen in the file, so what waits is said to wait.
    program
        .done(&["enqueue", "orders.shipped", "{}", "--key", "order-1"])
        .await;
    let waiting = program.done(&["status"]).await;
    assert!(
        waiting.contains("MOVING: on the way: 1 message"),
        "{waiting}"
    );

    let relay = program.start(&["run"]);
    held(&program, 1).await;
    let status = program.done(&["status"]).await;
    assert!(status.contains("HELD UP: 1 key is held up"), "{status}");
    assert!(status.contains("topic_unavailable"), "{status}");
    let doctor = program.outbox(&["doctor"]).await;
    assert_eq!(doctor.code, 1, "{doctor:?}");
    assert!(
        doctor
            .out
            .contains("orders.shipped at events: there is no stream"),
        "{doctor:?}"
    );

    let mut redis = redis(&url).await;
    let stream = format!("{prefix}orders.shipped");
    make_stream(&mut redis, &stream).await;
    let retried = program
        .done(&["keys", "retry", "--topic", "orders.*"])
        .await;
    assert_eq!(retried, "1 key is tried now, as soon as a relay has time\n");
    held(&program, 0).await;

    // Too large, and its key halts; another one behind it.
    let large = "x".repeat(20_000);
    program
        .done(&["enqueue", "orders.shipped", &large, "--key", "order-1"])
        .await;
    program
        .done(&["enqueue", "orders.shipped", "{}", "--key", "order-1"])
        .await;
    until("a key is halted", async || halted(&program).await == 1).await;
    let status = program.done(&["status"]).await;
    assert!(status.contains("next: outbox keys --halted"), "{status}");
    let keys = program.done(&["keys", "--halted"]).await;
    assert!(
        keys.contains("order-1") && keys.contains("rejected: the entry has"),
        "{keys}"
    );
    let check = program
        .outbox(&["check", "--max-dead", "0", "--max-halted", "0"])
        .await;
    assert_eq!(check.code, 1, "{check:?}");

    let list = program
        .json(&["dead", "list", "--topic", "orders.*", "--key", "order-1"])
        .await;
    let id = list["messages"][0]["id"].as_str().unwrap().to_owned();
    let shown = program.done(&["dead", "show", &id]).await;
    assert!(shown.contains("key goes on  no"), "{shown}");
    assert_eq!(
        program.done(&["dead", "show", &id, "--payload"]).await,
        large
    );

    program.done(&["dead", "discard", &id, "--yes"]).await;
    held(&program, 0).await;

    // A relay heeds a pause within a second.
    program.done(&["pause", "bills.*", "--by", "grace"]).await;
    program
        .done(&["enqueue", "bills.sent", "{}", "--key", "bill-1"])
        .await;
    until("the key waits for the paused topic", async || {
        program.done(&["keys", "retry", "--all"]).await;
        error(&program).await == "paused: bills.* by grace"
    })
    .await;
    assert_eq!(verdict(&program).await, "paused");
    let bills = format!("{prefix}bills.sent");
    make_stream(&mut redis, &bills).await;
    let resumed = program.done(&["resume", "bills.*"]).await;
    assert_eq!(resumed, "bills.* is resumed; 1 key is due now\n");
    held(&program, 0).await;

    assert_eq!(verdict(&program).await, "idle");
    let check = ["check", "--max-dead", "0", "--max-held", "0"];
    assert_eq!(program.outbox(&check).await.code, 0);
    drop(relay);
    let mut lengths = redis::pipe();
    lengths.cmd("XLEN").arg(&stream).cmd("XLEN").arg(&bills);
    let lengths = lengths.query_async::<(u64, u64)>(&mut redis).await;
    let mut remove = redis::cmd("DEL");
    remove.arg(&stream).arg(&bills);
    remove.exec_async(&mut redis).await.unwrap();
    let made = "with the first entry of each stream";
    assert_eq!(lengths.unwrap(), (1 + 2, 1 + 1), "{made}");
}

async fn make_stream(redis: &mut MultiplexedConnection, stream: &str) {
    let mut add = redis::cmd("XADD");
    add.arg(stream).arg("*").arg("first").arg("");
    add.exec_async(redis).await.unwrap();
}

async fn held(program: &Program, keys: u64) {
    until("so many keys are held up", async || {
        let status = program.json(&["status"]).await;
        status["held_keys"]["number"] == keys && status["waiting"]["number"] == 0
    })
    .await;
}

async fn halted(program: &Program) -> u64 {
    let status = program.json(&["status"]).await;
    status["halted_keys"]["number"].as_u64().unwrap()
}

async fn verdict(program: &Program) -> String {
    let status = program.json(&["status"]).await;
    status["verdict"].as_str().unwrap().to_owned()
}

/// Of the first key that is held up.
async fn error(program: &Program) -> String {
    let keys = program.json(&["keys"]).await;
    keys["keys"][0]["error"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}
