//! Messages from a stream, through the client of Redis: a group, whose members have what they have not
//! acknowledged until they do, or until another one claims it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use consumer::{BATCH, Error, Received, Source};
use outbox::{Uuid, async_trait};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult};

const GROUP: &str = "billing";

/// How long the server waits for an entry, in milliseconds.
const BLOCK: usize = 1_000;

/// What an instance has not acknowledged for so long is another's: longer than a batch takes.
const ABANDONED: Duration = Duration::from_secs(60);

/// Where a walk through what the instances have not acknowledged begins, and what Redis says at its end.
const BEGINNING: &str = "0-0";

pub(crate) struct StreamSource {
    connection: MultiplexedConnection,
    stream: String,
    instance: String,
    /// Whether the entries that this instance has not acknowledged, before it was started, are all read.
    caught_up: bool,
    /// When and where it next looks for entries that another instance has left behind.
    claim_at: Instant,
    claim_from: String,
    /// The ids of the entries of the last batch.
    batch: Vec<String>,
}

/// An entry that was trimmed away while it was not acknowledged has no fields.
type Entry = (String, Option<HashMap<String, Vec<u8>>>);

/// The answer to `XREADGROUP`: nothing, or streams by their names, with their entries.
type Streams = Option<Vec<(String, Vec<Entry>)>>;

impl StreamSource {
    pub(crate) async fn new(url: &str, stream: String, instance: String) -> Result<Self, Error> {
        let config =
            AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10))); // longer than the server waits
        let mut connection = Client::open(url)?
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let mut create = redis::cmd("XGROUP");
        create
            .arg("CREATE")
            .arg(&stream)
            .arg(GROUP)
            .arg("0")
            .arg("MKSTREAM");
        match create.exec_async(&mut connection).await {
            Err(error) if error.code() != Some("BUSYGROUP") => return Err(error.into()),
            // It is there, or another instance has made it.
            Ok(()) | Err(_) => {}
        }
        Ok(Self {
            connection,
            stream,
            instance,
            caught_up: false,
            claim_at: Instant::now(),
            claim_from: BEGINNING.to_owned(),
            batch: Vec::new(),
        })
    }

    /// From the beginning of what this instance has not acknowledged, or what nobody has got yet.
    async fn read(&mut self, from: &str) -> RedisResult<Vec<Entry>> {
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(GROUP).arg(&self.instance);
        command.arg("COUNT").arg(BATCH).arg("BLOCK").arg(BLOCK);
        command.arg("STREAMS").arg(&self.stream).arg(from);
        let streams: Streams = command.query_async(&mut self.connection).await?;
        Ok(streams
            .into_iter()
            .flatten()
            .flat_map(|(_, entries)| entries)
            .collect())
    }

    /// Makes some of what an instance has left behind this one's. It looks at a part of what is not acknowledged,
    /// and goes on from there with the next batch; once it is through, it rests.
    async fn claim(&mut self) -> RedisResult<bool> {
        let mut command = redis::cmd("XAUTOCLAIM");
        command.arg(&self.stream).arg(GROUP).arg(&self.instance);
        command
            .arg(ABANDONED.as_millis() as u64)
            .arg(&self.claim_from)
            .arg("COUNT")
            .arg(BATCH)
            .arg("JUSTID");
        let (next, claimed): (String, Vec<String>) = {
            let answer: redis::Value = command.query_async(&mut self.connection).await?;
            let mut parts: Vec<redis::Value> = redis::from_redis_value(answer)?;
            parts.truncate(2); // Redis 7 adds those that were trimmed away
            redis::from_redis_value(redis::Value::Array(parts))?
        };
        if next == BEGINNING {
            self.claim_at = Instant::now() + ABANDONED / 2;
        }
        self.claim_from = next;
        Ok(!claimed.is_empty())
    }
}

#[async_trait]
impl Source for StreamSource {
    async fn next(&mut self) -> Result<Vec<Received>, Error> {
        let mut entries = Vec::new();
        if !self.caught_up {
            entries = self.read("0").await?;
            self.caught_up = entries.is_empty();
        }
        if self.caught_up {
            // Set before the server has handed out anything: a call that is dropped leaves it so, and the next
            // one begins with what this one has taken.
            self.caught_up = false;
            // By the clock, since on a busy stream there is no moment without new entries.
            if Instant::now() >= self.claim_at && self.claim().await? {
                entries = self.read("0").await?;
            } else {
                entries = self.read(">").await?;
                self.caught_up = true;
            }
        }
        let (there, gone): (Vec<Entry>, Vec<Entry>) = entries
            .into_iter()
            .partition(|(_, fields)| fields.is_some());
        if !gone.is_empty() {
            eprintln!(
                "{} entries were trimmed away before they were processed",
                gone.len()
            );
            self.batch = gone.into_iter().map(|(id, _)| id).collect();
            self.acknowledge().await?;
        }
        let received = there.iter().filter_map(|(_, fields)| fields.as_ref());
        let received = received.map(decode).collect();
        self.batch = there.into_iter().map(|(id, _)| id).collect();
        Ok(received)
    }

    async fn acknowledge(&mut self) -> Result<(), Error> {
        let mut command = redis::cmd("XACK");
        command.arg(&self.stream).arg(GROUP).arg(&self.batch);
        Ok(command.exec_async(&mut self.connection).await?)
    }
}

fn decode(fields: &HashMap<String, Vec<u8>>) -> Received {
    Received {
        id: id(fields),
        payload: fields.get("payload").cloned().unwrap_or_default(),
    }
}

fn id(fields: &HashMap<String, Vec<u8>>) -> Result<Uuid, Error> {
    let id = fields.get("id").ok_or("an entry has no field `id`")?;
    Ok(Uuid::try_parse_ascii(id)?)
}
