//! How fast a backlog is delivered, beside what limits it.
//!
//! | | phase | what it is |
//! | --- | --- | --- |
//! | R | reference | the row-lock loop over an equal table, nothing published |
//! | D | drain | the outbox and the relay, with a publisher that confirms at once |
//! | P | publish | the adapter alone, the same messages from memory, in the same order mode |
//! | E | end to end | the outbox, the relay and the broker |
//!
//! P and E are of one broker. D is to be compared with R; E with 1/(1/D + 1/P), the rate at which one message after the other
//! would pass through both halves. On a machine whose processors are the bottleneck that is the limit.
//!
//! Filling the tables is not measured. They are not analyzed either: the statistics of an outbox are
//! those of a table that has just been empty. R and D begin with connecting and end with the last
//! commit. P makes its messages while it runs, a claim at a time, and publishes
//! them in such waves as the claims of E have: a claim has the keys of some lanes, not of all.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use outbox_core::{Answer, Delivery, Message, Publisher};
use outbox_postgres::PostgresStore;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::broker::{self, Broker, with_topic};
use crate::measure::{Clock, Measured, all, median, none_left};
use crate::reference::Loop;
use crate::relay::{Backlog, Drain, NullPublisher, Order};
use crate::report::Outcome;
use crate::setup::{Database, Workload};
use crate::{Failure, Result};

/// So many messages are published to a broker before anything is measured.
const WARM_UP: u64 = 100_000;

/// The lanes of an outbox, which its schema fixes.
const LANES: usize = 64;

/// How long an adapter alone has for one wave; its own timeouts are shorter.
const WAVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Delivers a backlog: with a publisher that confirms at once, beside the row-lock loop, and to a
/// broker, beside its adapter alone.
#[derive(clap::Args, Serialize)]
pub(crate) struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    backlog: Backlog,
    /// `null`: R and D; a broker: D, and its P and E.
    #[arg(long, value_enum, default_value_t = Choice::All)]
    broker: Choice,
    /// The order mode of D, P and E.
    #[arg(long, value_enum, default_value_t = Order::PerKey)]
    order: Order,
    /// How often everything is measured; every second time backwards. Medians are reported.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Choice {
    Null,
    Kafka,
    Amqp,
    Nats,
    Redis,
    All,
}

impl Choice {
    fn brokers(self) -> Vec<broker::Kind> {
        match self {
            Self::Null => Vec::new(),
            Self::Kafka => vec![broker::Kind::Kafka],
            Self::Amqp => vec![broker::Kind::Amqp],
            Self::Nats => vec![broker::Kind::Nats],
            Self::Redis => vec![broker::Kind::Redis],
            Self::All => broker::Kind::ALL.to_vec(),
        }
    }

    /// In the order of a first round. What holds the outbox comes before what fills a client's queue
    /// from memory, whose memory the allocator may keep.
    fn phases(self) -> Vec<Phase> {
        let brokers = self.brokers();
        let mut phases = Vec::new();
        if matches!(self, Self::Null | Self::All) {
            phases.push(Phase::Reference);
        }
        phases.push(Phase::Drain);
        phases.extend(brokers.iter().map(|&kind| Phase::EndToEnd(kind)));
        phases.extend(brokers.iter().map(|&kind| Phase::Publish(kind)));
        phases
    }
}

/// Numbers, never combined over different rounds but as medians.
#[derive(Default, Serialize)]
struct Round {
    reference: Option<Measured>,
    drain: Option<Measured>,
    brokers: BTreeMap<broker::Kind, AtBroker>,
}

#[derive(Clone, Copy, Default, Serialize)]
struct AtBroker {
    publish: Option<Measured>,
    end_to_end: Option<Measured>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Reference,
    Drain,
    Publish(broker::Kind),
    EndToEnd(broker::Kind),
}

impl Phase {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Reference => "R  row-lock reference, null publisher".to_owned(),
            Self::Drain => "D  outbox, null publisher".to_owned(),
            Self::Publish(kind) => format!("P  {} adapter alone, from memory", kind.name()),
            Self::EndToEnd(kind) => format!("E  outbox to {}", kind.name()),
        }
    }
}

impl Round {
    fn set(&mut self, phase: Phase, measured: Measured) {
        *match phase {
            Phase::Reference => &mut self.reference,
            Phase::Drain => &mut self.drain,
            Phase::Publish(kind) => &mut self.brokers.entry(kind).or_default().publish,
            Phase::EndToEnd(kind) => &mut self.brokers.entry(kind).or_default().end_to_end,
        } = Some(measured);
    }

    fn drain_to_reference(&self) -> Option<f64> {
        Some(self.drain?.messages_per_second / self.reference?.messages_per_second)
    }

    fn limit(&self, kind: broker::Kind) -> Option<f64> {
        let publish = self.brokers.get(&kind)?.publish?.messages_per_second;
        Some(1.0 / (1.0 / self.drain?.messages_per_second + 1.0 / publish))
    }

    fn end_to_end_to_limit(&self, kind: broker::Kind) -> Option<f64> {
        let end_to_end = self.brokers.get(&kind)?.end_to_end?.messages_per_second;
        Some(end_to_end / self.limit(kind)?)
    }

    /// While the outbox is drained, with or without a broker.
    fn peak_mib(&self) -> Option<f64> {
        let end_to_end = self.brokers.values().filter_map(|at| at.end_to_end);
        let peaks = end_to_end.chain(self.drain).map(|m| m.peak_memory_bytes);
        let peak = peaks.collect::<Option<Vec<u64>>>()?.into_iter().max()?;
        Some(peak as f64 / 1024.0 / 1024.0)
    }
}

#[derive(Serialize)]
struct Report {
    args: Args,
    rounds: Vec<Round>,
    drain_to_reference: Option<f64>,
    brokers: BTreeMap<broker::Kind, Ratio>,
    peak_memory_mib: Option<f64>,
}

#[derive(Serialize)]
struct Ratio {
    limit_per_second: Option<f64>,
    end_to_end_to_limit: Option<f64>,
}

pub(crate) async fn run(args: Args, database: &Database) -> Result<Outcome> {
    let bench = Bench {
        database,
        brokers: broker::connect(args.broker.brokers()).await?,
        workload: args.backlog.workload(),
        drain: args.backlog.drain(args.order),
    };
    println!("{}", args.backlog);
    bench.warm_up().await?;

    let mut phases = args.broker.phases();
    let mut rounds = Vec::new();
    for number in 1..=args.rounds {
        println!();
        let mut round = Round::default();
        for &phase in &phases {
            let measured = bench
                .measure(phase)
                .await
                .map_err(|error| format!("{}: {error}", phase.name()))?;
            println!(
                "{number:>3}  {:<38} {:>9.0}/s  {:>7.2} s  {:>6.1} MiB",
                phase.name(),
                measured.messages_per_second,
                measured.seconds,
                measured.peak_mib(),
            );
            round.set(phase, measured);
        }
        phases.reverse();
        rounds.push(round);
    }

    let ratio = |kind| Ratio {
        limit_per_second: median(rounds.iter().filter_map(|it| it.limit(kind))),
        end_to_end_to_limit: median(rounds.iter().filter_map(|it| it.end_to_end_to_limit(kind))),
    };
    let kinds = bench.brokers.keys().copied();
    let report = Report {
        drain_to_reference: median(rounds.iter().filter_map(Round::drain_to_reference)),
        brokers: kinds.map(|kind| (kind, ratio(kind))).collect(),
        peak_memory_mib: rounds.iter().filter_map(Round::peak_mib).reduce(f64::max),
        args,
        rounds,
    };
    report.outcome()
}

impl Report {
    fn outcome(&self) -> Result<Outcome> {
        let mut outcome = Outcome::of(self)?;
        if self.drain_to_reference.is_some() {
            outcome = outcome.at_least("D / R", self.drain_to_reference, 1.0);
        }
        for (kind, ratio) in &self.brokers {
            let name = format!("{}: E / limit 1/(1/D + 1/P)", kind.name());
            outcome = outcome.at_least(name, ratio.end_to_end_to_limit, 0.95);
        }
        let name = "peak memory in D and E, MiB";
        Ok(outcome.at_most(name, self.peak_memory_mib, 150.0))
    }
}

pub(crate) struct Bench<'a> {
    pub(crate) database: &'a Database,
    pub(crate) brokers: BTreeMap<broker::Kind, Box<dyn Broker>>,
    pub(crate) workload: Workload,
    pub(crate) drain: Drain,
}

impl Bench<'_> {
    pub(crate) async fn measure(&self, phase: Phase) -> Result<Measured> {
        let database = self.database;
        match phase {
            Phase::Reference => {
                database
                    .with_schema(async |schema| self.reference(schema).await)
                    .await
            }
            Phase::Drain => {
                database
                    .with_schema(async |schema| {
                        self.drain(schema, None, Arc::new(NullPublisher)).await
                    })
                    .await
            }
            Phase::Publish(kind) => {
                let broker = self.broker(kind)?;
                let workload = &self.workload;
                with_topic(broker, async |topic| {
                    self.publish(broker, topic, workload).await
                })
                .await
            }
            Phase::EndToEnd(kind) => {
                let broker = self.broker(kind)?;
                with_topic(broker, async |topic| {
                    database
                        .with_schema(async |schema| {
                            let publisher = broker.publisher().await?;
                            let measured = self.drain(schema, Some(topic), publisher).await?;
                            all_in(broker, topic, &self.workload).await?;
                            Ok(measured)
                        })
                        .await
                })
                .await
            }
        }
    }

    /// A broker that was just started is slow until its code is compiled and its memory touched, whichever
    /// phase comes first.
    async fn warm_up(&self) -> Result<()> {
        let mut some = self.workload.clone();
        some.messages = some.messages.min(WARM_UP);
        for broker in self.brokers.values() {
            with_topic(&**broker, async |topic| {
                self.publish(&**broker, topic, &some).await
            })
            .await?;
        }
        Ok(())
    }

    fn broker(&self, kind: broker::Kind) -> Result<&dyn Broker> {
        let broker = self.brokers.get(&kind).ok_or("it is not connected")?;
        Ok(broker.as_ref())
    }

    async fn reference(&self, schema: &str) -> Result<Measured> {
        let (database, messages) = (self.database, self.workload.messages);
        Loop::RowLocks
            .fill(database, schema, &self.workload)
            .await?;
        let Drain { workers, batch, .. } = self.drain;
        let clock = Clock::start();
        let delivered = Loop::RowLocks
            .drain(database, schema, workers, batch, None)
            .await?;
        let measured = clock.stop(messages);
        all(delivered, messages, "delivered")?;
        none_left(database.count(&format!("{schema}.queue")).await?)?;
        Ok(measured)
    }

    async fn drain(
        &self,
        schema: &str,
        topic: Option<&str>,
        publisher: Arc<dyn Publisher>,
    ) -> Result<Measured> {
        let (database, workload) = (self.database, &self.workload);
        let outbox = workload.enqueue(database, schema, topic).await?;
        self.drain
            .run(database, &outbox, workload.messages, publisher)
            .await
    }

    /// Publishes from memory, with as many tasks as the relay has workers. Its claims have the keys of one
    /// group, as those of the store have the keys of some lanes; a group belongs to one task.
    async fn publish(
        &self,
        broker: &dyn Broker,
        topic: &str,
        workload: &Workload,
    ) -> Result<Measured> {
        let publisher = broker.publisher().await?;
        let clock = Clock::start();
        let mut tasks = JoinSet::new();
        let Drain {
            workers,
            batch,
            order,
            ..
        } = self.drain;
        let groups = (LANES / PostgresStore::LANES_PER_CLAIM).max(workers);
        for task in 0..workers {
            let (workload, topic) = (workload.clone(), topic.to_owned());
            let publisher = Arc::clone(&publisher);
            tasks.spawn(async move {
                let mut claims = vec![Vec::with_capacity(batch); groups];
                for key in workload.keys() {
                    let group = key as usize % groups;
                    if group % workers != task {
                        continue;
                    }
                    claims[group].push(key);
                    if claims[group].len() == batch {
                        publish_claim(&*publisher, &workload, &topic, &claims[group], order)
                            .await?;
                        claims[group].clear();
                    }
                }
                for rest in claims {
                    publish_claim(&*publisher, &workload, &topic, &rest, order).await?;
                }
                Ok::<(), Failure>(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        let measured = clock.stop(workload.messages);
        all_in(broker, topic, workload).await?;
        Ok(measured)
    }
}

async fn all_in(broker: &dyn Broker, topic: &str, workload: &Workload) -> Result<()> {
    let records = broker.count(topic).await?;
    all(records, workload.messages, "in the topic")
}

/// Publishes one message for each of `keys` as the relay would.
async fn publish_claim(
    publisher: &dyn Publisher,
    workload: &Workload,
    topic: &str,
    keys: &[u32],
    order: Order,
) -> Result<()> {
    let chains = order == Order::PerKey && publisher.chains_keys();
    let waves = match order {
        Order::PerKey if !chains => waves(keys),
        _ => vec![keys.to_vec()],
    };
    let mut of_key: HashMap<u32, usize> = HashMap::new();
    if chains {
        for &key in keys {
            *of_key.entry(key).or_default() += 1;
        }
    }
    for wave in waves {
        let messages: Vec<Message> = wave
            .iter()
            .map(|&key| workload.message(topic, key))
            .collect::<Result<_>>()?;
        let answers: Vec<Answer> = messages.iter().map(|_| Answer::new()).collect();
        let batch: Vec<Delivery<'_>> = messages
            .iter()
            .zip(&answers)
            .zip(&wave)
            .map(|((message, answer), key)| match of_key.get(key) {
                Some(2..) => Delivery::new(message, answer).chained(),
                _ => Delivery::new(message, answer),
            })
            .collect();
        tokio::time::timeout(WAVE_TIMEOUT, publisher.publish(&batch)).await?;
        drop(batch);
        for answer in answers {
            answer.into_inner().ok_or("a message was not answered")??;
        }
    }
    Ok(())
}

/// The n-th message of each key in the n-th wave.
fn waves(keys: &[u32]) -> Vec<Vec<u32>> {
    let mut seen: HashMap<u32, usize> = HashMap::with_capacity(keys.len());
    let mut waves: Vec<Vec<u32>> = Vec::new();
    for &key in keys {
        let number = seen.entry(key).or_default();
        if *number == waves.len() {
            waves.push(Vec::new());
        }
        waves[*number].push(key);
        *number += 1;
    }
    waves
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wave_holds_a_key_once_and_keeps_the_order() {
        let keys = [1, 2, 1, 3, 1, 2];
        assert_eq!(waves(&keys), [vec![1, 2, 3], vec![1, 2], vec![1]]);
    }

    #[test]
    fn a_choice_measures_what_its_ratios_need() {
        let [nothing, one, all] = [Choice::Null, Choice::Redis, Choice::All].map(Choice::phases);
        assert!(nothing == [Phase::Reference, Phase::Drain]);
        let kind = broker::Kind::Redis;
        let of_one = [Phase::Drain, Phase::EndToEnd(kind), Phase::Publish(kind)];
        assert!(one == of_one);
        assert_eq!(all.len(), 2 + 2 * broker::Kind::ALL.len());
    }
}
