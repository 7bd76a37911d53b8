//! What the files of the repository must look like.

use std::{collections::BTreeSet, process::Command};

use outbox_tidy::{
    cargo, documents, evidence,
    files::{self, File},
    keep, mutants, rules,
};

fn keep_everywhere(rule: &str, broken: impl Fn(&File) -> Vec<String>) {
    keep(
        rule,
        &files::all().iter().flat_map(broken).collect::<Vec<_>>(),
    );
}

#[test]
fn nothing_is_left_unfinished() {
    keep_everywhere(
        "Finish it, or open an issue; a test that cannot pass is no test:",
        rules::unfinished,
    );
}

#[test]
fn tests_wait_for_what_they_need() {
    keep_everywhere(
        "A fixed sleep is too short on a busy machine and too long on every other. Poll for the event with a bound, and mark the sleep of the polling loop with `// wait: …`:",
        rules::sleeps,
    );
}

#[test]
fn no_path_of_a_developers_machine() {
    keep_everywhere(
        "A path that exists on one machine only:",
        rules::machine_paths,
    );
}

#[test]
fn every_statement_says_why() {
    keep_everywhere(
        "A .sql file begins with a comment that says why it is so:",
        rules::bare_statement,
    );
}

#[test]
fn documents_show_code_that_is_checked() {
    let files = files::all();
    let crates: Vec<String> = cargo::members().into_iter().map(|it| it.name).collect();
    let broken: Vec<String> = files
        .iter()
        .flat_map(|document| documents::strange_blocks(document, &files, &crates))
        .collect();
    keep(
        "Every block of a document is checked somewhere, and the line that opens it says where (tests/tidy/src/documents.rs has the ways):",
        &broken,
    );
}

#[test]
fn links_lead_somewhere() {
    let files = files::all();
    let broken: Vec<String> = files
        .iter()
        .flat_map(|document| documents::strange_links(document, &files))
        .collect();
    keep(
        "A link leads to a file, a heading or a test that is there:",
        &broken,
    );
}

#[test]
fn the_map_leads_to_every_document() {
    let files = files::all();
    let map = "docs/README.md";
    let text = &files.iter().find(|file| file.path == map).expect(map).text;
    let reached: BTreeSet<String> = text
        .lines()
        .flat_map(documents::links)
        .map(|(_, target)| target.split('#').next().unwrap_or_default())
        .map(|target| documents::resolved(map, target))
        .collect();
    let missing: Vec<String> = files
        .iter()
        .filter(|file| file.is("md") && file.path.matches('/').count() <= 1)
        .map(|file| file.path.clone())
        .filter(|path| !reached.contains(path) && path != map)
        .collect();
    keep(
        "docs/README.md says who reads which document, so it leads to each of them:",
        &missing,
    );
}

#[test]
fn every_failure_case_names_the_tests_that_show_it() {
    let files = files::all();
    let document = files
        .iter()
        .find(|file| file.path == "docs/failures.md")
        .expect("docs/failures.md");
    keep(
        "docs/failures.md has the cases 1 to 54 once each, in order, and names tests for each:",
        &evidence::strange_rows(document, 1..=54),
    );
}

#[test]
fn every_mutant_has_its_place() {
    let files = files::all();
    let file = |path: &str| files.iter().find(|file| file.path == path).expect(path);
    keep(
        "A line that tests/tidy/mutants.list takes out is there once, and docs/failures.md has the list's cases:",
        &mutants::strange(&file(mutants::LIST).text, file("docs/failures.md"), &files),
    );
}

#[test]
fn every_crate_is_a_member_and_inherits() {
    let members: BTreeSet<String> = cargo::members()
        .into_iter()
        .map(|it| format!("{}/Cargo.toml", it.folder))
        .collect();
    let mut broken = Vec::new();
    for file in files::all() {
        if file.path.ends_with("/Cargo.toml") {
            if !members.contains(&file.path) {
                broken.push(format!("{} is not a member of the workspace", file.path));
            }
            broken.extend(rules::not_inherited(&file));
        }
    }
    keep("All crates share version, edition and lints:", &broken);
}

#[test]
fn who_knows_one_broker_knows_all() {
    let expected = [
        "README.md",
        "config.rs",
        "encode.rs",
        "error.rs",
        "lib.rs",
        "publisher.rs",
    ];
    let files = files::all();
    let mut broken = Vec::new();
    for broker in ["outbox-kafka", "outbox-amqp", "outbox-nats", "outbox-redis"] {
        let found: BTreeSet<&str> = files
            .iter()
            .filter_map(|file| file.path.strip_prefix(broker)?.strip_prefix('/'))
            .filter_map(|path| {
                path.strip_prefix("src/")
                    .or((path == "README.md").then_some(path))
            })
            // A publisher may have parts.
            .filter(|path| !path.starts_with("publisher/"))
            .collect();
        if !found.is_empty() && found != BTreeSet::from(expected) {
            broken.push(format!("{broker}: {found:?}"));
        }
    }
    keep(
        &format!("A broker's crate has README.md and in src/ the same files, {expected:?}:"),
        &broken,
    );
}

#[test]
fn the_architecture_can_be_read_in_one_sitting() {
    let too_long: Vec<String> = files::all()
        .iter()
        .filter(|file| file.path == "ARCHITECTURE.md")
        .map(|file| file.text.lines().count())
        .filter(|lines| *lines > 250)
        .map(|lines| format!("{lines} lines"))
        .collect();
    keep(
        "ARCHITECTURE.md has at most 250 lines; what changes often belongs in the code:",
        &too_long,
    );
}

#[test]
fn scripts_parse() {
    let mut broken = Vec::new();
    for file in files::all()
        .iter()
        .filter(|file| file.text.starts_with("#!/usr/bin/env bash") || file.is("sh"))
    {
        let output = Command::new("bash")
            .args(["-n", &file.path])
            .current_dir(files::root())
            .output()
            .expect("bash");
        if !output.status.success() {
            broken.push(String::from_utf8_lossy(&output.stderr).into_owned());
        }
    }
    keep("bash does not understand:", &broken);
}
