//! Redis: the type of the key that is the topic's stream.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, RedisError};

use crate::broker::redis::client;
use crate::settings::Redis;

use super::{Answer, Away, PATIENCE, Place};

/// Asks for the key of each topic's stream.
pub(super) async fn ask(
    section: &str,
    settings: &Redis,
    topics: &[String],
) -> Result<Answer, Away> {
    let client = client(section, settings)?;
    let bounded = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let connected = client
        .get_multiplexed_async_connection_with_config(&bounded)
        .await;
    let mut connection = connected.map_err(|error| away(&error))?;
    let answered = redis::cmd("PING").query_async::<()>(&mut connection).await;
    answered.map_err(|error| away(&error))?;
    let mut places = Vec::with_capacity(topics.len());
    for topic in topics {
        let stream = format!("{}{topic}", settings.stream_prefix);
        places.push(look(&mut connection, &stream, settings.create_streams).await);
    }
    Ok(Answer {
        broker: "reachable".to_owned(),
        places,
    })
}

async fn look(connection: &mut MultiplexedConnection, stream: &str, create: bool) -> Place {
    let asked = redis::cmd("TYPE")
        .arg(stream)
        .query_async::<String>(connection)
        .await;
    match asked.as_deref() {
        Ok("stream") => Place::Found("a stream".to_owned()),
        Ok("none") if create => {
            Place::Found("no stream yet, the first message makes it".to_owned())
        }
        Ok("none") => Place::Missing(format!("there is no stream {stream:?}")),
        Ok(other) => Place::Missing(format!("the key {stream:?} holds a {other}, not a stream")),
        Err(error) => Place::Unknown(match error.kind() {
            ErrorKind::Server(redis::ServerErrorKind::Moved) => {
                "another server of the cluster has it".to_owned()
            }
            _ => away(error).0,
        }),
    }
}

fn away(error: &RedisError) -> Away {
    Away(error.to_string())
}
