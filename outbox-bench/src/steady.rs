//! Messages that are committed at a steady rate, whatever becomes of them.
//!
//! A producer that falls behind catches up as fast as it can; how far the rate was kept is told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::Message;
use outbox_postgres::Outbox;
use serde::Serialize;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::setup::{Database, Shape};
use crate::times::Times;
use crate::{Failure, Result};

/// Connections that enqueue. Each has its share of the rate.
const PRODUCERS: u32 = 8;

/// How many, and of what kind.
#[derive(Clone, Copy)]
pub(crate) struct Steady {
    /// Messages a second.
    pub(crate) rate: u32,
    pub(crate) seconds: u32,
    /// Messages of one transaction.
    pub(crate) together: u32,
    pub(crate) shape: Shape,
}

/// Where they go.
#[derive(Clone)]
pub(crate) enum Target {
    Outbox(Outbox),
    /// A table with the columns of an outbox.
    Table(String),
}

/// What was committed.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Produced {
    pub(crate) messages: u64,
    /// What was reached of the rate; 1 where it was kept.
    pub(crate) of_rate: f64,
}

impl Steady {
    /// Commits at the rate until the time is over.
    pub(crate) async fn produce(
        self,
        database: &Database,
        target: &Target,
        topic: &str,
        times: &Arc<Times>,
    ) -> Result<Produced> {
        let each = u64::from(self.rate) * u64::from(self.seconds) / u64::from(PRODUCERS);
        let pause = Duration::from_secs(1) * PRODUCERS * self.together / self.rate;
        let mut producers = JoinSet::new();
        let mut connections = Vec::new();
        for _ in 0..PRODUCERS {
            connections.push(database.connect().await?);
        }
        let start = Instant::now();
        for (number, mut connection) in (0..).zip(connections) {
            let workload = self.shape.workload(each);
            let (target, topic, times) = (target.clone(), topic.to_owned(), Arc::clone(times));
            producers.spawn(async move {
                let first = tokio::time::Instant::now() + pause * number / PRODUCERS;
                let mut ticks = tokio::time::interval_at(first, pause);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
                let mut keys = workload.keys();
                loop {
                    let keys = keys.by_ref().take(self.together as usize);
                    let messages: Vec<Message> = keys
                        .map(|key| workload.message(&topic, key))
                        .collect::<Result<_>>()?;
                    if messages.is_empty() {
                        return Ok::<(), Failure>(());
                    }
                    ticks.tick().await;
                    target.enqueue(&mut connection, &messages).await?;
                    times.committed(messages.iter().map(Message::id));
                }
            });
        }
        while let Some(done) = producers.join_next().await {
            done??;
        }
        Ok(Produced {
            messages: each * u64::from(PRODUCERS),
            of_rate: (f64::from(self.seconds) / start.elapsed().as_secs_f64()).min(1.0),
        })
    }
}

impl Target {
    async fn enqueue(&self, connection: &mut PgConnection, messages: &[Message]) -> Result<()> {
        let mut tx = connection.begin().await?;
        match self {
            Self::Outbox(outbox) => outbox.enqueue_all(&mut tx, messages).await?,
            Self::Table(table) => {
                let insert = format!(
                    "INSERT INTO {table} (id, topic, key, payload)
                     SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[])"
                );
                let payload = |it: &Message| it.payload().map(|payload| payload.to_vec());
                sqlx::query(AssertSqlSafe(insert))
                    .bind(messages.iter().map(Message::id).collect::<Vec<_>>())
                    .bind(messages.iter().map(Message::topic).collect::<Vec<_>>())
                    .bind(messages.iter().map(Message::key).collect::<Vec<_>>())
                    .bind(messages.iter().map(payload).collect::<Vec<_>>())
                    .execute(&mut *tx)
                    .await?;
            }
        }
        tx.commit().await?;
        Ok(())
    }
}
