//! The producer's half of the wake-up: it tells a sleeping relay, and only a sleeping one.

#![allow(clippy::unwrap_used)]

mod support;

use outbox_core::Message;
use outbox_postgres::Outbox;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};
use support::{Fixture, database_message, on_each_server};
use uuid::Uuid;

on_each_server!(with_outbox:
    an_awake_relay_is_left_alone,
    a_sleeping_relay_is_told,
    a_rollback_tells_nobody,
    the_relay_of_another_outbox_sleeps_on,
    a_session_can_opt_out_for_two_phase_commit,
    a_role_and_a_database_can_opt_out,
);

/// A relay's listening connection, as the table's trigger sees it.
struct Relay {
    listener: PgListener,
    /// Holds the lock while the relay sleeps.
    sleeper: PgConnection,
    key: i64,
}

impl Relay {
    async fn of(f: &Fixture) -> Self {
        let mut sleeper = PgConnection::connect(&f.url).await.unwrap();
        let key: i64 = sqlx::query_scalar("SELECT hashtextextended('outbox:' || $1, 0)")
            .bind(f.outbox.schema())
            .fetch_one(&mut sleeper)
            .await
            .unwrap();
        let mut listener = PgListener::connect(&f.url).await.unwrap();
        listener.listen(&format!("outbox:{key}")).await.unwrap();
        Self {
            listener,
            sleeper,
            key,
        }
    }

    async fn doze(&mut self) {
        let locked: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)")
            .bind(self.key)
            .fetch_one(&mut self.sleeper)
            .await
            .unwrap();
        assert!(locked);
    }

    /// How many notifications came: those before one that the test sends last.
    async fn told(mut self, f: &Fixture) -> usize {
        sqlx::query("SELECT pg_notify('outbox:' || $1, 'last')")
            .bind(self.key.to_string())
            .execute(&f.pool)
            .await
            .unwrap();
        let mut told = 0;
        while self.listener.recv().await.unwrap().payload() != "last" {
            told += 1;
        }
        told
    }
}

fn message() -> Message {
    Message::to("t").tombstone().unwrap()
}

async fn enqueue(f: &Fixture) {
    let mut tx = f.pool.begin().await.unwrap();
    f.outbox.enqueue(&mut tx, &message()).await.unwrap();
    tx.commit().await.unwrap();
}

async fn an_awake_relay_is_left_alone(f: Fixture) {
    let relay = Relay::of(&f).await;
    enqueue(&f).await;
    assert_eq!(relay.told(&f).await, 0);
}

async fn a_sleeping_relay_is_told(f: Fixture) {
    let mut relay = Relay::of(&f).await;
    relay.doze().await;
    enqueue(&f).await;
    f.execute("INSERT INTO {schema}.message (topic) VALUES ('t'), ('t'); SELECT {schema}.enqueue('t', NULL)")
        .await
        .unwrap();
    // One for each transaction, however many messages it has.
    assert_eq!(relay.told(&f).await, 2);
}

async fn a_rollback_tells_nobody(f: Fixture) {
    let mut relay = Relay::of(&f).await;
    relay.doze().await;
    let mut tx = f.pool.begin().await.unwrap();
    f.outbox.enqueue(&mut tx, &message()).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(relay.told(&f).await, 0);
}

async fn the_relay_of_another_outbox_sleeps_on(f: Fixture) {
    let other = Fixture {
        outbox: Outbox::in_schema(format!("{}_other", f.outbox.schema())).unwrap(),
        ..f.clone()
    };
    let mut relay = Relay::of(&other).await;
    relay.doze().await;
    enqueue(&f).await;
    assert_eq!(relay.told(&f).await, 0);
}

/// Enqueues and prepares the transaction; it is rolled back where that works.
async fn prepare_transaction(f: &Fixture, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    let name = format!("{}_{}", f.outbox.schema(), Uuid::now_v7().simple());
    sqlx::raw_sql("BEGIN").execute(&mut *conn).await?;
    f.outbox.enqueue(&mut *conn, &message()).await?;
    let prepare = AssertSqlSafe(format!("PREPARE TRANSACTION '{name}'"));
    if let Err(error) = sqlx::raw_sql(prepare).execute(&mut *conn).await {
        sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
        return Err(error);
    }
    sqlx::raw_sql(AssertSqlSafe(format!("ROLLBACK PREPARED '{name}'")))
        .execute(conn)
        .await?;
    Ok(())
}

async fn a_session_can_opt_out_for_two_phase_commit(f: Fixture) {
    let mut relay = Relay::of(&f).await;
    let mut producer = PgConnection::connect(&f.url).await.unwrap();
    prepare_transaction(&f, &mut producer).await.unwrap();

    relay.doze().await;
    assert_eq!(
        database_message(prepare_transaction(&f, &mut producer).await),
        "cannot PREPARE a transaction that has executed LISTEN, UNLISTEN, or NOTIFY"
    );
    sqlx::raw_sql("SET outbox.wake_up = off")
        .execute(&mut producer)
        .await
        .unwrap();
    prepare_transaction(&f, &mut producer).await.unwrap();

    let options: PgConnectOptions = f.url.parse().unwrap();
    let mut producer = options
        .options([("outbox.wake_up", "off")])
        .connect()
        .await
        .unwrap();
    prepare_transaction(&f, &mut producer).await.unwrap();
    assert_eq!(relay.told(&f).await, 0);
}

async fn a_role_and_a_database_can_opt_out(f: Fixture) {
    // A database of its own, since the setting concerns every outbox in it.
    let name = f.outbox.schema().to_owned();
    f.execute(&format!("CREATE DATABASE {name}")).await.unwrap();
    let options: PgConnectOptions = f.url.parse().unwrap();
    let own = options.database(&name);
    let there = Fixture {
        outbox: Outbox::new(),
        pool: PgPoolOptions::new()
            .connect_with(own.clone())
            .await
            .unwrap(),
        url: own.to_url_lossy().into(),
    };
    there.outbox.migrate(&there.pool).await.unwrap();
    let mut relay = Relay::of(&there).await;
    relay.doze().await;
    let connect = || async { own.clone().connect().await.unwrap() };
    let mut without = connect().await;
    assert!(prepare_transaction(&there, &mut without).await.is_err());

    there
        .execute(&format!("ALTER DATABASE {name} SET outbox.wake_up = off"))
        .await
        .unwrap();
    let by_database = prepare_transaction(&there, &mut connect().await).await;
    there
        .execute(&format!("ALTER DATABASE {name} RESET outbox.wake_up"))
        .await
        .unwrap();

    let user: String = sqlx::query_scalar("SELECT current_user::text")
        .fetch_one(&there.pool)
        .await
        .unwrap();
    there
        .execute(&format!(
            "ALTER ROLE {user} IN DATABASE {name} SET outbox.wake_up = off"
        ))
        .await
        .unwrap();
    let by_role = prepare_transaction(&there, &mut connect().await).await;

    drop((relay, without));
    there.pool.close().await;
    f.execute(&format!("DROP DATABASE {name} WITH (FORCE)"))
        .await
        .unwrap();
    by_database.unwrap();
    by_role.unwrap();
}
