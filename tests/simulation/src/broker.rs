//! A broker, of one or two, and a publisher that talks to it over a connection for each call.
//!
//! The connection is a task of its own: it takes the messages in their order, and may go on for a
//! while after the call was dropped, as bytes on a network do.

use std::collections::HashSet;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outbox_core::{Delivery, Message, PublishError, PublishErrorKind, Publisher, async_trait};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use crate::check::Violation;
use crate::point::{Life, Point};
use crate::world::{Mutant, World};

pub(crate) struct SimPublisher {
    pub(crate) world: Arc<World>,
    pub(crate) broker: usize,
    pub(crate) life: Arc<Life>,
}

/// What comes back over the connection.
enum Word {
    Answer(usize, Result<(), PublishError>),
    Panic,
    Return,
}

/// How the broker treats one message.
enum Treatment {
    Take,
    TakeAndLoseTheAnswer,
    TakeAndNack,
    Answer(PublishError),
    /// From here on nothing comes over this connection.
    FallSilent,
    Panic,
    Return,
}

#[async_trait]
impl Publisher for SimPublisher {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        let world = &self.world;
        world.trace(|| {
            let messages = batch.iter().map(|delivery| delivery.message());
            format!("publish   {}", world.names(messages))
        });
        for delivery in batch {
            world.lock().fate(delivery.message()).tries += 1;
            if world.is(Mutant::ConfirmsEarly) {
                delivery.report(Ok(()));
            }
        }
        if world.reach(Point::Publish, &self.life).await.is_err() {
            return;
        }
        let messages = batch
            .iter()
            .map(|delivery| (delivery.message().clone(), delivery.is_chained()));
        let (words, mut heard) = mpsc::channel(batch.len() + 1);
        let gone = Gone(Arc::default());
        tokio::spawn(connection(
            Arc::clone(world),
            self.broker,
            messages.collect(),
            words,
            Arc::clone(&gone.0),
        ));
        while let Some(word) = heard.recv().await {
            match word {
                Word::Answer(index, answer) => {
                    if world.reach(Point::Answer, &self.life).await.is_err() {
                        return;
                    }
                    self.report(&batch[index], answer);
                }
                Word::Panic => panic!("{SIMULATED_PANIC}"),
                Word::Return => return,
            }
        }
        // An error has nowhere to go when all is answered.
        let _ = world.reach(Point::Published, &self.life).await;
    }

    fn chains_keys(&self) -> bool {
        self.world.chains
    }
}

/// What a panic of the simulation says, so that it can be told from a real one.
pub(crate) const SIMULATED_PANIC: &str = "simulated panic";

impl SimPublisher {
    fn report(&self, delivery: &Delivery<'_>, answer: Result<(), PublishError>) {
        let world = &self.world;
        world.trace(|| {
            let answer = match &answer {
                Ok(()) => "confirmed",
                Err(error) => error.kind().as_str(),
            };
            format!("answer    {} {answer}", world.name(delivery.message()))
        });
        let own_failure = matches!(
            &answer,
            Err(error) if error.kind() == PublishErrorKind::Retryable
        );
        {
            let mut state = world.lock();
            let fate = state.fate(delivery.message());
            match own_failure {
                true => fate.failed += 1,
                false => fate.excused += 1,
            }
        }
        delivery.report(match answer {
            Err(error)
                if error.kind() == PublishErrorKind::BrokerUnavailable
                    && world.is(Mutant::BlamesTheMessage) =>
            {
                Err(PublishError::retryable(error.reason()))
            }
            Err(error)
                if error.kind() == PublishErrorKind::Retryable
                    && world.is(Mutant::GivesUpEarly) =>
            {
                Err(PublishError::rejected(error.reason()))
            }
            answer => answer,
        });
    }
}

/// Tells the connection that the call is over.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn connection(
    world: Arc<World>,
    broker: usize,
    messages: Vec<(Message, bool)>,
    words: mpsc::Sender<Word>,
    gone: Arc<AtomicBool>,
) {
    let mut remnants = None;
    let mut unanswered = false;
    let mut stopped: HashSet<String> = HashSet::new();
    let pace = match world.lock().rng.u8(0..8) {
        0 => 60,
        _ => 3,
    };
    for (index, (message, is_chained)) in messages.into_iter().enumerate() {
        let chain = message.key().filter(|_| is_chained).map(str::to_owned);
        if chain.as_ref().is_some_and(|key| stopped.contains(key)) {
            world.lock().fate(&message).excused += 1;
            world.fault("held back in its chain");
            continue;
        }
        sleep(world.moment(pace)).await;
        if gone.load(Ordering::Relaxed) {
            let left = remnants.get_or_insert_with(|| match world.rates.remnants {
                true => world.lock().rng.u32(0..4),
                false => 0,
            });
            if *left == 0 {
                return;
            }
            *left -= 1;
            // Bytes on the way may be held up for long.
            sleep(world.moment(1500)).await;
            world.fault("arrived after the call was dropped");
        }
        let answer = match treatment(&world, broker, &message) {
            Treatment::Take => {
                take(&world, &message);
                Ok(())
            }
            Treatment::TakeAndLoseTheAnswer => {
                take(&world, &message);
                unanswered = true;
                continue;
            }
            Treatment::TakeAndNack => {
                take(&world, &message);
                Err(PublishError::retryable("taken and then not"))
            }
            Treatment::Answer(error) => {
                if !world.is(Mutant::BreaksChains) {
                    stopped.extend(chain);
                }
                Err(error)
            }
            Treatment::FallSilent => pending().await,
            Treatment::Panic => {
                // The call may be over; then nobody is there to panic.
                let _ = words.send(Word::Panic).await;
                return;
            }
            Treatment::Return => {
                let _ = words.send(Word::Return).await;
                return;
            }
        };
        // The call may be over; then the answer is lost.
        let _ = words.send(Word::Answer(index, answer)).await;
    }
    // What was not answered is waited for, or not.
    if unanswered && world.lock().rng.bool() {
        words.closed().await;
    }
}

fn treatment(world: &World, broker: usize, message: &Message) -> Treatment {
    let rates = &world.rates;
    if let Some(outage) = world.outage(broker) {
        return match outage.silent {
            true => {
                world.fault("silent in an outage");
                Treatment::FallSilent
            }
            false => {
                world.fault("refused in an outage");
                Treatment::Answer(PublishError::broker_unavailable("refused"))
            }
        };
    }
    if world.goes_wrong("silent", rates.silence) {
        return Treatment::FallSilent;
    }
    if world.goes_wrong("publisher panicked", rates.publisher_panic) {
        return Treatment::Panic;
    }
    if world.goes_wrong("publisher returned early", rates.early_return) {
        return Treatment::Return;
    }
    if world.lock().fate(message).poison {
        world.fault("rejected");
        return Treatment::Answer(PublishError::rejected("poison"));
    }
    if world.goes_wrong("nack", rates.nack) {
        return Treatment::Answer(PublishError::retryable("nack"));
    }
    if world.goes_wrong("topic unavailable", rates.topic) {
        return Treatment::Answer(PublishError::topic_unavailable("no leader"));
    }
    if world.goes_wrong("answer lost", rates.lost_answer) {
        return Treatment::TakeAndLoseTheAnswer;
    }
    if world.goes_wrong("taken and nacked", rates.taken_and_nacked) {
        return Treatment::TakeAndNack;
    }
    if (0..world.brokers).any(|other| other != broker && world.outage(other).is_some()) {
        world.fault("taken while the other broker was away");
    }
    Treatment::Take
}

fn take(world: &World, message: &Message) {
    world.trace(|| format!("taken     {}", world.name(message)));
    let mut state = world.lock();
    let step = state.step();
    state.stats.copies += 1;
    let fate = state.fate(message);
    fate.copies.push(step);
    let message = fate.name.clone();
    let violation = if fate.committed.is_none() {
        Some(Violation::NotCommitted { message })
    } else if fate.due.is_some_and(|due| Instant::now() < due) {
        Some(Violation::TooEarly { message })
    } else {
        fate.cancelled.then_some(Violation::Cancelled { message })
    };
    drop(state);
    if let Some(violation) = violation {
        world.violation(violation);
    }
}
