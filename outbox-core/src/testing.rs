//! For tests of applications: what was enqueued against what should have been.
//!
//! A test gets what a transaction has enqueued so far from its store, before it ends the transaction:
//! [`MemoryTransaction::enqueued`](crate::memory::MemoryTransaction::enqueued), or `Outbox::enqueued` of
//! `outbox-postgres` and `outbox-sqlite`. What is delivered, and how often, is for tests with a relay.

use std::fmt::Write as _;

use crate::Message;

/// So much of a payload is shown.
const SHOWN_BYTES: usize = 200;

/// Asserts that these messages were enqueued, in this order and no others. Message ids are not compared, since
/// each message has another one. Delays are; delayed messages come after the others, in their own order.
///
/// ```
/// use outbox_core::Message;
/// use outbox_core::memory::{MemoryStore, MemoryTransaction};
/// use outbox_core::testing::assert_enqueued;
///
/// fn place_order(transaction: &mut MemoryTransaction, order: u64) -> Result<(), outbox_core::InvalidMessage> {
///     transaction.enqueue(&Message::to("orders.placed").key(order).json(&order)?);
///     Ok(())
/// }
///
/// let mut transaction = MemoryStore::new().begin();
/// place_order(&mut transaction, 7)?;
/// assert_enqueued(
///     &transaction.enqueued(),
///     &[Message::to("orders.placed").key(7).json(&7)?],
/// );
/// # Ok::<(), outbox_core::InvalidMessage>(())
/// ```
///
/// # Panics
///
/// When they differ, with both lists and a mark at each message that is another one.
#[track_caller]
pub fn assert_enqueued(enqueued: &[Message], expected: &[Message]) {
    let is_same = |nth: usize| match (enqueued.get(nth), expected.get(nth)) {
        (Some(one), Some(other)) => is_same_but_for_its_id(one, other),
        _ => false,
    };
    let number = enqueued.len().max(expected.len());
    assert!(
        (0..number).all(is_same),
        "enqueued was not what was expected\nenqueued:\n{}expected:\n{}",
        list(enqueued, is_same),
        list(expected, is_same),
    );
}

fn is_same_but_for_its_id(one: &Message, other: &Message) -> bool {
    one.topic() == other.topic()
        && one.key() == other.key()
        && one.headers() == other.headers()
        && one.payload() == other.payload()
        && one.deliver_after() == other.deliver_after()
}

fn list(messages: &[Message], is_same: impl Fn(usize) -> bool) -> String {
    let mut lines = String::new();
    for (nth, message) in messages.iter().enumerate() {
        let mark = if is_same(nth) { ' ' } else { '>' };
        // Writing to a string does not fail.
        let _ = writeln!(lines, "{mark} {}. {}", nth + 1, shown(message));
    }
    if messages.is_empty() {
        lines.push_str("  nothing\n");
    }
    lines
}

fn shown(message: &Message) -> String {
    let mut line = format!("to {:?}", message.topic());
    if let Some(key) = message.key() {
        let _ = write!(line, ", key {key:?}");
    }
    if !message.deliver_after().is_zero() {
        let _ = write!(line, ", after {:?}", message.deliver_after());
    }
    for (name, value) in message.headers() {
        let _ = write!(line, ", {name:?}: {value:?}");
    }
    match message.payload() {
        None => line.push_str(", no payload"),
        Some(payload) => {
            let start = &payload[..payload.len().min(SHOWN_BYTES)];
            let _ = write!(line, ", {} bytes: {}", payload.len(), start.escape_ascii());
            if start.len() < payload.len() {
                line.push('…');
            }
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::time::Duration;

    use super::*;

    fn message(key: &str, payload: &str) -> Message {
        let builder = Message::to("t").key(key).header("a", "b");
        builder.bytes(payload.to_owned()).unwrap()
    }

    fn said(enqueued: Vec<Message>, expected: Vec<Message>) -> String {
        let panic = catch_unwind(|| assert_enqueued(&enqueued, &expected)).unwrap_err();
        panic.downcast_ref::<String>().unwrap().clone()
    }

    #[test]
    fn ids_are_not_compared_and_everything_else_is() {
        assert_enqueued(&[], &[]);
        assert_enqueued(&[message("k", "x")], &[message("k", "x")]);
        let others = [
            message("l", "x"),
            message("k", "y"),
            Message::to("t").header("a", "b").bytes("x").unwrap(),
            Message::to("t").key("k").bytes("x").unwrap(),
            Message::to("u")
                .key("k")
                .header("a", "b")
                .bytes("x")
                .unwrap(),
            Message::to("t")
                .key("k")
                .header("a", "b")
                .tombstone()
                .unwrap(),
            message("k", "x")
                .with_deliver_after(Duration::from_secs(1))
                .unwrap(),
        ];
        for other in others {
            said(vec![message("k", "x")], vec![other]);
        }
        said(vec![], vec![message("k", "x")]);
        said(vec![message("k", "x")], vec![]);
    }

    #[test]
    fn what_differs_is_marked() {
        let text = said(
            vec![message("k", "{\"a\":1}"), message("k", "é")],
            vec![
                message("k", "{\"a\":1}"),
                Message::to("t").tombstone().unwrap(),
                message("k", "z"),
            ],
        );
        assert_eq!(
            text,
            "enqueued was not what was expected\n\
             enqueued:\n\
             \x20 1. to \"t\", key \"k\", \"a\": \"b\", 7 bytes: {\\\"a\\\":1}\n\
             > 2. to \"t\", key \"k\", \"a\": \"b\", 2 bytes: \\xc3\\xa9\n\
             expected:\n\
             \x20 1. to \"t\", key \"k\", \"a\": \"b\", 7 bytes: {\\\"a\\\":1}\n\
             > 2. to \"t\", no payload\n\
             > 3. to \"t\", key \"k\", \"a\": \"b\", 1 bytes: z\n"
        );
        assert!(said(vec![], vec![message("k", &"x".repeat(300))]).contains("xx…\n"));
        let delayed = message("k", "").with_deliver_after(Duration::from_secs(60));
        assert!(said(vec![], vec![delayed.unwrap()]).contains(", after 60s, "));
        assert!(said(vec![], vec![message("k", "")]).contains("enqueued:\n  nothing\n"));
    }
}
