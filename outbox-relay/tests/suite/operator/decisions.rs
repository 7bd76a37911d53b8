//! Dead messages: found, shown, put back and dropped.

use serde_json::Value;

use crate::support::scene::{Scene, with_scene};

const NO_BROKER: &str = "";

#[tokio::test]
async fn what_is_dead_is_found_by_what_is_known_of_it() {
    with_scene(NO_BROKER, async |scene| {
        scene.done(&["migrate"]).await;
        assert_eq!(scene.done(&["dead", "list"]).await, "no dead message fits\n");
        scene
            .give_up(&[
                ("orders.placed", Some("order-1"), "too large"),
                ("orders.placed", Some("order-2"), "too large"),
                ("orders.shipped", None, "no"),
            ])
            .await;
        scene
            .execute("UPDATE {schema}.dead SET died_at = died_at - interval '8 days' WHERE key = 'order-1'")
            .await;
        for (filter, expected) in [
            (&[][..], 3),
            (&["--topic", "orders.*"][..], 3),
            (&["--topic", "orders.placed"][..], 2),
            (&["--topic", "orders.placed", "--key", "order-2"][..], 1),
            (&["--older-than", "7d"][..], 1),
            (&["--younger-than", "1h"][..], 2),
            (&["--error-kind", "rejected"][..], 3),
            (&["--error-kind", "retryable"][..], 0),
        ] {
            let found = scene.json(&[&["dead", "list"][..], filter].concat()).await;
            assert_eq!(found["messages"].as_array().unwrap().len(), expected, "{filter:?}");
        }

        // Page by page, without one twice or left out.
        let mut seen = Vec::new();
        let mut page = scene.json(&["dead", "list", "--limit", "2"]).await;
        loop {
            seen.extend(ids(&page));
            let Some(next) = page["next"].as_i64() else { break };
            page = scene.json(&["dead", "list", "--limit", "2", "--after", &next.to_string()]).await;
        }
        assert_eq!(seen.len(), 3);

        let shown = scene.done(&["dead", "show", &seen[0]]).await;
        for expected in ["order-1", "orders.placed", "too large", "a: b", "JSON", "8 d"] {
            assert!(shown.contains(expected), "{expected}: {shown}");
        }
        assert_eq!(scene.done(&["dead", "show", &seen[0], "--payload"]).await, "{}");
        let whole = scene.json(&["dead", "show", &seen[0]]).await;
        assert_eq!((&whole["payload"], &whole["headers"]["a"]), (&"{}".into(), &"b".into()));
        let strange = scene.run(&["dead", "show", "00000000-0000-0000-0000-000000000007"]).await;
        assert_eq!(strange.code, 1);
        assert!(strange.err.contains("no dead message has the id"), "{strange:?}");
    })
    .await;
}

#[tokio::test]
async fn nothing_is_decided_by_oversight() {
    with_scene(NO_BROKER, async |scene| {
        scene.done(&["migrate"]).await;
        scene
            .give_up(&[("t", Some("k"), "e"), ("t", None, "e"), ("u", None, "e")])
            .await;

        // Which messages has to be said.
        for action in ["replay", "discard"] {
            let answer = scene.run(&["dead", action, "--yes"]).await;
            assert_eq!(answer.code, 2, "{answer:?}");
            assert!(answer.err.contains("--all"), "{answer:?}");
        }
        // Nobody can be asked, so it has to be said beforehand.
        let answer = scene.run(&["dead", "discard", "--topic", "t"]).await;
        assert_eq!(answer.code, 1, "{answer:?}");
        assert!(answer.err.contains("--yes"), "{answer:?}");
        let dry = scene
            .run(&["dead", "discard", "--topic", "t", "--dry-run"])
            .await;
        assert_eq!(dry.code, 0);
        assert_eq!(dry.out, "would drop 2 dead messages; nothing was changed\n");
        assert_eq!(dead(scene).await, 3);

        assert_eq!(
            scene
                .done(&["dead", "discard", "--topic", "t", "--yes"])
                .await,
            "dropped 2 messages\n"
        );
        assert_eq!(dead(scene).await, 1);
        assert_eq!(
            scene
                .done(&["dead", "discard", "--topic", "t", "--yes"])
                .await,
            "no dead message fits\n"
        );
        assert_eq!(
            scene.done(&["dead", "replay", "--all", "--yes"]).await,
            "put back 1 message\n"
        );
        assert_eq!(dead(scene).await, 0);
        assert_eq!(scene.json(&["status"]).await["parked"]["number"], 1);
    })
    .await;
}

/// What is shown before the question is found however far behind it lies.
#[tokio::test]
async fn one_message_is_found_behind_many() {
    with_scene(NO_BROKER, async |scene| {
        scene.done(&["migrate"]).await;
        // One more than the store goes over in one look.
        scene.give_up_many("other", 10_001).await;
        scene
            .give_up(&[("wanted", Some("order-1"), "too large")])
            .await;
        let dry = scene
            .run(&["dead", "discard", "--topic", "wanted", "--dry-run"])
            .await;
        assert!(
            dry.err.contains("order-1") && dry.err.contains("too large"),
            "{dry:?}"
        );
        assert_eq!(
            dry.success(),
            "would drop 1 dead message; nothing was changed\n"
        );
    })
    .await;
}

/// What is shown to be typed means the topic that was typed.
#[tokio::test]
async fn a_pause_says_how_it_ends() {
    with_scene(NO_BROKER, async |scene| {
        scene.done(&["migrate"]).await;
        for (topic, shown) in [("a.*", "'a.*'"), (r"a\b's", r"'a\b'\''s'")] {
            let paused = scene.done(&["pause", topic]).await;
            let resume = format!("until outbox resume {shown};");
            assert!(paused.contains(&resume), "{paused}");
            scene.done(&["resume", topic]).await;
        }
    })
    .await;
}

#[tokio::test]
async fn consumers_forget_what_is_old() {
    with_scene(NO_BROKER, async |scene| {
        scene.done(&["migrate"]).await;
        let remember = "
            INSERT INTO {schema}.inbox (consumer, message_id, processed_at)
            SELECT consumer, {schema}.new_message_id(), clock_timestamp() - days * interval '1 day'
              FROM unnest(ARRAY['billing', 'mail']) AS consumer, generate_series(1, 2000) AS days";
        scene.execute(remember).await;
        let forget = ["inbox", "forget", "--older-than", "30d"];
        assert_eq!(scene.done(&forget).await, "forgot 3,942 messages\n");
        assert_eq!(scene.done(&forget).await, "forgot 0 messages\n");
        assert_eq!(
            scene.number("SELECT count(*) FROM {schema}.inbox").await,
            58
        );
        scene.run(&["inbox", "forget"]).await.failure(2);
    })
    .await;
}

/// Of two people who replay the same messages at once, each message is put back by one.
#[tokio::test]
async fn two_people_replay_at_once() {
    with_scene(NO_BROKER, async |scene| {
        scene.done(&["migrate"]).await;
        scene.give_up_many("t", 5_000).await;
        let replay = ["dead", "replay", "--all", "--yes"];
        let (one, other) = tokio::join!(scene.run(&replay), scene.run(&replay));
        assert_eq!((one.code, other.code), (0, 0), "{one:?} {other:?}");
        let number = |out: &str| -> u64 {
            if out == "no dead message fits\n" {
                return 0;
            }
            let number = out
                .strip_prefix("put back ")
                .unwrap()
                .split(' ')
                .next()
                .unwrap();
            number.replace(',', "").parse().unwrap()
        };
        assert_eq!(
            number(&one.out) + number(&other.out),
            5000,
            "{one:?} {other:?}"
        );
        assert_eq!(dead(scene).await, 0);
        let status = scene.json(&["status"]).await;
        assert_eq!(status["parked"]["number"], 5000, "{status}");
    })
    .await;
}

/// What applications and brokers have written cannot do anything to a terminal.
#[tokio::test]
async fn hostile_text_is_shown_and_not_obeyed() {
    const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{9b}2J\r\u{202e}\nfaked";
    with_scene(NO_BROKER, async |scene| {
        scene.done(&["migrate"]).await;
        scene.give_up(&[(HOSTILE, Some(HOSTILE), HOSTILE)]).await;
        scene
            .execute(
                "UPDATE {schema}.dead SET headers = jsonb_build_object('x' || topic, topic),
                        payload = convert_to(topic, 'UTF8')",
            )
            .await;
        let id = ids(&scene.json(&["dead", "list"]).await).remove(0);
        let pause = scene.run(&["pause", "t*", "--by", HOSTILE]).await;
        assert_eq!(pause.code, 0, "{pause:?}");
        for arguments in [
            &["status"][..],
            &["status", "--json"],
            &["dead", "list"],
            &["dead", "list", "--json"],
            &["dead", "show", &id],
            &["dead", "show", &id, "--json"],
            &["pause"],
            &["dead", "replay", "--all", "--dry-run"],
        ] {
            let answer = scene.run(arguments).await;
            assert_eq!(answer.code, 0, "{arguments:?} {answer:?}");
            let text = answer.out + &answer.err;
            let bad = text
                .chars()
                .find(|&c| c != '\n' && c.is_control() || c == '\u{202e}');
            assert_eq!(bad, None, "{arguments:?}: {text:?}");
            assert!(
                !text
                    .lines()
                    .any(|line| line.trim_start().starts_with("faked\"")),
                "{text}"
            );
        }
        // In JSON it is the same text.
        let list = scene.json(&["dead", "list"]).await;
        assert_eq!(list["messages"][0]["key"], HOSTILE);
    })
    .await;
}

fn ids(page: &Value) -> Vec<String> {
    let messages = page["messages"].as_array().unwrap();
    messages
        .iter()
        .map(|message| message["id"].as_str().unwrap().to_owned())
        .collect()
}

async fn dead(scene: &Scene) -> u64 {
    scene.json(&["status"]).await["dead"]["number"]
        .as_u64()
        .unwrap()
}
