//! Chains: several messages of a key at once, of which a partition may have nothing but a prefix.
//!
//! They go through clients of their own, one for each call, that have one request at a time on its way and stop
//! at a refusal (`Config::chaining`). What is not taken ends the client, with all that is in its queue; what was
//! on its way may still arrive, and is the next piece of its chain. What is left then goes on as the first
//! message of each key, which gets an answer of its own.
//!
//! Only messages of one topic follow each other in a client, since two topics may have two brokers. And of a
//! topic that a client does not know yet only one of each key: those that wait until the client has learned of
//! the topic fail by themselves, when it is not there, while others of the key may still be handed over.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use outbox_core::{Chains, Delivery, PublishError, PublishErrorKind};
use rdkafka::error::RDKafkaErrorCode;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::producer::{Answer, Producer, Ticket, lock};
use super::{KafkaPublisher, QUEUE_FULL_PAUSE};
use crate::config::{Config, InvalidConfig};
use crate::encode::encode;

/// The clients for chains that no call uses.
pub(super) struct Chaining {
    config: Config,
    idle: Mutex<Vec<Client>>,
}

/// A client for chains. Dropped, it sends nothing more.
struct Client {
    producer: Arc<Producer>,
    /// The topics of which a message was taken.
    topics: HashSet<String>,
}

impl Chaining {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            config: config.chaining(),
            idle: Mutex::default(),
        }
    }

    fn take(&self) -> Result<Client, InvalidConfig> {
        let idle = lock(&self.idle).pop();
        match idle {
            Some(client) => Ok(client),
            None => Ok(Client {
                producer: Arc::new(Producer::new(&self.config)?),
                topics: HashSet::new(),
            }),
        }
    }

    fn put_back(&self, client: Client) {
        lock(&self.idle).push(client);
    }

    /// What has silenced one has likely silenced all.
    fn forget(&self) {
        lock(&self.idle).clear();
    }
}

/// How far chains went.
enum Went {
    /// To their end.
    Through,
    /// To what was not taken.
    Stopped,
}

impl KafkaPublisher {
    /// Publishes chains, as far as they go.
    pub(super) async fn publish_chains(&self, chained: &[Delivery<'_>]) {
        let mut chains = Chains::new(chained);
        let mut client = match self.chaining.take() {
            Ok(client) => client,
            Err(error) => {
                let error = PublishError::broker_unavailable(error.to_string());
                return super::report_all(&chains.first_of_each(), &error);
            }
        };
        match timeout(self.config.delivery_timeout(), client.send(&mut chains)).await {
            Ok(Went::Through) => return self.chaining.put_back(client),
            Ok(Went::Stopped) => drop(client),
            Err(_) => return self.end_silent(&client, &chains).await,
        }
        while !chains.is_empty() {
            self.publish_plain(&chains.first_of_each()).await;
            chains.end_unanswered();
            chains.advance();
        }
    }

    /// Ends chains that nobody has answered for.
    async fn end_silent(&self, client: &Client, chains: &Chains<'_>) {
        let first = chains.first_of_each();
        let Some(topic) = first.first().map(|it| it.message().topic()) else {
            return;
        };
        let error = self.silence(&client.producer, topic).await;
        if error.kind() == PublishErrorKind::BrokerUnavailable {
            self.chaining.forget();
        }
        super::report_all(&first, &error);
    }
}

impl Client {
    /// Sends chains until they are at their end or something is not taken.
    async fn send(&mut self, chains: &mut Chains<'_>) -> Went {
        while !chains.is_empty() {
            let next = self.next(chains);
            let went = self.hand_over(&next).await;
            for delivery in next {
                let topic = delivery.message().topic();
                if matches!(delivery.answer(), Some(Ok(()))) && !self.topics.contains(topic) {
                    self.topics.insert(topic.to_owned());
                }
            }
            chains.advance();
            if let Went::Stopped = went {
                return went;
            }
        }
        Went::Through
    }

    /// What may be sent now of each chain.
    fn next<'a>(&self, chains: &Chains<'a>) -> Vec<Delivery<'a>> {
        let mut next = Vec::new();
        for chain in chains.iter() {
            let mut chain = chain.peekable();
            let Some(topic) = chain.peek().map(|it| it.message().topic()) else {
                continue;
            };
            let most = match self.topics.contains(topic) {
                true => usize::MAX,
                false => 1,
            };
            let of_topic = chain.take_while(|it| it.message().topic() == topic);
            next.extend(of_topic.take(most));
        }
        next
    }

    /// Hands messages to the client and reports what is taken, until all are or one is not.
    async fn hand_over(&self, next: &[Delivery<'_>]) -> Went {
        let (sender, mut answers) = mpsc::unbounded_channel();
        // How many have no answer yet.
        let mut open = 0;
        let take = |(number, answer): (usize, Answer), open: &mut usize| {
            *open -= 1;
            match (next.get(number), answer) {
                (Some(delivery), Answer::Taken) => {
                    delivery.report(Ok(()));
                    true
                }
                _ => false,
            }
        };
        let mut went = Went::Through;
        'messages: for (number, delivery) in next.iter().enumerate() {
            let Ok(record) = encode(delivery.message()) else {
                went = Went::Stopped;
                break;
            };
            loop {
                let ticket = Ticket {
                    number,
                    answers: sender.clone(),
                };
                match self.producer.send(&record, ticket) {
                    Ok(()) => break,
                    Err(RDKafkaErrorCode::QueueFull) => {
                        let answer = timeout(QUEUE_FULL_PAUSE, answers.recv()).await;
                        if let Ok(Some(answer)) = answer
                            && !take(answer, &mut open)
                        {
                            return Went::Stopped;
                        }
                    }
                    // What it refuses is told by what sends it alone.
                    Err(_) => {
                        went = Went::Stopped;
                        break 'messages;
                    }
                }
            }
            open += 1;
            while let Ok(answer) = answers.try_recv() {
                if !take(answer, &mut open) {
                    return Went::Stopped;
                }
            }
            tokio::task::coop::consume_budget().await;
        }
        while open > 0 {
            match answers.recv().await {
                Some(answer) if take(answer, &mut open) => {}
                _ => return Went::Stopped,
            }
        }
        went
    }
}
