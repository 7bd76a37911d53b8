//! Stands between the store and the server, and lets one statement through at a time.
//!
//! It reads the protocol's messages and tells the statements that are steps of the model by their text; the
//! others, such as what prepares a statement, pass. So the real store runs unchanged, and nothing of it
//! happens but what the test lets happen.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A statement that is a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Statement {
    /// Asks for the sequence, at the start of a session.
    Sequence,
    /// Takes a transaction id.
    Xid,
    /// Takes the first base.
    Base,
    Poll,
    Read,
    Delete,
    Commit,
}

impl Statement {
    fn of(sql: &str) -> Option<Self> {
        // Each has something that none of the others has.
        let parts = [
            ("FROM pg_sequence", Self::Sequence),
            ("SELECT pg_current_xact_id()", Self::Xid),
            ("SELECT pg_current_snapshot()", Self::Base),
            ("AS candidate", Self::Poll),
            ("tidsend(row.ctid)", Self::Read),
            ("position IN (SELECT unnest", Self::Delete),
        ];
        if sql == "COMMIT" {
            return Some(Self::Commit);
        }
        let found = parts.iter().find(|(part, _)| sql.contains(part));
        found.map(|(_, statement)| *statement)
    }
}

/// What becomes of a statement that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Pass,
    /// The connection is cut instead.
    Cut,
    /// It passes, and the connection is cut before its answer comes back.
    PassAndCut,
}

#[derive(Debug, Default)]
struct Link {
    held: Option<Statement>,
    order: Option<Order>,
    /// The server's process.
    pid: Option<i32>,
}

#[derive(Debug, Default)]
struct State {
    links: BTreeMap<usize, Link>,
    /// Everything passes.
    is_open: bool,
    /// How many reads have passed.
    reads: usize,
}

/// The gate. It ends, with its connections, when it is dropped.
pub(crate) struct Gate {
    pub(crate) port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

impl Gate {
    /// To a server at `host:port`.
    pub(crate) async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: watch::Sender::new(0),
        });
        let port = listener.local_addr().unwrap().port();
        let accepting = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                let mut number = 0;
                while let Ok((client, _)) = listener.accept().await {
                    let server = TcpStream::connect(&server).await.unwrap();
                    tokio::spawn(connection(Arc::clone(&shared), number, client, server));
                    number += 1;
                }
            }
        });
        Self {
            port,
            shared,
            accepting,
        }
    }

    /// Lets everything pass, or from now on only what is let.
    pub(crate) fn open(&self, open: bool) {
        self.shared.change(|state| state.is_open = open);
    }

    /// How many reads have passed.
    pub(crate) fn reads(&self) -> usize {
        self.shared.lock().reads
    }

    /// The connections at which a statement is held.
    pub(crate) fn held(&self) -> Vec<(usize, Statement)> {
        let state = self.shared.lock();
        let links = state.links.iter();
        links
            .filter_map(|(&number, link)| Some((number, link.held?)))
            .collect()
    }

    /// Waits until a statement is held at one of the connections that are not among these.
    pub(crate) async fn other_than(&self, known: &[usize]) -> (usize, Statement) {
        let mut changed = self.shared.changed.subscribe();
        loop {
            let held = self.held();
            if let Some(found) = held.iter().find(|(number, _)| !known.contains(number)) {
                return *found;
            }
            changed.changed().await.unwrap();
        }
    }

    /// Waits until a statement is held at this connection.
    pub(crate) async fn at(&self, number: usize) -> Statement {
        let mut changed = self.shared.changed.subscribe();
        loop {
            if let Some((_, statement)) = self.held().into_iter().find(|(it, _)| *it == number) {
                return statement;
            }
            changed.changed().await.unwrap();
        }
    }

    /// Lets the statement that is held at the connection pass.
    pub(crate) fn pass(&self, number: usize) {
        self.order(number, Order::Pass);
    }

    /// Cuts the connection, whatever is on its way.
    pub(crate) fn cut(&self, number: usize) {
        self.order(number, Order::Cut);
    }

    /// Lets the held statement pass, and cuts the connection before the answer comes back.
    pub(crate) fn pass_and_cut(&self, number: usize) {
        self.order(number, Order::PassAndCut);
    }

    /// The server's process behind a connection.
    pub(crate) fn pid(&self, number: usize) -> i32 {
        self.shared.lock().links[&number].pid.unwrap()
    }

    fn order(&self, number: usize, order: Order) {
        self.shared.change(|state| {
            let link = state.links.get_mut(&number).unwrap();
            link.held = None;
            link.order = Some(order);
        });
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.accepting.abort();
        self.shared.change(|state| state.is_open = true);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.send_modify(|version| *version += 1);
        result
    }

    /// Waits until a statement may pass.
    async fn may_pass(&self, number: usize, statement: Statement) -> Order {
        let mut changed = self.changed.subscribe();
        self.change(|state| {
            let is_open = state.is_open;
            let link = state.links.get_mut(&number).unwrap();
            link.held = (!is_open).then_some(statement);
        });
        loop {
            let order = {
                let mut state = self.lock();
                let is_open = state.is_open;
                let link = state.links.get_mut(&number).unwrap();
                let order = link.order.take().or(is_open.then_some(Order::Pass));
                if order.is_some() {
                    link.held = None;
                    state.reads += usize::from(statement == Statement::Read);
                }
                order
            };
            if let Some(order) = order {
                return order;
            }
            changed.changed().await.unwrap();
        }
    }

    /// Waits until the connection is to be cut although no statement is held.
    async fn is_cut(&self, number: usize) {
        let mut changed = self.changed.subscribe();
        loop {
            let state = self.lock().links[&number].order;
            if state == Some(Order::Cut) {
                return;
            }
            changed.changed().await.unwrap();
        }
    }
}

async fn connection(shared: Arc<Shared>, number: usize, client: TcpStream, server: TcpStream) {
    shared.change(|state| state.links.insert(number, Link::default()));
    for side in [&client, &server] {
        side.set_nodelay(true).unwrap();
    }
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = server.into_split();
    let swallow = watch::Sender::new(false);
    // Each ends with the first that ends; then both sockets are closed.
    tokio::select! {
        _ = statements(&shared, number, client_in, server_out, &swallow) => {}
        _ = answers(&shared, number, server_in, client_out, swallow.subscribe()) => {}
        () = shared.is_cut(number) => {}
    }
    shared.change(|state| state.links.get_mut(&number).unwrap().held = None);
}

/// Passes on what the client says, one round at a time: up to what is answered by "ready".
async fn statements(
    shared: &Shared,
    number: usize,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    swallow: &watch::Sender<bool>,
) -> std::io::Result<()> {
    // The first message has no type.
    let start = body(&mut from).await?;
    to.write_all(&start).await?;
    let mut prepared: HashMap<String, Option<Statement>> = HashMap::new();
    let (mut round, mut bound, mut runs) = (Vec::new(), None, None);
    loop {
        let kind = from.read_u8().await?;
        let message = body(&mut from).await?;
        let words = &message[4..];
        match kind {
            b'P' => {
                let (name, rest) = word(words);
                prepared.insert(name, Statement::of(&word(rest).0));
            }
            b'B' => bound = prepared.get(&word(word(words).1).0).copied().flatten(),
            b'E' => runs = bound,
            b'Q' => runs = Statement::of(&word(words).0),
            _ => {}
        }
        round.push(kind);
        round.extend(message);
        // A query, a sync, a password and the end are answered at once, or not at all.
        if !matches!(kind, b'Q' | b'S' | b'p' | b'X') {
            continue;
        }
        if let Some(statement) = runs.take() {
            match shared.may_pass(number, statement).await {
                Order::Pass => {}
                Order::Cut => return Ok(()),
                Order::PassAndCut => drop(swallow.send_replace(true)),
            }
        }
        to.write_all(&round).await?;
        round.clear();
    }
}

/// Passes on what the server says.
async fn answers(
    shared: &Shared,
    number: usize,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    swallow: watch::Receiver<bool>,
) -> std::io::Result<()> {
    loop {
        let kind = from.read_u8().await?;
        let message = body(&mut from).await?;
        if kind == b'K' {
            let pid = message[4..8].try_into().map(i32::from_be_bytes).unwrap();
            shared.change(|state| state.links.get_mut(&number).unwrap().pid = Some(pid));
        }
        if *swallow.borrow() {
            if kind == b'Z' {
                return Ok(());
            }
            continue;
        }
        to.write_u8(kind).await?;
        to.write_all(&message).await?;
    }
}

/// A message without its type: the length, which counts itself, and what follows.
async fn body(from: &mut OwnedReadHalf) -> std::io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut message = length.to_be_bytes().to_vec();
    message.resize(length as usize, 0);
    from.read_exact(&mut message[4..]).await?;
    Ok(message)
}

/// The text up to the next zero, and what follows.
fn word(bytes: &[u8]) -> (String, &[u8]) {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap();
    let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    (text, &bytes[end + 1..])
}
