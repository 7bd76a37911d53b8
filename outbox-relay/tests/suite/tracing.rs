//! Spans of the program at a collector of OpenTelemetry, as `docs/tracing.md` has it: an outbox in a file, a
//! real Redis, and a collector of the test's own.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::serve::Listener;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use outbox_conformance::address;
use prost::Message as _;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::support::place::Place;
use crate::support::{brokers, name, until};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

#[tokio::test]
async fn the_last_spans_reach_a_secured_collector_before_the_end() {
    let certificates = address("OUTBOX_TEST_CERTIFICATES");
    let collector = Collector::with_tls(Path::new(&certificates)).await;
    let traced = Traced::new().await;
    traced.enqueue("01").await;
    let endpoint = format!("https://localhost:{}", collector.address.port());
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=of%20ours"),
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
        ("SSL_CERT_FILE", &format!("{certificates}/ca.pem")),
    ];
    let relay = traced.place.start_with(&["run"], &variables);
    traced.delivers(1).await;
    let log = relay.stop().await;
    brokers::delete_redis_stream(&traced.topic).await;

    let spans = collector.spans();
    let [span] = &spans[..] else {
        panic!("{spans:?}\n{log}")
    };
    assert_eq!(span.name, format!("publish {}", traced.topic));
    assert_eq!(links(span), [(TRACE.to_owned(), SPAN.to_owned())]);
    let destination = text(&span.attributes, "messaging.destination.name");
    assert_eq!(destination.as_ref(), Some(&traced.topic));
    assert_eq!(collector.service().as_deref(), Some("outbox"));
    assert_eq!(collector.header("api-key"), "of ours");
}

#[tokio::test]
async fn a_collector_that_is_away_costs_spans_and_no_message() {
    let collector = Collector::plain().await;
    collector.refuses.store(true, Ordering::Relaxed);
    let traced = Traced::new().await;
    let endpoint = format!("http://{}/v1/traces", collector.address);
    let variables = [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1000"),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
        ("OTEL_SERVICE_NAME", "relay of orders"),
    ];
    let relay = traced.place.start_with(&["run"], &variables);
    traced.enqueue("01").await;
    relay.says("the collector takes no spans").await;
    traced.enqueue("01").await;
    traced.delivers(2).await;
    assert!(collector.refused.load(Ordering::Relaxed) >= 1);

    collector.refuses.store(false, Ordering::Relaxed);
    traced.enqueue("01").await;
    relay.says("the collector takes spans again").await;
    let log = relay.stop().await;
    brokers::delete_redis_stream(&traced.topic).await;
    assert_eq!(log.matches("takes no spans").count(), 1, "{log}");
    assert!(!collector.spans().is_empty());
    assert_eq!(collector.service().as_deref(), Some("relay of orders"));
}

#[tokio::test]
async fn a_collector_that_cannot_be_meant_is_refused() {
    let traced = Traced::new().await;
    let endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let valid = (endpoint, "http://127.0.0.1:4318");
    for (wrong, reason) in [
        (
            (endpoint, "127.0.0.1:4318"),
            "OTEL_EXPORTER_OTLP_ENDPOINT: it must begin with http:// or https://",
        ),
        (
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            "OTEL_EXPORTER_OTLP_PROTOCOL: \"grpc\" is not spoken, only \"http/protobuf\" is",
        ),
        (
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "soon"),
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT: it must be a number of milliseconds",
        ),
    ] {
        let said = traced.place.run_with(&["run"], &[valid, wrong]).await;
        let said = said.failure(2);
        assert!(said.contains(reason), "{said}");
    }
}

/// A place with an outbox in a file, from which a relay delivers messages of a trace to Redis.
struct Traced {
    place: Place,
    topic: String,
}

impl Traced {
    async fn new() -> Self {
        let place = Place::with(&format!(
            "[store]\nkind = \"sqlite\"\npath = \"outbox.db\"\n\
             [broker.redis]\nkind = \"redis\"\nurl = \"{}\"\n",
            address("OUTBOX_TEST_REDIS_URL")
        ));
        place.done(&["migrate"]).await;
        let topic = name("traced");
        Self { place, topic }
    }

    /// Enqueues a message of a span with these flags: `01` is sampled.
    async fn enqueue(&self, flags: &str) {
        let traceparent = format!("traceparent=00-{TRACE}-{SPAN}-{flags}");
        let arguments = ["enqueue", &self.topic, "x", "--header", &traceparent];
        self.place.done(&arguments).await;
    }

    /// Waits until so many messages are at the broker.
    async fn delivers(&self, messages: u64) {
        until("delivery", async || {
            brokers::redis_length(&self.topic).await == messages
        })
        .await;
    }
}

/// Takes what is posted to `/v1/traces`.
struct Collector {
    address: SocketAddr,
    taken: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    refuses: Arc<AtomicBool>,
    /// How often it has refused.
    refused: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Collector {
    async fn plain() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::start(listener.local_addr().unwrap(), listener)
    }

    async fn with_tls(certificates: &Path) -> Self {
        let certificate = CertificateDer::from_pem_file(certificates.join("server.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(certificates.join("server.key")).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key);
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tls = TlsAcceptor::from(Arc::new(config.unwrap()));
        Self::start(tcp.local_addr().unwrap(), TlsListener { tcp, tls })
    }

    fn start(address: SocketAddr, listener: impl Listener<Addr = SocketAddr>) -> Self {
        let taken = Arc::new(Mutex::new(Vec::new()));
        let refuses = Arc::new(AtomicBool::new(false));
        let refused = Arc::new(AtomicUsize::new(0));
        let (to, refuse) = (Arc::clone(&taken), Arc::clone(&refuses));
        let counter = Arc::clone(&refused);
        let take = async move |headers: HeaderMap, body: Bytes| {
            if refuse.load(Ordering::Relaxed) {
                counter.fetch_add(1, Ordering::Relaxed);
                return StatusCode::SERVICE_UNAVAILABLE;
            }
            to.lock().unwrap().push((headers, body));
            StatusCode::OK
        };
        let app = axum::Router::new().route("/v1/traces", post(take));
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            address,
            taken,
            refuses,
            refused,
            task,
        }
    }

    /// A header of the first request.
    fn header(&self, name: &str) -> String {
        let taken = self.taken.lock().unwrap();
        taken[0].0[name].to_str().unwrap().to_owned()
    }

    fn resources(&self) -> Vec<ResourceSpans> {
        let taken = self.taken.lock().unwrap();
        let requests = taken
            .iter()
            .map(|(_, body)| ExportTraceServiceRequest::decode(body.clone()).unwrap());
        requests.flat_map(|it| it.resource_spans).collect()
    }

    /// The name of the service that sent the first spans.
    fn service(&self) -> Option<String> {
        let resource = self.resources().into_iter().next()?.resource?;
        text(&resource.attributes, "service.name")
    }

    fn spans(&self) -> Vec<Span> {
        let scopes = self.resources().into_iter().flat_map(|it| it.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct TlsListener {
    tcp: TcpListener,
    tls: TlsAcceptor,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.tcp.accept().await.unwrap();
            if let Ok(stream) = self.tls.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.tcp.local_addr()
    }
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let attribute = attributes.iter().find(|it| it.key == key)?;
    match attribute.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        _ => None,
    }
}

fn links(span: &Span) -> Vec<(String, String)> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let links = span.links.iter();
    links
        .map(|link| (hex(&link.trace_id), hex(&link.span_id)))
        .collect()
}
