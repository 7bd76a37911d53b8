//! The requests. Each is one transaction, and may be sent again by a client that got no answer: what was done
//! already is not done, nor enqueued, a second time.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{post, put};
use axum::{Json, Router};
use outbox::{Event, InvalidMessage, Message, MessageBuilder};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

use crate::OUTBOX;

/// What happened to an order. Both go to one topic with the order as their key, so consumers see them in order.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Happened<'a> {
    Placed { order: i64, item: &'a str },
    Shipped { order: i64 },
}

impl Event for Happened<'_> {
    const TOPIC: &'static str = "orders";
    const VERSION: u32 = 1;

    fn key(&self) -> Option<String> {
        let (Self::Placed { order, .. } | Self::Shipped { order }) = self;
        Some(order.to_string())
    }

    fn encode(&self, message: MessageBuilder) -> Result<Message, InvalidMessage> {
        message.json(self)
    }
}

/// With its schema, as in every statement here: for a role that is called `outbox` the default search path begins with
/// the schema of the outbox, once that is there.
pub(crate) async fn create_table(pool: &PgPool) -> Result<(), sqlx::Error> {
    let table = "CREATE TABLE IF NOT EXISTS public.orders (
        id bigint PRIMARY KEY, item text NOT NULL, shipped boolean NOT NULL DEFAULT false)";
    sqlx::query(table).execute(pool).await?;
    Ok(())
}

pub(crate) fn routes(pool: PgPool) -> Router {
    Router::new()
        .route("/orders/{id}", put(place))
        .route("/orders/{id}/shipment", post(ship))
        .with_state(pool)
}

#[derive(Deserialize)]
struct Order {
    item: String,
}

async fn place(
    State(pool): State<PgPool>,
    Path(id): Path<i64>,
    Json(order): Json<Order>,
) -> Result<StatusCode, Failure> {
    let mut tx = pool.begin().await?;
    let insert = "INSERT INTO public.orders (id, item) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    let row = sqlx::query(insert).bind(id).bind(&order.item);
    if row.execute(&mut *tx).await?.rows_affected() == 0 {
        return Ok(StatusCode::OK); // it is there: the client asks again
    }
    let item = &order.item;
    let message = Message::event(&Happened::Placed { order: id, item })?;
    OUTBOX.enqueue(&mut tx, &message).await?;
    tx.commit().await?;
    Ok(StatusCode::CREATED)
}

async fn ship(State(pool): State<PgPool>, Path(id): Path<i64>) -> Result<StatusCode, Failure> {
    let mut tx = pool.begin().await?;
    // The lock on the order's row comes before the enqueue, so requests about one order enqueue one after another.
    let shipped: Option<bool> =
        sqlx::query_scalar("SELECT shipped FROM public.orders WHERE id = $1 FOR UPDATE")
            .bind(id)
            .fetch_optional(&mut *tx)
            .await?;
    match shipped {
        None => return Ok(StatusCode::NOT_FOUND),
        Some(true) => return Ok(StatusCode::OK),
        Some(false) => {}
    }
    let update = sqlx::query("UPDATE public.orders SET shipped = true WHERE id = $1").bind(id);
    update.execute(&mut *tx).await?;
    let message = Message::event(&Happened::Shipped { order: id })?;
    OUTBOX.enqueue(&mut tx, &message).await?;
    tx.commit().await?;
    Ok(StatusCode::CREATED)
}

/// Why a request was not done. Its transaction was rolled back, with what it had enqueued.
struct Failure(String);

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<InvalidMessage> for Failure {
    fn from(error: InvalidMessage) -> Self {
        Self(error.to_string())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        eprintln!("{}", self.0);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}
