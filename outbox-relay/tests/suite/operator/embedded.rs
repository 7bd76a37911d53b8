//! The same commands on an outbox in SQLite, with nothing but the place.

use outbox_conformance::address;

use crate::support::place::Place;
use crate::support::{brokers, name, until};

#[tokio::test]
async fn an_operator_of_an_embedded_outbox() {
    let url = address("OUTBOX_TEST_REDIS_URL");
    let prefix = format!("{}:", name("embedded"));
    let place = Place::with(&format!(
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
            let answer = place.run(arguments).await;
            assert_eq!(answer.code, 1, "{arguments:?} {answer:?}");
            assert!(
                answer.err.contains("outbox migrate"),
                "{arguments:?} {answer:?}"
            );
        }
        place.write("shop.db", b"");
    }
    place.done(&["migrate"]).await;
    assert!(place.done(&["status"]).await.contains("IDLE: "));
    delayed_messages_are_listed_and_cancelled(&place).await;

    // A relay cannot be seen in the file, so what waits is said to wait.
    place
        .done(&["enqueue", "orders.shipped", "{}", "--key", "order-1"])
        .await;
    let waiting = place.done(&["status"]).await;
    assert!(
        waiting.contains("MOVING: on the way: 1 message"),
        "{waiting}"
    );

    let relay = place.start(&["run"]);
    held(&place, 1).await;
    let status = place.done(&["status"]).await;
    assert!(status.contains("HELD UP: 1 key is held up"), "{status}");
    assert!(status.contains("topic_unavailable"), "{status}");
    let doctor = place.run(&["doctor"]).await;
    assert_eq!(doctor.code, 1, "{doctor:?}");
    assert!(
        doctor
            .out
            .contains("orders.shipped at events: there is no stream"),
        "{doctor:?}"
    );

    let stream = format!("{prefix}orders.shipped");
    brokers::create_redis_stream(&stream).await;
    let retried = place.done(&["keys", "retry", "--topic", "orders.*"]).await;
    assert_eq!(retried, "1 key is tried now, as soon as a relay has time\n");
    held(&place, 0).await;

    // Too large, and its key halts; another one behind it.
    let large = "x".repeat(20_000);
    place
        .done(&["enqueue", "orders.shipped", &large, "--key", "order-1"])
        .await;
    place
        .done(&["enqueue", "orders.shipped", "{}", "--key", "order-1"])
        .await;
    until("a key is halted", async || halted(&place).await == 1).await;
    let status = place.done(&["status"]).await;
    assert!(status.contains("next: outbox keys --halted"), "{status}");
    let keys = place.done(&["keys", "--halted"]).await;
    assert!(
        keys.contains("order-1") && keys.contains("rejected: the entry has"),
        "{keys}"
    );
    let check = place
        .run(&["check", "--max-dead", "0", "--max-halted", "0"])
        .await;
    assert_eq!(check.code, 1, "{check:?}");

    let list = place
        .json(&["dead", "list", "--topic", "orders.*", "--key", "order-1"])
        .await;
    let id = list["messages"][0]["id"].as_str().unwrap().to_owned();
    let shown = place.done(&["dead", "show", &id]).await;
    assert!(shown.contains("key goes on  no"), "{shown}");
    assert_eq!(place.done(&["dead", "show", &id, "--payload"]).await, large);

    place.done(&["dead", "discard", &id, "--yes"]).await;
    held(&place, 0).await;

    // A relay heeds a pause within a second.
    place.done(&["pause", "bills.*", "--by", "grace"]).await;
    place
        .done(&["enqueue", "bills.sent", "{}", "--key", "bill-1"])
        .await;
    until("the key waits for the paused topic", async || {
        place.done(&["keys", "retry", "--all"]).await;
        error(&place).await == "paused: bills.* by grace"
    })
    .await;
    assert_eq!(place.verdict().await, "paused");
    let bills = format!("{prefix}bills.sent");
    brokers::create_redis_stream(&bills).await;
    let resumed = place.done(&["resume", "bills.*"]).await;
    assert_eq!(resumed, "bills.* is resumed; 1 key is due now\n");
    held(&place, 0).await;

    let forgotten = place
        .done(&["inbox", "forget", "--older-than", "30d"])
        .await;
    assert_eq!(forgotten, "forgot 0 messages\n");
    assert_eq!(place.verdict().await, "idle");
    let check = ["check", "--max-dead", "0", "--max-held", "0"];
    assert_eq!(place.run(&check).await.code, 0);
    drop(relay);
    let mut lengths = Vec::new();
    for stream in [&stream, &bills] {
        lengths.push(brokers::redis_length(stream).await);
        brokers::delete_redis_stream(stream).await;
    }
    let made = "with the first entry of each stream";
    assert_eq!(lengths, [1 + 2, 1 + 1], "{made}");
}

async fn delayed_messages_are_listed_and_cancelled(place: &Place) {
    let mut ids = Vec::new();
    for delay in ["3h", "1h", "2h"] {
        let enqueue = ["enqueue", "reminders", "{}", "--deliver-after", delay];
        ids.push(place.done(&enqueue).await.trim().to_owned());
    }
    let first = place.done(&["delayed", "list", "--limit", "2"]).await;
    let more = first.lines().last().unwrap();
    let next = more.strip_prefix("more: outbox delayed list --after ");
    assert!(
        first.contains(&ids[1]) && first.contains(&ids[2]),
        "{first}"
    );
    let next = next.unwrap_or_else(|| panic!("{first}"));
    let page = ["delayed", "list", "--limit", "2", "--after", next];
    let rest = place.json(&page).await;
    assert_eq!(rest["messages"][0]["id"], ids[0].as_str());
    assert_eq!(
        (rest["messages"].as_array().unwrap().len(), &rest["next"]),
        (1, &serde_json::Value::Null)
    );
    let wrong = place.run(&["delayed", "list", "--after", "2"]).await;
    assert!(
        wrong.code == 2 && wrong.err.contains("is no place in the list"),
        "{wrong:?}"
    );

    let status = place.done(&["status"]).await;
    assert!(
        status.contains("IDLE: nothing is due") && status.contains("delayed: 3 messages"),
        "{status}"
    );
    let cancel = [
        &["delayed", "cancel"][..],
        &ids.iter().map(String::as_str).collect::<Vec<_>>(),
    ]
    .concat();
    place.done(&cancel).await;
    let again = place.run(&cancel).await;
    assert_eq!(again.code, 1, "{again:?}");
    assert_eq!(
        place.done(&["delayed", "list"]).await,
        "no message is delayed\n"
    );
}

async fn held(place: &Place, keys: u64) {
    until("so many keys are held up", async || {
        let status = place.json(&["status"]).await;
        status["held_keys"]["number"] == keys && status["waiting"]["number"] == 0
    })
    .await;
}

async fn halted(place: &Place) -> u64 {
    let status = place.json(&["status"]).await;
    status["halted_keys"]["number"].as_u64().unwrap()
}

/// Of the first key that is held up.
async fn error(place: &Place) -> String {
    let keys = place.json(&["keys"]).await;
    keys["keys"][0]["error"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}
