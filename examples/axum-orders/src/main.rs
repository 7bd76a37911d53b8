//! A web service that enqueues in its transactions, with the relay beside the server.

use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
use outbox::kafka::{ClientConfig, KafkaPublisher};
use outbox::{Message, Relay, postgres::Outbox};
use sqlx::PgPool;
use std::{env, error::Error};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

static OUTBOX: Outbox = Outbox::new();

#[derive(serde::Deserialize, serde::Serialize)]
struct Order {
    id: i64,
    item: String,
}

async fn place(State(pool): State<PgPool>, Json(order): Json<Order>) -> StatusCode {
    match insert(&pool, &order).await {
        Ok(()) => StatusCode::CREATED,
        Err(error) => {
            eprintln!("order {}: {error}", order.id);
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}

async fn insert(pool: &PgPool, order: &Order) -> Result<(), Box<dyn Error>> {
    let mut tx = pool.begin().await?;
    let row = sqlx::query("INSERT INTO public.orders VALUES ($1, $2)").bind(order.id);
    row.bind(&order.item).execute(&mut *tx).await?;
    let message = Message::to("orders.placed").key(order.id).json(order)?;
    OUTBOX.enqueue(&mut tx, &message).await?; // delivered if this transaction commits, and after that
    Ok(tx.commit().await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let pool = PgPool::connect(&env::var("DATABASE_URL")?).await?;
    let orders =
        "CREATE TABLE IF NOT EXISTS public.orders (id bigint PRIMARY KEY, item text NOT NULL)";
    sqlx::query(orders).execute(&pool).await?;
    OUTBOX.migrate(&pool).await?; // the outbox's own tables, in a schema `outbox`

    let mut kafka = ClientConfig::new();
    kafka.set("bootstrap.servers", env::var("KAFKA_BROKERS")?);
    let relay = Relay::builder(OUTBOX.store(&pool), KafkaPublisher::new(kafka)?).build()?;

    let listener = TcpListener::bind(env::var("LISTEN")?).await?;
    println!("listening on {}", listener.local_addr()?);
    let app = Router::new().route("/orders", post(place)).with_state(pool);
    let server = axum::serve(listener, app).with_graceful_shutdown(terminated()?);
    let (served, ()) = tokio::join!(server.into_future(), relay.run_until(terminated()?));
    Ok(served?)
}

fn terminated() -> std::io::Result<impl Future<Output = ()>> {
    let mut signal = signal(SignalKind::terminate())?;
    Ok(async move { _ = signal.recv().await })
}
