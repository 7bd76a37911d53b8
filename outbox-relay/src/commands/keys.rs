//! `outbox keys`: the keys that are held up, why, and when they are tried again; and trying them now.

use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use outbox_core::TopicPattern;
use outbox_core::admin::{HeldKey, KeyFilter, Retried};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::json::{self, count, optional_time, time};
use crate::settings::Settings;
use crate::store::Store;
use crate::terminal;
use crate::text::{Table, approximate, counted, shortened, since, span};

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    list: List,
}

#[derive(Subcommand)]
enum Action {
    /// Have keys tried now, as soon as a relay has time, instead of at their next try
    Retry(Retry),
}

/// Which keys.
#[derive(Args)]
struct Selection {
    /// Only those whose head is of this topic; `orders.*`: of all that begin so
    #[arg(long, value_name = "PATTERN")]
    topic: Option<TopicPattern>,
    /// Only this key
    #[arg(long)]
    key: Option<String>,
}

impl Selection {
    fn filter(self) -> KeyFilter {
        let mut filter = KeyFilter::all();
        filter.topic = self.topic;
        filter.key = self.key;
        filter
    }
}

#[derive(Args)]
struct List {
    #[command(flatten)]
    selection: Selection,
    /// Only keys that wait for a decision about a dead message
    #[arg(long)]
    halted: bool,
    /// At most so many
    #[arg(long, value_name = "NUMBER", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Goes on where the page before has ended: the number that it gave
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    after: Option<i64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Retry {
    #[command(flatten)]
    selection: Selection,
    /// All keys
    #[arg(long, conflicts_with_all = ["topic", "key"])]
    all: bool,
}

pub(crate) async fn run(arguments: Arguments, settings: Settings) -> Result<(), Failure> {
    match arguments.action {
        None => list(arguments.list, &Store::ready(&settings.store).await?).await,
        Some(Action::Retry(arguments)) => retry(arguments, &settings).await,
    }
}

async fn list(arguments: List, store: &Store) -> Result<(), Failure> {
    let mut filter = arguments.selection.filter();
    if arguments.halted {
        filter = filter.halted(true);
    }
    let page = store
        .held_keys(&filter, arguments.after, arguments.limit)
        .await?;
    let shown = if arguments.json {
        json::document(&json!({
            "now": time(page.now),
            "keys": page.keys.iter().map(document).collect::<Vec<_>>(),
            "next": page.next,
        }))
    } else {
        text(&page.keys, page.now, page.next)
    };
    terminal::print(&shown)
}

async fn retry(arguments: Retry, settings: &Settings) -> Result<(), Failure> {
    let filter = arguments.selection.filter();
    if filter == KeyFilter::all() && !arguments.all {
        return Err(Failure::Usage("which keys? Give --topic, --key, or --all"));
    }
    let store = Store::ready(&settings.store).await?;
    let mut steps = store.retry_now(filter);
    while steps.step().await? {}
    let Retried { keys, .. } = steps.done();
    terminal::print(&match keys {
        0 => {
            "no key had to be made due: none is held up, or all were due or are halted\n".to_owned()
        }
        keys => format!(
            "{} now, as soon as a relay has time\n",
            counted(keys, "key is tried", "keys are tried")
        ),
    })
}

fn document(key: &HeldKey) -> Value {
    let head = key.head.as_ref().map(|head| {
        json!({
            "id": head.id.to_string(),
            "position": head.position,
            "topic": head.topic,
            "enqueued_at": time(head.enqueued_at),
            "parked": head.parked,
            "failures": head.failures,
        })
    });
    json!({
        "line": key.line,
        "key": key.head.as_ref().and_then(|head| head.key.as_ref()),
        "head": head,
        "error_kind": key.error_kind,
        "error": key.error,
        "since": time(key.since),
        "next_try": optional_time(key.next_try),
        "followers": count(key.followers),
        "halted": key.halted,
    })
}

fn text(keys: &[HeldKey], now: SystemTime, next: Option<i64>) -> String {
    if keys.is_empty() && next.is_none() {
        return "no key is held up\n".to_owned();
    }
    let mut table = Table::new(&[
        "key",
        "topic",
        ">behind",
        "held for",
        "next try",
        ">tries",
        ">failures",
        "head",
        "held up by",
    ]);
    for key in keys {
        let head = key.head.as_ref();
        table.row([
            match head {
                Some(head) => head
                    .key
                    .as_deref()
                    .map_or("(no key)".to_owned(), |key| shortened(key, 30)),
                None => "?".to_owned(),
            },
            head.map_or_else(String::new, |head| shortened(&head.topic, 30)),
            approximate(key.followers),
            since(now, key.since),
            next_try(key, now),
            head.map_or_else(String::new, |head| head.parked.to_string()),
            head.map_or_else(String::new, |head| head.failures.to_string()),
            head.map_or_else(String::new, |head| head.id.to_string()),
            why(key),
        ]);
    }
    let mut text = table.render();
    if let Some(next) = next {
        text += &format!("more: outbox keys --after {next} (with the same filters)\n");
    }
    if keys.iter().any(|key| key.halted) {
        text += "a halted key goes on when its dead head is replayed or discarded: outbox dead show HEAD\n";
    }
    text
}

fn next_try(key: &HeldKey, now: SystemTime) -> String {
    match key.next_try {
        None => "halted".to_owned(),
        Some(at) => match at.duration_since(now) {
            Ok(wait) if !wait.is_zero() => {
                format!("in {}", span(wait.max(Duration::from_millis(1))))
            }
            _ => "now".to_owned(),
        },
    }
}

fn why(key: &HeldKey) -> String {
    match key.error_kind.as_ref().zip(key.error.as_ref()) {
        Some((kind, error)) => shortened(&format!("{kind}: {error}"), 100),
        None => "not tried yet".to_owned(),
    }
}
