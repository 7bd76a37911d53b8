//! Status, keys, pauses and checks.

use std::time::{Duration, Instant};

use crate::support::scene::with_scene;

/// Producers enqueue, and nobody has ever started a relay.
#[tokio::test]
async fn without_a_relay_the_status_says_so() {
    with_scene("", async |scene| {
        let answer = scene.run(&["status"]).await;
        assert_eq!(answer.code, 1, "{answer:?}");
        assert!(answer.err.contains("outbox migrate"), "{answer:?}");

        scene.done(&["migrate"]).await;
        let idle = scene.done(&["status"]).await;
        assert!(idle.contains("IDLE: "), "{idle}");
        scene.execute("SELECT {schema}.enqueue('reminders', '', deliver_after => '1 hour')").await;
        let delayed = scene.done(&["status"]).await;
        assert!(
            delayed.contains("NO RELAY: no relay is connected; 1 message waits for its time, the next is due in "),
            "{delayed}"
        );
        assert!(delayed.contains("next: outbox run"), "{delayed}");
        scene.execute("SELECT {schema}.enqueue('orders.placed', '', key => 'k' || n) FROM generate_series(1, 7) n").await;
        let waiting = scene.done(&["status"]).await;
        assert!(waiting.contains("NO RELAY: no relay is connected; 7 messages wait"), "{waiting}");
        assert!(waiting.contains("next: outbox run"), "{waiting}");
        let json = scene.json(&["status"]).await;
        assert_eq!((&json["verdict"], &json["waiting"]["number"]), (&"no_relay".into(), &7.into()));
        assert_eq!(json["topics"][0]["topic"], "orders.placed");
    })
    .await;
}

#[tokio::test]
async fn a_check_ends_with_the_code_that_monitors_read() {
    with_scene("", async |scene| {
        scene.done(&["migrate"]).await;
        let check = async |limits: &[&str]| {
            let answer = scene.run(&[&["check"][..], limits].concat()).await;
            (answer.code, answer.out + &answer.err)
        };
        let (code, text) = check(&["--max-age", "60s", "--max-dead", "0"]).await;
        assert_eq!(
            (code, text.as_str()),
            (0, "ok: waiting 0, parked 0, dead 0\n")
        );

        scene.give_up(&[("t", None, "e")]).await;
        scene.execute("SELECT {schema}.enqueue('t', '')").await;
        scene
            .execute("UPDATE {schema}.message SET enqueued_at = enqueued_at - interval '5 minutes'")
            .await;
        let (code, text) = check(&["--max-age", "60s", "--max-dead", "0"]).await;
        assert_eq!(code, 1);
        assert!(
            text.starts_with("exceeded: oldest waiting message 5 min"),
            "{text}"
        );
        assert!(text.contains("; dead messages 1, limit 0"), "{text}");
        assert_eq!(
            check(&["--max-age", "10m", "--max-dead", "1", "--max-waiting", "1"])
                .await
                .0,
            0
        );
        assert_eq!(check(&["--max-waiting", "0"]).await.0, 1);
        let (code, text) = check(&["--min-relays", "1"]).await;
        assert_eq!(
            (code, text.as_str()),
            (1, "exceeded: relays 0, at least 1 wanted\n")
        );

        // What cannot be meant is not taken for fine.
        assert_eq!(check(&[]).await.0, 2);
        assert_eq!(check(&["--max-age", "soon"]).await.0, 2);
        assert_eq!(
            check(&["--max-dead", "0", "--set", "store.nonsense=1"])
                .await
                .0,
            2
        );
    })
    .await;
}

/// A database that is away: bounded, clear, and without the password.
#[tokio::test]
async fn without_a_database_every_command_ends_and_says_why() {
    with_scene("", async |scene| {
        // Nothing listens there.
        let away = "store.url=postgres://shop:hunter2@127.0.0.1:1/shop";
        for arguments in [
            &["status"][..],
            &["keys"],
            &["keys", "retry", "--all"],
            &["dead", "list"],
            &["dead", "replay", "--all", "--yes"],
            &["check", "--max-dead", "0"],
            &["doctor"],
            &["pause", "t"],
            &["resume", "t"],
            &["inbox", "forget", "--older-than", "30d"],
        ] {
            let begun = Instant::now();
            let answer = scene.run(&[arguments, &["--set", away]].concat()).await;
            assert_eq!(answer.code, 1, "{arguments:?} {answer:?}");
            assert!(begun.elapsed() < Duration::from_secs(30), "{arguments:?}");
            let text = answer.out + &answer.err;
            assert!(text.contains("database is away"), "{arguments:?} {text}");
            assert!(!text.contains("hunter2"), "{arguments:?} {text}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_pause_is_seen_by_whoever_looks() {
    with_scene("", async |scene| {
        scene.done(&["migrate"]).await;
        assert_eq!(scene.done(&["pause"]).await, "no topic is paused\n");
        scene.done(&["pause", "orders.*"]).await;
        scene
            .done(&[
                "pause",
                "bills",
                "--by",
                "grace, until the tax office answers",
            ])
            .await;
        let listed = scene.done(&["pause"]).await;
        assert!(
            listed.contains("orders.*") && listed.contains("ada"),
            "{listed}"
        );
        assert!(
            listed.contains("grace, until the tax office answers"),
            "{listed}"
        );
        let status = scene.done(&["status"]).await;
        assert!(
            status.contains("paused, and without a message: orders.*, by ada"),
            "{status}"
        );
        assert_eq!(
            scene.json(&["status"]).await["paused"]
                .as_array()
                .unwrap()
                .len(),
            2
        );

        assert_eq!(scene.done(&["resume", "bills"]).await, "bills is resumed\n");
        let again = scene.run(&["resume", "bills"]).await;
        assert_eq!(again.code, 1, "{again:?}");
        assert!(again.err.contains("was not paused"), "{again:?}");
    })
    .await;
}

/// As of `outbox dead show ID --payload | head -c 100`.
#[tokio::test]
async fn a_reader_that_goes_away_is_no_failure() {
    with_scene("", async |scene| {
        scene.done(&["migrate"]).await;
        scene.give_up(&[("t", None, "e")]).await;
        let dead = scene.json(&["dead", "list"]).await;
        let id = dead["messages"][0]["id"].as_str().unwrap();
        for arguments in [
            &["config"][..],
            &["migrate", "--print"],
            &["enqueue", "t", "x"],
            &["man"],
            &["status"],
            &["dead", "list"],
            &["dead", "show", id, "--payload"],
            &["dead", "show", id, "--json"],
        ] {
            let ended = scene.unread(arguments).await;
            assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{arguments:?}");
        }
    })
    .await;
}
