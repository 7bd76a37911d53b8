//! Messages from a stream of JetStream, through the client of NATS: a durable consumer that is pulled from.

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::{self, Message};
use consumer::{BATCH, Error, Received, Source};
use futures_util::StreamExt as _;
use outbox::{Uuid, async_trait};

const NAME: &str = "billing";

/// How long a call waits for a batch to become full.
const EXPIRES: Duration = Duration::from_millis(500);

/// After so long without an acknowledgement a message comes again: longer than a batch takes.
const ACK_WAIT: Duration = Duration::from_secs(30);

pub(crate) struct StreamSource {
    client: Client,
    consumer: PullConsumer,
    batch: Vec<Message>,
}

impl StreamSource {
    pub(crate) async fn new(client: Client, stream: &str) -> Result<Self, Error> {
        let config = pull::Config {
            durable_name: Some(NAME.to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            // Nothing more is sent before the batch is acknowledged, so what comes again comes before what
            // follows it. Where order does not matter, several instances share the work with more.
            max_ack_pending: i64::try_from(BATCH)?,
            ..pull::Config::default()
        };
        let stream = jetstream::new(client.clone()).get_stream(stream).await?;
        Ok(Self {
            consumer: stream.get_or_create_consumer(NAME, config).await?,
            client,
            batch: Vec::new(),
        })
    }
}

#[async_trait]
impl Source for StreamSource {
    async fn next(&mut self) -> Result<Vec<Received>, Error> {
        // What a dropped call has taken comes again after the wait for its acknowledgement.
        self.batch.clear();
        let batch = self.consumer.batch().max_messages(BATCH).expires(EXPIRES);
        let mut messages = batch.messages().await?;
        while let Some(message) = messages.next().await {
            self.batch.push(message?);
        }
        Ok(self.batch.iter().map(decode).collect())
    }

    async fn acknowledge(&mut self) -> Result<(), Error> {
        for message in self.batch.drain(..) {
            message.ack().await?;
        }
        Ok(self.client.flush().await?)
    }
}

fn decode(message: &Message) -> Received {
    Received {
        id: id(message),
        payload: message.payload.to_vec(),
    }
}

fn id(message: &Message) -> Result<Uuid, Error> {
    let headers = message.headers.as_ref();
    let id = headers.and_then(|headers| headers.get("Nats-Msg-Id"));
    let id = id.ok_or("a message has no header `Nats-Msg-Id`")?;
    Ok(Uuid::try_parse(id.as_str())?)
}
