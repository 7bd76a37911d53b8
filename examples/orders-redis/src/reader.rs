//! The consumer: Redis's own client, and nothing of the outbox but the wire contract.

use std::collections::{HashMap, VecDeque};

use orders::{Error, Event, Reader};
use outbox::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{Client, RedisResult};

use crate::streams::connect;

/// How many entries come at once.
const COUNT: usize = 1_000;

/// How long the server waits for an entry, in milliseconds.
const BLOCK: usize = 1_000;

/// Reads a stream from its beginning.
pub(crate) struct StreamReader {
    client: Client,
    connection: MultiplexedConnection,
    stream: String,
    /// The id of the last entry that was read.
    last: String,
    read: VecDeque<Fields>,
}

type Fields = HashMap<String, Vec<u8>>;

/// The answer to `XREAD`: nothing, or streams by their names, each with entries by their ids.
type Streams = Option<Vec<(String, Vec<(String, Fields)>)>>;

impl StreamReader {
    pub(crate) async fn new(client: Client, stream: &str) -> Result<Self, Error> {
        Ok(Self {
            connection: connect(&client).await?,
            client,
            stream: stream.to_owned(),
            last: "0".to_owned(),
            read: VecDeque::new(),
        })
    }

    /// What comes after the last entry, once there is something.
    async fn read_more(&mut self) -> RedisResult<()> {
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(COUNT).arg("BLOCK").arg(BLOCK);
        command.arg("STREAMS").arg(&self.stream).arg(&self.last);
        let streams: Streams = command.query_async(&mut self.connection).await?;
        // No await from here on: a call that is dropped has taken nothing.
        for (_, entries) in streams.into_iter().flatten() {
            for (id, fields) in entries {
                self.last = id;
                self.read.push_back(fields);
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Reader for StreamReader {
    async fn next(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(fields) = self.read.pop_front() {
                return decode(&fields);
            }
            if let Err(error) = self.read_more().await {
                if !error.is_io_error() {
                    return Err(error.into());
                }
                // The connection was lost, and a new one reads on where this one was.
                self.connection = connect(&self.client).await?;
            }
        }
    }

    async fn count(&mut self) -> Result<u64, Error> {
        let mut command = redis::cmd("XLEN");
        command.arg(&self.stream);
        Ok(command.query_async(&mut self.connection).await?)
    }
}

fn decode(fields: &Fields) -> Result<Event, Error> {
    let field = |name| fields.get(name).map(Vec::as_slice);
    let id = field("id").ok_or("an entry has no field `id`")?;
    let key = field("key").unwrap_or_default();
    Event::decode(id, key, field("payload").unwrap_or_default())
}
