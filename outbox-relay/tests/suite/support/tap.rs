//! A way to Postgres on which a test hears what is asked, and which opens when it says so: until then
//! connections are refused. Where an outage is all that is wanted, `outbox_conformance::proxy` makes it.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use super::authority;

/// A port of the loopback interface that leads to a Postgres once it is open.
pub(crate) struct Tap {
    /// The URL by which a client goes this way.
    pub(crate) url: String,
    server: String,
    statements: Arc<Mutex<Vec<String>>>,
    /// Has the port, and does not listen until it is opened: connections are refused, and nobody else gets it.
    closed: Option<TcpSocket>,
    open: Option<JoinHandle<()>>,
}

impl Tap {
    /// To the server of a URL.
    pub(crate) fn closed(url: &str) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        socket.bind(any).expect("a port");
        let address = socket.local_addr().expect("its address").to_string();
        let server = authority(url);
        Self {
            url: url.replace(server, &address),
            server: server.to_owned(),
            statements: Arc::default(),
            closed: Some(socket),
            open: None,
        }
    }

    pub(crate) fn open(&mut self) {
        let socket = self.closed.take().expect("it was closed");
        let listener = socket.listen(64).expect("it listens");
        let server = self.server.clone();
        let statements = Arc::clone(&self.statements);
        self.open = Some(tokio::spawn(async move {
            // Ends its connections when it is dropped.
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.expect("a connection");
                connections.spawn(carry(client, server.clone(), Arc::clone(&statements)));
            }
        }));
    }

    /// The statements that were made since this was last asked.
    pub(crate) fn statements(&self) -> Vec<String> {
        std::mem::take(&mut *self.statements.lock().unwrap())
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if let Some(task) = &self.open {
            task.abort();
        }
    }
}

async fn carry(client: TcpStream, server: String, statements: Arc<Mutex<Vec<String>>>) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        let mut read = Frames::default();
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
            read.take(&buffer[..length], &statements);
            if to_server.write_all(&buffer[..length]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = up => {}
        _ = copy(&mut from_server, &mut to_client) => {}
    }
}

/// What a client of Postgres says: statements by the simple protocol, and executions of prepared ones.
#[derive(Default)]
struct Frames {
    buffer: Vec<u8>,
    greeted: bool,
}

impl Frames {
    fn take(&mut self, bytes: &[u8], statements: &Mutex<Vec<String>>) {
        self.buffer.extend_from_slice(bytes);
        loop {
            // The first messages of a connection have no letter before their length.
            let skip = usize::from(self.greeted);
            let Some(length) = self.buffer.get(skip..skip + 4) else {
                return;
            };
            let length = u32::from_be_bytes(length.try_into().unwrap()) as usize + skip;
            if self.buffer.len() < length {
                return;
            }
            let frame: Vec<u8> = self.buffer.drain(..length).collect();
            if !self.greeted {
                const STARTUP: [u8; 4] = 196_608_u32.to_be_bytes();
                self.greeted = frame[4..8] == STARTUP;
                continue;
            }
            let text = || String::from_utf8_lossy(&frame[5..]).into_owned();
            match frame[0] {
                b'Q' => {
                    let text = text();
                    let parts = text.trim_matches(['\0', ' ', ';']).split(';');
                    statements.lock().unwrap().extend(parts.map(str::to_owned));
                }
                b'E' => statements.lock().unwrap().push("EXECUTE".to_owned()),
                _ => {}
            }
        }
    }
}
