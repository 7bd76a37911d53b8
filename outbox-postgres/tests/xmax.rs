//! A snapshot's xmax is the latest *completed* transaction id and one: a running transaction may lie at
//! or above it and is in no list of the snapshot.
//!
//! A scan that forgets these passes every random run. It takes a mark made by an id above the running
//! transaction's, and a base that has not seen any id above it complete. No other transaction of the
//! server may complete meanwhile, so this test has a program of its own and tries until it was alone.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use outbox_core::{Outcome, PublishError, Store};
use sqlx::Row;
use support::store::{Db, deliver, deliver_some, limits, message, of_key, on_both_servers};
use support::until;

/// How often the trap was set without another transaction in the way.
const SET: usize = 3;
const TRIES: usize = 300;

/// Sets the trap once; whether it was set.
async fn trap(db: &Db) -> bool {
    let store = db.outbox.store(&db.pool);
    db.enqueue("parked", "parked").await;
    let claim = store.claim(&limits(10)).await.unwrap().unwrap();
    let park = Outcome::Park {
        after: Duration::from_millis(15),
        counted: false,
        error: PublishError::topic_unavailable("no"),
    };
    claim.settle(vec![park]).await.unwrap();

    // The running transaction; the poll after it sees its position in the sequence, and nothing to do.
    let mut late = db.pool.begin().await.unwrap();
    db.outbox
        .enqueue(&mut late, &message("key", "first"))
        .await
        .unwrap();
    let sql = "SELECT pg_current_xact_id()::text::bigint";
    let running: i64 = sqlx::query(sql).fetch_one(&mut *late).await.unwrap().get(0);
    let mut claim = store.claim(&limits(10)).await.unwrap();
    let idle_poll = claim.is_none();
    // A parked message that is due gives the next poll an own id, above the running one, without
    // anything having completed.
    until("the parked message is due", async || {
        if claim.is_none() {
            claim = store.claim(&limits(10)).await.unwrap();
        }
        claim.is_some()
    })
    .await;
    let xmax = db
        .number("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        .await;

    late.commit().await.unwrap();
    db.enqueue("key", "second").await;
    claim
        .unwrap()
        .settle(vec![Outcome::Delivered])
        .await
        .unwrap();
    assert_eq!(
        of_key(&deliver(&store, 2).await, "key"),
        ["first", "second"]
    );
    assert_eq!(deliver_some(&store, &limits(10)).await, []);
    idle_poll && xmax <= running
}

on_both_servers! {
    async fn a_transaction_at_or_above_xmax_is_found(db: Db) {
        let mut set = 0;
        for _ in 0..TRIES {
            set += usize::from(trap(&db).await);
            if set == SET {
                return;
            }
        }
        panic!("other transactions were in the way of all but {set} of {TRIES} tries");
    }
}
