//! `outbox dead`: what was given up, why, and what becomes of it.
//!
//! `dead/decide.rs` replays and discards; `dead/show.rs` has one message whole.

mod decide;
mod show;

use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand, ValueEnum};
use outbox_core::admin::{DeadFilter, DeadMessage};
use outbox_core::{PublishErrorKind, TopicPattern, Uuid};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::json::{self, time};
use crate::settings::Settings;
use crate::store::Store;
use crate::terminal;
use crate::text::{Table, shortened, since, size};

#[derive(Subcommand)]
pub(crate) enum Arguments {
    /// List dead messages, in the order of enqueue
    List(List),
    /// Show one dead message whole
    Show(show::Show),
    /// Put dead messages back, to be delivered in their old place with their old ids
    Replay(decide::Decide),
    /// Drop dead messages for good
    Discard(decide::Decide),
}

/// Which dead messages: those that fit everything that is given.
#[derive(Args)]
struct Selection {
    /// Message ids
    #[arg(value_name = "ID")]
    ids: Vec<Uuid>,
    /// Only this topic; `orders.*`: all that begin so
    #[arg(long, value_name = "PATTERN")]
    topic: Option<TopicPattern>,
    /// Only this key
    #[arg(long)]
    key: Option<String>,
    /// Only those whose last error was of this kind
    #[arg(long, value_enum, value_name = "KIND")]
    error_kind: Option<Kind>,
    /// Only those that died at least so long ago, as in `7d`
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    older_than: Option<Duration>,
    /// Only those that died at most so long ago, as in `1h`
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    younger_than: Option<Duration>,
}

/// [`PublishErrorKind`], as arguments have it.
#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Kind {
    TopicUnavailable,
    Retryable,
    Rejected,
}

impl Selection {
    fn filter(&self) -> DeadFilter {
        let kind = self.error_kind.map(|kind| match kind {
            Kind::TopicUnavailable => PublishErrorKind::TopicUnavailable,
            Kind::Retryable => PublishErrorKind::Retryable,
            Kind::Rejected => PublishErrorKind::Rejected,
        });
        let mut filter = DeadFilter::all();
        filter.ids = (!self.ids.is_empty()).then(|| self.ids.clone());
        filter.topic = self.topic.clone();
        filter.key = self.key.clone();
        filter.error_kind = kind.map(|kind| kind.as_str().to_owned());
        filter.older_than = self.older_than;
        filter.younger_than = self.younger_than;
        filter
    }
}

#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    selection: Selection,
    /// At most so many
    #[arg(long, value_name = "NUMBER", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Goes on where the page before has ended: the number that it gave
    #[arg(long, value_name = "NUMBER")]
    after: Option<i64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(arguments: Arguments, settings: Settings) -> Result<(), Failure> {
    match arguments {
        Arguments::List(arguments) => list(arguments, &Store::ready(&settings.store).await?).await,
        Arguments::Show(arguments) => {
            show::run(arguments, &Store::ready(&settings.store).await?).await
        }
        Arguments::Replay(arguments) => decide::replay(arguments, &settings).await,
        Arguments::Discard(arguments) => decide::discard(arguments, &settings).await,
    }
}

async fn list(arguments: List, store: &Store) -> Result<(), Failure> {
    let filter = arguments.selection.filter();
    let page = store
        .dead(&filter, arguments.after, arguments.limit)
        .await?;
    terminal::print(&if arguments.json {
        json::document(&json!({
            "now": time(page.now),
            "messages": page.messages.iter().map(document).collect::<Vec<_>>(),
            "next": page.next,
        }))
    } else {
        text(&page.messages, page.now, page.next)
    })
}

fn document(message: &DeadMessage) -> Value {
    json!({
        "id": message.id.to_string(),
        "position": message.position,
        "topic": message.topic,
        "key": message.key,
        "payload_bytes": message.payload_bytes,
        "enqueued_at": time(message.enqueued_at),
        "died_at": time(message.died_at),
        "parked": message.parked,
        "failures": message.failures,
        "error_kind": message.error_kind,
        "error": message.error,
        "halted": message.halted,
    })
}

fn text(messages: &[DeadMessage], now: SystemTime, next: Option<i64>) -> String {
    if messages.is_empty() && next.is_none() {
        return "no dead message fits\n".to_owned();
    }
    let mut table = Table::new(&[
        "id",
        "topic",
        "key",
        ">dead for",
        ">failures",
        ">payload",
        "",
        "error",
    ]);
    for message in messages {
        table.row([
            message.id.to_string(),
            shortened(&message.topic, 30),
            message
                .key
                .as_deref()
                .map_or("(no key)".to_owned(), |key| shortened(key, 30)),
            since(now, message.died_at),
            message.failures.to_string(),
            message.payload_bytes.map_or("none".to_owned(), size),
            if message.halted { "halts its key" } else { "" }.to_owned(),
            shortened(&format!("{}: {}", message.error_kind, message.error), 100),
        ]);
    }
    let mut text = table.render();
    if let Some(next) = next {
        text += &format!("more: outbox dead list --after {next} (with the same filters)\n");
    }
    text
}
