//! What travels arrives as it was written, under names that any consumer can read.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_core::Message;
use uuid::Uuid;

use crate::support::kafka::Record;
use crate::support::relay::Relay;
use crate::support::scene::{Servers, play};

/// The message id, key, value and headers of a record.
type Content = (
    Uuid,
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    BTreeMap<String, Vec<u8>>,
);

/// What must arrive; the header with the message id is added.
fn expected(
    id: Uuid,
    key: Option<&str>,
    value: Option<&[u8]>,
    headers: &[(&str, &str)],
) -> Content {
    let mut all: BTreeMap<_, _> = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()))
        .collect();
    all.insert("outbox-id".to_owned(), id.to_string().into_bytes());
    (
        id,
        key.map(|key| key.as_bytes().to_vec()),
        value.map(<[u8]>::to_vec),
        all,
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_content_arrives_unchanged_from_rust_and_from_sql() {
    play(Servers::Steady, async |scene| {
        let every_byte: Vec<u8> = (0..=255).collect();
        let long = "ключ".repeat(4_000);
        let name = "größe in m², \"=:\r\n";
        let text = "\u{1F980}\r\n\t\\ \u{7f} ' \" ";
        let ids: Vec<Uuid> = (0..9).map(|_| Uuid::now_v7()).collect();

        let to = |id: Uuid| Message::to(&scene.topic).id(id);
        let messages = [
            to(ids[0]).key("").bytes("").unwrap(),
            to(ids[1]).tombstone().unwrap(),
            to(ids[2])
                .key(&long)
                .header(name, text)
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
        let headers = r#"{"größe in m²": "\ud83e\udd80\r\n\t", "empty": ""}"#;
        let odd = r#"{"text": "a\u0000b",  "big": 123456789012345678901234567890.10, "big":1e400}"#;
        let topic = &scene.topic;
        let statements = [
            format!("enqueue('{topic}', '', '', NULL, '{}')", ids[3]),
            format!("enqueue('{topic}', NULL, NULL, '{{}}', '{}')", ids[4]),
            format!(
                "enqueue('{topic}', '\\x{hex}', '{long}', '{headers}', '{}')",
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
                &[(name, text), ("empty", "")],
            ),
            expected(ids[3], Some(""), Some(b""), &[]),
            expected(ids[4], None, None, &[]),
            expected(
                ids[5],
                Some(&long),
                Some(&every_byte),
                &[("größe in m²", "\u{1F980}\r\n\t"), ("empty", "")],
            ),
            expected(ids[6], Some("json"), Some(odd.as_bytes()), &[]),
            expected(ids[7], Some("deleted"), None, &[]),
            expected(ids[8], Some("plain insert"), Some(b"text"), &[]),
        ];
        let arrived = |record: Record| {
            let id = crate::support::audit::id(&record);
            (id, record.key, record.value, record.headers)
        };
        let mut arrived: Vec<_> = scene
            .kafka
            .read(&scene.topic)
            .await
            .into_iter()
            .map(arrived)
            .collect();
        wanted.sort();
        arrived.sort();
        assert_eq!(arrived, wanted);
    })
    .await;
}
