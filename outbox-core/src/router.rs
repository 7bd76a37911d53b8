//! Several brokers behind one relay: a publisher that maps topics to publishers.
//!
//! A batch is parted by broker, and all parts are published side by side, each within the limits of its
//! broker. What the outcome is for a message, [`Router`] says; this is why.
//!
//! *An absent broker is [`TopicUnavailable`](crate::PublishErrorKind::TopicUnavailable).* To the relay
//! [`BrokerUnavailable`](crate::PublishErrorKind::BrokerUnavailable) means that nothing can be sent, and it
//! stops sending.
//!
//! *With one broker there are no limits and no breaker.* They keep one broker's trouble from the others. The
//! outage of the only broker is the relay's, which parks nothing: a million messages stay where they are.
//!
//! *With several, an outage of all parks what an outage of each would park.* To know that a broker is back
//! takes a message for it, and that may stand behind a million of another one's. Released instead of
//! parked, these would be in its way for as long as the other one is away.
//!
//! *Over the limit of calls is `TopicUnavailable` too.* A call that waited for a slow broker would hold a
//! worker, and with it what that could take to the healthy ones; see `router/calls.rs`.
//!
//! Not here: retries and the order of a key, which are the relay's, and what a message looks like at a broker.
//!
//! Where to read next: `router/broker.rs` for a call of one broker, `router/breaker.rs` for outages,
//! `router/calls.rs` for the limit, `pattern.rs` for what `*` means.

mod breaker;
mod broker;
mod calls;
mod config;
mod heard;

use std::fmt;

use async_trait::async_trait;
use futures_util::future::join_all;

use crate::{Delivery, PublishError, Publisher, TopicPattern};
use broker::Broker;
pub use config::{BrokerLimits, RouterBuilder};
pub(crate) use heard::Heard;

/// A publisher over several publishers, by topic.
///
/// An outage of one of its brokers parks only what goes there and the messages of the same keys behind it,
/// and counts against none of them. Everything else goes on.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use outbox_core::memory::{MemoryPublisher, MemoryStore};
/// use outbox_core::{BrokerLimits, Message, Relay, Router};
///
/// let (events, webhooks) = (MemoryPublisher::new(), MemoryPublisher::new());
/// let slow = BrokerLimits::new().calls(1);
/// let router = Router::builder()
///     .broker("events", events.clone())
///     .broker_with("webhooks", webhooks.clone(), slow)
///     .route("orders.*", "events")
///     .otherwise("webhooks")
///     .build()?;
/// assert_eq!(router.broker_of("orders.placed"), Some("events"));
///
/// let store = MemoryStore::new();
/// store.enqueue(&[
///     Message::to("orders.placed").key(7).json("seven")?,
///     Message::to("customers").key(7).json("seven")?,
/// ]);
/// let relay = Relay::builder(store, router).build()?;
/// relay
///     .run_until(async { drop(webhooks.wait_for(1, Duration::from_secs(5)).await) })
///     .await;
/// assert_eq!(events.published().len(), 1);
/// # Ok(()) }
/// ```
///
/// # What it does when
///
/// | at one of several brokers | its messages are | the others |
/// | --- | --- | --- |
/// | it says that it is away | parked, not counted | go on |
/// | it answers nothing within its [call timeout](BrokerLimits::call_timeout) | parked, not counted | go on; those of its batch once that is over |
/// | it stays away | parked without a call, but for one message after each pause, to see whether it is back | go on |
/// | it is back | sent, few of a batch at first | go on |
/// | it is slow, and as many calls as [allowed](BrokerLimits::calls) are in flight | parked, not counted, after a short wait | go on with the other workers |
/// | its publisher panics | counted as failed, those that were not answered | go on |
///
/// The log has one line when an outage of a broker begins and one when it ends; the gauge
/// `outbox_broker_outage` is 1 in between. A message to a topic without a route is parked with the topic in
/// the reason, until there is one.
///
/// A router of one broker adds nothing but the routes, so the outage of the only broker is the relay's: it
/// parks nothing. An outage of all of several brokers parks what goes to each: which of them is back is
/// found out with messages, and one broker's must not stand in the way of another's.
///
/// # Order
///
/// In [`PerKey`](crate::OrderMode::PerKey) the messages of a key keep their order across topics and so
/// across brokers: one is not sent before the one in front of it is confirmed, wherever either goes. In
/// [`PerKeyPipelined`](crate::OrderMode::PerKeyPipelined) they keep it within each broker. Between brokers a
/// later message may arrive first, since the parts of a batch travel at once; after a failure every later
/// message of the key is sent again, whichever broker it goes to.
///
/// # Cancellation
///
/// As [`Publisher`] says: a dropped call keeps what was reported, and the next one is none the worse.
pub struct Router {
    brokers: Vec<Broker>,
    routes: Vec<Route>,
    /// The place of the broker for all other topics.
    otherwise: Option<usize>,
}

struct Route {
    pattern: TopicPattern,
    /// Its place among the brokers.
    broker: usize,
}

impl Router {
    /// Starts a router without brokers and routes.
    pub fn builder() -> RouterBuilder {
        RouterBuilder::default()
    }

    /// The name of the broker to which a topic goes; `None`: no route matches it.
    pub fn broker_of(&self, topic: &str) -> Option<&str> {
        self.place_of(topic)
            .map(|broker| self.brokers[broker].name())
    }

    fn place_of(&self, topic: &str) -> Option<usize> {
        let mut routes = self.routes.iter();
        routes
            .find(|route| route.pattern.matches(topic))
            .map_or(self.otherwise, |route| Some(route.broker))
    }
}

#[async_trait]
impl Publisher for Router {
    async fn publish(&self, batch: &[Delivery<'_>]) {
        let mut parts: Vec<Vec<Delivery<'_>>> = vec![Vec::new(); self.brokers.len()];
        for delivery in batch {
            let topic = delivery.message().topic();
            match self.place_of(topic) {
                Some(broker) => parts[broker].push(*delivery),
                None => {
                    let reason = format!("no route for topic {topic:?}");
                    let error = PublishError::topic_unavailable(reason);
                    delivery.report(Err(error.without_broker()));
                }
            }
        }
        if let ([only], [part]) = (&self.brokers[..], &parts[..]) {
            return only.publish_alone(part).await;
        }
        let calls = self.brokers.iter().zip(&parts);
        let calls = calls.filter(|(_, part)| !part.is_empty());
        join_all(calls.map(|(broker, part)| broker.publish(part))).await;
    }

    /// Where there is one broker and everything goes to it: what is parted, or has no route, may be in the
    /// midst of a key.
    fn chains_keys(&self) -> bool {
        match &self.brokers[..] {
            [only] => self.otherwise.is_some() && only.chains_keys(),
            _ => false,
        }
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes = self.routes.iter().map(|route| {
            let broker = self.brokers[route.broker].name();
            (route.pattern.as_str(), broker)
        });
        let otherwise = self.otherwise.map(|broker| self.brokers[broker].name());
        f.debug_map()
            .entries(routes)
            .entries(otherwise.map(|broker| ("otherwise", broker)))
            .finish()
    }
}
