//! A connection that can be held up and cut: what lies between a client and a server.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

/// Passes bytes on in both directions, until it is told to hold them.
pub(crate) struct Proxy {
    address: SocketAddr,
    held: watch::Sender<bool>,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let (held, _) = watch::channel(false);
        let connections: Arc<Mutex<Vec<AbortHandle>>> = Arc::default();
        let accepting = tokio::spawn({
            let (held, connections) = (held.clone(), Arc::clone(&connections));
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let held = held.subscribe();
                    let connection = tokio::spawn(pass_on(client, server, held));
                    let mut connections =
                        connections.lock().unwrap_or_else(PoisonError::into_inner);
                    connections.push(connection.abort_handle());
                }
            }
        });
        Self {
            address,
            held,
            connections,
            accepting,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Reads and writes nothing more. The connections stay.
    pub(crate) fn hold(&self) {
        self.held.send_replace(true);
    }

    /// Passes on what was held, and everything from now on.
    pub(crate) fn release(&self) {
        self.held.send_replace(false);
    }

    /// Closes every connection; new ones are taken. What was held is lost.
    pub(crate) fn cut(&self) {
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for connection in connections.drain(..) {
            connection.abort();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn pass_on(client: TcpStream, server: SocketAddr, held: watch::Receiver<bool>) {
    // A server that is not there closes the client's connection.
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pump(from_client, to_server, held.clone()) => {}
        () = pump(from_server, to_client, held) => {}
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut held: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        // What is in the buffer when it is held waits there.
        let Ok(count) = from.read(&mut buffer).await else {
            return;
        };
        let let_go = held.wait_for(|held| !held).await.is_ok();
        if count == 0 || !let_go || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
