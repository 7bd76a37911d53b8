//! `outbox doctor`: what is wrong around the outbox, or soon will be, and how to mend it. It looks at the
//! database and at every configured broker, and changes nothing. Exit code 1 when there is a problem.
//!
//! The store looks at itself; `probe.rs` asks the brokers. Here the topics are found that brokers are asked
//! for, and all of it is shown, the worst first.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use clap::Args;
use futures_util::future::join_all;
use outbox_core::TopicPattern;
use outbox_core::admin::{Finding, Severity};
use serde_json::{Value, json};

use crate::failure::{Failure, chain};
use crate::json;
use crate::probe::{self, Place};
use crate::settings::{self, Route, Settings};
use crate::store::Store;
use crate::terminal;
use crate::text::{counted, escaped, escaped_lines, line, quoted};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Show too what is fine
    #[arg(long)]
    all: bool,
    /// Print JSON, of everything
    #[arg(long)]
    json: bool,
    /// Look at the database alone
    #[arg(long)]
    no_brokers: bool,
    /// Exit code 1 for a warning too
    #[arg(long)]
    strict: bool,
}

pub(crate) async fn run(arguments: Arguments, settings: Settings) -> Result<ExitCode, Failure> {
    let mut findings = Vec::new();
    let mut topics = routed_topics(&settings.route);
    match look_at_store(&settings).await {
        Ok((found, used)) => {
            findings.extend(found);
            topics.extend(used);
        }
        Err(failure @ Failure::Other(_)) => findings.push(Finding {
            check: "database",
            severity: Severity::Problem,
            what: chain(&failure),
            why: "nothing can be enqueued or delivered without it",
            mend: "start it, or correct [store]; `outbox config` shows where it is looked for"
                .to_owned(),
        }),
        Err(failure) => return Err(failure),
    }
    if !arguments.no_brokers {
        findings.extend(brokers(&settings, topics).await);
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    terminal::print(&if arguments.json {
        json::document(&document(&findings))
    } else {
        text(&findings, arguments.all)
    })?;
    let fails = match arguments.strict {
        true => Severity::Warning,
        false => Severity::Problem,
    };
    Ok(
        match findings.iter().any(|finding| finding.severity >= fails) {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        },
    )
}

/// What the store finds, and the topics of its messages: those count more than what is configured.
async fn look_at_store(settings: &Settings) -> Result<(Vec<Finding>, Vec<String>), Failure> {
    let store = Store::reach(&settings.store).await?;
    let mut found = store.doctor().await?;
    let pooler = found.iter_mut().find(|finding| finding.check == "pooler");
    if let Some(finding) = pooler.filter(|finding| finding.severity == Severity::Warning) {
        // A relay that knows of its pooler works, and one that does not gets no connection through it.
        finding.severity = match is_pooler_configured(settings) {
            true => Severity::Fine,
            false => Severity::Problem,
        };
    }
    // Where the tables are missing, that has been found.
    let status = store.status().await;
    let topics = status.map(|status| status.topics).unwrap_or_default();
    Ok((found, topics.into_iter().map(|topic| topic.topic).collect()))
}

fn is_pooler_configured(settings: &Settings) -> bool {
    matches!(&settings.store, settings::Store::Postgres(store) if store.pooler)
}

/// The topics that the routes name without a `*`.
fn routed_topics(routes: &[Route]) -> BTreeSet<String> {
    let exact = routes.iter().filter(|route| !route.topic.contains('*'));
    exact.map(|route| route.topic.clone()).collect()
}

async fn brokers(settings: &Settings, topics: BTreeSet<String>) -> Vec<Finding> {
    let routes = routes(settings);
    let mut topics_of: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut findings = Vec::new();
    for topic in topics {
        match broker_of(settings, &routes, &topic) {
            Some(broker) => topics_of.entry(broker).or_default().push(topic),
            None => findings.push(unrouted(&topic)),
        }
    }
    // All at once: one that is away takes its time.
    let asked = settings.broker.iter().map(|(name, broker)| {
        let topics = topics_of.remove(name.as_str()).unwrap_or_default();
        async move {
            let answer = probe::ask(name, broker, &topics).await;
            (name, topics, answer)
        }
    });
    for (name, topics, answer) in join_all(asked).await {
        match answer {
            Ok(answer) => {
                findings.push(reachable(name, &answer.broker));
                let places = topics.iter().zip(answer.places);
                findings.extend(places.map(|(topic, place)| of_place(name, topic, place)));
            }
            Err(away) => findings.push(unreachable(name, &away.to_string())),
        }
    }
    findings
}

/// The patterns of the routes and the brokers that they lead to.
fn routes(settings: &Settings) -> Vec<(TopicPattern, &str)> {
    let routes = settings.route.iter();
    routes
        .filter_map(|route| Some((route.topic.parse().ok()?, route.broker.as_str())))
        .collect()
}

/// The broker that takes a topic: the first route that fits names it. Without routes there is one.
fn broker_of<'a>(
    settings: &'a Settings,
    routes: &[(TopicPattern, &'a str)],
    topic: &str,
) -> Option<&'a str> {
    if settings.route.is_empty() {
        return settings.broker.keys().next().map(String::as_str);
    }
    let fits = |(pattern, _): &&(TopicPattern, &str)| pattern.matches(topic);
    routes.iter().find(fits).map(|&(_, broker)| broker)
}

fn unrouted(topic: &str) -> Finding {
    Finding {
        check: "topic",
        severity: Severity::Problem,
        what: format!("{topic} has no route"),
        why: "its messages are parked, and tried again until there is one",
        mend: "add a [[route]] for it, or one with topic = \"*\"; then restart the relay"
            .to_owned(),
    }
}

fn reachable(name: &str, answer: &str) -> Finding {
    Finding {
        check: "broker",
        severity: Severity::Fine,
        what: format!("{name}: {answer}"),
        why: "",
        mend: String::new(),
    }
}

fn unreachable(name: &str, reason: &str) -> Finding {
    Finding {
        check: "broker",
        severity: Severity::Problem,
        what: format!("{name} cannot be asked: {reason}"),
        why: "its messages wait, and nothing is counted against them; they go on by themselves when it is back",
        mend: format!(
            "start it, or correct [broker.{name}]; the network and the password are the usual reasons"
        ),
    }
}

fn of_place(broker: &str, topic: &str, place: Place) -> Finding {
    let (severity, what, why, mend) = match place {
        Place::Found(what) => (Severity::Fine, what, "", String::new()),
        Place::Missing(what) => (
            Severity::Problem,
            what,
            "its messages are parked, and tried again until it is there",
            format!(
                "make it at {broker}, then `outbox keys retry --topic {}`",
                quoted(topic)
            ),
        ),
        Place::Unknown(what) => (
            Severity::Unknown,
            what,
            "a message may find no place there, and is then parked",
            "look at the broker with its own tools".to_owned(),
        ),
    };
    Finding {
        check: "topic",
        severity,
        what: format!("{topic} at {broker}: {what}"),
        why,
        mend,
    }
}

fn document(findings: &[Finding]) -> Value {
    json!({
        "findings": findings.iter().map(|finding| json!({
            "severity": finding.severity.as_str(),
            "check": finding.check,
            "what": finding.what,
            "why": finding.why,
            "mend": finding.mend,
        })).collect::<Vec<_>>(),
    })
}

fn text(findings: &[Finding], all: bool) -> String {
    let mut text = String::new();
    let mut line = |words: std::fmt::Arguments<'_>| line(&mut text, words);
    let is_shown = |finding: &&Finding| all || finding.severity != Severity::Fine;
    let width = findings
        .iter()
        .filter(is_shown)
        .map(|finding| finding.check.len())
        .max();
    let width = width.unwrap_or_default();
    for finding in findings.iter().filter(is_shown) {
        let (severity, check) = (finding.severity, finding.check);
        line(format_args!(
            "{severity:<7}  {check:<width$}  {}",
            escaped(&finding.what)
        ));
        if severity == Severity::Fine {
            continue;
        }
        for (name, words) in [("why", finding.why), ("mend", finding.mend.as_str())] {
            for (nth, words) in words.lines().enumerate() {
                let name = if nth == 0 { name } else { "" };
                // A command among them stays as a shell takes it.
                line(format_args!(
                    "{:7}  {name:<4}  {}",
                    "",
                    escaped_lines(words)
                ));
            }
        }
    }
    let number = |severity| {
        findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count() as u64
    };
    line(format_args!(
        "{}, {}, {} unknown, {} fine{}",
        counted(number(Severity::Problem), "problem", "problems"),
        counted(number(Severity::Warning), "warning", "warnings"),
        number(Severity::Unknown),
        number(Severity::Fine),
        if all { "" } else { " (--all shows them)" },
    ));
    text
}
