//! What people see, and what their decisions do to the tables.
//!
//! What a relay delivers afterwards is the store suite's business, in `conformance.rs`.

#![allow(clippy::unwrap_used)]

mod cost;
mod dead;
mod doctor;
mod keys;
mod pause;
mod status;
#[path = "../support/mod.rs"]
mod support;

use outbox_core::Uuid;
use outbox_core::admin::{DeadFilter, DeadMessage};
use sqlx::Row as _;
use support::Fixture;

/// A dead message with this key at this position.
pub(crate) async fn dead(f: &Fixture, position: i64, key: &str, halted: bool) -> Uuid {
    sqlx::query_scalar(f.sql(
        r#"INSERT INTO {schema}.dead (position, key_hash, id, topic, key, payload, headers, enqueued_at,
                                      parked, failures, error_kind, error, halted)
           VALUES ($1, hashtextextended($2, 0), gen_random_uuid(), 'orders.placed', $2, '\x00ff', '{"a": "b"}',
                   '2026-01-02 03:04:05.678901+00', 3, 2, 'rejected', 'too large', $3)
           RETURNING id"#,
    ))
    .bind(position)
    .bind(key)
    .bind(halted)
    .fetch_one(&f.pool)
    .await
    .unwrap()
}

/// A parked message behind the head of its key.
pub(crate) async fn parked(f: &Fixture, position: i64, key: &str) {
    sqlx::query(f.sql(
        "INSERT INTO {schema}.parked (key_hash, position, id, topic, key, enqueued_at)
         VALUES (hashtextextended($2, 0), $1, gen_random_uuid(), 't', $2, now())",
    ))
    .bind(position)
    .bind(key)
    .execute(&f.pool)
    .await
    .unwrap();
}

/// Holds a key up, behind its head, until a time.
pub(crate) async fn blocked(f: &Fixture, key: &str, head: i64, due_at: &str) {
    sqlx::query(f.sql(
        "INSERT INTO {schema}.blocked (key_hash, lane, head, due_at, tried, parked, failures, error_kind, error)
         VALUES (hashtextextended($1, 0), hashtextextended($1, 0) & 63, $2, $3::text::timestamptz, $2, 3, 2,
                 'retryable', 'away')",
    ))
    .bind(key)
    .bind(head)
    .bind(due_at)
    .execute(&f.pool)
    .await
    .unwrap();
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) head: i64,
    due: &'static str,
    failures: i32,
}

/// How a key stands; `None`: it is free.
pub(crate) async fn key(f: &Fixture, key: &str) -> Option<Key> {
    let row = sqlx::query(f.sql(
        "SELECT head, due_at = 'infinity', due_at <= clock_timestamp(), failures,
                lane = key_hash & 63 AND (failures > 0) = (tried IS NOT NULL AND error IS NOT NULL)
           FROM {schema}.blocked WHERE key_hash = hashtextextended($1, 0)",
    ))
    .bind(key)
    .fetch_optional(&f.pool)
    .await
    .unwrap()?;
    assert!(
        row.get::<bool, _>(4),
        "lane, counters and error belong together"
    );
    Some(Key {
        head: row.get(0),
        due: match (row.get(1), row.get(2)) {
            (true, _) => "never",
            (_, true) => "now",
            _ => "later",
        },
        failures: row.get(3),
    })
}

pub(crate) fn stands(head: i64, due: &'static str, failures: i32) -> Option<Key> {
    Some(Key {
        head,
        due,
        failures,
    })
}

pub(crate) async fn positions(f: &Fixture, table: &str) -> Vec<i64> {
    sqlx::query_scalar(f.sql(&format!(
        "SELECT position FROM {{schema}}.{table} ORDER BY position"
    )))
    .fetch_all(&f.pool)
    .await
    .unwrap()
}

pub(crate) async fn replay(f: &Fixture, filter: DeadFilter) -> u64 {
    let decided = f.outbox.replay(&f.pool, filter).finish().await;
    decided.unwrap().messages
}

pub(crate) async fn discard(f: &Fixture, filter: DeadFilter) -> u64 {
    let decided = f.outbox.discard(&f.pool, filter).finish().await;
    decided.unwrap().messages
}

pub(crate) fn ids<const N: usize>(ids: [Uuid; N]) -> DeadFilter {
    DeadFilter::ids(ids)
}

/// All pages of a list.
pub(crate) async fn listed(f: &Fixture, filter: &DeadFilter, limit: u32) -> Vec<DeadMessage> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = f.outbox.dead(&f.pool, filter, after, limit).await.unwrap();
        assert!(page.messages.len() <= limit as usize);
        all.extend(page.messages);
        match page.next {
            Some(next) => after = Some(next),
            None => return all,
        }
    }
}
