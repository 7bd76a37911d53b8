//! What every [`Publisher`] must do.
//!
//! A publisher joins with a [`PublisherHarness`] and one call:
//!
//! ```
//! mod memory {
//!     use std::sync::Arc;
//!     use outbox_conformance::publisher::{OpenBroker, PublisherHarness, Received};
//!     use outbox_core::memory::MemoryPublisher;
//!     use outbox_core::{Publisher, async_trait};
//!
//!     struct Harness;
//!
//!     #[async_trait]
//!     impl PublisherHarness for Harness {
//!         async fn open(&self) -> Box<dyn OpenBroker> {
//!             Box::new(Open(MemoryPublisher::new()))
//!         }
//!     }
//!
//!     struct Open(MemoryPublisher);
//!
//!     #[async_trait]
//!     impl OpenBroker for Open {
//!         fn publisher(&self) -> Arc<dyn Publisher> {
//!             Arc::new(self.0.clone())
//!         }
//!         async fn create_topic(&self, _name: &str) -> bool {
//!             true
//!         }
//!         async fn received(&self, topic: &str) -> Vec<Received> {
//!             let published = self.0.published();
//!             let there = published.iter().filter(|message| message.topic() == topic);
//!             there.map(Received::of).collect()
//!         }
//!         fn chains_keys(&self) -> bool {
//!             true
//!         }
//!     }
//!
//!     outbox_conformance::publisher_suite!(Harness);
//! }
//! ```
//!
//! A wrapper around other publishers needs no harness of its own: [`InMemory`] is one.
//!
//! What is read back is read with a client that knows nothing of the publisher under test, so that
//! the two cannot agree on a mistake.
//!
//! What is not asked: that messages of different keys arrive in any order, and that a message that
//! was published twice arrives twice.
//!
//! Where to read next: the cases, by what they are about: [`confirming`], [`order`], [`content`],
//! [`failing`], [`chaining`].

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::{
    Answer, Delivery, Message, PublishError, PublishErrorKind, Publisher, async_trait,
};

use crate::runner;

mod kit;
mod memory;

pub mod chaining;
pub mod confirming;
pub mod content;
pub mod failing;
pub mod order;

pub use kit::Broker;
pub use memory::InMemory;

/// The kind and the reason of a failure; for the tests that an adapter has beside the suite.
///
/// # Panics
///
/// When there is no answer, or a confirmation.
pub fn refusal(answer: &Option<Result<(), PublishError>>) -> (PublishErrorKind, &str) {
    match answer {
        Some(Err(error)) => (error.kind(), error.reason()),
        other => panic!("it should have been refused: {other:?}"),
    }
}

/// As [`publish_all`](outbox_core::PublisherExt::publish_all), of messages that the relay has chained; for the
/// tests that an adapter has beside the suite.
pub async fn publish_chained(
    publisher: &dyn Publisher,
    messages: &[Message],
    within: Duration,
) -> Vec<Option<Result<(), PublishError>>> {
    let shared = kit::shared_keys(messages);
    let answers: Vec<Answer> = messages.iter().map(|_| Answer::new()).collect();
    let batch: Vec<Delivery<'_>> = messages
        .iter()
        .zip(&answers)
        .map(|(message, answer)| kit::chained(Delivery::new(message, answer), &shared))
        .collect();
    // The time is bounded here; what was reported before it ran out is kept.
    let _ = tokio::time::timeout(within, publisher.publish(&batch)).await;
    drop(batch);
    answers.into_iter().map(Answer::into_inner).collect()
}

/// Opens publishers of one implementation. A method that cannot do its work panics.
#[async_trait]
pub trait PublisherHarness: Send + Sync + 'static {
    /// A new publisher, and the broker that it publishes to.
    async fn open(&self) -> Box<dyn OpenBroker>;
}

/// A publisher and its broker as a case sees them. A method that cannot do its work panics.
#[async_trait]
pub trait OpenBroker: Send + Sync + 'static {
    /// The publisher under test, always the same.
    fn publisher(&self) -> Arc<dyn Publisher>;

    /// Makes the broker ready to take messages to a topic of this name, more than one partition or
    /// queue of it where the broker has such a thing. The name is new. `false`: the broker can have
    /// no topic of this name.
    async fn create_topic(&self, name: &str) -> bool;

    /// Everything that has arrived at a topic until now, also what an earlier call gave; the messages
    /// of one key in the order of their arrival. What was confirmed before the call is there.
    async fn received(&self, topic: &str) -> Vec<Received>;

    /// Whether a message to a topic that was not created must fail.
    fn has_missing_topics(&self) -> bool {
        false
    }

    /// The bytes of a payload that the broker must take, in a message with a short key.
    fn large_payload(&self) -> usize {
        512 * 1024
    }

    /// The bytes of a payload that the broker refuses; `None` where it has no limit to speak of.
    fn too_large_payload(&self) -> Option<usize> {
        None
    }

    /// Whether the publisher has to say that it [chains](Publisher::chains_keys), and to keep what that
    /// promises.
    fn chains_keys(&self) -> bool {
        false
    }

    /// How long a case waits for what must happen before it fails.
    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// Cleans up after a case that passed.
    async fn close(self: Box<Self>) {}
}

/// A message as a consumer finds it, in the words of the message: the harness maps back what the
/// adapter's table of wire names says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The message id as the text on the wire; `None`: there was none.
    pub id: Option<String>,
    /// The key.
    pub key: Option<String>,
    /// The payload.
    pub payload: Option<Vec<u8>>,
    /// All headers but those that the wire format adds.
    pub headers: BTreeMap<String, String>,
}

impl Received {
    /// What must arrive of a message.
    pub fn of(message: &Message) -> Self {
        Self {
            id: Some(message.id().to_string()),
            key: message.key().map(str::to_owned),
            payload: message.payload().map(|payload| payload.to_vec()),
            headers: message
                .headers()
                .iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        }
    }
}

/// One thing that a publisher must do.
pub struct PublisherCase {
    name: &'static str,
    run: Run,
}

type Run = for<'a> fn(&'a Arc<Broker>) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

impl PublisherCase {
    /// The name of the function that is the case.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the case with a new publisher and a runtime of its own.
    ///
    /// # Errors
    ///
    /// What the publisher did wrong.
    pub fn check(&self, harness: impl PublisherHarness) -> Result<(), String> {
        let run = self.run;
        runner::check(async move {
            let broker = Arc::new(Broker::new(harness.open().await));
            run(&broker).await;
            // A case ends its tasks before it returns.
            if let Some(broker) = Arc::into_inner(broker) {
                broker.close().await;
            }
        })
    }
}

/// The case of this name.
pub fn case(name: &str) -> Option<&'static PublisherCase> {
    CASES.iter().find(|case| case.name == name)
}

/// Runs one case as a test: what [`publisher_suite!`](crate::publisher_suite) makes a test of.
///
/// # Panics
///
/// With what the publisher did wrong.
pub fn run(name: &str, harness: impl PublisherHarness) {
    let case = case(name).expect("the name of a case");
    if let Err(wrong) = case.check(harness) {
        panic!("{name}: {wrong}");
    }
}

/// Makes one test of every case, with a new harness from the expression for each.
#[macro_export]
macro_rules! publisher_suite {
    ($harness:expr) => {
        $crate::__publisher_cases! { [$crate::__publisher_tests] ($harness) }
    };
}

/// The list of all cases, for the two macros that make something of it.
#[doc(hidden)]
#[macro_export]
macro_rules! __publisher_cases {
    ([$($make:tt)*] $($argument:tt)*) => {
        $($make)*! { $($argument)*
            confirming::an_empty_batch_is_done_at_once;
            confirming::every_message_is_answered;
            confirming::a_confirmed_message_is_at_the_broker;
            confirming::answers_do_not_wait_for_the_batch;
            confirming::ten_thousand_are_confirmed;
            confirming::large_messages_are_confirmed;
            confirming::calls_go_side_by_side;
            confirming::a_dropped_call_keeps_what_was_reported;

            order::a_key_keeps_its_order_in_a_batch;
            order::a_key_keeps_its_order_over_batches;
            order::an_empty_key_is_a_key;

            content::every_field_arrives;
            content::every_byte_arrives;
            content::empty_is_not_absent;
            content::text_of_any_script_arrives;
            content::a_repeat_has_the_same_id;
            content::odd_headers_arrive_or_are_rejected;
            content::many_headers_arrive_or_are_rejected;
            content::any_messages_arrive_or_are_rejected;
            content::odd_topics_take_messages_or_are_rejected;
            content::a_long_key_arrives_or_is_rejected;

            failing::a_missing_topic_fails_alone;
            failing::a_missing_topic_goes_on_when_it_is_created;
            failing::a_too_large_message_fails_alone;
            failing::an_impossible_topic_fails_alone;
            failing::a_batch_of_failures_is_answered;

            chaining::a_chain_is_confirmed_in_order;
            chaining::a_chain_ends_at_a_refused_message;
            chaining::a_chain_ends_at_what_cannot_be_sent;
            chaining::a_chain_that_is_cut_off_is_a_prefix;
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __publisher_tests {
    (($harness:expr) $($module:ident::$case:ident;)*) => {
        $(
            #[test]
            fn $case() {
                $crate::publisher::run(stringify!($case), $harness);
            }
        )*
    };
}

macro_rules! table {
    ($($module:ident::$case:ident;)*) => {
        /// Every case.
        pub const CASES: &[PublisherCase] = &[
            $(PublisherCase {
                name: stringify!($case),
                run: |broker| Box::pin($module::$case(broker)),
            },)*
        ];
    };
}

crate::__publisher_cases! { [table] }
