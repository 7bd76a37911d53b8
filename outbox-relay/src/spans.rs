//! Exports the relay's spans by OTLP over HTTP, where the environment names a collector.
//!
//! Everything is configured by OpenTelemetry's own variables, most of which its SDK reads;
//! `docs/tracing.md` has them. What is here: whether to export, the client that the SDK sends with, and the
//! two lines of log that an absent collector is worth. Spans are made in `outbox-core`.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::http::Uri;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use opentelemetry::global;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_EXPORTER_OTLP_TIMEOUT,
    OTEL_EXPORTER_OTLP_TIMEOUT_DEFAULT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, SpanExporter,
    WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::SdkTracerProvider;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::failure::chain;
use crate::settings::InvalidSettings;

/// The longest that the last spans may hold up the end of the program.
const LAST_EXPORT: Duration = Duration::from_secs(2);
/// The most of a collector's answer that is read, in bytes.
const MAX_ANSWER: usize = 64 * 1024;

/// What sends the relay's spans.
pub(crate) struct Exporter(SdkTracerProvider);

impl Exporter {
    /// Exports from here on, if there is a collector. `None`: there is none.
    pub(crate) fn start() -> Result<Option<Self>, InvalidSettings> {
        let is = |name, value| variable(name).is_some_and(|it| it.eq_ignore_ascii_case(value));
        let off = is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none");
        let endpoint = first([
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
            OTEL_EXPORTER_OTLP_ENDPOINT,
        ]);
        let Some((name, endpoint)) = endpoint.filter(|_| !off) else {
            return Ok(None);
        };
        let uri = endpoint.parse::<Uri>().ok();
        let scheme = uri.as_ref().and_then(Uri::scheme_str);
        if !matches!(scheme, Some("http" | "https")) {
            let reason = "it must begin with http:// or https://";
            return Err(InvalidSettings::new(name, reason));
        }
        let protocol = first([
            OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
            OTEL_EXPORTER_OTLP_PROTOCOL,
        ]);
        if let Some((name, protocol)) = protocol
            && protocol != "http/protobuf"
        {
            let reason = format!("{protocol:?} is not spoken, only \"http/protobuf\" is");
            return Err(InvalidSettings::new(name, reason));
        }
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new()?)
            .build()
            .map_err(|error| InvalidSettings::new(name, error))?;
        let mut resource = Resource::builder_empty()
            .with_service_name("outbox")
            .with_detector(Box::new(EnvResourceDetector::new()));
        if let Some(name) = variable("OTEL_SERVICE_NAME") {
            resource = resource.with_service_name(name);
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        global::set_tracer_provider(provider.clone());
        Ok(Some(Self(provider)))
    }

    /// Exports what is left, for a bounded time.
    pub(crate) async fn stop(self) {
        let last = spawn_blocking(move || self.0.shutdown_with_timeout(LAST_EXPORT));
        if !matches!(last.await, Ok(Ok(()))) {
            tracing::warn!("the last spans were not taken in time");
        }
    }
}

/// The value of a variable. OpenTelemetry takes an empty one as none.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The first of the variables that has a value.
fn first<const N: usize>(names: [&'static str; N]) -> Option<(&'static str, String)> {
    names
        .into_iter()
        .find_map(|name| Some((name, variable(name)?)))
}

/// The client that the SDK sends with.
#[derive(Debug)]
struct Collector {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    timeout: Duration,
    runtime: Handle,
    away: AtomicBool,
}

impl Collector {
    fn new() -> Result<Self, InvalidSettings> {
        let timeout = first([
            OTEL_EXPORTER_OTLP_TRACES_TIMEOUT,
            OTEL_EXPORTER_OTLP_TIMEOUT,
        ]);
        let timeout = match timeout {
            Some((name, timeout)) => timeout
                .parse()
                .map(Duration::from_millis)
                .map_err(|_| InvalidSettings::new(name, "it must be a number of milliseconds"))?,
            None => OTEL_EXPORTER_OTLP_TIMEOUT_DEFAULT,
        };
        let mut roots = RootCertStore::empty();
        // A system without certificates is good enough for a collector that has none.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| InvalidSettings::new("TLS", error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .build();
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            timeout,
            runtime: Handle::current(),
            away: AtomicBool::new(false),
        })
    }

    /// Says once that it is away, and once that it is back.
    fn note(&self, failure: Option<&str>) {
        let away = failure.is_some();
        if self.away.swap(away, Ordering::Relaxed) == away {
            return;
        }
        match failure {
            Some(reason) => tracing::warn!(reason, "the collector takes no spans"),
            None => tracing::info!("the collector takes spans again"),
        }
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.client.request(request.map(Full::new));
        let within = self.timeout;
        let answer = async move {
            let (head, body) = sent.await?.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(head, body))
        };
        // The SDK calls from a thread of its own, which has no runtime.
        let answer = self
            .runtime
            .spawn(async move { timeout(within, answer).await? })
            .await?;
        match &answer {
            Ok(answer) if answer.status().is_success() => self.note(None),
            Ok(answer) => self.note(Some(answer.status().as_str())),
            Err(error) => self.note(Some(&chain(&**error))),
        }
        answer
    }
}
