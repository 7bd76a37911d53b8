//! A receiver on a real socket that is written from the README's tables, without the publisher's code,
//! and that fails on demand.

// Each test file uses a part of it.
#![allow(dead_code)]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use outbox_conformance::publisher::Received;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The largest payload that the receiver takes, in bytes.
pub(crate) const LIMIT: usize = 1024 * 1024;

/// How long a test waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What the receiver does with one request.
pub(crate) enum Act {
    /// Takes the message, as far as its topic and its size allow.
    Take,
    TakeAfter(Duration),
    Answer(u16),
    /// Answers 503, and asks to be left alone for so many seconds.
    LeaveAlone(u32),
    Hang,
}

type Script = Box<dyn FnMut(&Received) -> Act + Send>;

/// The receiver; it ends when it is dropped.
pub(crate) struct Receiver {
    pub(crate) url: String,
    shared: Arc<Mutex<Shared>>,
    server: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    script: Option<Script>,
    topics: HashSet<String>,
    /// Whether topics have to be created.
    strict: bool,
    requests: usize,
    taken: Vec<(String, Received)>,
    open: HashMap<Option<String>, usize>,
    most_open: usize,
    most_open_of_a_key: usize,
}

impl Receiver {
    /// Takes every topic.
    pub(crate) async fn start() -> Self {
        let shared: Arc<Mutex<Shared>> = Arc::default();
        let app = Router::new()
            .fallback(take)
            .layer(DefaultBodyLimit::disable())
            .with_state(Arc::clone(&shared));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/events", listener.local_addr().unwrap());
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            url,
            shared,
            server,
        }
    }

    /// Takes topics that were created, and 404 answers every other.
    pub(crate) async fn start_strict() -> Self {
        let receiver = Self::start().await;
        lock(&receiver.shared).strict = true;
        receiver
    }

    /// From now on `script` decides.
    pub(crate) fn act(&self, script: impl FnMut(&Received) -> Act + Send + 'static) {
        lock(&self.shared).script = Some(Box::new(script));
    }

    pub(crate) fn create_topic(&self, name: &str) -> bool {
        is_possible(name) && lock(&self.shared).topics.insert(name.to_owned())
    }

    /// What was taken, by all topics or by one.
    pub(crate) fn taken(&self, topic: Option<&str>) -> Vec<Received> {
        let shared = lock(&self.shared);
        let taken = shared.taken.iter();
        taken
            .filter(|(to, _)| topic.is_none_or(|topic| to == topic))
            .map(|(_, received)| received.clone())
            .collect()
    }

    /// How many requests came, whatever became of them.
    pub(crate) fn requests(&self) -> usize {
        lock(&self.shared).requests
    }

    /// The most requests that were open at a time, of all and of one key.
    pub(crate) fn most_open(&self) -> (usize, usize) {
        let shared = lock(&self.shared);
        (shared.most_open, shared.most_open_of_a_key)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn is_possible(topic: &str) -> bool {
    !topic.contains('\n')
}

async fn take(
    State(shared): State<Arc<Mutex<Shared>>>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, HeaderMap) {
    let (topic, received) = read(&headers, body);
    let act = {
        let mut shared = lock(&shared);
        shared.requests += 1;
        match &mut shared.script {
            Some(script) => script(&received),
            None => Act::Take,
        }
    };
    let _open = Open::new(&shared, &received);
    let mut answer = HeaderMap::new();
    let status = match act {
        Act::Take => accept(&shared, topic, received),
        Act::TakeAfter(time) => {
            // wait: the receiver is slow, which is what is tested
            tokio::time::sleep(time).await;
            accept(&shared, topic, received)
        }
        Act::Answer(status) => StatusCode::from_u16(status).unwrap(),
        Act::LeaveAlone(seconds) => {
            answer.insert(header::RETRY_AFTER, seconds.into());
            StatusCode::SERVICE_UNAVAILABLE
        }
        Act::Hang => pending().await,
    };
    (status, answer)
}

fn accept(shared: &Mutex<Shared>, topic: String, received: Received) -> StatusCode {
    let mut shared = lock(shared);
    if !is_possible(&topic) {
        return StatusCode::UNPROCESSABLE_ENTITY;
    }
    if shared.strict && !shared.topics.contains(&topic) {
        return StatusCode::NOT_FOUND;
    }
    if received.payload.as_ref().is_some_and(|it| it.len() > LIMIT) {
        return StatusCode::PAYLOAD_TOO_LARGE;
    }
    shared.taken.push((topic, received));
    StatusCode::NO_CONTENT
}

/// The topic and the message of a request.
fn read(headers: &HeaderMap, body: Bytes) -> (String, Received) {
    let get = |name: &str| headers.get(name).map(|value| decoded(value.as_bytes()));
    let own = |name: &HeaderName| {
        let name = name.as_str().strip_prefix("outbox-header-")?;
        Some(decoded(name.as_bytes()))
    };
    let received = Received {
        id: get("outbox-id"),
        key: get("outbox-key"),
        payload: (get("outbox-tombstone").as_deref() != Some("true")).then(|| body.to_vec()),
        headers: headers
            .iter()
            .filter_map(|(name, value)| Some((own(name)?, decoded(value.as_bytes()))))
            .collect::<BTreeMap<_, _>>(),
    };
    (get("outbox-topic").unwrap(), received)
}

/// Undoes percent-encoding.
fn decoded(text: &[u8]) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.iter();
    while let Some(&byte) = rest.next() {
        let mut digit = || char::from(*rest.next().unwrap()).to_digit(16).unwrap() as u8;
        bytes.push(match byte {
            b'%' => digit() * 16 + digit(),
            _ => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}

/// Counts a request as long as it is open, also when it is cut off.
struct Open {
    shared: Arc<Mutex<Shared>>,
    key: Option<String>,
}

impl Open {
    fn new(shared: &Arc<Mutex<Shared>>, received: &Received) -> Self {
        let key = received.key.clone();
        let mut state = lock(shared);
        let of_key = state.open.entry(key.clone()).or_default();
        *of_key += 1;
        let of_key = *of_key;
        state.most_open = state.most_open.max(state.open.values().sum());
        if key.is_some() {
            state.most_open_of_a_key = state.most_open_of_a_key.max(of_key);
        }
        Self {
            shared: Arc::clone(shared),
            key,
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        if let Some(open) = shared.open.get_mut(&self.key) {
            *open -= 1;
        }
    }
}

/// A script that panics must not take the record with it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
