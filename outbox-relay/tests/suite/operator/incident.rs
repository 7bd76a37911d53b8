//! One night, from beginning to end, with the program alone: a topic that is missing, a message that the
//! broker refuses, an outage.
//!
//! What is typed and what comes back is written to `target/tmp/incident.txt`, and it is the transcript in
//! `docs/operations.md`: the two are compared, except for what differs in each run.

use std::fmt::Write as _;
use std::fs;

use outbox_conformance::address;
use outbox_conformance::proxy::Proxy;

use crate::support::scene::{Scene, with_scene};
use crate::support::{authority, brokers, name, repository, until};

/// What the monitor asks.
const CHECK: &str = "outbox check --max-age 60s --max-dead 0 --max-held 0";

/// What an operator has typed, and what came back.
#[derive(Default)]
struct Transcript(String);

impl Transcript {
    fn remark(&mut self, text: &str) {
        let _ = writeln!(
            self.0,
            "{}# {text}",
            if self.0.is_empty() { "" } else { "\n" }
        );
    }

    async fn type_in(&mut self, scene: &Scene, line: &str) -> String {
        let arguments: Vec<&str> = line.split(' ').collect();
        let answer = scene.run(&arguments[1..]).await;
        let shown = format!("{}{}", answer.err, answer.out);
        let _ = write!(self.0, "$ {line}\n{shown}");
        if answer.code != 0 {
            let _ = writeln!(self.0, "(exit code {})", answer.code);
        }
        shown
    }
}

#[tokio::test]
async fn a_night_with_the_program_alone() {
    let url = address("OUTBOX_TEST_REDIS_URL");
    let proxy = Proxy::to(authority(&url)).await;
    let prefix = format!("{}:", name("night"));
    let settings = format!(
        "[relay]\nretry_first = \"1m\"\nbackoff_longest = \"500ms\"\n\n\
         [broker.events]\nkind = \"redis\"\nurl = \"{}\"\nstream_prefix = \"{prefix}\"\n\
         create_streams = false\nmax_message_bytes = \"10KiB\"\n",
        url.replace(authority(&url), &proxy.address().to_string())
    );
    with_scene(&settings, async |scene| {
        let placed = format!("{prefix}orders.placed");
        let shipped = format!("{prefix}orders.shipped");
        brokers::create_redis_stream(&placed).await;

        night(scene, &proxy, &shipped, &prefix).await;

        let mut delivered = Vec::new();
        for stream in [&placed, &shipped] {
            delivered.push(brokers::redis_length(stream).await);
            brokers::delete_redis_stream(stream).await;
        }
        let made = "with the first entry of each stream";
        assert_eq!(delivered, [1 + 25, 1 + 3], "{made}");
    })
    .await;
}

async fn night(scene: &Scene, proxy: &Proxy, shipped: &str, prefix: &str) {
    let mut typed = Transcript::default();
    scene.done(&["migrate"]).await;
    let _relay = scene.start(&["run"]);
    scene.has_a_relay().await;

    scene
        .execute(
            "SELECT {schema}.enqueue('orders.placed', '{}', key => 'order-' || n) FROM generate_series(1, 5) n;
             SELECT {schema}.enqueue('orders.shipped', '{}', key => 'order-' || n) FROM generate_series(1, 3) n",
        )
        .await;
    until("a topic is missing", async || {
        let keys = scene.json(&["keys"]).await;
        keys["keys"].as_array().unwrap().len() == 3
            && scene.json(&["status"]).await["waiting"]["number"] == 0
    })
    .await;
    typed.remark("the monitor has called: outbox check has failed");
    typed.type_in(scene, CHECK).await;
    let status = typed.type_in(scene, "outbox status").await;
    assert!(status.contains("HELD UP: 3 keys are held up"), "{status}");
    typed.type_in(scene, "outbox keys").await;
    let doctor = typed.type_in(scene, "outbox doctor").await;
    assert!(
        doctor.contains("orders.shipped at events: there is no stream"),
        "{doctor}"
    );

    typed.remark("the stream was forgotten in the new cluster: it is made, with Redis's own tools");
    brokers::create_redis_stream(shipped).await;
    typed
        .type_in(scene, "outbox keys retry --topic orders.shipped")
        .await;
    until("the keys go on", async || scene.verdict().await == "idle").await;
    let status = typed.type_in(scene, "outbox status").await;
    assert!(status.contains("IDLE"), "{status}");

    scene
        .execute(
            "SELECT {schema}.enqueue_json('orders.placed', key => 'order-9', headers => '{\"source\": \"shop\"}',
                 payload => json_build_object('id', 9, 'item', 'tea', 'picture', repeat('89504e47', 2500)))",
        )
        .await;
    until("a message is dead", async || {
        scene.verdict().await == "dead"
    })
    .await;
    typed.remark("it calls again: somebody has put a picture into an order");
    typed.type_in(scene, CHECK).await;
    let list = typed.type_in(scene, "outbox dead list").await;
    assert!(list.contains("rejected: the entry has"), "{list}");
    let id = scene.json(&["dead", "list"]).await["messages"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let shown = typed
        .type_in(scene, &format!("outbox dead show {id}"))
        .await;
    assert!(shown.contains("\"picture\": \"89504e47"), "{shown}");
    typed
        .type_in(scene, &format!("outbox dead discard {id} --dry-run"))
        .await;
    typed
        .type_in(scene, &format!("outbox dead discard {id} --yes"))
        .await;

    proxy.refuse();
    proxy.cut();
    scene
        .execute(
            "INSERT INTO {schema}.message (topic, key, payload, enqueued_at)
             SELECT 'orders.placed', 'order-' || n, '{}', clock_timestamp() - interval '90 seconds'
               FROM generate_series(1, 20) n",
        )
        .await;
    until("nothing leaves", async || scene.verdict().await == "stuck").await;
    typed.remark("and again: Redis is away");
    typed.type_in(scene, CHECK).await;
    let status = typed.type_in(scene, "outbox status").await;
    assert!(status.contains("STUCK: nothing leaves"), "{status}");
    let doctor = typed.type_in(scene, "outbox doctor").await;
    assert!(doctor.contains("events cannot be asked"), "{doctor}");
    assert_eq!(
        scene.json(&["dead", "list"]).await["messages"]
            .as_array()
            .unwrap()
            .len(),
        0
    );

    typed.remark("Redis is back, and nothing else is to be done");
    proxy.release();
    until("what waited is delivered", async || {
        scene.verdict().await == "idle"
    })
    .await;
    typed.type_in(scene, "outbox status").await;
    typed.type_in(scene, CHECK).await;

    let text = typed.0.replace(prefix, "").replace(&scene.name, "outbox");
    compare(&text, &proxy.address().to_string());
}

/// The document shows what is really typed and printed.
fn compare(real: &str, broker: &str) {
    let real = real.replace(broker, "127.0.0.1:6379");
    let file = concat!(env!("CARGO_TARGET_TMPDIR"), "/incident.txt");
    fs::write(file, &real).unwrap();
    let document = fs::read_to_string(repository("docs/operations.md")).unwrap();
    let shown = document
        .split("```text\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("docs/operations.md has the transcript in a block of ```text");
    assert!(
        steady(shown) == steady(&real),
        "docs/operations.md shows another night; this one is in {file}:\n{real}"
    );
}

/// The text without what differs in each run: blanks, words with a digit in them, in which words the client
/// says that Redis is away, and what the doctor finds at a server on which other tests run.
fn steady(text: &str) -> Vec<String> {
    let word = |word: &str| match word.chars().any(|c| c.is_ascii_digit()) {
        true => "7".to_owned(),
        false => word.to_owned(),
    };
    // Of `3 min 5 s` and `850 ms` it is one that was shown.
    let units = ["ms", "s", "min"];
    let is_unit = |word: &&str| units.contains(&word.trim_end_matches([';', ',']));
    let line = |line: &str| {
        let line = line.split("cannot be asked: ").next().unwrap();
        let words = line.split_whitespace().filter(|word| !is_unit(word));
        let mut words: Vec<String> = words.map(word).collect();
        words.dedup();
        words.join(" ")
    };
    let mut is_of_the_server = false;
    let lines = text.lines().filter(|line| {
        let begins = |words: &[&str]| words.iter().any(|word| line.starts_with(word));
        if !line.starts_with("         ") {
            is_of_the_server = begins(&["warning ", "unknown "]) || line.contains(" fine (--all ");
        }
        !is_of_the_server
    });
    lines.map(line).collect()
}
