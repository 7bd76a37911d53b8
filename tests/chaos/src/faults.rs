//! Breaks what the schedule says, and puts it right again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use sqlx::{Connection as _, PgConnection};
use tokio::time::sleep_until;

use crate::Result;
use crate::broker::{self, Broker};
use crate::postgres::Postgres;
use crate::relays::Relays;
use crate::schedule::{Fault, Planned, by_target};
use crate::service::Service;
use crate::timeline::Timeline;

/// What there is to be broken.
pub(crate) struct Stage<'a> {
    pub(crate) timeline: &'a Timeline,
    pub(crate) relays: &'a Relays,
    pub(crate) postgres: tokio::sync::Mutex<Postgres>,
    pub(crate) broker: &'a dyn Broker,
    pub(crate) service: Option<Service>,
    /// What went wrong that no fault was meant to do.
    pub(crate) troubles: Mutex<Vec<String>>,
}

impl Stage<'_> {
    /// Ends when the last fault has, soon after the end of the run. What is broken is mended before it is
    /// broken again; where a slow machine leaves no time for a fault, that is said.
    pub(crate) async fn carry_out(&self, planned: &[Planned], end: Duration) {
        join_all(by_target(planned).iter().map(async |own| {
            for planned in own {
                sleep_until(self.timeline.moment(planned.at)).await; // wait: its turn
                if self.timeline.now() + planned.lasts > end {
                    self.timeline
                        .say(&format!("- {}: no time left", planned.fault));
                } else if let Err(error) = self.play(planned).await {
                    self.trouble(format!("{}: {error}", planned.fault));
                }
            }
        }))
        .await;
    }

    pub(crate) fn trouble(&self, what: String) {
        self.timeline.say(&format!("TROUBLE {what}"));
        self.troubles
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(what);
    }

    /// What it was, or nothing and the trouble for the report.
    pub(crate) fn or_trouble<T: Default>(&self, what: &str, result: Result<T>) -> T {
        result.unwrap_or_else(|error| {
            self.trouble(format!("{what}: {error}"));
            T::default()
        })
    }

    async fn play(&self, planned: &Planned) -> Result<()> {
        let Planned { fault, lasts, .. } = *planned;
        let from = self.timeline.now();
        self.timeline.say(&format!("> {fault}"));
        let begun = self.begin(fault).await;
        sleep_until(tokio::time::Instant::now() + lasts).await; // wait: as long as the fault lasts
        // What has begun in part has to end too.
        self.end(fault).await?;
        begun?;
        self.timeline.broken(fault, from);
        if lasts > Duration::from_millis(100) {
            let after = (self.timeline.now() - from).as_secs_f64();
            self.timeline
                .say(&format!("< {fault}: mended after {after:.1} s"));
        }
        Ok(())
    }

    async fn begin(&self, fault: Fault) -> Result<()> {
        match fault {
            Fault::KillRelay(relay) => self.relays.kill(relay).await?,
            Fault::FreezeRelay(relay) => self.relays.freeze(relay)?,
            Fault::StopRelay(relay) => self.relays.stop(relay).await?,
            Fault::JumpClock(hours) => self.relays.set_clock(hours)?,
            Fault::KillBroker => self.service()?.kill().await?,
            Fault::StopBroker => self.service()?.stop().await?,
            Fault::FreezeBroker => self.service()?.freeze()?,
            Fault::FillBroker(state) => broker::fill(self.broker, state, self.service()?).await?,
            Fault::CrashPostgres => self.postgres.lock().await.crash().await?,
            Fault::EndSessions => {
                let url = self.postgres.lock().await.url();
                let mut conn = PgConnection::connect(&url).await?;
                sqlx::query(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
                )
                .execute(&mut conn)
                .await?;
            }
            Fault::FillPostgres => self.postgres.lock().await.fill_disk()?,
            Fault::Reset(link, whose) => self.relays.links(link, whose).for_each(|it| it.reset()),
            Fault::Hold(link, whose) => self.relays.links(link, whose).for_each(|it| it.hold()),
            Fault::Slow(link, whose, millis) => {
                let delay = Duration::from_millis(millis);
                self.relays
                    .links(link, whose)
                    .for_each(|it| it.slow_down(delay));
            }
            Fault::Forget(link, whose) => {
                self.relays.links(link, whose).for_each(|it| it.silence())
            }
        }
        Ok(())
    }

    async fn end(&self, fault: Fault) -> Result<()> {
        match fault {
            Fault::KillRelay(relay) | Fault::StopRelay(relay) => self.relays.again(relay)?,
            Fault::FreezeRelay(relay) => self.relays.thaw(relay)?,
            Fault::JumpClock(_) => self.relays.set_clock(0)?,
            Fault::KillBroker | Fault::StopBroker => self.service()?.start().await?,
            Fault::FreezeBroker => self.service()?.thaw()?,
            Fault::FillBroker(state) => broker::drain(self.broker, state, self.service()?).await?,
            Fault::CrashPostgres => self.postgres.lock().await.up().await?,
            Fault::FillPostgres => {
                let mut postgres = self.postgres.lock().await;
                postgres.free_disk()?;
                // It may have given up.
                postgres.up().await?;
            }
            Fault::Hold(link, whose) | Fault::Slow(link, whose, _) => {
                self.relays.links(link, whose).for_each(|it| it.release());
            }
            Fault::EndSessions | Fault::Reset(..) | Fault::Forget(..) => {}
        }
        Ok(())
    }

    fn service(&self) -> Result<&Service> {
        Ok(self
            .service
            .as_ref()
            .ok_or("a server that must not be broken")?)
    }
}
