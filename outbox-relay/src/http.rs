//! `/metrics`, `/health/live` and `/health/ready`, where `http.listen` is set.
//!
//! Live means that the relay goes on: its workers end what they begin in the time that they have for it.
//! Ready means more: the store answers, its tables are there, and the broker is not away. An outage is no
//! reason to start a relay anew, so it ends readiness and not life.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use outbox_core::RelayMonitor;
use tokio::net::TcpListener;

use crate::failure::Failure;

/// How far the relay is, for the endpoints.
#[derive(Clone, Default)]
pub(crate) struct Progress(Arc<Mutex<Stage>>);

#[derive(Clone)]
enum Stage {
    /// It waits for the store, for this reason.
    Waiting(String),
    Running(RelayMonitor),
    Stopping,
}

impl Default for Stage {
    fn default() -> Self {
        Self::Waiting("starting".to_owned())
    }
}

impl Progress {
    pub(crate) fn waits(&self, reason: &str) {
        self.set(Stage::Waiting(reason.to_owned()));
    }

    pub(crate) fn runs(&self, monitor: RelayMonitor) {
        self.set(Stage::Running(monitor));
    }

    pub(crate) fn stops(&self) {
        self.set(Stage::Stopping);
    }

    fn set(&self, stage: Stage) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    fn get(&self) -> Stage {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn live(&self) -> Result<(), String> {
        match self.get() {
            Stage::Running(monitor) if !monitor.is_live() => {
                Err("a worker does not go on".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn ready(&self) -> Result<(), String> {
        match self.get() {
            Stage::Waiting(reason) => Err(reason),
            Stage::Stopping => Err("stopping".to_owned()),
            Stage::Running(monitor) if monitor.store_fails() => Err("the store fails".to_owned()),
            Stage::Running(monitor) if monitor.is_outage() => Err("the broker is away".to_owned()),
            Stage::Running(_) => Ok(()),
        }
    }
}

/// Serves until the process ends. The address is bound when this returns.
pub(crate) async fn serve(
    listen: SocketAddr,
    metrics: PrometheusHandle,
    progress: Progress,
) -> Result<(), Failure> {
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|error| Failure::new(format!("http.listen: {listen}: {error}")))?;
    // With port 0 the system chooses one.
    let address = listener.local_addr().map_err(Failure::of)?;
    tracing::info!(%address, "metrics and health");
    let app = Router::new()
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .with_state(progress)
        .route("/metrics", get(move || async move { metrics.render() }));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, app).await {
            tracing::error!(%error, "metrics and health are no longer served");
        }
    });
    Ok(())
}

async fn live(State(progress): State<Progress>) -> (StatusCode, String) {
    answer("live", progress.live())
}

async fn ready(State(progress): State<Progress>) -> (StatusCode, String) {
    answer("ready", progress.ready())
}

fn answer(yes: &str, answer: Result<(), String>) -> (StatusCode, String) {
    match answer {
        Ok(()) => (StatusCode::OK, format!("{yes}\n")),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}
