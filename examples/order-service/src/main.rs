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

use axum::Router;
use outbox::Relay;
use outbox::postgres::Outbox;
use outbox::redis::{Client, RedisConfig, RedisPublisher};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

static OUTBOX: Outbox = Outbox::new();

/// How long requests that are open at the signal may still take.
const REQUEST_GRACE: Duration = Duration::from_secs(5);
/// How long the relay goes on after that, at most, for the messages of the last requests.
const DELIVERY_GRACE: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let pool = PgPool::connect(&env::var("DATABASE_URL")?).await?;
    orders::create_table(&pool).await?;
    OUTBOX.migrate(&pool).await?;

    // Redis need not be there: orders are taken meanwhile, and their messages wait.
    let redis = RedisConfig::new(Client::open(env::var("REDIS_URL")?)?)
        .stream_prefix(env::var("STREAM_PREFIX").unwrap_or_default());
    let relay = Relay::builder(OUTBOX.store(&pool), RedisPublisher::new(redis)?).build()?;

    // Of its own connections, so that a question of health waits for no request: one for it and one for metrics.
    let own = PgPoolOptions::new().max_connections(2);
    let own = own.connect_lazy_with((*pool.connect_options()).clone());
    let app = orders::routes(pool.clone()).merge(operations::routes(own, relay.monitor())?);
    let listener = TcpListener::bind(env::var("LISTEN")?).await?;
    println!("listening on {}", listener.local_addr()?);

    let mut served = Ok(());
    let until_the_end = async {
        served = serve(listener, app).await;
        // Whoever has been answered need not wait for another start. What is late then does.
        _ = timeout(DELIVERY_GRACE, delivered(&pool)).await;
    };
    // Then it settles what Redis has confirmed, and releases the rest.
    relay.run_until(until_the_end).await;
    served
}

/// Until SIGTERM or Ctrl-C, and until the requests that are open then are answered.
async fn serve(listener: TcpListener, app: Router) -> Result<(), Box<dyn Error>> {
    let server = axum::serve(listener, app).with_graceful_shutdown(stopped()?);
    let stop = stopped()?;
    let out_of_time = async {
        stop.await;
        sleep(REQUEST_GRACE).await;
    };
    tokio::select! {
        served = server.into_future() => Ok(served?),
        () = out_of_time => Err("requests were still open, and were dropped".into()),
    }
}

/// When no message waits. One of another instance may make it wait longer.
async fn delivered(pool: &PgPool) {
    while !matches!(OUTBOX.counts(pool).await, Ok(counts) if counts.waiting == 0) {
        sleep(Duration::from_millis(50)).await;
    }
}

fn stopped() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?; // Ctrl-C
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
