//! Producers that do everything a producer may do, relays that die, and a check of what was committed.
//!
//! Every key has a counter row that serializes its transactions, so the committed counter says exactly
//! which messages must arrive: 1, 2, 3, … in the first copies of each key, none missing, none more.
//! `OUTBOX_STRESS_SECONDS` makes it longer.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outbox_core::{Outcome, PublishError, Store};
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgConnection, Row};
use support::store::{DEADLINE, Db, limits, message, on_both_servers};

const KEYS: usize = 24;
const PRODUCERS: usize = 8;
const RELAYS: usize = 4;

/// What was published, in order, by key.
type Published = Arc<Mutex<HashMap<String, Vec<u64>>>>;

#[derive(Default)]
struct Count {
    prepared: AtomicU64,
    aborted: AtomicU64,
    copied: AtomicU64,
    killed: AtomicU64,
    dropped: AtomicU64,
    parked: AtomicU64,
}

fn more(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::Relaxed)
}

/// One transaction of one producer. An error is one of a backend that was killed.
async fn produce(
    db: &Db,
    connection: &mut PgConnection,
    count: &Count,
    random: &mut fastrand::Rng,
) -> Result<(), sqlx::Error> {
    let schema = &db.schema;
    let execute = |sql: String| sqlx::raw_sql(AssertSqlSafe(sql));
    let key = format!("k{}", random.usize(..KEYS));
    execute("BEGIN".into()).execute(&mut *connection).await?;
    if random.u8(..4) == 0 {
        // A transaction id that is old when the position is drawn.
        execute("SELECT pg_current_xact_id()".into())
            .execute(&mut *connection)
            .await?;
        pause(random, 50).await;
    }
    let sql = format!("SELECT n FROM {schema}.counter WHERE key = $1 FOR UPDATE");
    let row = sqlx::query(AssertSqlSafe(sql))
        .bind(&key)
        .fetch_one(&mut *connection)
        .await?;
    let mut n = row.get::<i64, _>(0) as u64;
    if random.u8(..4) == 0 {
        execute("SAVEPOINT s".into())
            .execute(&mut *connection)
            .await?;
        db.outbox
            .enqueue(connection, &message(&key, "999999999"))
            .await?;
        execute("ROLLBACK TO SAVEPOINT s".into())
            .execute(&mut *connection)
            .await?;
    }
    match random.u8(..10) {
        0 => {
            more(&count.copied);
            let lines: String = (1..=5)
                .map(|i| format!("test\t{key}\t{}\n", n + i))
                .collect();
            let sql = format!("COPY {schema}.message (topic, key, payload) FROM STDIN");
            let mut copy = connection.copy_in_raw(&sql).await?;
            copy.send(lines.into_bytes()).await?;
            copy.finish().await?;
            n += 5;
        }
        1 => {
            for _ in 0..70 {
                n += 1;
                execute("SAVEPOINT s".into())
                    .execute(&mut *connection)
                    .await?;
                db.outbox
                    .enqueue(connection, &message(&key, &n.to_string()))
                    .await?;
                execute("RELEASE SAVEPOINT s".into())
                    .execute(&mut *connection)
                    .await?;
            }
        }
        2 => {
            let messages: Vec<_> = (1..=20)
                .map(|i| message(&key, &(n + i).to_string()))
                .collect();
            db.outbox.enqueue_all(connection, &messages).await?;
            n += 20;
        }
        _ => {
            for _ in 0..random.u8(1..4) {
                n += 1;
                db.outbox
                    .enqueue(connection, &message(&key, &n.to_string()))
                    .await?;
            }
        }
    }
    let sql = format!("UPDATE {schema}.counter SET n = $2 WHERE key = $1");
    sqlx::query(AssertSqlSafe(sql))
        .bind(&key)
        .bind(n as i64)
        .execute(&mut *connection)
        .await?;
    match random.u8(..20) {
        0 => pause(random, 2000).await,
        1..=6 => pause(random, 50).await,
        _ => {}
    }
    match random.u8(..8) {
        0 => {
            more(&count.aborted);
            execute("ROLLBACK".into()).execute(&mut *connection).await?;
        }
        1 => {
            let name = format!("{schema}_{}", more(&count.prepared));
            execute(format!("PREPARE TRANSACTION '{name}'"))
                .execute(&mut *connection)
                .await?;
            pause(random, 100).await;
            execute(format!("COMMIT PREPARED '{name}'"))
                .execute(&mut *connection)
                .await?;
        }
        _ => {
            execute("COMMIT".into()).execute(&mut *connection).await?;
        }
    }
    Ok(())
}

async fn pause(random: &mut fastrand::Rng, millis: u64) {
    // wait: a transaction that stays open is what is tested.
    tokio::time::sleep(Duration::from_millis(random.u64(..millis))).await;
}

/// Connects, and connects again where the killer is quicker than the first statement.
async fn connect(db: &Db) -> PgConnection {
    loop {
        match db.pool.connect_options().connect().await {
            Ok(connection) => return connection,
            Err(error) => assert!(is_killed(&error), "{error}"),
        }
    }
}

/// Whether an administrator's command has ended the session.
fn is_killed(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.as_deref() == Some("57P01")
}

async fn producer(db: Arc<Db>, stop: Arc<AtomicBool>, count: Arc<Count>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    while !stop.load(Ordering::Relaxed) {
        let mut connection = connect(&db).await;
        while !stop.load(Ordering::Relaxed) {
            if produce(&db, &mut connection, &count, &mut random)
                .await
                .is_err()
            {
                break;
            }
        }
    }
}

/// A relay without a broker: publishing is writing down.
async fn relay(
    db: Arc<Db>,
    published: Published,
    stop: Arc<AtomicBool>,
    count: Arc<Count>,
    seed: u64,
) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut store = db
        .outbox
        .store(&db.pool)
        .lanes_per_claim([1, 4, 64][random.usize(..3)])
        .unwrap();
    while !stop.load(Ordering::Relaxed) {
        let mut limits = limits([20, 200, 1000][random.usize(..3)]);
        limits.wait = Duration::from_millis(50);
        let Ok(Some(claim)) = store.claim(&limits).await else {
            continue;
        };
        if random.u8(..50) == 0 {
            // Killed before it published, and everything it knew is gone.
            more(&count.dropped);
            drop(claim);
            store = db.outbox.store(&db.pool);
            continue;
        }
        let mut failed: Vec<String> = Vec::new();
        let mut outcomes = Vec::new();
        for claimed in claim.messages() {
            let key = claimed.message.key().unwrap_or_default().to_owned();
            if failed.contains(&key) {
                outcomes.push(Outcome::Behind);
            } else if random.u16(..200) == 0 {
                more(&count.parked);
                failed.push(key);
                outcomes.push(Outcome::Park {
                    after: Duration::from_millis(random.u64(..200)),
                    counted: random.bool(),
                    error: PublishError::retryable("not now"),
                });
            } else {
                let payload = claimed
                    .message
                    .payload()
                    .map(|p| p.to_vec())
                    .unwrap_or_default();
                let n = String::from_utf8(payload).unwrap().parse().unwrap();
                published.lock().unwrap().entry(key).or_default().push(n);
                outcomes.push(Outcome::Delivered);
            }
        }
        if random.u8(..50) == 0 {
            more(&count.dropped);
            drop(claim);
        } else {
            // An error is one of a backend that was killed: the messages come again.
            let _ = claim.settle(outcomes).await;
        }
    }
}

/// Ends backends of producers and relays alike.
async fn killer(db: Arc<Db>, stop: Arc<AtomicBool>, count: Arc<Count>, application: String) {
    let mut random = fastrand::Rng::new();
    while !stop.load(Ordering::Relaxed) {
        pause(&mut random, 600).await;
        let killed = sqlx::query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE application_name = $1 AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1",
        )
        .bind(&application)
        .fetch_all(&db.pool)
        .await;
        count.killed.fetch_add(
            killed.map_or(0, |rows| rows.len() as u64),
            Ordering::Relaxed,
        );
    }
}

/// A producer that was killed between PREPARE and COMMIT left a transaction that holds its key.
async fn undertaker(db: Arc<Db>, stop: Arc<AtomicBool>) {
    let prefix = format!("{}\\_%", db.schema);
    while !stop.load(Ordering::Relaxed) {
        let left = sqlx::query(
            "SELECT gid FROM pg_prepared_xacts \
             WHERE gid LIKE $1 AND prepared < clock_timestamp() - interval '1 second'",
        )
        .bind(&prefix);
        for row in left.fetch_all(&db.pool).await.unwrap() {
            // Its producer may have been quicker.
            let _ = db
                .try_sql(&format!("COMMIT PREPARED '{}'", row.get::<String, _>(0)))
                .await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await; // wait: polls for orphans
    }
}

async fn stress(db: Db) {
    let seconds = std::env::var("OUTBOX_STRESS_SECONDS").map_or(12, |s| s.parse().unwrap());
    let seed =
        std::env::var("OUTBOX_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().unwrap());
    println!("seed {seed}");
    db.sql(&format!(
        "CREATE TABLE {{schema}}.counter (key text PRIMARY KEY, n bigint NOT NULL);
         INSERT INTO {{schema}}.counter SELECT 'k' || i, 0 FROM generate_series(0, {}) AS i",
        KEYS - 1
    ))
    .await;
    // Only the backends that may be killed carry this name.
    let application = format!("stress_{}", db.schema);
    let victims = Arc::new(Db {
        // These producers prepare transactions, so they cannot notify.
        pool: db
            .pool_with(&[
                ("application_name", &application),
                ("outbox.wake_up", "off"),
            ])
            .await,
        schema: db.schema.clone(),
        outbox: db.outbox.clone(),
    });
    let db = Arc::new(db);
    // A snapshot that nobody remembers keeps every dead row for the whole run.
    let mut forgotten = db.connection().await;
    db.sql_on(
        &mut forgotten,
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1",
    )
    .await;

    let (count, published) = (Arc::new(Count::default()), Published::default());
    let (stop_producers, stop_relays) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let mut producers = tokio::task::JoinSet::new();
    for number in 0..PRODUCERS as u64 {
        let (stop, count) = (stop_producers.clone(), count.clone());
        producers.spawn(producer(
            victims.clone(),
            stop,
            count,
            seed.wrapping_add(number),
        ));
    }
    producers.spawn(killer(
        db.clone(),
        stop_producers.clone(),
        count.clone(),
        application,
    ));
    let mut relays = tokio::task::JoinSet::new();
    relays.spawn(undertaker(db.clone(), stop_relays.clone()));
    for number in 0..RELAYS as u64 {
        let (published, stop, count) = (published.clone(), stop_relays.clone(), count.clone());
        relays.spawn(relay(
            victims.clone(),
            published,
            stop,
            count,
            seed.wrapping_sub(number),
        ));
    }

    tokio::time::sleep(Duration::from_secs(seconds)).await; // wait: the length of the run
    stop_producers.store(true, Ordering::Relaxed);
    while let Some(ended) = producers.join_next().await {
        ended.unwrap();
    }
    let started = Instant::now();
    // What an orphan holds is not seen before it is committed.
    let orphans = r"SELECT count(*) FROM pg_prepared_xacts WHERE gid LIKE '{schema}\_%'";
    while db.number(orphans).await > 0 || db.places().await != [0; 4] {
        assert!(
            started.elapsed() < DEADLINE,
            "left behind: {:?}",
            db.places().await
        );
        tokio::time::sleep(Duration::from_millis(50)).await; // wait: polls until all is delivered
    }
    stop_relays.store(true, Ordering::Relaxed);
    while let Some(ended) = relays.join_next().await {
        ended.unwrap();
    }

    let published = published.lock().unwrap().clone();
    let (mut messages, mut repeats) = (0, 0);
    for number in 0..KEYS {
        let key = format!("k{number}");
        let sql = format!("SELECT n FROM {{schema}}.counter WHERE key = '{key}'");
        let committed = db.number(&sql).await as u64;
        let copies = published.get(&key).cloned().unwrap_or_default();
        let mut next = 1;
        for copy in &copies {
            assert!(
                *copy <= next,
                "{key}: {copy} came before {next} (seed {seed}): {copies:?}"
            );
            next = next.max(copy + 1);
        }
        assert_eq!(
            next - 1,
            committed,
            "{key}: committed {committed} (seed {seed})"
        );
        messages += committed;
        repeats += copies.len() as u64 - committed;
    }
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{messages} messages of {KEYS} keys: 0 lost, 0 out of order, {repeats} repeated; \
         {} aborted, {} prepared, {} copied, {} backends killed, {} claims dropped, {} parked",
        of(&count.aborted),
        of(&count.prepared),
        of(&count.copied),
        of(&count.killed),
        of(&count.dropped),
        of(&count.parked),
    );
    assert!(messages > 100 && of(&count.killed) > 0 && of(&count.prepared) > 0);
    drop(forgotten);
    victims.pool.close().await;
}

on_both_servers! {
    async fn first_copies_of_each_key_count_up_without_a_gap(db: Db) {
        stress(db).await;
    }
}
