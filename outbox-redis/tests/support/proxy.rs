//! A bad network between the publisher and a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Forwards connections to a server until it is told otherwise. It ends when it is dropped.
pub(crate) struct Proxy {
    address: String,
    shared: Arc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
}

struct Shared {
    server: String,
    mode: watch::Sender<Mode>,
    /// Bytes that clients have sent and that were read here.
    sent: AtomicU64,
    /// Connections that were accepted.
    accepted: AtomicU64,
    /// Connections that are open.
    open: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Forward,
    /// What clients send stays where it is; connections stay open.
    Frozen,
    /// What clients send is read and forgotten.
    Swallow,
    /// Of each connection, so many bytes of answers pass; then it is closed.
    CutAfter(usize),
    /// Connections that are open are closed, new ones too.
    Cut,
}

impl Proxy {
    pub(crate) async fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let shared = Arc::new(Shared {
            server: server.to_owned(),
            mode: watch::Sender::new(Mode::Forward),
            sent: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            open: AtomicU64::new(0),
        });
        let accepting = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    shared.accepted.fetch_add(1, Ordering::SeqCst);
                    shared.open.fetch_add(1, Ordering::SeqCst);
                    let shared = Arc::clone(&shared);
                    tokio::spawn(async move {
                        shared.serve(client).await;
                        shared.open.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            }
        });
        Self {
            address,
            shared,
            accepting,
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::open(format!("redis://{}/", self.address)).expect("an address")
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    pub(crate) fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::SeqCst)
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    pub(crate) fn open(&self) -> u64 {
        self.shared.open.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        // Ends what is open.
        self.shared.mode.send_replace(Mode::Cut);
    }
}

impl Shared {
    async fn serve(&self, client: TcpStream) {
        let Ok(server) = TcpStream::connect(&self.server).await else {
            return;
        };
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let mut mode = self.mode.subscribe();
        tokio::select! {
            () = self.requests(from_client, to_server) => {}
            () = self.answers(from_server, to_client) => {}
            _ = mode.wait_for(|mode| *mode == Mode::Cut) => {}
        }
    }

    async fn requests(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut mode = self.mode.subscribe();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            // Asked before each read: what arrives while it is frozen is not read.
            if mode.wait_for(|mode| *mode != Mode::Frozen).await.is_err() {
                return;
            }
            let read = tokio::select! {
                read = from.read(&mut buffer) => read,
                changed = mode.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            let count = match read {
                Ok(0) | Err(_) => return,
                Ok(count) => count,
            };
            self.sent.fetch_add(count as u64, Ordering::SeqCst);
            let swallows = *mode.borrow() == Mode::Swallow;
            if !swallows && to.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    }

    async fn answers(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mode = self.mode.subscribe();
        let mut buffer = vec![0; 64 * 1024];
        let mut passed = 0;
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let room = match *mode.borrow() {
                Mode::CutAfter(bytes) => bytes.saturating_sub(passed),
                _ => usize::MAX,
            };
            let count = count.min(room);
            if to.write_all(&buffer[..count]).await.is_err() {
                return;
            }
            passed += count;
            if count == room {
                return;
            }
        }
    }
}
