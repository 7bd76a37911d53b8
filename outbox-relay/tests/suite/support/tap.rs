//! A way to a real server that opens when a test says so, so that it makes an outage of its own without
//! stopping what others use; and a server that takes connections and never says a word.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// A port of the loopback interface that leads to a server while it is open.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    server: String,
    statements: Arc<Mutex<Vec<String>>>,
    /// Has the port, and does not listen until it is opened: connections are refused, and nobody else gets it.
    closed: Option<TcpSocket>,
    open: Option<JoinHandle<()>>,
}

impl Proxy {
    /// `server` is `host:port`.
    pub(crate) fn closed(server: &str) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        socket.bind(any).expect("a port");
        Self {
            address: socket.local_addr().expect("its address"),
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

    /// The statements that went to a Postgres since this was last asked.
    pub(crate) fn statements(&self) -> Vec<String> {
        std::mem::take(&mut *self.statements.lock().unwrap())
    }
}

impl Drop for Proxy {
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

/// A server that takes connections and says nothing, until it is dropped.
pub(crate) struct Silent {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Silent {
    pub(crate) async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let task = tokio::spawn(async move {
            let mut connections = Vec::new();
            while let Ok((connection, _)) = listener.accept().await {
                connections.push(connection);
            }
        });
        Self { address, task }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.task.abort();
    }
}
