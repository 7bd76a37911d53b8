//! A service as it goes to production: orders are placed and shipped by HTTP, each request enqueues in its own
//! transaction, and the relay delivers to Redis Streams from within the process.
//!
//! ```sh
//! scripts/services up postgres redis && eval "$(scripts/services env)"
//! export DATABASE_URL=$OUTBOX_TEST_POSTGRES_URL REDIS_URL=$OUTBOX_TEST_REDIS_URL LISTEN=127.0.0.1:8080
//! cargo run -p order-service
//! curl -i -X PUT -H 'content-type: application/json' -d '{"item": "tea"}' http://127.0.0.1:8080/orders/1
//! curl -i -X POST http://127.0.0.1:8080/orders/1/shipment
//! ```
//!
//! The smallest such service is `examples/axum-orders`; this one adds what a service is asked for next. Any number of
//! instances may run: they share the messages, and each key keeps its order. There is no log here and no
//! authentication.
//!
//! Where to read next: `orders.rs` for the requests, `operations.rs` for health and metrics, `tests/service.rs` for
//! what is left of it when it is killed.

mod operations;
mod orders;

use std::env;
use std::error::Error;
use std::time::Duration;

use outbox::Relay;
use outbox::postgres::Outbox;
use outbox::redis::{Client, RedisConfig, RedisPublisher};
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

static OUTBOX: Outbox = Outbox::new();

/// How long requests that are open at the signal may still take, once the relay has stopped.
const REQUEST_GRACE: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let pool = PgPool::connect(&env::var("DATABASE_URL")?).await?;
    orders::create_table(&pool).await?;
    OUTBOX.migrate(&pool).await?;

    // Redis need not be there: orders are taken meanwhile, and their messages wait.
    let redis = RedisConfig::new(Client::open(env::var("REDIS_URL")?)?)
        .stream_prefix(env::var("STREAM_PREFIX").unwrap_or_default());
    let relay = Relay::builder(OUTBOX.store(&pool), RedisPublisher::new(redis)?).build()?;

    let app = orders::routes(pool.clone()).merge(operations::routes(pool, relay.monitor())?);
    let listener = TcpListener::bind(env::var("LISTEN")?).await?;
    println!("listening on {}", listener.local_addr()?);
    let server = axum::serve(listener, app).with_graceful_shutdown(terminated()?);
    let server = tokio::spawn(server.into_future());

    // Until the signal; then it settles what Redis has confirmed, and releases the rest.
    relay.run_until(terminated()?).await;
    match timeout(REQUEST_GRACE, server).await {
        Ok(served) => Ok(served??),
        Err(_) => Err("requests were still open, and were dropped".into()),
    }
}

fn terminated() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut signal = signal(SignalKind::terminate())?;
    Ok(async move { _ = signal.recv().await })
}
