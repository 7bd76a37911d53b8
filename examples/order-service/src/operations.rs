//! Health and metrics, for what starts the service anew, sends it requests, and calls a person.
//!
//! Live is a service whose relay goes on. Ready is one whose database answers: an order can be taken while the
//! broker is away, which is what the outbox is there for, so that is said and does not end readiness.

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use metrics::gauge;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use outbox::RelayMonitor;
use sqlx::PgPool;
use tokio::time::{interval, timeout};

use crate::OUTBOX;

/// How long the database may take to answer a question of health or metrics.
const PATIENCE: Duration = Duration::from_secs(2);
/// The exporter keeps each value of a histogram until it is told to sum up.
const UPKEEP: Duration = Duration::from_secs(5);

#[derive(Clone)]
struct Operations {
    pool: PgPool,
    relay: RelayMonitor,
    metrics: PrometheusHandle,
}

/// The relay counts from here on.
pub(crate) fn routes(pool: PgPool, relay: RelayMonitor) -> Result<Router, Box<dyn Error>> {
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let upkept = metrics.clone();
    tokio::spawn(async move {
        let mut ticks = interval(UPKEEP);
        loop {
            ticks.tick().await;
            upkept.run_upkeep();
        }
    });
    Ok(Router::new()
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .route("/metrics", get(render))
        .with_state(Operations {
            pool,
            relay,
            metrics,
        }))
}

async fn live(State(of): State<Operations>) -> (StatusCode, &'static str) {
    match of.relay.is_live() {
        true => (StatusCode::OK, "live\n"),
        false => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the relay does not go on\n",
        ),
    }
}

async fn ready(State(of): State<Operations>) -> (StatusCode, &'static str) {
    let asked = sqlx::query("SELECT 1").execute(&of.pool);
    match timeout(PATIENCE, asked).await {
        Ok(Ok(_)) if of.relay.is_outage() => {
            (StatusCode::OK, "ready; Redis is away, and messages wait\n")
        }
        Ok(Ok(_)) => (StatusCode::OK, "ready\n"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "Postgres is away\n"),
    }
}

/// What the relay counts, and how the outbox stands, of which every instance says the same.
async fn render(State(of): State<Operations>) -> String {
    let up = match timeout(PATIENCE, OUTBOX.gauges(&of.pool)).await {
        Ok(Ok(gauges)) => {
            gauge!("outbox_waiting_messages").set(gauges.waiting.number() as f64);
            gauge!("outbox_parked_messages").set(gauges.parked.number() as f64);
            gauge!("outbox_dead_messages").set(gauges.dead.number() as f64);
            // What was not found in time is not zero.
            if gauges.complete {
                let oldest = gauges.oldest_waiting.unwrap_or_default();
                gauge!("outbox_oldest_waiting_seconds").set(oldest.as_secs_f64());
            }
            gauges.complete
        }
        _ => false,
    };
    gauge!("outbox_status_up").set(if up { 1.0 } else { 0.0 });
    of.metrics.render()
}
