//! The publisher to Redis Streams passes the suite, on a real server: with streams that are made by
//! the first message, and with streams that have to be there.

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use outbox_conformance::publisher::{OpenBroker, PublisherHarness, Received};
use outbox_core::{Publisher, Uuid, async_trait};
use outbox_redis::{
    HEADER_FIELD_PREFIX, ID_FIELD, KEY_FIELD, PAYLOAD_FIELD, RedisConfig, RedisPublisher,
};
use support::{Entry, ask, delete, read, shared};

const MAX_MESSAGE_BYTES: usize = 1_000_000;

struct Redis {
    creates_streams: bool,
}

#[async_trait]
impl PublisherHarness for Redis {
    async fn open(&self) -> Box<dyn OpenBroker> {
        let prefix = format!("test-{}:", Uuid::now_v7().simple());
        let config = RedisConfig::new(shared())
            .stream_prefix(&prefix)
            .create_streams(self.creates_streams)
            .max_message_bytes(MAX_MESSAGE_BYTES);
        let publisher = RedisPublisher::new(config).expect("a configuration that is accepted");
        Box::new(Open {
            publisher: Arc::new(publisher),
            prefix,
            creates_streams: self.creates_streams,
            streams: Mutex::default(),
        })
    }
}

struct Open {
    publisher: Arc<RedisPublisher>,
    prefix: String,
    creates_streams: bool,
    streams: Mutex<Vec<String>>,
}

#[async_trait]
impl OpenBroker for Open {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.publisher) as Arc<dyn Publisher>
    }

    async fn create_topic(&self, name: &str) -> bool {
        let stream = format!("{}{name}", self.prefix);
        if !self.creates_streams {
            let words = ["XGROUP", "CREATE", &stream, "readers", "$", "MKSTREAM"];
            ask(&shared(), &words).await;
        }
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.push(stream);
        true
    }

    async fn received(&self, topic: &str) -> Vec<Received> {
        let entries = read(&shared(), &format!("{}{topic}", self.prefix)).await;
        entries.into_iter().map(received).collect()
    }

    fn has_missing_topics(&self) -> bool {
        !self.creates_streams
    }

    fn large_payload(&self) -> usize {
        MAX_MESSAGE_BYTES - 1_000
    }

    fn too_large_payload(&self) -> Option<usize> {
        Some(MAX_MESSAGE_BYTES)
    }

    fn chains_keys(&self) -> bool {
        true
    }

    async fn close(self: Box<Self>) {
        let streams = self.streams.into_inner();
        delete(&streams.unwrap_or_else(PoisonError::into_inner)).await;
    }
}

fn received(entry: Entry) -> Received {
    let mut fields = BTreeMap::new();
    for (name, value) in entry {
        let before = fields.insert(name.clone(), value);
        assert!(before.is_none(), "the field {name:?} came twice");
    }
    Received {
        id: fields.remove(ID_FIELD).map(text),
        key: fields.remove(KEY_FIELD).map(text),
        payload: fields.remove(PAYLOAD_FIELD),
        headers: fields
            .into_iter()
            .map(|(field, value)| {
                let name = field.strip_prefix(HEADER_FIELD_PREFIX);
                let name = name.unwrap_or_else(|| panic!("{field:?} is no field of the mapping"));
                (name.to_owned(), text(value))
            })
            .collect(),
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}

mod streams_are_made {
    outbox_conformance::publisher_suite!(super::Redis {
        creates_streams: true
    });
}

mod streams_are_there {
    outbox_conformance::publisher_suite!(super::Redis {
        creates_streams: false
    });
}
