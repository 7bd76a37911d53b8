//! `outbox delayed`: the messages that are not due yet, and dropping some of them.

use clap::{Args, Subcommand};
use outbox_core::Uuid;
use outbox_core::admin::{DelayedMessage, DelayedPage, DelayedPlace};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::json::{self, time};
use crate::settings::Settings;
use crate::store::Store;
use crate::terminal;
use crate::text::{Table, shortened, since, size, span};

#[derive(Subcommand)]
pub(crate) enum Arguments {
    /// List delayed messages, those that are due first
    List(List),
    /// Drop delayed messages, before they are due; exit code 1 when one was not there any more
    Cancel(Cancel),
}

#[derive(Args)]
pub(crate) struct List {
    /// At most so many
    #[arg(long, value_name = "NUMBER", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Goes on where the page before has ended: the place that it gave
    #[arg(long, value_name = "PLACE")]
    after: Option<DelayedPlace>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Cancel {
    /// Message ids
    #[arg(value_name = "ID", required = true)]
    ids: Vec<Uuid>,
}

pub(crate) async fn run(arguments: Arguments, settings: Settings) -> Result<(), Failure> {
    let store = Store::ready(&settings.store).await?;
    match arguments {
        Arguments::List(arguments) => {
            let page = store.delayed(arguments.after, arguments.limit).await?;
            terminal::print(&match arguments.json {
                true => json::document(&json!({
                    "now": time(page.now),
                    "messages": page.messages.iter().map(document).collect::<Vec<_>>(),
                    "next": page.next.map(|next| next.to_string()),
                })),
                false => text(&page),
            })
        }
        Arguments::Cancel(arguments) => cancel(&arguments.ids, &store).await,
    }
}

async fn cancel(ids: &[Uuid], store: &Store) -> Result<(), Failure> {
    let mut missing = Vec::new();
    for &id in ids {
        match store.cancel(id).await? {
            true => terminal::print(&format!("cancelled {id}\n"))?,
            false => missing.push(id.to_string()),
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "not delayed, perhaps since they are due: {}",
        missing.join(", ")
    )))
}

fn document(message: &DelayedMessage) -> Value {
    json!({
        "id": message.id.to_string(),
        "topic": message.topic,
        "key": message.key,
        "payload_bytes": message.payload_bytes,
        "enqueued_at": time(message.enqueued_at),
        "deliver_at": time(message.deliver_at),
    })
}

fn text(page: &DelayedPage) -> String {
    if page.messages.is_empty() {
        return "no message is delayed\n".to_owned();
    }
    let mut table = Table::new(&["id", "topic", "key", ">payload", "enqueued", "due"]);
    for message in &page.messages {
        table.row([
            message.id.to_string(),
            shortened(&message.topic, 40),
            match &message.key {
                Some(key) => shortened(key, 30),
                None => "(no key)".to_owned(),
            },
            message.payload_bytes.map_or("none".to_owned(), size),
            format!("{} ago", since(page.now, message.enqueued_at)),
            match message.deliver_at.duration_since(page.now) {
                Ok(wait) => format!("in {}", span(wait)),
                Err(_) => "now".to_owned(),
            },
        ]);
    }
    let mut text = table.render();
    if let Some(next) = page.next {
        text += &format!("more: outbox delayed list --after {next}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn a_list_says_when_each_is_due() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100_000);
        let message = |key: Option<&str>, wait: i64| DelayedMessage {
            id: Uuid::from_u128(7),
            topic: "reminders".to_owned(),
            key: key.map(str::to_owned),
            payload_bytes: Some(12),
            enqueued_at: now - Duration::from_secs(60),
            deliver_at: match u64::try_from(wait) {
                Ok(wait) => now + Duration::from_secs(wait),
                Err(_) => now - Duration::from_secs(wait.unsigned_abs()),
            },
        };
        let page = DelayedPage {
            messages: vec![message(Some("\u{1b}k"), -1), message(None, 90)],
            next: Some(DelayedPlace {
                micros: 100_090_000_000,
                number: 7,
            }),
            now,
        };
        let shown = text(&page);
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[1].ends_with("1 min ago  now"), "{shown}");
        assert!(lines[2].ends_with("1 min ago  in 1 min 30 s"), "{shown}");
        assert_eq!(lines[3], "more: outbox delayed list --after 100090000000/7");
    }
}
