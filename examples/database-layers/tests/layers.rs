//! Each layer against a real server: what commits is enqueued whole, what rolls back is not.

#![allow(clippy::unwrap_used)]

use std::env;
use std::time::Duration;

use ::diesel::{Connection as _, PgConnection as DieselConnection};
use ::sea_orm::{Database, TransactionTrait as _};
use ::tokio_postgres::NoTls;
use database_layers::{diesel, sea_orm, tokio_postgres};
use outbox::Message;
use outbox::postgres::Outbox;
use outbox::testing::assert_enqueued;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};
use uuid::Uuid;

/// With and without each part.
fn messages() -> [Message; 4] {
    let whole = Message::to("ä").key("k").header("a", "b\"\n");
    let later = Message::to("t").deliver_after(Duration::from_micros(3_600_000_001));
    [
        whole.bytes(vec![0, 255, 7]).unwrap(),
        Message::to("t").key("").bytes("").unwrap(),
        Message::to("t").tombstone().unwrap(),
        later.bytes("x").unwrap(),
    ]
}

fn rolled_back() -> Message {
    Message::to("never").tombstone().unwrap()
}

async fn with_tokio_postgres(url: &str) {
    let (mut client, connection) = ::tokio_postgres::connect(url, NoTls).await.unwrap();
    let driver = tokio::spawn(connection);
    let tx = client.transaction().await.unwrap();
    for message in messages() {
        tokio_postgres::enqueue(&tx, &message).await.unwrap();
    }
    tx.commit().await.unwrap();
    let tx = client.transaction().await.unwrap();
    tokio_postgres::enqueue(&tx, &rolled_back()).await.unwrap();
    tx.rollback().await.unwrap();
    drop(client);
    driver.await.unwrap().unwrap();
}

fn with_diesel(url: &str) {
    let mut conn = DieselConnection::establish(url).unwrap();
    let done: Result<(), ::diesel::result::Error> = conn.transaction(|conn| {
        for message in messages() {
            diesel::enqueue(conn, &message)?;
        }
        Ok(())
    });
    done.unwrap();
    let undone: Result<(), ::diesel::result::Error> = conn.transaction(|conn| {
        diesel::enqueue(conn, &rolled_back())?;
        Err(::diesel::result::Error::RollbackTransaction)
    });
    undone.unwrap_err();
}

async fn with_sea_orm(url: &str) {
    let db = Database::connect(url).await.unwrap();
    let tx = db.begin().await.unwrap();
    for message in messages() {
        sea_orm::enqueue(&tx, &message).await.unwrap();
    }
    tx.commit().await.unwrap();
    let tx = db.begin().await.unwrap();
    sea_orm::enqueue(&tx, &rolled_back()).await.unwrap();
    tx.rollback().await.unwrap();
    // The tables and the relay take its pool.
    let pool = db.get_postgres_connection_pool();
    let counts = Outbox::new().counts(pool).await.unwrap();
    assert_eq!((counts.waiting, counts.delayed), (3, 1));
    db.close().await.unwrap();
}

#[tokio::test]
async fn each_layer_enqueues_in_its_transaction() {
    let server = env::var("OUTBOX_TEST_POSTGRES_URL").unwrap_or_else(|_| {
        panic!("OUTBOX_TEST_POSTGRES_URL is not set: run `eval \"$(scripts/services env)\"` first")
    });
    let mut admin = PgConnection::connect(&server).await.unwrap();
    let database = format!("database_layers_{}", Uuid::now_v7().simple());
    let create = AssertSqlSafe(format!("CREATE DATABASE {database}"));
    sqlx::raw_sql(create).execute(&mut admin).await.unwrap();
    let url = format!("{}/{database}", server.rsplit_once('/').unwrap().0);
    let tested = tokio::spawn(test(url)).await;
    let drop = AssertSqlSafe(format!("DROP DATABASE {database} WITH (FORCE)"));
    sqlx::raw_sql(drop).execute(&mut admin).await.unwrap();
    tested.unwrap();
}

async fn test(url: String) {
    let pool = PgPool::connect(&url).await.unwrap();
    let outbox = Outbox::new();
    outbox.migrate(&pool).await.unwrap();
    with_tokio_postgres(&url).await;
    arrived(&pool).await;
    with_sea_orm(&url).await;
    arrived(&pool).await;
    tokio::task::spawn_blocking(move || with_diesel(&url))
        .await
        .unwrap();
    arrived(&pool).await;
    pool.close().await;
}

/// The messages of the layer before, taken out and put in again, since a transaction shows its own.
async fn arrived(pool: &PgPool) {
    let mut tx = pool.begin().await.unwrap();
    let again = "WITH taken AS (DELETE FROM outbox.message RETURNING *)
        INSERT INTO outbox.message (id, topic, key, payload, headers)
        SELECT id, topic, key, payload, headers FROM taken ORDER BY position;
        WITH taken AS (DELETE FROM outbox.delayed RETURNING *)
        INSERT INTO outbox.delayed (id, topic, key, payload, headers, deliver_after)
        SELECT id, topic, key, payload, headers, deliver_after FROM taken ORDER BY number";
    sqlx::raw_sql(again).execute(&mut *tx).await.unwrap();
    assert_enqueued(&Outbox::new().enqueued(&mut tx).await.unwrap(), &messages());
    sqlx::raw_sql("DELETE FROM outbox.message; DELETE FROM outbox.delayed")
        .execute(&mut *tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
}
