//! The store passes the suite, on Postgres 15 and 18, with the rights of a relay and
//! no more.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use outbox_conformance::store::{Counts, Dead, OpenStore, StoreHarness, Transaction};
use outbox_core::admin::DeadFilter;
use outbox_core::{Message, Store, Uuid, async_trait};
use outbox_postgres::{Access, Outbox, PostgresStore};
use sqlx::Postgres;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use support::{Fixture, clean_up, new_fixture};

mod postgres_15 {
    outbox_conformance::store_suite!(super::Harness("OUTBOX_TEST_POSTGRES_URL"));
}

mod postgres_18 {
    outbox_conformance::store_suite!(super::Harness("OUTBOX_TEST_POSTGRES_18_URL"));
}

/// The variable that names the server.
struct Harness(&'static str);

#[async_trait]
impl StoreHarness for Harness {
    async fn open(&self) -> Box<dyn OpenStore> {
        let fixture = new_fixture(self.0).await;
        fixture.outbox.migrate(&fixture.pool).await.unwrap();
        let relay = fixture.role();
        fixture
            .execute(&format!(
                "CREATE ROLE {relay} LOGIN PASSWORD 'secret'; {}",
                fixture.outbox.grants_sql(Access::Relay, &relay)
            ))
            .await
            .unwrap();
        let options: PgConnectOptions = fixture.url.parse().unwrap();
        let pool =
            PgPoolOptions::new().connect_lazy_with(options.username(&relay).password("secret"));
        Box::new(Open {
            store: Arc::new(fixture.outbox.store(&pool)),
            fixture,
        })
    }
}

struct Open {
    fixture: Fixture,
    store: Arc<PostgresStore>,
}

#[async_trait]
impl OpenStore for Open {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    async fn begin(&self) -> Box<dyn Transaction> {
        Box::new(Begun {
            outbox: self.fixture.outbox.clone(),
            tx: self.fixture.pool.begin().await.unwrap(),
        })
    }

    async fn counts(&self) -> Counts {
        let counts = self
            .fixture
            .outbox
            .counts(&self.fixture.pool)
            .await
            .unwrap();
        let number = |count: u64| usize::try_from(count).unwrap();
        Counts {
            waiting: number(counts.waiting),
            parked: number(counts.parked),
            dead: number(counts.dead),
            delayed: number(counts.delayed),
        }
    }

    async fn dead(&self) -> Vec<Dead> {
        let dead = self
            .fixture
            .outbox
            .dead(&self.fixture.pool, &DeadFilter::all(), None, 1_000)
            .await
            .unwrap();
        dead.messages
            .into_iter()
            .map(|dead| Dead {
                id: dead.id,
                reason: dead.error,
            })
            .collect()
    }

    async fn replay(&self, ids: &[Uuid]) {
        self.fixture
            .outbox
            .replay(&self.fixture.pool, DeadFilter::ids(ids.iter().copied()))
            .finish()
            .await
            .unwrap();
    }

    async fn discard(&self, ids: &[Uuid]) {
        self.fixture
            .outbox
            .discard(&self.fixture.pool, DeadFilter::ids(ids.iter().copied()))
            .finish()
            .await
            .unwrap();
    }

    async fn cancel(&self, id: Uuid) -> bool {
        let mut conn = self.fixture.pool.acquire().await.unwrap();
        self.fixture.outbox.cancel(&mut conn, id).await.unwrap()
    }

    async fn close(self: Box<Self>) {
        // The store's sessions first: they may hold locks.
        let Self { fixture, store } = *self;
        drop(store);
        clean_up(&fixture).await.unwrap();
    }
}

struct Begun {
    outbox: Outbox,
    tx: sqlx::Transaction<'static, Postgres>,
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
