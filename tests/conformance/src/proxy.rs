//! A connection that can be held up, slowed down, refused, cut and reset: what lies between a client and a
//! server. For the fault tests of adapters and for `tests/chaos`; the suites do not need it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
    /// Connections of a lower number are reset when they end.
    reset_below: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    mode: Mode,
    /// How long each piece of what is passed on waits first.
    delay: Duration,
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
        Self::start(server.into(), None).await
    }

    /// To a Kafka at `127.0.0.1:port`. A Kafka tells its clients to which address they shall connect; in
    /// what it says that address becomes the proxy's. (Not where it is split between two reads, which an
    /// answer of some hundred bytes is not; the client would pass the proxy by.)
    ///
    /// # Panics
    ///
    /// When there is no free port.
    pub async fn to_kafka(port: u16) -> Self {
        Self::start(format!("127.0.0.1:{port}"), Some(port)).await
    }

    async fn start(server: String, kafka: Option<u16>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let state = watch::Sender::new(State {
            mode: Mode::Forward,
            delay: Duration::ZERO,
            silent_below: 0,
        });
        let renames = kafka.map(|port| (kafka_address(port), kafka_address(address.port())));
        let reset_below: Arc<AtomicUsize> = Arc::default();
        let accepted = Arc::new(AtomicUsize::new(0));
        let connections: Arc<Mutex<Vec<AbortHandle>>> = Arc::default();
        let accepting = tokio::spawn({
            let (state, accepted) = (state.clone(), Arc::clone(&accepted));
            let (connections, reset_below) = (Arc::clone(&connections), Arc::clone(&reset_below));
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    if state.borrow().mode == Mode::Refuse {
                        continue;
                    }
                    let up = Link {
                        number: accepted.fetch_add(1, Ordering::SeqCst),
                        state: state.subscribe(),
                        renames: None,
                    };
                    let down = Link {
                        renames: renames.clone(),
                        ..up.clone()
                    };
                    let client = End {
                        stream: client,
                        number: up.number,
                        reset_below: Arc::clone(&reset_below),
                    };
                    let connection = tokio::spawn(pass_on(client, server.clone(), up, down));
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
            reset_below,
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

    /// Lets each piece of up to 64 KiB wait for so long, in each direction of each connection.
    pub fn slow_down(&self, delay: Duration) {
        self.state.send_modify(|state| state.delay = delay);
    }

    /// Closes new connections at once.
    pub fn refuse(&self) {
        self.set(Mode::Refuse);
    }

    /// Passes on what was held, and everything from now on, at full speed.
    pub fn release(&self) {
        self.state.send_modify(|state| {
            state.mode = Mode::Forward;
            state.delay = Duration::ZERO;
        });
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

    /// Ends every connection with a reset (RST), as a router does that was restarted; new ones are taken.
    pub fn reset(&self) {
        self.reset_below.store(self.accepted(), Ordering::SeqCst);
        self.cut();
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

/// What one direction of a connection knows of the proxy.
#[derive(Clone)]
struct Link {
    number: usize,
    state: watch::Receiver<State>,
    /// Bytes, and what is passed on in their place, as long as they.
    renames: Option<(Vec<u8>, Vec<u8>)>,
}

impl Link {
    /// Waits until something may be passed on; `false`: never again.
    async fn opens(&mut self) -> bool {
        let delay = self.state.borrow().delay;
        if !delay.is_zero() {
            // wait: this is the slowness
            tokio::time::sleep(delay).await;
        }
        let number = self.number;
        let open = |state: &State| state.mode != Mode::Hold && number >= state.silent_below;
        self.state.wait_for(open).await.is_ok()
    }

    fn rename(&self, bytes: &mut [u8]) {
        let Some((old, new)) = &self.renames else {
            return;
        };
        let mut from = 0;
        while let Some(at) = bytes[from..].windows(old.len()).position(|it| it == old) {
            bytes[from + at..][..old.len()].copy_from_slice(new);
            from += at + old.len();
        }
    }
}

/// An address as Kafka writes it: the host, then the port as a number of four bytes.
fn kafka_address(port: u16) -> Vec<u8> {
    [b"127.0.0.1".as_slice(), &u32::from(port).to_be_bytes()].concat()
}

/// The client's end of a connection, which may end with a reset.
struct End {
    stream: TcpStream,
    number: usize,
    reset_below: Arc<AtomicUsize>,
}

impl Drop for End {
    fn drop(&mut self) {
        if self.number < self.reset_below.load(Ordering::SeqCst) {
            // Where that fails the end is a close, which is a fault too.
            let _ = self.stream.set_zero_linger();
        }
    }
}

async fn pass_on(mut client: End, server: String, up: Link, down: Link) {
    // A server that is not there closes the client's connection.
    let Ok(mut server) = TcpStream::connect(server).await else {
        return;
    };
    let (from_client, to_client) = client.stream.split();
    let (from_server, to_server) = server.split();
    tokio::select! {
        () = pump(from_client, to_server, up) => {}
        () = pump(from_server, to_client, down) => {}
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
        link.rename(&mut buffer[..count]);
        if count == 0 || !open || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
