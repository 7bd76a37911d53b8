//! TLS and logins: everything goes over TLS, and what is refused says why and not with which password.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use outbox_conformance::secured::{Secret, certificate};
use outbox_core::{ClaimLimits, Outcome, Store};
use outbox_postgres::{Access, PostgresStore};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{ConnectOptions as _, PgPool};
use support::store::{DEADLINE, limits, message};
use support::{Fixture, on_each_server, until};

on_each_server!(with_outbox:
    producer_relay_and_listener_go_over_tls,
    a_server_is_trusted_once_it_proves_who_it_is,
    a_wrong_password_is_refused_until_it_is_the_right_one,
);

/// Far below the ten seconds after which a sleeper polls by itself.
const WOKEN: Duration = Duration::from_secs(5);

/// Gives the role of the test, made when there is none, a password. The statement is not logged.
async fn set_password(f: &Fixture, password: &str) {
    let options = (*f.pool.connect_options()).clone();
    let mut admin = options.disable_statement_logging().connect().await.unwrap();
    let role = f.role();
    let statements = format!(
        "SET password_encryption = 'scram-sha-256';
         DO $$ BEGIN CREATE ROLE {role} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
         ALTER ROLE {role} PASSWORD '{password}';
         {} {}",
        f.outbox.grants_sql(Access::Producer, &role),
        f.outbox.grants_sql(Access::Relay, &role),
    );
    sqlx::raw_sql(f.sql(&statements))
        .execute(&mut admin)
        .await
        .unwrap();
}

/// Logs in as the role of the test, over TLS, to whom an authority has certified.
fn pool(f: &Fixture, authority: &Path, password: &str) -> PgPool {
    let options: PgConnectOptions = f.url.parse().unwrap();
    PgPoolOptions::new().connect_lazy_with(
        options
            .username(&f.role())
            .password(password)
            .ssl_mode(PgSslMode::VerifyFull)
            .ssl_root_cert(authority),
    )
}

async fn enqueue(f: &Fixture, pool: &PgPool) {
    let mut tx = pool.begin().await.unwrap();
    f.outbox
        .enqueue(&mut tx, &message("key", "x"))
        .await
        .unwrap();
    tx.commit().await.unwrap();
}

async fn delivers(store: &PostgresStore) {
    let patient = ClaimLimits {
        wait: DEADLINE,
        ..limits(10)
    };
    let claim = store.claim(&patient).await.unwrap().unwrap();
    let delivered = vec![Outcome::Delivered; claim.messages().len()];
    claim.settle(delivered).await.unwrap();
}

/// Neither a claim nor a migration is possible; both say this, and not the secret.
async fn is_refused(
    f: &Fixture,
    pool: &PgPool,
    store: &PostgresStore,
    said: &str,
    secret: &Secret,
) {
    let claim = store.claim(&limits(10)).await.err().unwrap();
    let migration = f.outbox.migrate(pool).await.unwrap_err();
    for error in [claim.to_string(), migration.to_string()] {
        assert!(error.contains(said), "{error}");
        secret.is_not_in(&error);
    }
    secret.is_not_in(&format!("{claim:?} {migration:?} {store:?}"));
    secret.was_not_logged();
}

async fn producer_relay_and_listener_go_over_tls(f: Fixture) {
    let secret = Secret::new();
    set_password(&f, secret.password()).await;
    let pool = pool(&f, &certificate("ca.pem"), secret.password());
    let store = f.outbox.store(&pool);
    enqueue(&f, &pool).await;
    delivers(&store).await;

    let of_role = |what: &str| {
        format!(
            "SELECT count(*) FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)
             WHERE usename = '{}' AND {what}",
            f.role()
        )
    };
    let number = async |sql: String| -> i64 {
        sqlx::query_scalar(f.sql(&sql))
            .fetch_one(&f.pool)
            .await
            .unwrap()
    };
    let listens = of_role(
        "pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock')",
    );
    let asleep = async {
        until("the store sleeps", async || {
            number(listens.clone()).await == 1
        })
        .await;
        // A session is in the statistics a little after it is there.
        until(
            "the producer, the store and the listener are seen",
            async || number(of_role("ssl")).await == 3,
        )
        .await;
        assert_eq!(number(of_role("NOT ssl")).await, 0);
        enqueue(&f, &pool).await;
        Instant::now()
    };
    let (committed, ()) = tokio::join!(asleep, delivers(&store));
    assert!(committed.elapsed() < WOKEN, "{:?}", committed.elapsed());
    secret.was_not_logged();
}

async fn a_server_is_trusted_once_it_proves_who_it_is(f: Fixture) {
    let secret = Secret::new();
    set_password(&f, secret.password()).await;
    let authority = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(f.outbox.schema());
    fs::copy(certificate("other-ca.pem"), &authority).unwrap();
    let pool = pool(&f, &authority, secret.password());
    let store = f.outbox.store(&pool);
    is_refused(&f, &pool, &store, "invalid peer certificate", &secret).await;

    fs::copy(certificate("ca.pem"), &authority).unwrap();
    enqueue(&f, &pool).await;
    delivers(&store).await;
    fs::remove_file(authority).unwrap();
}

async fn a_wrong_password_is_refused_until_it_is_the_right_one(f: Fixture) {
    let secret = Secret::new();
    set_password(&f, "right").await;
    let pool = pool(&f, &certificate("ca.pem"), secret.password());
    let store = f.outbox.store(&pool);
    is_refused(&f, &pool, &store, "password authentication failed", &secret).await;

    set_password(&f, secret.password()).await;
    enqueue(&f, &pool).await;
    delivers(&store).await;
    secret.was_not_logged();
}
