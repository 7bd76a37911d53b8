//! RabbitMQ: a passive declaration, which only looks. It closes its channel when there is nothing, so each
//! has a channel of its own.

use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::protocol::AMQPErrorKind;
use lapin::types::{FieldTable, ShortString};
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties, Error, ErrorKind, ExchangeKind};
use outbox_amqp::Routing;
use tokio::time::timeout;

use crate::broker::amqp::routing;
use crate::settings::Amqp;

use super::{Answer, Away, PATIENCE, Place};

const NOT_FOUND: u16 = 404;
const ACCESS_REFUSED: u16 = 403;
/// Held by another connection for itself alone: it is there.
const RESOURCE_LOCKED: u16 = 405;

/// Asks for the queue or the exchange that each topic is routed to.
pub(super) async fn ask(section: &str, settings: &Amqp, topics: &[String]) -> Result<Answer, Away> {
    let routing = routing(section, settings)?;
    // The client's own words may hold the whole URL.
    let uri: AMQPUri = settings
        .url
        .expose()
        .parse()
        .map_err(|_| Away("the URL cannot be used".to_owned()))?;
    let properties = ConnectionProperties::default().with_connection_name("outbox doctor".into());
    let connecting = async {
        let runtime = lapin::runtime::default_runtime()?;
        Connection::connect_uri_with_runtime(uri, properties, runtime).await
    };
    let connection = match timeout(PATIENCE, connecting).await {
        Ok(connected) => connected.map_err(|error| away(&error))?,
        Err(_) => return Err(Away::silent()),
    };
    let mut places = Vec::with_capacity(topics.len());
    for topic in topics {
        let looking = timeout(PATIENCE, look(&connection, &routing, topic));
        places.push(match looking.await {
            Ok(place) => place,
            Err(_) => Place::Unknown(Away::silent().0),
        });
    }
    // The answers are there; a broker that does not let go of the connection changes nothing.
    let _ = timeout(PATIENCE, connection.close(200, "looked".into())).await;
    Ok(Answer {
        broker: "reachable".to_owned(),
        places,
    })
}

async fn look(connection: &Connection, routing: &Routing, topic: &str) -> Place {
    let (what, name) = match routing {
        Routing::Queue => ("queue", topic),
        Routing::Exchange(exchange) => ("exchange", exchange.as_str()),
        Routing::ExchangePerTopic => ("exchange", topic),
    };
    let Ok(short) = ShortString::try_new(name) else {
        return Place::Missing(format!("the name of the {what} is too long"));
    };
    let looked = async {
        let channel = connection.create_channel().await?;
        match routing {
            Routing::Queue => {
                let passive = QueueDeclareOptions {
                    passive: true,
                    ..Default::default()
                };
                let declared = channel
                    .queue_declare(short, passive, FieldTable::default())
                    .await;
                declared.map(|_| ())
            }
            Routing::Exchange(_) | Routing::ExchangePerTopic => {
                let passive = ExchangeDeclareOptions {
                    passive: true,
                    ..Default::default()
                };
                let kind = ExchangeKind::Topic;
                channel
                    .exchange_declare(short, kind, passive, FieldTable::default())
                    .await
            }
        }
    };
    match (looked.await, routing) {
        (Ok(()), Routing::Queue) => Place::Found("a queue".to_owned()),
        (Ok(()), Routing::Exchange(_) | Routing::ExchangePerTopic) => Place::Unknown(format!(
            "there is an exchange {name:?}; whether a queue is bound for the routing key only a message tells"
        )),
        (Err(error), _) => match exception(&error) {
            Some((NOT_FOUND, _)) => Place::Missing(format!("there is no {what} {name:?}")),
            Some((RESOURCE_LOCKED, _)) => Place::Found(format!("{what} of one connection alone")),
            Some((ACCESS_REFUSED, text)) => Place::Unknown(text),
            Some((code, text)) => Place::Unknown(format!("{code} {text}")),
            None => Place::Unknown(away(&error).0),
        },
    }
}

/// The code and the words with which the server has closed the channel.
fn exception(error: &Error) -> Option<(u16, String)> {
    match error.kind() {
        ErrorKind::ProtocolError(error) if matches!(error.kind(), AMQPErrorKind::Soft(_)) => {
            Some((error.get_id(), error.get_message().to_string()))
        }
        _ => None,
    }
}

fn away(error: &Error) -> Away {
    Away(error.to_string())
}
