//! `outbox status`: one look that says whether messages move, what waits, what is stuck and why, and what
//! to do next. It asks the database alone, so it works when no relay runs.
//!
//! The database does not say whether anything is being delivered. That is seen from two looks, so where
//! messages have waited for some seconds a second one follows after a moment.
//!
//! `status/verdict.rs` has what a look means, `status/text.rs` and `status/document.rs` how it is shown.

mod document;
mod text;
mod verdict;

use std::io::{IsTerminal as _, stdout};
use std::time::Duration;

use clap::Args;
use outbox_core::admin::KeyFilter;

use crate::failure::{Failure, chain};
use crate::json;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::store::Store;
use crate::terminal;
use crate::text::escaped;
use verdict::{Look, needs_second_look};

/// How long after the first look the second one follows.
const SECOND_LOOK_AFTER: Duration = Duration::from_secs(2);

/// How long `--watch` waits between two looks.
const EVERY: Duration = Duration::from_secs(2);

/// Of so many keys that are held up it is counted why.
const KEYS: u32 = 500;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Look again every two seconds, until SIGINT or SIGTERM; with --json, one line for each look
    #[arg(long)]
    watch: bool,
}

pub(crate) async fn run(arguments: Arguments, settings: Settings) -> Result<(), Failure> {
    if arguments.watch {
        return watch(&arguments, &Store::open(&settings.store)?).await;
    }
    let store = Store::ready(&settings.store).await?;
    let mut earlier = None;
    let mut look = take(&store).await?;
    if needs_second_look(&look) {
        tokio::time::sleep(SECOND_LOOK_AFTER).await;
        earlier = Some(std::mem::replace(&mut look, take(&store).await?));
    }
    let shown = if arguments.json {
        json::document(&document::of(&store.to_string(), &look, earlier.as_ref()))
    } else {
        text::of(&store.to_string(), &look, earlier.as_ref())
    };
    terminal::print(&shown)
}

async fn take(store: &Store) -> Result<Look, Failure> {
    Ok(Look {
        status: store.status().await?,
        keys: store.held_keys(&KeyFilter::all(), None, KEYS).await?,
    })
}

/// Goes on when the database cannot be asked: it may be what is being waited for.
async fn watch(arguments: &Arguments, store: &Store) -> Result<(), Failure> {
    let mut signals = Signals::install().map_err(Failure::of)?;
    let mut earlier: Option<Look> = None;
    let on_screen = stdout().is_terminal() && !arguments.json;
    loop {
        let looked = tokio::select! {
            looked = take(store) => looked,
            () = signals.next() => return Ok(()),
        };
        let outbox = store.to_string();
        let shown = match &looked {
            Ok(look) if arguments.json => {
                json::line(&document::of(&outbox, look, earlier.as_ref()))
            }
            Ok(look) => text::of(&outbox, look, earlier.as_ref()),
            Err(failure) => format!("outbox: {}\n", escaped(&chain(failure))),
        };
        if on_screen {
            // Over the old text, line by line, and nothing of it below: without a flicker.
            let lines = shown.replace('\n', "\x1b[K\n");
            terminal::print(&format!("\x1b[H{lines}\x1b[J"))?;
        } else if looked.is_err() {
            eprint!("{shown}");
        } else {
            terminal::print(&shown)?;
        }
        earlier = looked.ok();
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = signals.next() => return Ok(()),
        }
    }
}

#[cfg(test)]
pub(in crate::commands) use verdict::tests;
