//! Redis Streams, through the client of Redis.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd};
use uuid::Uuid;

use super::{Broker, QUESTION, Says, State, message_id, probe_id, text};
use crate::Result;
use crate::consumer::Recorder;
use crate::record::Content;
use crate::service::Service;

const MEMORY: State = State {
    name: "redis out of memory",
    says: Says::No,
};
const REPLICAS: State = State {
    name: "redis without replicas",
    says: Says::No,
};
pub(super) const STATES: &[State] = &[MEMORY, REPLICAS];

/// Entries of a stream: their ids and fields.
type Entries = Vec<(String, Vec<(String, Vec<u8>)>)>;

pub(super) struct Redis {
    url: String,
    topic: String,
    /// The entry that was read last.
    last: Mutex<String>,
}

impl Redis {
    pub(super) fn new(url: &str, topic: &str) -> Self {
        Self {
            url: url.to_owned(),
            topic: topic.to_owned(),
            last: Mutex::new("0".to_owned()),
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(QUESTION))
            .set_response_timeout(Some(QUESTION));
        let client = Client::open(self.url.as_str())?;
        Ok(client
            .get_multiplexed_async_connection_with_config(&config)
            .await?)
    }

    async fn ask(&self, command: &mut Cmd) -> Result<()> {
        Ok(command
            .query_async::<()>(&mut self.connect().await?)
            .await?)
    }

    async fn configure(&self, setting: &str, value: &str) -> Result<()> {
        self.ask(redis::cmd("CONFIG").arg("SET").arg(setting).arg(value))
            .await
    }
}

#[async_trait]
impl Broker for Redis {
    async fn create_topic(&self) -> Result<()> {
        // The first message makes the stream.
        Ok(())
    }

    async fn delete_topic(&self) -> Result<()> {
        self.ask(redis::cmd("DEL").arg(&self.topic)).await
    }

    async fn consume(&self, recorder: &Recorder) -> Result<()> {
        let mut connection = self.connect().await?;
        while !recorder.is_done() {
            let last = self
                .last
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            let mut read = redis::cmd("XREAD");
            read.arg("COUNT")
                .arg(500)
                .arg("BLOCK")
                .arg(Duration::from_millis(500).as_millis() as u64);
            read.arg("STREAMS").arg(&self.topic).arg(last);
            let streams: Option<Vec<(String, Entries)>> = read.query_async(&mut connection).await?;
            for (_, entries) in streams.into_iter().flatten() {
                for (id, fields) in entries {
                    recorder.arrived(content(fields), 0, false);
                    *self.last.lock().unwrap_or_else(PoisonError::into_inner) = id;
                }
            }
        }
        Ok(())
    }

    async fn fill(&self, state: State, _: &Service) -> Result<()> {
        match state {
            MEMORY => self.configure("maxmemory", "1").await,
            _ => self.configure("min-replicas-to-write", "1").await,
        }
    }

    async fn drain(&self, state: State, _: &Service) -> Result<()> {
        match state {
            MEMORY => self.configure("maxmemory", "0").await,
            _ => self.configure("min-replicas-to-write", "0").await,
        }
    }

    async fn takes_writes(&self, state: State) -> Result<bool> {
        let refusal = match state {
            MEMORY => "OOM",
            _ => "NOREPLICAS",
        };
        let mut add = redis::cmd("XADD");
        add.arg(&self.topic).arg("*").arg("id");
        let answer = add
            .arg(probe_id().to_string())
            .query_async::<()>(&mut self.connect().await?)
            .await;
        match answer {
            Err(error) if error.code() == Some(refusal) => Ok(false),
            answer => Ok(answer.map(|()| true)?),
        }
    }
}

/// By the names of the wire contract: fields `id`, `key`, `payload` and `header:<name>`.
fn content(fields: Vec<(String, Vec<u8>)>) -> Result<(Uuid, Content)> {
    let count = fields.len();
    let mut fields: BTreeMap<_, _> = fields.into_iter().collect();
    if fields.len() != count {
        return Err("a field came twice".into());
    }
    let id = message_id(&fields.remove("id").ok_or("no message id")?)?;
    let mut content = Content {
        key: fields.remove("key").map(|key| text(&key)).transpose()?,
        payload: fields.remove("payload"),
        headers: BTreeMap::new(),
    };
    for (field, value) in fields {
        let name = field.strip_prefix("header:");
        let name = name.ok_or_else(|| format!("{field:?} is no field of the contract"))?;
        content.headers.insert(name.to_owned(), text(&value)?);
    }
    Ok((id, content))
}
