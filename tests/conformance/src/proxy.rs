//! A connection that can be held up, refused and cut: what lies between a client and a server. For the
//! fault tests of adapters; the suites do not need it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

/// Passes bytes on in both directions, until it is told otherwise. It ends, with its connections, when it
/// is dropped.
pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    accepted: Arc<AtomicUsize>,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
    accepting: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    mode: Mode,
    /// Connections of a lower number pass nothing on.
    silent_below: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Forward,
    Hold,
    Refuse,
}

impl Proxy {
    /// To a server at `host:port`.
    ///
    /// # Panics
    ///
    /// When there is no free port.
    pub async fn to(server: impl Into<String>) -> Self {
        let server = server.into();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let state = watch::Sender::new(State {
            mode: Mode::Forward,
            silent_below: 0,
        });
        let accepted = Arc::new(AtomicUsize::new(0));
        let connections: Arc<Mutex<Vec<AbortHandle>>> = Arc::default();
        let accepting = tokio::spawn({
            let (state, accepted) = (state.clone(), Arc::clone(&accepted));
            let connections = Arc::clone(&connections);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    if state.borrow().mode == Mode::Refuse {
                        continue;
                    }
                    let link = Link {
                        number: accepted.fetch_add(1, Ordering::SeqCst),
                        state: state.subscribe(),
                    };
                    let connection = tokio::spawn(pass_on(client, server.clone(), link));
                    let mut connections =
                        connections.lock().unwrap_or_else(PoisonError::into_inner);
                    connections.push(connection.abort_handle());
                }
            }
        });
        Self {
            address,
            state,
            accepted,
            connections,
            accepting,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Passes nothing on. Connections stay open, and new ones are taken.
    pub fn hold(&self) {
        self.set(Mode::Hold);
    }

    /// Closes new connections at once.
    pub fn refuse(&self) {
        self.set(Mode::Refuse);
    }

    /// Passes on what was held, and everything from now on.
    pub fn release(&self) {
        self.set(Mode::Forward);
    }

    /// From now on the connections that there are pass nothing on, not even their end, and stay open;
    /// new ones are served. What a firewall does that forgets a connection.
    pub fn silence(&self) {
        let accepted = self.accepted();
        self.state
            .send_modify(|state| state.silent_below = accepted);
    }

    /// Closes every connection; new ones are taken. What was held is lost.
    pub fn cut(&self) {
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for connection in connections.drain(..) {
            connection.abort();
        }
    }

    /// How many connections were taken so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    fn set(&self, mode: Mode) {
        self.state.send_modify(|state| state.mode = mode);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

/// What one connection knows of the proxy.
#[derive(Clone)]
struct Link {
    number: usize,
    state: watch::Receiver<State>,
}

impl Link {
    /// Waits until something may be passed on; `false`: never again.
    async fn opens(&mut self) -> bool {
        let number = self.number;
        let open = |state: &State| state.mode != Mode::Hold && number >= state.silent_below;
        self.state.wait_for(open).await.is_ok()
    }
}

async fn pass_on(client: TcpStream, server: String, link: Link) {
    // A server that is not there closes the client's connection.
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pump(from_client, to_server, link.clone()) => {}
        () = pump(from_server, to_client, link) => {}
    }
}

async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut link: Link) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        // What is in the buffer when it is held waits there.
        let Ok(count) = from.read(&mut buffer).await else {
            return;
        };
        let open = link.opens().await;
        if count == 0 || !open || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
