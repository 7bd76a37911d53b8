//! Replay and discard: count, ask, then go on in steps, and stop between two of them.

use std::io::{IsTerminal as _, stderr};
use std::pin::pin;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use outbox_core::admin::{DeadFilter, Decided};

use super::{Selection, text};
use crate::failure::Failure;
use crate::settings::{Broker, Settings};
use crate::signals::Signals;
use crate::store::{DeadSteps, Store};
use crate::terminal;
use crate::text::{count, counted, span};

/// So many of the messages are shown before the question.
const SHOWN: u32 = 5;

#[derive(Args)]
pub(crate) struct Decide {
    #[command(flatten)]
    selection: Selection,
    /// All dead messages
    #[arg(long, conflicts_with_all = ["ids", "topic", "key", "error_kind", "older_than", "younger_than"])]
    all: bool,
    /// End after so many, those that were enqueued first
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Count and show, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// The words of one decision.
struct Words {
    /// What is asked.
    question: &'static str,
    /// What is done, of one and of many.
    done: &'static str,
    /// What would be done.
    would: &'static str,
}

const REPLAY: Words = Words {
    question: "Put back",
    done: "put back",
    would: "would put back",
};
const DISCARD: Words = Words {
    question: "Drop for good",
    done: "dropped",
    would: "would drop",
};

pub(super) async fn replay(arguments: Decide, settings: &Settings) -> Result<(), Failure> {
    let filter = filter(&arguments)?;
    let store = Store::ready(&settings.store).await?;
    let decided = decide(&arguments, &store, &REPLAY, &filter, DeadSteps::replay).await?;
    if let Some(decided) = decided
        && let Some(note) = repeat_note(settings, decided)
    {
        eprintln!("{note}");
    }
    Ok(())
}

pub(super) async fn discard(arguments: Decide, settings: &Settings) -> Result<(), Failure> {
    let filter = filter(&arguments)?;
    let store = Store::ready(&settings.store).await?;
    decide(&arguments, &store, &DISCARD, &filter, DeadSteps::discard).await?;
    Ok(())
}

fn filter(arguments: &Decide) -> Result<DeadFilter, Failure> {
    let filter = arguments.selection.filter();
    if filter == DeadFilter::all() && !arguments.all {
        return Err(Failure::Usage(
            "which messages? Give ids, --topic, --key, --error-kind, --older-than, --younger-than, or --all",
        ));
    }
    Ok(filter)
}

/// What was decided; `None`: nothing was to be changed.
async fn decide(
    arguments: &Decide,
    store: &Store,
    words: &Words,
    filter: &DeadFilter,
    begin: fn(DeadSteps) -> DeadSteps,
) -> Result<Option<Decided>, Failure> {
    let counting = count_all(arguments, store, filter).await?;
    let expected = counting.done().messages;
    let messages = counted(expected, "dead message", "dead messages");
    if expected == 0 {
        terminal::print("no dead message fits\n")?;
        return Ok(None);
    }
    if arguments.dry_run || !arguments.yes {
        let page = store
            .dead(
                filter,
                None,
                SHOWN.min(u32::try_from(expected).unwrap_or(SHOWN)),
            )
            .await?;
        eprint!("{}", text(&page.messages, page.now, None));
        if expected > page.messages.len() as u64 {
            eprintln!("and {} more", count(expected - page.messages.len() as u64));
        }
    }
    if arguments.dry_run {
        terminal::print(&format!(
            "{} {messages}; nothing was changed\n",
            words.would
        ))?;
        return Ok(None);
    }
    if !arguments.yes && !terminal::confirm(&format!("{} {messages}?", words.question))? {
        terminal::print("nothing was changed\n")?;
        return Ok(None);
    }
    // What has died during the question is not what was agreed to.
    let decided = work(begin(counting), words, expected).await?;
    terminal::print(&format!(
        "{} {}\n",
        words.done,
        counted(decided.messages, "message", "messages")
    ))?;
    if decided.messages < expected {
        eprintln!(
            "{} not dead any more: somebody else has decided",
            counted(expected - decided.messages, "message was", "messages were"),
        );
    }
    Ok(Some(decided))
}

/// Counts the messages that there are to decide about, up to the limit.
async fn count_all(
    arguments: &Decide,
    store: &Store,
    filter: &DeadFilter,
) -> Result<DeadSteps, Failure> {
    let mut counting = store
        .count_dead(filter.clone())
        .limit(arguments.limit.unwrap_or(u64::MAX));
    while counting.step().await? {}
    Ok(counting)
}

/// Does all steps, or those before a signal. A second signal cuts off the step that is under way.
async fn work(mut steps: DeadSteps, words: &Words, expected: u64) -> Result<Decided, Failure> {
    let mut signals = Signals::install().map_err(Failure::of)?;
    let bar = progress(expected);
    let mut is_stopping = false;
    let ended = loop {
        if is_stopping {
            break Err(Failure::new("stopped by a signal"));
        }
        let step = {
            let mut step = pin!(steps.step());
            loop {
                tokio::select! {
                    step = &mut step => break Some(step),
                    () = signals.next() => {
                        if is_stopping {
                            break None;
                        }
                        is_stopping = true;
                    }
                }
            }
        };
        bar.set_position(steps.done().messages);
        match step {
            Some(Ok(true)) => {}
            Some(Ok(false)) => break Ok(()),
            Some(Err(failure)) => break Err(failure),
            None => {
                break Err(Failure::new(
                    "cut off by a second signal: the last step may or may not be done",
                ));
            }
        }
    };
    bar.finish_and_clear();
    let done = steps.done();
    if ended.is_err() {
        eprintln!(
            "{} {} of {}; the same command goes on with the rest",
            words.done,
            count(done.messages),
            counted(expected, "message", "messages"),
        );
    }
    ended.map(|()| done)
}

/// Drawn on a terminal only.
fn progress(expected: u64) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(expected);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos} of {len}, {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// What a broker that drops repeats may do with what was put back.
fn repeat_note(settings: &Settings, decided: Decided) -> Option<String> {
    let youngest = decided.youngest?;
    let drops_repeats = settings
        .broker
        .values()
        .any(|broker| matches!(broker, Broker::Nats(_)));
    drops_repeats.then(|| {
        format!(
            "note: JetStream drops a message whose id its stream took within the stream's duplicate window (2 min \
             unless configured), and answers as if it had taken it. The youngest of these died {} before: if that \
             is longer than the window, none is dropped.",
            span(youngest),
        )
    })
}
