//! The store in memory passes the suite that the real ones pass.

use std::sync::Arc;

use outbox_conformance::store::{Counts, Dead, OpenStore, StoreHarness, Transaction};
use outbox_core::memory::{MemoryStore, MemoryTransaction};
use outbox_core::{Message, Store, Uuid, async_trait};

struct Memory;

#[async_trait]
impl StoreHarness for Memory {
    async fn open(&self) -> Box<dyn OpenStore> {
        Box::new(Open(MemoryStore::new()))
    }
}

struct Open(MemoryStore);

#[async_trait]
impl OpenStore for Open {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    async fn begin(&self) -> Box<dyn Transaction> {
        Box::new(Begun(self.0.begin()))
    }

    async fn counts(&self) -> Counts {
        let counts = self.0.counts();
        Counts {
            waiting: counts.waiting,
            parked: counts.parked,
            dead: counts.dead,
            delayed: counts.delayed,
        }
    }

    async fn dead(&self) -> Vec<Dead> {
        let dead = self.0.dead().into_iter();
        dead.map(|dead| Dead {
            id: dead.message.id(),
            reason: dead.error.reason().to_owned(),
        })
        .collect()
    }

    async fn replay(&self, ids: &[Uuid]) {
        self.0.replay(ids);
    }

    async fn discard(&self, ids: &[Uuid]) {
        self.0.discard(ids);
    }

    async fn cancel(&self, id: Uuid) -> bool {
        self.0.cancel(&[id]) > 0
    }
}

struct Begun(MemoryTransaction);

#[async_trait]
impl Transaction for Begun {
    async fn enqueue(&mut self, message: &Message) {
        self.0.enqueue(message);
    }

    async fn commit(self: Box<Self>) {
        self.0.commit();
    }

    async fn rollback(self: Box<Self>) {
        self.0.rollback();
    }
}

outbox_conformance::store_suite!(Memory);
