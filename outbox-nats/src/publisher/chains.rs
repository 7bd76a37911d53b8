//! Chains: several messages of a key at once, of which the stream may have nothing but a prefix.
//!
//! They go as atomic batches, which a stream takes whole or not at all: the first message is answered, the last
//! one commits, and a message that is missing undoes all. What a stream refuses is tried as a smaller batch, and
//! in the end as the first message of each key, which gets an answer of its own. So does everything where a
//! stream takes no batches, or has some of the messages already, and what is left of a call when nobody has
//! said how a batch ended: silence takes long, and is awaited for all topics at once then.
//!
//! Who knows of no batches takes what comes in one for messages of their own. So what the first is answered
//! must be that a batch has begun, which is an empty answer; nothing else is sent before. Anybody can answer with
//! nothing, and the stream's leader can move between two messages. So a batch is stored when the answer to
//! the last message says that this batch is, with so many messages, and on no other word.
//!
//! A batch has one subject, since two subjects may belong to two streams. A key that changes its topic goes on
//! in the next batch.

use async_nats::header::{NATS_BATCH_COMMIT, NATS_BATCH_ID, NATS_BATCH_SEQUENCE};
use async_nats::message::OutboundMessage;
use outbox_core::{Chains, Delivery, PublishError, Uuid};

use super::{Call, Explained, NatsPublisher, Trouble};
use crate::error::{self, BatchAnswer, read_of_batch};

/// The first version of the server whose batches take message ids. (2.12.0 refuses them.)
pub(super) const SINCE: (i64, i64, i64) = (2, 12, 2);

/// The largest batch that a server takes unless it is configured.
const MESSAGES: usize = 1000;

/// The payloads of a batch, of which the stream holds all until the last has come. A larger message goes alone.
const BYTES: usize = 4 * 1024 * 1024;

/// How a batch has ended.
enum Ended {
    Stored,
    /// There is only one message for it.
    Alone,
    /// Only the first message was sent, and this was answered to it: whoever has it knows of no batches.
    FirstPlain(Result<(), PublishError>),
    Refused,
    Never,
    /// It may be stored or not, though the server is there.
    Unanswered(PublishError),
    Away(PublishError),
}

impl NatsPublisher {
    /// Publishes chains, as far as they go.
    pub(super) async fn publish_chains(&self, mut chains: Chains<'_>) {
        let limit = MESSAGES.min(self.config.max_in_flight);
        let (mut most, mut batches) = (limit, limit > 1);
        while !chains.is_empty() {
            if !batches || most < 2 {
                self.first_of_each(&mut chains).await;
                most = 2;
                continue;
            }
            match self.publish_batch(&chains, most).await {
                Ended::Stored => most = limit.min(most * 2),
                Ended::Alone => self.first_of_each(&mut chains).await,
                Ended::Refused => most /= 2,
                Ended::FirstPlain(_) | Ended::Never | Ended::Unanswered(_) => batches = false,
                Ended::Away(error) => {
                    let left: Vec<Delivery<'_>> = chains.iter().flatten().collect();
                    return super::fail(&left, &error);
                }
            }
            chains.advance();
        }
    }

    /// Publishes the first message of each chain by itself, so that each gets an answer of its own.
    async fn first_of_each(&self, chains: &mut Chains<'_>) {
        self.publish_plain(&chains.first_of_each()).await;
        chains.advance_or_end();
    }

    /// Publishes of each chain what has the topic of the first one, as one batch of so many messages at the
    /// most, and reports what is known of it.
    async fn publish_batch(&self, chains: &Chains<'_>, most: usize) -> Ended {
        let batch = self.cut(chains, most);
        let ended = match batch.messages.len() {
            // What cannot be sent was told so.
            0 => return Ended::Stored,
            1 => return Ended::Alone,
            _ => self.commit(batch.messages).await,
        };
        match &ended {
            Ended::Stored => {
                for delivery in &batch.deliveries {
                    delivery.report(Ok(()));
                }
            }
            Ended::FirstPlain(answer) => {
                if let Some(first) = batch.first_of_each.first() {
                    first.report(answer.clone());
                }
            }
            Ended::Unanswered(error) => super::fail(&batch.first_of_each, error),
            Ended::Alone | Ended::Refused | Ended::Never | Ended::Away(_) => {}
        }
        ended
    }

    /// What the next batch is made of. The first message of a chain that cannot be sent is told so.
    fn cut<'a>(&self, chains: &Chains<'a>, most: usize) -> Batch<'a> {
        let mut batch = Batch::default();
        let mut bytes = 0;
        for chain in chains.iter() {
            for (number, delivery) in chain.enumerate() {
                let topic = batch.deliveries.first().map(|it| it.message().topic());
                if topic.is_some_and(|topic| topic != delivery.message().topic()) {
                    break;
                }
                let outbound = match self.encode(delivery) {
                    Ok(outbound) => outbound,
                    Err(error) if number == 0 => {
                        delivery.report(Err(error));
                        break;
                    }
                    Err(_) => break,
                };
                bytes += outbound.payload.len();
                let full = batch.messages.len() == most || bytes > BYTES;
                if full && !batch.messages.is_empty() {
                    return batch;
                }
                if number == 0 {
                    batch.first_of_each.push(delivery);
                }
                batch.messages.push(outbound);
                batch.deliveries.push(delivery);
            }
        }
        batch
    }

    /// Sends a batch and waits for its end.
    async fn commit(&self, messages: Vec<OutboundMessage>) -> Ended {
        let mut call = match self.begin(0).await {
            Ok(call) => call,
            Err(reason) => return Ended::Away(PublishError::broker_unavailable(reason)),
        };
        match call.batch(messages).await {
            Ok(ended) => {
                self.end(call);
                ended
            }
            Err(trouble) => match call.explain(trouble).await {
                Explained::Unanswered(error) => Ended::Unanswered(error),
                Explained::Away(error) => Ended::Away(error),
            },
        }
    }
}

/// What goes as one batch.
#[derive(Default)]
struct Batch<'a> {
    messages: Vec<OutboundMessage>,
    /// One for each message.
    deliveries: Vec<Delivery<'a>>,
    /// Those with which their chains begin.
    first_of_each: Vec<Delivery<'a>>,
}

impl Call<'_, '_> {
    /// Sends a batch of at least two messages and waits for what is said of it.
    async fn batch(&mut self, messages: Vec<OutboundMessage>) -> Result<Ended, Trouble> {
        // Most messages of a batch have no answer, and a call that ends before the last leaves them in the queue.
        self.awaited.open += 1;
        let ended = self.send_batch(messages).await?;
        self.awaited.open -= 1;
        Ok(ended)
    }

    async fn send_batch(&mut self, messages: Vec<OutboundMessage>) -> Result<Ended, Trouble> {
        // Of 32 characters; a server takes 64.
        let id = Uuid::now_v7().simple().to_string();
        let last = messages.len() as u64;
        for (sequence, mut message) in (1..).zip(messages) {
            let headers = message.headers.get_or_insert_default();
            headers.insert(NATS_BATCH_ID, id.as_str());
            headers.insert(NATS_BATCH_SEQUENCE, sequence.to_string());
            let answer = if sequence == 1 {
                self.ask(message, false).await?
            } else if sequence == last {
                headers.insert(NATS_BATCH_COMMIT, "1");
                self.ask(message, true).await?
            } else {
                match self.put(message).await? {
                    Ok(()) => continue,
                    Err(_) => Some(BatchAnswer::Refused),
                }
            };
            return Ok(match answer {
                Some(BatchAnswer::Begun) if sequence == 1 => continue,
                Some(BatchAnswer::Plain(answer)) if sequence == 1 => {
                    let answer = self.publisher.settle(answer);
                    Ended::FirstPlain(answer.unwrap_or_else(|| Err(unconfirmed())))
                }
                Some(BatchAnswer::Stored { batch, count })
                    if sequence == last && batch == id && count == last =>
                {
                    Ended::Stored
                }
                Some(BatchAnswer::Plain(error::Answer::Failed(error))) => Ended::Unanswered(error),
                Some(BatchAnswer::Never) => Ended::Never,
                Some(BatchAnswer::Refused) | None => Ended::Refused,
                Some(_) => Ended::Unanswered(unconfirmed()),
            });
        }
        Ok(Ended::Refused)
    }

    /// Sends a message and waits for its own answer. `None`: the client has refused it.
    async fn ask(
        &mut self,
        mut message: OutboundMessage,
        commits: bool,
    ) -> Result<Option<BatchAnswer>, Trouble> {
        let number = self.awaited.push_question();
        message.reply = Some(self.inbox.reply(number));
        if self.put(message).await?.is_err() {
            return Ok(None);
        }
        self.asked = Some(Asked {
            number,
            commits,
            answer: None,
        });
        loop {
            self.take_arrived();
            match self.asked.take() {
                Some(Asked {
                    answer: Some(answer),
                    ..
                }) => return Ok(Some(answer)),
                asked => self.asked = asked,
            }
            self.wait().await?;
        }
    }
}

/// A message of a batch whose answer is awaited.
pub(super) struct Asked {
    number: u64,
    commits: bool,
    answer: Option<BatchAnswer>,
}

impl Asked {
    /// Whether this is its number, and nothing was answered yet.
    pub(super) fn is_open(&self, number: u64) -> bool {
        self.number == number && self.answer.is_none()
    }

    /// Whether the stream may have answered so, and nobody else.
    pub(super) fn take(&mut self, answer: &async_nats::Message, expected: Option<&str>) -> bool {
        let answer = read_of_batch(answer.status, &answer.payload, expected);
        if answer == BatchAnswer::Foreign || (self.commits && answer == BatchAnswer::Begun) {
            return false;
        }
        self.answer = Some(answer);
        true
    }
}

/// Of a batch whose last message was answered, but not as the stream's leader answers that knows of the batch.
fn unconfirmed() -> PublishError {
    PublishError::topic_unavailable(
        "the answer to an atomic batch does not say that all of it is stored: the stream's leader is a server \
         that knows of no batches, or somebody else has answered",
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::future::{Future, poll_fn};
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::pin::pin;
    use std::sync::atomic::Ordering;
    use std::task::Poll;
    use std::thread;
    use std::time::Duration;

    use async_nats::ConnectOptions;

    use super::*;
    use crate::NatsConfig;

    /// A server for one client, which answers with nothing, as one that begins a batch. Gives back its address.
    fn server() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut to_client, _) = listener.accept().unwrap();
            let mut from_client = BufReader::new(to_client.try_clone().unwrap());
            to_client
                .write_all(b"INFO {\"headers\":true,\"max_payload\":1000000}\r\n")
                .unwrap();
            let (mut line, mut subscription) = (String::new(), String::new());
            while from_client.read_line(&mut line).is_ok_and(|read| read > 0) {
                let words: Vec<&str> = line.split_ascii_whitespace().collect();
                let answer = match words[..] {
                    ["PING"] => "PONG\r\n".to_owned(),
                    ["SUB", _, id] => {
                        id.clone_into(&mut subscription);
                        String::new()
                    }
                    ["HPUB", _, ref reply @ .., _, length] => {
                        let mut message = vec![0; length.parse::<usize>().unwrap() + 2];
                        from_client.read_exact(&mut message).unwrap();
                        let answer = |reply| format!("MSG {reply} {subscription} 0\r\n\r\n");
                        reply.first().map(answer).unwrap_or_default()
                    }
                    _ => String::new(),
                };
                if to_client.write_all(answer.as_bytes()).is_err() {
                    break;
                }
                line.clear();
            }
        });
        format!("nats://{address}")
    }

    /// Polls so often, unless it comes to its end before, and gives back whether it did.
    async fn ends_within<T>(polls: usize, future: impl Future<Output = T>) -> bool {
        let (mut future, mut left) = (pin!(future), polls);
        poll_fn(|context| {
            left -= 1;
            match future.as_mut().poll(context) {
                Poll::Ready(_) => Poll::Ready(true),
                Poll::Pending if left == 0 => Poll::Ready(false),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Wherever that is: what is in the client's queue then is what the next call waits for.
    #[tokio::test]
    async fn a_batch_that_is_dropped_is_an_unanswered_call() {
        let client = ConnectOptions::new()
            .client_capacity(1) // so that it waits at each message
            .connect(server())
            .await
            .unwrap();
        let config = NatsConfig::new().ack_timeout(Duration::from_millis(100));
        let publisher = NatsPublisher::new(client, config).unwrap();
        let message = OutboundMessage {
            subject: "t".into(),
            reply: None,
            payload: "x".into(),
            headers: None,
        };
        for polls in 1.. {
            let mut call = publisher.begin(0).await.ok().unwrap();
            let ended = ends_within(polls, call.batch(vec![message.clone(); 20])).await;
            drop(call);
            let unanswered = publisher.unanswered_calls.load(Ordering::Relaxed);
            assert_eq!(unanswered, polls as u64, "after so many polls");
            if ended {
                assert!(polls > 10, "it has not waited");
                break;
            }
        }
    }
}
