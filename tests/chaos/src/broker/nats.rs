//! NATS JetStream, through its own client. A topic is a stream of the same name.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::{self, Context, Message, stream};
use async_nats::{ConnectOptions, HeaderMap};
use async_trait::async_trait;
use futures_util::StreamExt as _;
use tokio::time::timeout;
use uuid::Uuid;

use super::{Broker, QUESTION, Says, State, message_id, probe_id};
use crate::Result;
use crate::consumer::Recorder;
use crate::record::Content;
use crate::service::Service;

const FULL: State = State {
    name: "nats stream full",
    says: Says::No,
};
pub(super) const STATES: &[State] = &[FULL];

pub(super) struct Nats {
    url: String,
    topic: String,
    /// The place in the stream of what was read last.
    last: AtomicU64,
}

impl Nats {
    pub(super) fn new(url: &str, topic: &str) -> Self {
        Self {
            url: url.to_owned(),
            topic: topic.to_owned(),
            last: AtomicU64::new(0),
        }
    }

    async fn connect(&self) -> Result<Context> {
        let connecting = ConnectOptions::new().connect(&self.url);
        Ok(jetstream::new(timeout(QUESTION, connecting).await??))
    }

    fn stream(&self, max_bytes: i64) -> stream::Config {
        stream::Config {
            name: self.topic.clone(),
            subjects: vec![self.topic.clone()],
            max_bytes,
            discard: stream::DiscardPolicy::New,
            ..stream::Config::default()
        }
    }

    async fn limit(&self, max_bytes: i64) -> Result<()> {
        let context = self.connect().await?;
        timeout(QUESTION, context.update_stream(self.stream(max_bytes))).await??;
        Ok(())
    }
}

#[async_trait]
impl Broker for Nats {
    async fn create_topic(&self) -> Result<()> {
        self.connect().await?.create_stream(self.stream(-1)).await?;
        Ok(())
    }

    async fn delete_topic(&self) -> Result<()> {
        self.connect().await?.delete_stream(&self.topic).await?;
        Ok(())
    }

    async fn consume(&self, recorder: &Recorder) -> Result<()> {
        let context = self.connect().await?;
        let stream = timeout(QUESTION, context.get_stream(&self.topic)).await??;
        let settings = pull::Config {
            ack_policy: AckPolicy::None,
            deliver_policy: DeliverPolicy::ByStartSequence {
                start_sequence: self.last.load(Ordering::Relaxed) + 1,
            },
            ..pull::Config::default()
        };
        let consumer = timeout(QUESTION, stream.create_consumer(settings)).await??;
        while !recorder.is_done() {
            let fetching = consumer
                .fetch()
                .max_messages(500)
                .expires(Duration::from_millis(500))
                .messages();
            let mut batch = timeout(QUESTION, fetching).await??;
            let mut silent = true;
            while let Some(message) = timeout(QUESTION, batch.next()).await? {
                let message = message?;
                silent = false;
                recorder.arrived(content(&message), 0, false);
                self.last
                    .store(message.info()?.stream_sequence, Ordering::Relaxed);
            }
            if silent {
                // A consumer that went with its server answers nothing, as one that has nothing.
                timeout(QUESTION, consumer.get_info()).await??;
            }
        }
        Ok(())
    }

    async fn fill(&self, _: State, _: &Service) -> Result<()> {
        self.limit(1).await
    }

    async fn drain(&self, _: State, _: &Service) -> Result<()> {
        self.limit(-1).await
    }

    async fn takes_writes(&self, _: State) -> Result<bool> {
        let context = self.connect().await?;
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", probe_id().to_string());
        let publishing = context.publish_with_headers(self.topic.clone(), headers, "".into());
        match timeout(QUESTION, timeout(QUESTION, publishing).await??).await? {
            Ok(_) => Ok(true),
            Err(error) => match error.to_string().contains("maximum bytes exceeded") {
                true => Ok(false),
                false => Err(error.into()),
            },
        }
    }
}

/// By the names of the wire contract: headers `Nats-Msg-Id`, `Outbox-Key` and `Outbox-Tombstone`, payload
/// and headers.
fn content(message: &Message) -> Result<(Uuid, Content)> {
    let mut headers = BTreeMap::new();
    for (name, values) in message.headers.iter().flat_map(HeaderMap::iter) {
        let [value] = values.as_slice() else {
            return Err(format!("header {name} came {} times", values.len()).into());
        };
        headers.insert(name.to_string(), value.to_string());
    }
    let id = headers.remove("Nats-Msg-Id").ok_or("no message id")?;
    let payload = message.payload.to_vec();
    let payload = match headers.remove("Outbox-Tombstone").as_deref() {
        None => Some(payload),
        Some("true") if payload.is_empty() => None,
        other => return Err(format!("a tombstone of {other:?}").into()),
    };
    let key = headers.remove("Outbox-Key");
    Ok((
        message_id(id.as_bytes())?,
        Content {
            key,
            payload,
            headers,
        },
    ))
}
