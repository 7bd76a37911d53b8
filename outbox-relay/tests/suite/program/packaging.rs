//! What is in `deploy/` and in the README fits the program.

use std::collections::BTreeSet;
use std::fs;

use crate::support::http::get;
use crate::support::place::{Ended, Place, command};
use crate::support::{repository, wait_for};

/// Asks a relay with several brokers that has delivered something.
pub(crate) async fn the_dashboard_finds_its_metrics(http: &str) {
    let page = wait_for("the gauges", async || {
        let page = get(http, "/metrics").await.1;
        page.contains("outbox_status_up 1").then_some(page)
    });
    let page = page.await;
    for asked in dashboard_metrics() {
        let there = page.contains(&format!("# TYPE {asked} "));
        assert!(there, "the dashboard asks for {asked}, not in\n{page}");
    }
}

/// The metrics that the dashboard's queries ask for, without the endings that Prometheus makes of a histogram.
fn dashboard_metrics() -> BTreeSet<String> {
    let dashboard = fs::read_to_string(repository("deploy/grafana-dashboard.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let mut names = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for word in words.filter(|word| word.starts_with("outbox_")) {
                let histogram = ["_bucket", "_sum", "_count"];
                let name = histogram
                    .iter()
                    .find_map(|ending| word.strip_suffix(ending));
                names.insert(name.unwrap_or(word).to_owned());
            }
        }
    }
    assert!(names.len() > 10, "{names:?}");
    names
}

#[tokio::test]
async fn the_example_configuration_is_valid() {
    let example = repository("deploy/outbox.toml");
    let place = Place::new();
    let shown = place
        .done(&["config", "--config", example.to_str().unwrap()])
        .await;
    assert!(shown.contains("broker.main.kind = \"kafka\""), "{shown}");
}

/// The compose file has everything in the environment.
#[tokio::test]
async fn the_settings_of_the_compose_file_are_valid() {
    let compose = fs::read_to_string(repository("deploy/compose.yaml")).unwrap();
    let settings = compose.lines().filter(|line| line.contains("OUTBOX__"));
    let settings: Vec<(&str, &str)> = settings
        .map(|line| line.trim().split_once(": ").unwrap())
        .collect();
    let shown = Place::new()
        .run_with(&["config"], &settings)
        .await
        .success();
    let set = shown
        .lines()
        .filter(|line| line.ends_with("  # the environment"));
    // `kind` chooses what the others are.
    assert_eq!(set.count(), settings.len(), "{shown}");
}

#[tokio::test]
async fn completions_and_manual_know_the_commands_whatever_is_configured() {
    let place = Place::with("this is no configuration");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = place.done(&["completions", shell]).await;
        assert!(script.contains("migrate"), "{script}");
    }
    // The shell itself takes it.
    let script = place.done(&["completions", "bash"]).await;
    place.write("completions", script.as_bytes());
    let completes = "source ./completions && complete -p outbox";
    let mut bash = command("bash");
    bash.args(["-c", completes]).current_dir(place.path(""));
    Ended::of(bash).await.success();

    let page = place.done(&["man"]).await;
    assert!(page.contains(".TH outbox 1"), "{page}");
    assert!(page.contains("Exit codes"), "{page}");
    place.run(&["man", "none"]).await.failure(1);
    fs::create_dir(place.path("man1")).unwrap();
    place.done(&["man", "man1"]).await;
    for command in ["outbox", "outbox-run", "outbox-migrate", "outbox-config"] {
        let page = place.path(&format!("man1/{command}.1"));
        assert!(page.exists(), "no page for {command}");
    }
}

/// The table of the README has each setting that there is, with its default.
#[tokio::test]
async fn the_readme_has_every_setting_with_its_default() {
    let readme = fs::read_to_string(repository("outbox-relay/README.md")).unwrap();
    let place = Place::new();
    let store = "[store]\nkind = \"postgres\"\nurl = \"postgres://h/d\"\n";
    let kinds = [
        "[store]\nkind = \"sqlite\"\npath = \"x\"\n[broker.b]\nkind = \"redis\"\nurl = \"redis://h\"\n".to_owned(),
        format!("{store}[broker.b]\nkind = \"amqp\"\nurl = \"amqp://h\"\n"),
        format!("{store}[broker.b]\nkind = \"nats\"\nurl = \"nats://h\"\n"),
        format!("{store}[broker.b]\nkind = \"kafka\"\nproperties.\"bootstrap.servers\" = \"h\"\n"),
    ];
    for kind in kinds {
        place.configure(&kind);
        let shown = place.done(&["config"]).await;
        for line in shown.lines().filter(|line| line.ends_with("  # default")) {
            let (setting, value) = line.split_once(" = ").unwrap();
            let value = value.split("  # ").next().unwrap();
            let setting = setting.replacen("broker.b.", "broker.NAME.", 1);
            let row = readme
                .lines()
                .find(|row| row.starts_with(&format!("| `{setting}` |")));
            let row = row.unwrap_or_else(|| panic!("the README has no row for {setting}"));
            assert!(
                row.contains(&format!("`{value}`")),
                "{setting} = {value} is not in {row}"
            );
        }
    }
    // What has no default is known from what the program says it would expect.
    for (kind, section) in [
        (
            format!("{store}x = 1\n[broker.b]\nkind = \"redis\"\nurl = \"redis://h\"\n"),
            "store",
        ),
        (
            "[store]\nkind = \"sqlite\"\npath = \"x\"\nx = 1\n".to_owned(),
            "store",
        ),
        (
            format!("{store}[broker.b]\nkind = \"amqp\"\nurl = \"amqp://h\"\nx = 1\n"),
            "broker.NAME",
        ),
        (
            format!("{store}[broker.b]\nkind = \"kafka\"\nx = 1\n"),
            "broker.NAME",
        ),
        (
            format!("{store}[broker.b]\nkind = \"nats\"\nurl = \"nats://h\"\nx = 1\n"),
            "broker.NAME",
        ),
        (
            format!("{store}[broker.b]\nkind = \"redis\"\nurl = \"redis://h\"\nx = 1\n"),
            "broker.NAME",
        ),
        (format!("{store}[relay]\nx = 1\n"), "relay"),
        (format!("{store}[log]\nx = 1\n"), "log"),
        (format!("{store}[http]\nx = 1\n"), "http"),
    ] {
        place.configure(&kind);
        let said = place.run(&["config"]).await.failure(2);
        let (_, expected) = said
            .split_once("expected ")
            .unwrap_or_else(|| panic!("{said}"));
        let names: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{said}");
        for name in names {
            let row = format!("| `{section}.{name}` |");
            assert!(
                readme.contains(&row),
                "the README has no row for {section}.{name}"
            );
        }
    }
}
