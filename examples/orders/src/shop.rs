//! The order service: what an application does. It writes business rows and messages in one
//! transaction, and knows neither the relay nor the broker.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use outbox::postgres::Outbox;
use outbox::{Message, Uuid};
use sqlx::{Acquire as _, PgConnection, PgPool, PgTransaction};

use crate::work::place_all;
use crate::{Error, Event, Payload, Progress, plan};

/// So many orders are placed at the same time.
const TASKS: usize = 16;

/// Business tables, and what the audit compares with: the messages of committed transactions.
pub(crate) const TABLES: &str = "
    CREATE TABLE customer (name text PRIMARY KEY, messages bigint NOT NULL);
    CREATE TABLE orders (id bigint PRIMARY KEY, customer text NOT NULL REFERENCES customer);
    CREATE TABLE order_message (
        id uuid PRIMARY KEY,
        order_id bigint NOT NULL REFERENCES orders,
        customer text NOT NULL,
        sequence bigint NOT NULL,
        UNIQUE (customer, sequence)
    );";

/// The order service.
#[derive(Clone)]
pub(crate) struct Shop {
    pub(crate) pool: PgPool,
    pub(crate) outbox: Outbox,
    /// Where messages go: the topic of this run.
    pub(crate) topic: String,
    pub(crate) progress: Arc<Progress>,
}

impl Shop {
    /// Places `orders` orders, several at the same time.
    pub(crate) async fn place_all(&self, orders: u64) -> Result<(), Error> {
        let customers: Vec<String> = plan::customers().collect();
        sqlx::query("INSERT INTO customer (name, messages) SELECT unnest($1::text[]), 0")
            .bind(customers)
            .execute(&self.pool)
            .await?;

        let shop = self.clone();
        place_all(0..orders, TASKS, move |order| {
            let shop = shop.clone();
            async move { shop.place(order).await }
        })
        .await
    }

    /// Places one order, perhaps at the second try.
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
    async fn write(&self, order: u64) -> Result<PgTransaction<'static>, Error> {
        let mut tx = self.pool.begin().await?;
        sqlx::query("INSERT INTO orders (id, customer) VALUES ($1, $2)")
            .bind(order.cast_signed())
            .bind(plan::customer_of(order))
            .execute(&mut *tx)
            .await?;
        if plan::voucher_is_void(order) {
            // The order stays, the message about the voucher must not.
            let mut savepoint = tx.begin().await?;
            self.write_message(&mut savepoint, order, "voucher used")
                .await?;
            savepoint.rollback().await?;
            self.progress.rolled_back_savepoints.fetch_add(1, Relaxed);
        }
        for what in plan::messages_of(order) {
            self.write_message(&mut tx, order, what).await?;
        }
        Ok(tx)
    }

    /// Enqueues one message, with the next number of its customer.
    ///
    /// The update locks the customer until the transaction ends, and the enqueue comes after it: so two
    /// transactions never write messages of one key at the same time, and their order is defined.
    async fn write_message(
        &self,
        conn: &mut PgConnection,
        order: u64,
        what: &str,
    ) -> Result<(), Error> {
        let id = Uuid::now_v7();
        let customer = plan::customer_of(order);
        let order = order.cast_signed();
        let sequence: i64 = sqlx::query_scalar(
            "WITH next AS (
                UPDATE customer SET messages = messages + 1 WHERE name = $3 RETURNING messages
             )
             INSERT INTO order_message (id, order_id, customer, sequence)
             SELECT $1, $2, $3, messages FROM next
             RETURNING sequence",
        )
        .bind(id)
        .bind(order)
        .bind(&customer)
        .fetch_one(&mut *conn)
        .await?;

        let payload = Payload {
            order,
            what: what.to_owned(),
            sequence,
        };
        let message = Message::to(&self.topic)
            .id(id)
            .key(&customer)
            .json(&payload)?;
        self.outbox.enqueue(conn, &message).await?;
        Ok(())
    }

    /// The messages of all transactions that committed, by the example's own table.
    pub(crate) async fn committed(&self) -> Result<Vec<Event>, Error> {
        let rows: Vec<(Uuid, i64, String, i64)> =
            sqlx::query_as("SELECT id, order_id, customer, sequence FROM order_message")
                .fetch_all(&self.pool)
                .await?;
        Ok(rows
            .into_iter()
            .map(|(id, order, key, sequence)| Event {
                id,
                order,
                key,
                sequence,
            })
            .collect())
    }
}
