//! Chains: several messages of a key at once, of which a partition may have nothing but a prefix.
//!
//! They go through clients of their own, one for each call, that have one request at a time on its way and end
//! at a refusal (`Config::chaining`). What was on its way then may still arrive, and is the next piece of its chain.
//! The chains of which something was refused go on with the first message of each, one after the other, so that
//! each has an answer of its own; the others go on as chains.
//!
//! Only messages of one topic follow each other in a client, since two topics may have two brokers, and only
//! when the first of them is taken. A broker that has nothing of the client's session would take any of its
//! requests, and the client has the next one ready when it hears of a refusal. And those that wait until the client
//! has learned of a topic fail by themselves, when it is not there, while others may still be handed over.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use outbox_core::{Chains, Delivery, PublishError, PublishErrorKind};
use rdkafka::error::RDKafkaErrorCode;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::producer::{Answer, Producer, Ticket, lock};
use super::{KafkaPublisher, QUEUE_FULL_PAUSE};
use crate::config::{Config, InvalidConfig};
use crate::encode::encode;

/// The clients for chains that no call uses.
pub(super) struct Chaining {
    config: Config,
    idle: Mutex<Vec<Arc<Producer>>>,
}

impl Chaining {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            config: config.chaining(),
            idle: Mutex::default(),
        }
    }

    async fn take(&self) -> Result<Arc<Producer>, InvalidConfig> {
        let idle = lock(&self.idle).pop();
        match idle {
            Some(producer) => Ok(producer),
            None => Ok(Arc::new(Producer::create(&self.config).await?)),
        }
    }

    fn put_back(&self, producer: Arc<Producer>) {
        lock(&self.idle).push(producer);
    }

    /// What has silenced one has likely silenced all.
    fn forget(&self) {
        lock(&self.idle).clear();
    }
}

impl KafkaPublisher {
    /// Publishes chains, as far as they go.
    pub(super) async fn publish_chains(&self, chains: Chains<'_>) {
        let deadline = Instant::now() + self.config.delivery_timeout();
        let mut sending = Sending {
            chains,
            begun: HashSet::new(),
            alone: HashSet::new(),
        };
        while !sending.next().is_empty() {
            let producer = match self.chaining.take().await {
                Ok(producer) => producer,
                Err(error) => {
                    let error = PublishError::broker_unavailable(error.to_string());
                    return super::report_all(&sending.chains.first_of_each(), &error);
                }
            };
            match timeout_at(deadline, sending.send(&producer)).await {
                Ok(After::Sound) => self.chaining.put_back(producer),
                Ok(After::Over) => {}
                Err(_) => {
                    sending.chains.advance();
                    return self.end_silent(&producer, &sending.chains).await;
                }
            }
        }
        let mut chains = sending.chains;
        while !chains.is_empty() {
            self.publish_plain(&chains.first_of_each()).await;
            chains.advance_or_end();
        }
    }

    /// Ends chains of which the first messages have no answer in time.
    async fn end_silent(&self, producer: &Arc<Producer>, chains: &Chains<'_>) {
        let first = chains.first_of_each();
        let Some(topic) = first.first().map(|it| it.message().topic()) else {
            return;
        };
        let error = self.silence(producer, topic).await;
        if error.kind() == PublishErrorKind::BrokerUnavailable {
            self.chaining.forget();
        }
        super::report_all(&first, &error);
    }
}

/// What a client is worth after it was used.
enum After {
    /// All that it was given is answered, and it takes more.
    Sound,
    /// It has ended, or may have written behind a gap what is still in its queue.
    Over,
}

/// The chains of a call, while they go through clients for chains.
struct Sending<'a> {
    chains: Chains<'a>,
    /// The topics and keys of which a message was taken.
    begun: HashSet<(&'a str, Option<&'a str>)>,
    /// The keys of which a message was not taken, so that the next one goes alone.
    alone: HashSet<Option<&'a str>>,
}

impl<'a> Sending<'a> {
    /// Sends chains until they are at their end or go on alone, or the client is no longer fit for it.
    async fn send(&mut self, producer: &Producer) -> After {
        loop {
            let next = self.next();
            if next.is_empty() {
                return After::Sound;
            }
            let after = self.hand_over(producer, &next).await;
            self.chains.advance();
            if let After::Over = after {
                return after;
            }
        }
    }

    /// What may be sent now.
    fn next(&self) -> Vec<Delivery<'a>> {
        let mut next = Vec::new();
        for chain in self.chains.iter() {
            let mut chain = chain.peekable();
            let Some(first) = chain.peek().map(Delivery::message) else {
                continue;
            };
            if self.alone.contains(&first.key()) {
                continue;
            }
            let most = match self.begun.contains(&(first.topic(), first.key())) {
                true => usize::MAX,
                false => 1,
            };
            let of_topic = chain.take_while(|it| it.message().topic() == first.topic());
            next.extend(of_topic.take(most));
        }
        next
    }

    /// Hands messages to the client, and reports what is taken.
    async fn hand_over(&mut self, producer: &Producer, next: &[Delivery<'a>]) -> After {
        let (sender, mut answers) = mpsc::unbounded_channel();
        let mut open = 0;
        for (number, delivery) in next.iter().enumerate() {
            let key = delivery.message().key();
            if self.alone.contains(&key) {
                continue;
            }
            // What cannot be sent is told so when it is alone.
            let Ok(record) = encode(delivery.message()) else {
                self.alone.insert(key);
                continue;
            };
            loop {
                let ticket = Ticket {
                    number,
                    answers: sender.clone(),
                };
                match producer.send(&record, ticket) {
                    Ok(()) => {
                        open += 1;
                        break;
                    }
                    Err(RDKafkaErrorCode::QueueFull) => {
                        let answer = timeout(QUEUE_FULL_PAUSE, answers.recv()).await;
                        if let Ok(Some((number, answer))) = answer {
                            open -= 1;
                            if let After::Over = self.take(producer, &next[number], answer) {
                                return After::Over;
                            }
                        }
                    }
                    Err(_) => {
                        self.alone.insert(key);
                        break;
                    }
                }
            }
            while let Ok((number, answer)) = answers.try_recv() {
                open -= 1;
                if let After::Over = self.take(producer, &next[number], answer) {
                    return After::Over;
                }
            }
            // A long batch is no reason to hold up the other tasks of this thread.
            tokio::task::coop::consume_budget().await;
        }
        while open > 0 {
            let Some((number, answer)) = answers.recv().await else {
                return After::Over;
            };
            open -= 1;
            if let After::Over = self.take(producer, &next[number], answer) {
                return After::Over;
            }
        }
        After::Sound
    }

    fn take(&mut self, producer: &Producer, delivery: &Delivery<'a>, answer: Answer) -> After {
        let message = delivery.message();
        if let Answer::Taken = answer {
            delivery.report(Ok(()));
            self.begun.insert((message.topic(), message.key()));
            return After::Sound;
        }
        self.alone.insert(message.key());
        match answer {
            // By itself, before anything was sent.
            Answer::Refused(_) if producer.fatal_error().is_none() => After::Sound,
            _ => After::Over,
        }
    }
}
