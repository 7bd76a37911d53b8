//! NATS: which stream takes the subject, by the JetStream interface.

use async_nats::jetstream::context::GetStreamByNameErrorKind;
use async_nats::jetstream::response::Response;
use async_nats::{ConnectError, ConnectErrorKind, jetstream};
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::timeout;

use crate::broker::nats::{options, servers};
use crate::settings::Nats;

use super::{Answer, Away, PATIENCE, Place};

/// Asks for the stream of each topic's subject.
pub(super) async fn ask(section: &str, settings: &Nats, topics: &[String]) -> Result<Answer, Away> {
    let options = options(section, settings).await?;
    let client = match timeout(PATIENCE, options.connect(servers(settings))).await {
        Ok(connected) => connected.map_err(|error| away(&error))?,
        Err(_) => return Err(Away::silent()),
    };
    let context = jetstream::new(client.clone());
    if let Err(reason) = is_jet_stream_there(&context).await {
        return Err(Away(format!("JetStream: {reason}")));
    }
    let mut places = Vec::with_capacity(topics.len());
    for topic in topics {
        let subject = match &settings.subject_prefix {
            Some(prefix) => format!("{prefix}.{topic}"),
            None => topic.clone(),
        };
        places.push(look(&context, subject, settings.expected_stream.as_deref()).await);
    }
    let version = client.server_info().version;
    Ok(Answer {
        broker: format!("server {version}"),
        places,
    })
}

/// Any answer but an error will do: the client's own type for it does not take those of older servers.
async fn is_jet_stream_there(context: &jetstream::Context) -> Result<(), String> {
    let account = json!({});
    let asked = context.request::<_, _, Response<IgnoredAny>>("INFO", &account);
    match timeout(PATIENCE, asked).await {
        Ok(Ok(Response::Ok(_))) => Ok(()),
        Ok(Ok(Response::Err { error })) => Err(error.to_string()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(Away::silent().0),
    }
}

async fn look(context: &jetstream::Context, subject: String, expected: Option<&str>) -> Place {
    match timeout(PATIENCE, context.stream_by_subject(subject.as_str())).await {
        Ok(Ok(stream)) => match expected {
            Some(expected) if expected != stream => Place::Missing(format!(
                "subject {subject:?} is of stream {stream:?}, {expected:?} is expected"
            )),
            _ => Place::Found(format!("stream {stream:?}")),
        },
        Ok(Err(error)) => match error.kind() {
            GetStreamByNameErrorKind::NotFound => {
                Place::Missing(format!("no stream takes the subject {subject:?}"))
            }
            GetStreamByNameErrorKind::InvalidSubject => {
                Place::Missing(format!("{subject:?} is no subject"))
            }
            _ => Place::Unknown(error.to_string()),
        },
        Err(_) => Place::Unknown(Away::silent().0),
    }
}

fn away(error: &ConnectError) -> Away {
    match error.kind() {
        // Its words may hold the whole URL.
        ConnectErrorKind::ServerParse => Away("the URL cannot be used".to_owned()),
        _ => Away(error.to_string()),
    }
}
