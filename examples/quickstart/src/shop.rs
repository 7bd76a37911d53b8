//! The order service: what an application does. It writes business rows and messages in one
//! transaction, and knows neither the relay nor the broker.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use orders::work::place_all;
use orders::{Error, Event, Payload, Progress, plan};
use outbox::{Message, Uuid};
use sqlx::{Acquire as _, SqliteConnection, SqlitePool, SqliteTransaction};

use crate::OUTBOX;

/// So many orders are placed at the same time.
const TASKS: usize = 8;

/// Business tables, and what the audit compares with: the messages of committed transactions.
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS customer (name TEXT PRIMARY KEY, messages INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS order_message (
        id BLOB PRIMARY KEY,
        order_id INTEGER NOT NULL,
        customer TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        UNIQUE (customer, sequence)
    );";

#[derive(Clone)]
pub(crate) struct Shop {
    pool: SqlitePool,
    /// The orders of this run; those of earlier ones on the same database have lower numbers.
    orders: Range<u64>,
    pub(crate) progress: Arc<Progress>,
}

impl Shop {
    /// Opens a shop in which so many orders will be placed.
    pub(crate) async fn open(pool: &SqlitePool, orders: u64) -> Result<Self, Error> {
        sqlx::raw_sql(TABLES).execute(pool).await?;
        let next = "SELECT ifnull(max(id) + 1, 0) FROM orders";
        let first: u64 = sqlx::query_scalar(next).fetch_one(pool).await?;
        let orders = first..first + orders;
        let messages = orders
            .clone()
            .map(|order| plan::messages_of(order).len() as u64);
        Ok(Self {
            pool: pool.clone(),
            progress: Arc::new(Progress::of(messages.sum())),
            orders,
        })
    }

    /// Places the orders, several at the same time.
    pub(crate) async fn place_all(&self) -> Result<(), Error> {
        let shop = self.clone();
        place_all(self.orders.clone(), TASKS, move |order| {
            let shop = shop.clone();
            async move { shop.place(order).await }
        })
        .await
    }

    /// Places one order. Of some a first try is rolled back.
    async fn place(&self, order: u64) -> Result<(), Error> {
        if plan::first_try_fails(order) {
            self.write(order).await?.rollback().await?;
            self.progress.rolled_back.fetch_add(1, Relaxed);
        }
        self.write(order).await?.commit().await?;
        let messages = plan::messages_of(order).len() as u64;
        self.progress.written.fetch_add(messages, Relaxed);
        Ok(())
    }

    /// Writes an order and its messages in one transaction, and leaves open how that ends.
    async fn write(&self, order: u64) -> Result<SqliteTransaction<'static>, Error> {
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::query("INSERT INTO orders (id, customer) VALUES (?1, ?2)")
            .bind(order.cast_signed())
            .bind(plan::customer_of(order))
            .execute(&mut *tx)
            .await?;
        if plan::voucher_is_void(order) {
            // The order stays, the message about the voucher must not.
            let mut savepoint = tx.begin().await?;
            write_message(&mut savepoint, order, "voucher used").await?;
            savepoint.rollback().await?;
            self.progress.rolled_back_savepoints.fetch_add(1, Relaxed);
        }
        for what in plan::messages_of(order) {
            write_message(&mut tx, order, what).await?;
        }
        Ok(tx)
    }

    /// The messages of all transactions of this run that committed, by the shop's own table.
    pub(crate) async fn committed(&self) -> Result<Vec<Event>, Error> {
        let rows: Vec<(Uuid, i64, String, i64)> =
            sqlx::query_as("SELECT id, order_id, customer, sequence FROM order_message")
                .fetch_all(&self.pool)
                .await?;
        let events = rows.into_iter().map(|(id, order, key, sequence)| Event {
            id,
            order,
            key,
            sequence,
        });
        Ok(self.of_this_run(events.collect()))
    }

    /// Without those of earlier runs, one of which may have been cut short.
    pub(crate) fn of_this_run(&self, mut events: Vec<Event>) -> Vec<Event> {
        events.retain(|event| self.orders.contains(&event.order.cast_unsigned()));
        events
    }
}

/// Enqueues one message, with the next number of its customer.
async fn write_message(conn: &mut SqliteConnection, order: u64, what: &str) -> Result<(), Error> {
    let (id, customer) = (Uuid::now_v7(), plan::customer_of(order));
    let order = order.cast_signed();
    let sequence: i64 = sqlx::query_scalar(
        "INSERT INTO customer (name, messages) VALUES (?1, 1)
             ON CONFLICT (name) DO UPDATE SET messages = messages + 1
         RETURNING messages",
    )
    .bind(&customer)
    .fetch_one(&mut *conn)
    .await?;
    sqlx::query(
        "INSERT INTO order_message (id, order_id, customer, sequence) VALUES (?1, ?2, ?3, ?4)",
    )
    .bind(id)
    .bind(order)
    .bind(&customer)
    .bind(sequence)
    .execute(&mut *conn)
    .await?;

    let payload = Payload {
        order,
        what: what.to_owned(),
        sequence,
    };
    let message = Message::to("orders").id(id).key(customer).json(&payload)?;
    OUTBOX.enqueue(conn, &message).await?;
    Ok(())
}
