//! What people look at and decide costs what it touches, whatever else is there, and whatever the server
//! believes to be there.
//!
//! The server counts the entries that scans of indexes return, and the rows of sequential scans.

use outbox_core::Uuid;
use outbox_core::admin::{DeadFilter, KeyFilter};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::support::{Fixture, on_each_server};

on_each_server!(with_outbox:
    a_hundred_thousand_dead_messages_cost_nothing_but_what_is_asked_for,
);

const ROWS: i64 = 100_000;

struct Meter<'a> {
    f: &'a Fixture,
    /// Of one connection, whose counts are then complete.
    pool: PgPool,
}

impl Meter<'_> {
    async fn read(&self) -> i64 {
        sqlx::query("SELECT pg_stat_force_next_flush()")
            .execute(&self.pool)
            .await
            .unwrap();
        sqlx::query_scalar(self.f.sql(
            "SELECT (SELECT sum(idx_tup_read) FROM pg_stat_all_indexes WHERE schemaname = '{schema}')::bigint
                  + (SELECT sum(seq_tup_read) FROM pg_stat_all_tables WHERE schemaname = '{schema}')::bigint",
        ))
        .fetch_one(&self.pool)
        .await
        .unwrap()
    }

    /// What `work` reads.
    async fn cost<T>(&self, work: impl Future<Output = T>) -> (i64, T) {
        let before = self.read().await;
        let done = work.await;
        (self.read().await - before, done)
    }
}

/// Statistics are those of empty tables, which is what an outbox has on a good day.
async fn a_hundred_thousand_dead_messages_cost_nothing_but_what_is_asked_for(f: Fixture) {
    f.execute(
        "ALTER TABLE {schema}.dead SET (autovacuum_enabled = off);
         ALTER TABLE {schema}.parked SET (autovacuum_enabled = off);
         ALTER TABLE {schema}.blocked SET (autovacuum_enabled = off);
         ANALYZE {schema}.dead, {schema}.parked, {schema}.blocked;",
    )
    .await
    .unwrap();
    f.execute(&format!(
        "INSERT INTO {{schema}}.dead
         SELECT n, hashtextextended('k' || n % 1000, 0), gen_random_uuid(), 't' || n % 10, 'k' || n % 1000, NULL,
                NULL, now(), clock_timestamp(), 1, 1, 'rejected', 'refused', false
           FROM generate_series(1, {ROWS}) AS n;
         INSERT INTO {{schema}}.parked (key_hash, position, id, topic, key, enqueued_at)
         SELECT hashtextextended('p' || n, 0), n, gen_random_uuid(), 't', 'p' || n, now()
           FROM generate_series(1, {ROWS}) AS n;
         INSERT INTO {{schema}}.blocked (key_hash, lane, head, due_at)
         SELECT hash, hash & 63, n, '2100-01-01'
           FROM generate_series(1, {ROWS}) AS n, hashtextextended('p' || n, 0) AS hash"
    ))
    .await
    .unwrap();
    let options = (*f.pool.connect_options()).clone();
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_with(options)
        .await
        .unwrap();
    let meter = Meter {
        f: &f,
        pool: pool.clone(),
    };
    let (outbox, all) = (&f.outbox, DeadFilter::all());

    // One page, from anywhere: it looks at a bounded number.
    let (cost, page) = meter
        .cost(outbox.dead(&pool, &all, Some(ROWS - 50_000), 100))
        .await;
    assert_eq!(page.unwrap().messages.len(), 100);
    assert!(cost < 1_000, "a page reads {cost}");
    let filter = all.clone().key("k7");
    let (cost, page) = meter.cost(outbox.dead(&pool, &filter, None, 100)).await;
    let ids: Vec<Uuid> = page.unwrap().messages.iter().map(|dead| dead.id).collect();
    assert_eq!(ids.len(), 100);
    assert!(cost < 1_000, "a page of a key reads {cost}");

    let some = DeadFilter::ids(ids[..50].iter().copied());
    let (cost, done) = meter.cost(outbox.replay(&pool, some).finish()).await;
    assert_eq!(done.unwrap().messages, 50);
    assert!(cost < 2_000, "a replay of 50 ids reads {cost}");
    let (cost, done) = meter.cost(outbox.discard(&pool, filter).finish()).await;
    assert_eq!(done.unwrap().messages, 50);
    assert!(cost < 2_000, "a discard of a key's 50 reads {cost}");
    // A filter without an index goes over everything once, in steps.
    let topic = all.clone().topic("none".parse().unwrap());
    let (cost, done) = meter.cost(outbox.discard(&pool, topic).finish()).await;
    assert_eq!(done.unwrap().messages, 0);
    assert!(cost < ROWS + 10_000, "a discard of nothing reads {cost}");
    let (cost, done) = meter
        .cost(outbox.replay(&pool, all).limit(4_000).finish())
        .await;
    assert_eq!(done.unwrap().messages, 4_000);
    assert!(cost < 10 * 4_000, "a replay of 4,000 reads {cost}");

    let keys = KeyFilter::all();
    let (cost, page) = meter.cost(outbox.held_keys(&pool, &keys, None, 100)).await;
    assert_eq!(page.unwrap().keys.len(), 100);
    assert!(cost < 2_000, "a page of keys reads {cost}");
    let one = keys.clone().key("p500");
    let (cost, page) = meter.cost(outbox.held_keys(&pool, &one, None, 100)).await;
    assert_eq!(page.unwrap().keys.len(), 1);
    assert!(cost < 100, "one key reads {cost}");
    let (cost, done) = meter.cost(outbox.retry_now(&pool, one).finish()).await;
    assert_eq!(done.unwrap().keys, 1);
    assert!(cost < 100, "a retry of one key reads {cost}");
}
