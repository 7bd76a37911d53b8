//! What `docs/messages.md` shows, compiled and run: a typed message, its test, and the same as a CloudEvent.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use outbox_core::cloudevents::{Binding, CloudEvent};
use outbox_core::memory::{MemoryStore, MemoryTransaction};
use outbox_core::testing::assert_enqueued;
use outbox_core::{Event, InvalidMessage, Message, MessageBuilder};

#[derive(serde::Serialize)]
struct OrderPlaced {
    order: u64,
    cents: u64,
}

impl Event for OrderPlaced {
    const TOPIC: &'static str = "orders.placed";
    const VERSION: u32 = 2; // the header `schema-version`

    fn key(&self) -> Option<String> {
        Some(self.order.to_string())
    }

    fn encode(&self, message: MessageBuilder) -> Result<Message, InvalidMessage> {
        message.json(self)
    }
}

fn place_order(transaction: &mut MemoryTransaction, order: u64) -> Result<(), InvalidMessage> {
    let placed = OrderPlaced { order, cents: 1250 };
    transaction.enqueue(&Message::event(&placed)?);
    Ok(())
}

#[test]
fn an_order_that_is_placed_is_told() {
    let mut transaction = MemoryStore::new().begin();
    place_order(&mut transaction, 7).unwrap();
    let placed = OrderPlaced {
        order: 7,
        cents: 1250,
    };
    assert_enqueued(&transaction.enqueued(), &[Message::event(&placed).unwrap()]);
}

fn remind_later(transaction: &mut MemoryTransaction, order: u64) -> Result<(), InvalidMessage> {
    let reminder = Message::to("orders.unpaid")
        .key(order)
        .deliver_after(Duration::from_secs(3 * 24 * 3600))
        .json(&order)?;
    transaction.enqueue(&reminder);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_reminder_comes_after_its_delay() {
    let store = MemoryStore::new();
    let mut transaction = store.begin();
    remind_later(&mut transaction, 7).unwrap();
    let reminder = transaction.enqueued().remove(0);
    transaction.commit();
    assert_eq!(store.counts().delayed, 1);
    assert_eq!(store.cancel(&[reminder.id()]), 1);
    assert_eq!(store.counts().delayed, 0);
}

struct OrderShipped {
    order: u64,
}

impl Event for OrderShipped {
    const TOPIC: &'static str = "orders.shipped";
    const VERSION: u32 = 1;

    fn key(&self) -> Option<String> {
        Some(self.order.to_string())
    }

    fn encode(&self, message: MessageBuilder) -> Result<Message, InvalidMessage> {
        CloudEvent::new("/shop/orders", "com.example.order.shipped")
            .subject(self.order.to_string())
            .json(&self.order)
            .binary(Binding::Kafka, message)
    }
}

#[test]
fn a_typed_message_may_be_a_cloud_event() {
    let message = Message::event(&OrderShipped { order: 7 }).unwrap();
    let header = |name| message.headers().get(name);
    assert_eq!(header("ce_type"), Some("com.example.order.shipped"));
    assert_eq!(header("ce_id"), Some(message.id().to_string().as_str()));
    assert_eq!(header("schema-version"), Some("1"));
}

fn returned(order: u64) -> CloudEvent {
    CloudEvent::new("/shop/orders", "com.example.order.returned").json(&order)
}

fn take_back(transaction: &mut MemoryTransaction, order: u64) -> Result<(), InvalidMessage> {
    let message = Message::to("orders.returned").key(order);
    transaction.enqueue(&returned(order).structured(message)?);
    Ok(())
}

#[test]
fn a_cloud_event_is_compared_with_the_id_that_it_got() {
    let mut transaction = MemoryStore::new().begin();
    take_back(&mut transaction, 7).unwrap();
    let enqueued = transaction.enqueued();
    let event = returned(7).id(enqueued[0].id());
    let message = Message::to("orders.returned").key(7);
    assert_enqueued(&enqueued, &[event.structured(message).unwrap()]);
}
