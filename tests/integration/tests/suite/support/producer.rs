//! Applications that write while relays run.

use std::ops::Range;

use futures_util::future::join_all;

use super::scene::Scene;
use super::until;

/// Four producers at once, each with a quarter of the keys to itself, until `messages` have committed.
///
/// Transactions of one to four messages; of eight, one is rolled back, and two roll back to a savepoint
/// in the middle. A transaction that fails, because the server is away, is tried again.
pub(crate) async fn produce(scene: &Scene, keys: usize, messages: usize) {
    let producers = (0..4).map(|number| {
        let keys = keys * number / 4..keys * (number + 1) / 4;
        Producer::new(scene, keys, number as u64).run(messages / 4)
    });
    join_all(producers).await;
}

struct Producer<'a> {
    scene: &'a Scene,
    random: fastrand::Rng,
    keys: Vec<Key>,
}

struct Key {
    name: String,
    /// The number of its last message that committed.
    last: i64,
}

impl<'a> Producer<'a> {
    fn new(scene: &'a Scene, keys: Range<usize>, seed: u64) -> Self {
        let keys = keys.map(|key| Key {
            name: format!("key-{key}"),
            last: 0,
        });
        Self {
            scene,
            random: fastrand::Rng::with_seed(seed),
            keys: keys.collect(),
        }
    }

    async fn run(mut self, messages: usize) {
        self.recover().await;
        let mut committed = 0;
        while committed < messages {
            match self.transaction(messages - committed).await {
                Ok(count) => committed += count,
                Err(_) => committed += self.recover().await,
            }
        }
    }

    /// How many messages it committed.
    async fn transaction(&mut self, most: usize) -> Result<usize, sqlx::Error> {
        let scene = self.scene;
        let count = self.random.usize(1..=4).min(most);
        let rolls_back = self.random.u8(..8);
        let key = self.random.usize(..self.keys.len());
        let key = &mut self.keys[key];

        let mut tx = scene.pool.begin().await?;
        let mut last = key.last;
        for number in 0..count {
            if number == count / 2 && rolls_back < 2 {
                let mut savepoint = sqlx::Connection::begin(&mut *tx).await?;
                let message = scene.message(&key.name, last + 1);
                scene
                    .write(&mut savepoint, &key.name, last + 1, &message)
                    .await?;
                savepoint.rollback().await?;
            }
            last += 1;
            let message = scene.message(&key.name, last);
            scene.write(&mut tx, &key.name, last, &message).await?;
        }
        if rolls_back == 2 {
            tx.rollback().await?;
            return Ok(0);
        }
        tx.commit().await?;
        key.last = last;
        Ok(count)
    }

    /// Looks up what did commit, as soon as the server answers; how much more that is than was known.
    async fn recover(&mut self) -> usize {
        let mut more = 0;
        for key in &mut self.keys {
            let scene = self.scene;
            let statement = "SELECT coalesce(max(n), 0) FROM {schema}.business WHERE key = $1";
            let mut known = None;
            until("the server tells what committed", async || {
                known = sqlx::query_scalar(scene.sql(statement))
                    .bind(&key.name)
                    .fetch_one(&scene.pool)
                    .await
                    .ok();
                known.is_some()
            })
            .await;
            let last = known.unwrap_or(key.last);
            more += usize::try_from(last - key.last).expect("a number that grows");
            key.last = last;
        }
        more
    }
}
