//! The store passes the suite, in both kinds of journal.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use outbox_conformance::store::{Counts, Dead, OpenStore, StoreHarness, Transaction};
use outbox_core::admin::DeadFilter;
use outbox_core::{Message, Store, Uuid, async_trait};
use outbox_sqlite::{Outbox, SqliteStore};
use sqlx::SqliteTransaction;
use sqlx::sqlite::SqliteJournalMode;
use support::Fixture;

mod wal {
    outbox_conformance::store_suite!(super::Harness(super::SqliteJournalMode::Wal));
}

mod rollback_journal {
    outbox_conformance::store_suite!(super::Harness(super::SqliteJournalMode::Delete));
}

struct Harness(SqliteJournalMode);

#[async_trait]
impl StoreHarness for Harness {
    async fn open(&self) -> Box<dyn OpenStore> {
        let fixture = Fixture::with_options(|options| options.journal_mode(self.0)).await;
        let store = fixture.outbox.store(&fixture.pool).await.unwrap();
        Box::new(Open {
            fixture,
            store: Arc::new(store),
        })
    }
}

struct Open {
    fixture: Fixture,
    store: Arc<SqliteStore>,
}

#[async_trait]
impl OpenStore for Open {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    fn one_writer(&self) -> bool {
        true
    }

    async fn begin(&self) -> Box<dyn Transaction> {
        let begun = self.fixture.pool.begin_with("BEGIN IMMEDIATE").await;
        Box::new(Begun {
            outbox: self.fixture.outbox.clone(),
            tx: begun.unwrap(),
        })
    }

    async fn counts(&self) -> Counts {
        let counts = self.fixture.outbox.counts(&self.fixture.pool);
        let counts = counts.await.unwrap();
        let number = |count: u64| usize::try_from(count).unwrap();
        Counts {
            waiting: number(counts.waiting),
            parked: number(counts.parked),
            dead: number(counts.dead),
            delayed: number(counts.delayed),
        }
    }

    async fn dead(&self) -> Vec<Dead> {
        let all = DeadFilter::all();
        let dead = self
            .fixture
            .outbox
            .dead(&self.fixture.pool, &all, None, 1_000);
        let dead = dead.await.unwrap().messages.into_iter();
        dead.map(|dead| Dead {
            id: dead.id,
            reason: dead.error,
        })
        .collect()
    }

    async fn replay(&self, ids: &[Uuid]) {
        let ids = DeadFilter::ids(ids.iter().copied());
        let replay = self.fixture.outbox.replay(&self.fixture.pool, ids);
        replay.finish().await.unwrap();
    }

    async fn discard(&self, ids: &[Uuid]) {
        let ids = DeadFilter::ids(ids.iter().copied());
        let discard = self.fixture.outbox.discard(&self.fixture.pool, ids);
        discard.finish().await.unwrap();
    }

    async fn cancel(&self, id: Uuid) -> bool {
        let mut conn = self.fixture.pool.acquire().await.unwrap();
        self.fixture.outbox.cancel(&mut conn, id).await.unwrap()
    }

    async fn close(self: Box<Self>) {
        self.fixture.pool.close().await;
    }
}

struct Begun {
    outbox: Outbox,
    tx: SqliteTransaction<'static>,
}

#[async_trait]
impl Transaction for Begun {
    async fn enqueue(&mut self, message: &Message) {
        self.outbox.enqueue(&mut self.tx, message).await.unwrap();
    }

    async fn commit(self: Box<Self>) {
        self.tx.commit().await.unwrap();
    }

    async fn rollback(self: Box<Self>) {
        self.tx.rollback().await.unwrap();
    }
}
