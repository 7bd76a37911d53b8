//! The order service: what an application does. It writes business rows and messages in one
//! transaction, and knows neither the relay nor Kafka.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use outbox::postgres::Outbox;
use outbox::{Message, Uuid};
use serde::{Deserialize, Serialize};
use sqlx::{Acquire as _, PgConnection, PgPool, PgTransaction};
use tokio::task::JoinSet;

use crate::Error;
use crate::audit::Event;
use crate::progress::Progress;

/// So many orders are placed at the same time.
const TASKS: usize = 16;

/// So many customers place orders. Their names are the keys.
const CUSTOMERS: u64 = 500;

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

/// The payload of a message, as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Payload {
    pub(crate) order: i64,
    pub(crate) what: String,
    /// The place among the messages of the customer, from 1.
    pub(crate) sequence: i64,
}

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
        let customers: Vec<String> = (0..CUSTOMERS).map(customer_name).collect();
        sqlx::query("INSERT INTO customer (name, messages) SELECT unnest($1::text[]), 0")
            .bind(customers)
            .execute(&self.pool)
            .await?;

        let next = Arc::new(AtomicU64::new(0));
        let mut tasks: JoinSet<Result<(), Error>> = JoinSet::new();
        for _ in 0..TASKS {
            let (shop, next) = (self.clone(), Arc::clone(&next));
            tasks.spawn(async move {
                loop {
                    let order = next.fetch_add(1, Relaxed);
                    if order >= orders {
                        return Ok(());
                    }
                    shop.place(order).await?;
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok(())
    }

    /// Places one order. In one of ten cases a first try is rolled back.
    async fn place(&self, order: u64) -> Result<(), Error> {
        if order.is_multiple_of(10) {
            self.write(order).await?.rollback().await?;
            self.progress.rolled_back.fetch_add(1, Relaxed);
        }
        self.write(order).await?.commit().await?;
        let messages = messages_of(order).len() as u64;
        self.progress.written.fetch_add(messages, Relaxed);
        Ok(())
    }

    /// Writes an order and its messages in one transaction, and leaves open how that ends.
    async fn write(&self, order: u64) -> Result<PgTransaction<'static>, Error> {
        let mut tx = self.pool.begin().await?;
        sqlx::query("INSERT INTO orders (id, customer) VALUES ($1, $2)")
            .bind(order.cast_signed())
            .bind(customer_of(order))
            .execute(&mut *tx)
            .await?;
        if order % 10 == 5 {
            // A voucher is void: the order stays, the message about the voucher must not.
            let mut savepoint = tx.begin().await?;
            self.write_message(&mut savepoint, order, "voucher used")
                .await?;
            savepoint.rollback().await?;
            self.progress.rolled_back_savepoints.fetch_add(1, Relaxed);
        }
        for what in messages_of(order) {
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
        let customer = customer_of(order);
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

/// How many messages so many orders have.
pub(crate) fn messages_of_all(orders: u64) -> u64 {
    (0..orders)
        .map(|order| messages_of(order).len() as u64)
        .sum()
}

/// One customer in five pays at once, so that some transactions write several messages of one key.
fn messages_of(order: u64) -> &'static [&'static str] {
    match customer_number(order) % 5 {
        0 => &["order placed", "order paid", "order packed"],
        _ => &["order placed"],
    }
}

fn customer_of(order: u64) -> String {
    customer_name(customer_number(order))
}

fn customer_name(number: u64) -> String {
    format!("customer-{number}")
}

/// Drawn by lot, and the same in every run.
fn customer_number(order: u64) -> u64 {
    fastrand::Rng::with_seed(order).u64(..CUSTOMERS)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_customer_places_an_order_in_a_run_of_the_default_size() {
        let customers: HashSet<String> = (0..10_000).map(customer_of).collect();
        assert_eq!(customers.len() as u64, CUSTOMERS);
    }

    #[test]
    fn some_orders_have_one_message_and_some_have_several() {
        let lengths: HashSet<usize> = (0..100).map(|order| messages_of(order).len()).collect();
        assert_eq!(lengths, HashSet::from([1, 3]));
    }
}
