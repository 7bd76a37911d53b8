//! `outbox enqueue`: one message, for trials and scripts.

use std::fs;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use outbox_core::{Message, Uuid};

use crate::failure::Failure;
use crate::settings::Settings;
use crate::store::Store;
use crate::terminal;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Where the message goes
    topic: String,
    /// The payload; without it, --file and --tombstone it is read from standard input
    #[arg(conflicts_with_all = ["file", "tombstone"])]
    payload: Option<String>,
    /// Takes the payload from a file, byte for byte
    #[arg(long, conflicts_with = "tombstone")]
    file: Option<PathBuf>,
    /// No payload at all, which is not the same as an empty one
    #[arg(long)]
    tombstone: bool,
    /// Messages of one key keep their order
    #[arg(long)]
    key: Option<String>,
    /// A header; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// The message id, instead of a new one
    #[arg(long)]
    id: Option<Uuid>,
    /// Deliver it so much later, as in `90s` or `2h`
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    deliver_after: Option<Duration>,
}

fn header(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("it wants NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(crate) async fn run(arguments: Arguments, settings: Settings) -> Result<(), Failure> {
    let message = message(arguments)?;
    let store = Store::open(&settings.store)?;
    store.enqueue(std::slice::from_ref(&message)).await?;
    terminal::print(&format!("{}\n", message.id()))
}

fn message(arguments: Arguments) -> Result<Message, Failure> {
    let mut builder = Message::to(arguments.topic);
    if let Some(key) = arguments.key {
        builder = builder.key(key);
    }
    for (name, value) in arguments.headers {
        builder = builder.header(name, value);
    }
    if let Some(id) = arguments.id {
        builder = builder.id(id);
    }
    if let Some(delay) = arguments.deliver_after {
        builder = builder.deliver_after(delay);
    }
    let message = if arguments.tombstone {
        builder.tombstone()
    } else if let Some(payload) = arguments.payload {
        builder.bytes(payload)
    } else if let Some(file) = arguments.file {
        let payload = fs::read(&file)
            .map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
        builder.bytes(payload)
    } else {
        let mut payload = Vec::new();
        io::stdin()
            .read_to_end(&mut payload)
            .map_err(|error| Failure::new(format!("standard input: {error}")))?;
        builder.bytes(payload)
    };
    message.map_err(Failure::of)
}
