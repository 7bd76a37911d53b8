//! Rights on a topic by Kafka's own requests, which its client has no function for.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::QUESTION;
use crate::Result;

const CREATE_ACLS: i16 = 30;
const DELETE_ACLS: i16 = 31;
const TOPIC: u8 = 2;
const LITERAL: u8 = 3;
const ANY: u8 = 1;
const READ: u8 = 3;
const ALLOW: u8 = 3;

/// Lets everybody read the topic. Where somebody has a right, nobody has another one: none may write.
pub(super) async fn let_only_read(server: &str, topic: &str) -> Result<()> {
    let mut request = on(topic)?;
    request.extend(text("User:*")?);
    request.extend(text("*")?);
    request.extend([READ, ALLOW]);
    ask(server, CREATE_ACLS, &request).await
}

/// Forgets every right on the topic: everybody may do everything.
pub(super) async fn let_all(server: &str, topic: &str) -> Result<()> {
    let mut request = on(topic)?;
    // Whoever has it, from wherever.
    request.extend([0xff, 0xff, 0xff, 0xff, ANY, ANY]);
    ask(server, DELETE_ACLS, &request).await
}

/// A list of one, which begins with its topic.
fn on(topic: &str) -> Result<Vec<u8>> {
    let mut request = vec![0, 0, 0, 1, TOPIC];
    request.extend(text(topic)?);
    request.push(LITERAL);
    Ok(request)
}

fn text(text: &str) -> Result<Vec<u8>> {
    let length = i16::try_from(text.len())?.to_be_bytes();
    Ok([&length, text.as_bytes()].concat())
}

/// Sends a request in version 1, without a correlation id and the name of a client. An error unless the
/// answer has none.
async fn ask(server: &str, api: i16, body: &[u8]) -> Result<()> {
    let head = [api.to_be_bytes(), [0, 1], [0, 0], [0, 0], [0xff, 0xff]].concat();
    let size = u32::try_from(head.len() + body.len())?.to_be_bytes();
    let request = [&size, head.as_slice(), body].concat();
    let answering = async {
        let mut server = TcpStream::connect(server).await?;
        server.write_all(&request).await?;
        // Size, correlation id, throttle time and number of results, 4 bytes each, and the first's code.
        let mut answer = [0; 18];
        server.read_exact(&mut answer).await?;
        std::io::Result::Ok(i16::from_be_bytes([answer[16], answer[17]]))
    };
    match timeout(QUESTION, answering).await?? {
        0 => Ok(()),
        54 => Err("the server has no authorizer: `scripts/services restart` it".into()),
        code => Err(format!("Kafka's request {api} failed with code {code}").into()),
    }
}
