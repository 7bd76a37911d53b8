//! `outbox pause` and `outbox resume`: topics that a person has stopped.

use std::env;

use clap::Args;
use outbox_core::TopicPattern;
use outbox_core::admin::PausedTopic;

use crate::failure::Failure;
use crate::json;
use crate::settings::Settings;
use crate::store::Store;
use crate::terminal;
use crate::text::{Table, counted, escaped, quoted, shortened};

#[derive(Args)]
pub(crate) struct Pause {
    /// The topic; `orders.*`: all that begin so. Without it, list what is paused
    topic: Option<TopicPattern>,
    /// Who pauses it and why, for whoever finds it paused; unless given, who is logged in
    #[arg(long, value_name = "WORDS", requires = "topic")]
    by: Option<String>,
    /// Print the list as JSON
    #[arg(long, conflicts_with = "topic")]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Resume {
    /// The topic or the pattern, as it was paused
    topic: TopicPattern,
}

pub(crate) async fn pause(arguments: Pause, settings: Settings) -> Result<(), Failure> {
    let store = Store::ready(&settings.store).await?;
    let Some(topic) = arguments.topic else {
        let paused = store.paused().await?;
        return terminal::print(&if arguments.json {
            json::document(&paused.iter().map(json::paused).collect())
        } else {
            text(&paused)
        });
    };
    let by = arguments.by.unwrap_or_else(logged_in);
    let is_new = store.pause(&topic, &by).await?;
    let shown = escaped(topic.as_str());
    terminal::print(&match is_new {
        true => format!(
            "{shown} is paused: within a second every `outbox run` parks its messages, until outbox resume {}; \
             a relay within an application does not heed it\n",
            quoted(topic.as_str())
        ),
        false => format!("{shown} was paused already; outbox pause says since when and by whom\n"),
    })
}

pub(crate) async fn resume(arguments: Resume, settings: Settings) -> Result<(), Failure> {
    let store = Store::ready(&settings.store).await?;
    let resumed = store.resume(&arguments.topic).await?;
    let topic = escaped(arguments.topic.as_str());
    if !resumed.was_paused {
        return Err(Failure::new(format!(
            "{topic} was not paused; outbox pause lists what is"
        )));
    }
    terminal::print(&match resumed.keys {
        0 => format!("{topic} is resumed\n"),
        keys => format!(
            "{topic} is resumed; {} due now\n",
            counted(keys, "key is", "keys are")
        ),
    })
}

fn text(paused: &[PausedTopic]) -> String {
    if paused.is_empty() {
        return "no topic is paused\n".to_owned();
    }
    let mut table = Table::new(&["topic", "since", "by"]);
    for paused in paused {
        table.row([
            shortened(paused.topic.as_str(), 80),
            humantime::format_rfc3339_seconds(paused.since).to_string(),
            shortened(&paused.by, 80),
        ]);
    }
    table.render()
}

fn logged_in() -> String {
    let name = ["SUDO_USER", "USER", "LOGNAME"]
        .iter()
        .filter_map(|name| env::var(name).ok())
        .find(|name| !name.is_empty());
    name.unwrap_or_else(|| "somebody".to_owned())
}
