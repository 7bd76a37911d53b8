//! Kafka's own requests, byte by byte, for what the client has no function for.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::{PATIENCE, servers};

/// Sends a request over the listener that asks for no login, and gives back the answer. `body` is what
/// follows the name of the client in the header, of which there is none.
pub(crate) fn exchange(api: i16, version: i16, body: &[u8]) -> Vec<u8> {
    const CORRELATION_ID: i32 = 0;
    const NO_NAME: i16 = -1;
    let mut request = [api.to_be_bytes(), version.to_be_bytes()].concat();
    request.extend(CORRELATION_ID.to_be_bytes());
    request.extend(NO_NAME.to_be_bytes());
    request.extend(body);

    let mut server = TcpStream::connect(servers()).expect("a connection");
    server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let size = u32::try_from(request.len()).expect("a short request");
    server.write_all(&size.to_be_bytes()).expect("a request");
    server.write_all(&request).expect("a request");
    let mut size = [0; 4];
    server.read_exact(&mut size).expect("an answer");
    let mut answer = vec![0; u32::from_be_bytes(size) as usize];
    server.read_exact(&mut answer).expect("an answer");
    answer
}
