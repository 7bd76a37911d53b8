//! Topics that people stop and start again.
//!
//! The table is all there is in the database. A publisher in front of the relay's own reads it and
//! answers for the topics in it, so their messages are parked like those of a topic that is missing.

use outbox_core::TopicPattern;
use outbox_core::admin::{KeyFilter, PausedTopic, Resumed};
use sqlx::{PgConnection, PgPool, Row as _};

use super::{BEGIN, BEGIN_LOOK, time};
use crate::Outbox;

impl Outbox {
    /// Writes down that no relay is to send to a topic, or to all that match, until it is resumed. `by`
    /// says who wants that, for those who ask later. Gives back whether that is new: a pattern that is
    /// paused already keeps its time and its name.
    ///
    /// A relay heeds it only where its publisher asks for [`paused`](Self::paused) topics, as that of the
    /// `outbox` program does. An embedded `Relay` does not by itself, and goes on sending.
    ///
    /// # Errors
    ///
    /// What the database answered.
    pub async fn pause(
        &self,
        pool: &PgPool,
        topic: &TopicPattern,
        by: &str,
    ) -> Result<bool, sqlx::Error> {
        let mut tx = pool.begin_with(BEGIN).await?;
        let done = sqlx::query(self.sql(include_str!("../../sql/pause.sql")))
            .bind(topic.as_str())
            .bind(by)
            .persistent(false)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(done.rows_affected() > 0)
    }

    /// Takes a pause back, by the very pattern that was paused, and has the keys whose heads are of its
    /// topics tried at once.
    ///
    /// A relay that goes by a list it read before this would park them again, and for longer. So it
    /// has to read [`paused`](Self::paused) again before it refuses what an older list says.
    ///
    /// # Errors
    ///
    /// As of [`KeySteps::step`](crate::KeySteps::step). The topic may be resumed already; repeating it,
    /// or [`retry_now`](Self::retry_now), does the rest.
    pub async fn resume(
        &self,
        pool: &PgPool,
        topic: &TopicPattern,
    ) -> Result<Resumed, sqlx::Error> {
        let mut tx = pool.begin_with(BEGIN).await?;
        let done = sqlx::query(self.sql(include_str!("../../sql/resume.sql")))
            .bind(topic.as_str())
            .persistent(false)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        let heads = KeyFilter::all().topic(topic.clone());
        Ok(Resumed {
            was_paused: done.rows_affected() > 0,
            keys: self.retry_now(pool, heads).finish().await?.keys,
        })
    }

    /// The topics that are paused, by name. One short statement, for a relay to ask every few seconds.
    ///
    /// # Errors
    ///
    /// What the database answered.
    pub async fn paused(&self, pool: &PgPool) -> Result<Vec<PausedTopic>, sqlx::Error> {
        let mut tx = pool.begin_with(BEGIN_LOOK).await?;
        let paused = self.paused_on(&mut tx).await?;
        tx.commit().await?;
        Ok(paused)
    }

    pub(super) async fn paused_on(
        &self,
        conn: &mut PgConnection,
    ) -> Result<Vec<PausedTopic>, sqlx::Error> {
        let rows = sqlx::query(self.sql(include_str!("../../sql/paused.sql")))
            .persistent(false)
            .fetch_all(conn)
            .await?;
        rows.iter()
            .map(|row| {
                let topic: String = row.try_get(0)?;
                Ok(PausedTopic {
                    topic: topic
                        .parse()
                        .map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
                    since: time(row.try_get(1)?),
                    by: row.try_get(2)?,
                })
            })
            .collect()
    }
}
