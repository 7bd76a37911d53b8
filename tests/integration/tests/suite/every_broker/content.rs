//! What travels arrives as it was written, under names that any consumer can read.

use std::time::Duration;

use outbox_core::Message;
use uuid::Uuid;

use crate::support::broker::{Install, Record};
use crate::support::relay::Relay;
use crate::support::scene::{Servers, play};

/// A string of JSON.
fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// What must arrive, wherever it was kept.
fn expected(
    id: Uuid,
    key: Option<&str>,
    payload: Option<&[u8]>,
    headers: &[(&str, &str)],
) -> Record {
    Record {
        id,
        key: key.map(str::to_owned),
        payload: payload.map(<[u8]>::to_vec),
        headers: headers
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        partition: 0,
    }
}

pub(crate) async fn every_content_arrives_unchanged_from_rust_and_from_sql(broker: &Install) {
    play(broker, Servers::Steady, async |scene| {
        let every_byte: Vec<u8> = (0..=255).collect();
        let long = "ключ".repeat(4_000);
        let (name, value) = broker.odd_header;
        let ids: Vec<Uuid> = (0..9).map(|_| Uuid::now_v7()).collect();

        let to = |id: Uuid| Message::to(&scene.topic).id(id);
        let messages = [
            to(ids[0]).key("").bytes("").unwrap(),
            to(ids[1]).tombstone().unwrap(),
            to(ids[2])
                .key(&long)
                .header(name, value)
                .header("empty", "")
                .bytes(every_byte.clone())
                .unwrap(),
        ];
        let mut conn = scene.pool.acquire().await.unwrap();
        scene.outbox.enqueue(&mut conn, &messages[0]).await.unwrap();
        scene
            .outbox
            .enqueue_all(&mut conn, &messages[1..])
            .await
            .unwrap();

        // As text, the way any other language has it.
        let hex: String = every_byte
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let (odd_name, odd_value) = (json(name), json(value));
        let headers =
            format!(r#"{{{odd_name}: {odd_value}, "empty": "", "escaped": "\ud83e\udd80"}}"#);
        let odd = r#"{"text": "a\u0000b",  "big": 123456789012345678901234567890.10, "big":1e400}"#;
        let topic = &scene.topic;
        let statements = [
            format!("enqueue('{topic}', '', '', NULL, '{}')", ids[3]),
            format!("enqueue('{topic}', NULL, NULL, '{{}}', '{}')", ids[4]),
            format!(
                "enqueue('{topic}', '\\x{hex}', '{long}', '{}', '{}')",
                headers.replace('\'', "''"),
                ids[5]
            ),
            format!(
                "enqueue_json('{topic}', '{odd}', key => 'json', id => '{}')",
                ids[6]
            ),
            format!(
                "enqueue('{topic}', NULL, key => 'deleted', id => '{}')",
                ids[7]
            ),
        ];
        for statement in statements {
            scene
                .execute(&format!("SELECT {{schema}}.{statement}"))
                .await;
        }
        scene
            .execute(&format!(
                "INSERT INTO {{schema}}.message (topic, key, payload, id) \
                 VALUES ('{topic}', 'plain insert', 'text', '{}')",
                ids[8]
            ))
            .await;

        let relay = Relay::start(scene, &[]);
        scene.arrived(9).await;
        scene.settled().await;
        relay.stop(Duration::from_secs(20)).await;

        let mut wanted = vec![
            expected(ids[0], Some(""), Some(b""), &[]),
            expected(ids[1], None, None, &[]),
            expected(
                ids[2],
                Some(&long),
                Some(&every_byte),
                &[(name, value), ("empty", "")],
            ),
            expected(ids[3], Some(""), Some(b""), &[]),
            expected(ids[4], None, None, &[]),
            expected(
                ids[5],
                Some(&long),
                Some(&every_byte),
                &[(name, value), ("empty", ""), ("escaped", "\u{1F980}")],
            ),
            expected(ids[6], Some("json"), Some(odd.as_bytes()), &[]),
            expected(ids[7], Some("deleted"), None, &[]),
            expected(ids[8], Some("plain insert"), Some(b"text"), &[]),
        ];
        let mut arrived = scene.broker.read(&scene.topic).await;
        for record in &mut arrived {
            record.partition = 0;
        }
        wanted.sort();
        arrived.sort();
        assert_eq!(arrived, wanted);
    })
    .await;
}
