//! What holds of any configuration: it is refused in one line that names the setting, or it is taken, and what is
//! then shown of it may be written and is the same configuration.

use config::{Config, File, FileFormat};
use outbox_core::memory::{MemoryPublisher, MemoryStore};
use proptest::prelude::*;
use tokio::runtime::{Builder, Runtime};

use super::load::collect;
use super::*;
use crate::commands::run::build;
use crate::{broker, store};

/// Settings that fit together. What is tried replaces one of them.
const POSTGRES_TO_REDIS: &[(&str, &str)] = &[
    ("store.kind", "'postgres'"),
    ("store.url", "'postgres://user:password@127.0.0.1:1/shop'"),
    ("store.schema", "'outbox'"),
    ("store.pooler", "false"),
    ("store.listen_url", "'postgres://127.0.0.1:1/shop'"),
    ("store.lanes_per_claim", "8"),
    ("store.synchronous_settle", "true"),
    ("store.wait_until_flushed", "true"),
    ("store.keep_delivered_for", "'7days'"),
    ("broker.b.kind", "'redis'"),
    ("broker.b.url", "'redis://127.0.0.1:1'"),
    ("broker.b.cluster", "false"),
    ("broker.b.stream_prefix", "'p'"),
    ("broker.b.create_streams", "true"),
    ("broker.b.response_timeout", "'1s'"),
    ("broker.b.connect_timeout", "'1s'"),
    ("broker.b.max_message_bytes", "'1MiB'"),
    ("broker.b.trim_entries", "1000"),
    ("broker.b.wait_for_replicas", "1"),
    ("broker.b.wait_for_replicas_within", "'1s'"),
    ("route", "[{ topic = '*', broker = 'b' }]"),
    ("relay.workers", "4"),
    ("relay.batch_messages", "1000"),
    ("relay.batch_bytes", "'16MiB'"),
    ("relay.order", "'per_key'"),
    ("relay.on_dead", "'continue'"),
    ("relay.crash_limit", "3"),
    ("relay.claim_wait", "'10s'"),
    ("relay.publish_timeout", "'30s'"),
    ("relay.call_timeout", "'14s'"),
    ("relay.settle_timeout", "'10s'"),
    ("relay.store_timeout", "'10s'"),
    ("relay.backoff_first", "'200ms'"),
    ("relay.backoff_longest", "'10s'"),
    ("relay.retry_first", "'1s'"),
    ("relay.retry_longest", "'5m'"),
    ("relay.max_failures", "20"),
    ("relay.shutdown_grace", "'15s'"),
    ("log.level", "'info'"),
    ("log.format", "'auto'"),
    ("http.listen", "'127.0.0.1:9464'"),
];

const SQLITE_TO_AMQP: &[(&str, &str)] = &[
    ("store.kind", "'sqlite'"),
    ("store.path", "'outbox.db'"),
    ("store.prefix", "'outbox_'"),
    ("broker.b.kind", "'amqp'"),
    ("broker.b.url", "'amqp://127.0.0.1:1'"),
    ("broker.b.routing", "'exchange'"),
    ("broker.b.exchange", "'e'"),
    ("broker.b.connect_timeout", "'1s'"),
    ("broker.b.confirm_timeout", "'1s'"),
];

fn quoted(text: &str) -> String {
    serde_json::Value::from(text)
        .to_string()
        .replace('\u{7f}', "\\u007f")
}

/// Any value as TOML, often one that is nearly right.
fn values() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        Just(0),
        Just(u64::MAX),
        Just(i64::MAX as u64),
        0..2_000u64,
        any::<u64>()
    ];
    let units = [
        "", "ns", "ms", "s", "m", "h", "days", "years", "B", "KB", "MiB", "GiB", "EiB",
    ];
    let words = [
        "",
        "true",
        "off",
        "per_key",
        "halt_key",
        "json",
        "redis",
        "kafka",
        "sqlite",
        "info",
        "127.0.0.1:1",
        "nats://127.0.0.1:1",
        "redis://u:p@h",
        "unix:///x",
        "***",
        "*",
        "1.5",
        "-1",
        "0x1F",
        "30 s",
        "1h 30m",
    ];
    let scalar = prop_oneof![
        4 => ".{0,12}".prop_map(|text| quoted(&text)),
        4 => prop::sample::select(words.to_vec()).prop_map(quoted),
        6 => (number, prop::sample::select(units.to_vec())).prop_map(|(number, unit)| format!("'{number}{unit}'")),
        3 => any::<i64>().prop_map(|number| number.to_string()),
        3 => (-2..2_000i64).prop_map(|number| number.to_string()),
        1 => any::<f64>().prop_map(|number| format!("{number:?}").replace("NaN", "nan")),
        1 => any::<bool>().prop_map(|value| value.to_string()),
        1 => Just("1979-05-27T07:32:00Z".to_owned()),
    ];
    scalar.prop_recursive(2, 6, 3, |value| {
        let list = prop::collection::vec(value.clone(), 0..3);
        let table = prop::collection::btree_map("[a-z.\"\u{7f} ]{0,4}", value, 0..3);
        prop_oneof![
            list.prop_map(|values| format!("[{}]", values.join(", "))),
            table.prop_map(|table| {
                let entries: Vec<String> = table
                    .iter()
                    .map(|(key, value)| format!("{} = {value}", quoted(key)))
                    .collect();
                format!("{{ {} }}", entries.join(", "))
            }),
        ]
    })
}

fn written(settings: &[(&str, &str)]) -> String {
    let lines: Vec<String> = settings
        .iter()
        .map(|(key, value)| format!("{key} = {value}\n"))
        .collect();
    lines.concat()
}

/// One setting with any value, among others that are right.
fn one_setting() -> impl Strategy<Value = (&'static str, String)> {
    let all = [POSTGRES_TO_REDIS, SQLITE_TO_AMQP];
    let places: Vec<(usize, usize)> = (0..all.len())
        .flat_map(|table| (0..all[table].len()).map(move |row| (table, row)))
        .collect();
    (prop::sample::select(places), values()).prop_map(move |((table, row), value)| {
        let mut settings = all[table].to_vec();
        let key = settings[row].0;
        settings[row].1 = &value;
        (key, written(&settings))
    })
}

/// A configuration in which something was cut out or put in anywhere.
fn damaged() -> impl Strategy<Value = String> {
    let whole = written(POSTGRES_TO_REDIS);
    let put_in = prop_oneof![".{0,5}", r#"[\[\]{}"'\\=#.,a1\n-]{0,5}"#];
    (0..whole.len(), 0..40usize, put_in).prop_map(move |(at, length, put_in)| {
        let rest = &whole[(at + length).min(whole.len())..];
        format!("{}{put_in}{rest}", &whole[..at])
    })
}

fn read(text: &str) -> Result<(Loaded, Settings), InvalidSettings> {
    let loaded = collect(Config::builder().add_source(File::from_str(text, FileFormat::Toml)))?;
    let settings = Settings::of(&loaded)?;
    Ok((loaded, settings))
}

/// What `outbox config` shows, without where each setting comes from.
fn shown((loaded, settings): &(Loaded, Settings)) -> Vec<String> {
    let lines = lines(loaded, settings).unwrap();
    let without_origin = lines
        .iter()
        .map(|line| line.rsplit_once("  # ").unwrap().0.to_owned());
    without_origin.collect()
}

/// What `outbox run` refuses before it connects to anything. Clients that begin to connect when they are opened
/// are left out.
fn open(runtime: &Runtime, settings: &Settings) -> Result<(), InvalidSettings> {
    build(&settings.relay, MemoryStore::new(), MemoryPublisher::new())?;
    runtime.block_on(async {
        store::Store::open(&settings.store)?;
        for (name, settings) in &settings.broker {
            if matches!(settings, Broker::Amqp(_) | Broker::Redis(_)) {
                broker::open(name, settings).await?;
            }
        }
        Ok(())
    })
}

fn is_one_line(error: &InvalidSettings) -> bool {
    let said = error.to_string();
    let reason = said.strip_prefix("configuration: ").unwrap_or_default();
    !reason.is_empty() && !said.contains(char::is_control)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn any_value_of_any_setting_is_taken_or_refused_by_its_name((key, text) in one_setting()) {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        match read(&text) {
            Ok(settings) => {
                let shown = shown(&settings);
                let again = read(&shown.join("\n")).map(|settings| super::properties::shown(&settings));
                prop_assert_eq!(again.map_err(|error| error.to_string()), Ok(shown));
                if let Err(error) = open(&runtime, &settings.1) {
                    // A limit may depend on another setting of the section, which is then named.
                    let section = key.rsplit_once('.').map_or(key, |(section, _)| section);
                    prop_assert!(error.to_string().starts_with(&format!("configuration: {section}")), "{}", error);
                    prop_assert!(is_one_line(&error), "{}", error);
                }
            }
            Err(error) => {
                prop_assert!(error.to_string().contains(key), "{} is not named: {}", key, error);
                prop_assert!(is_one_line(&error), "{:?}", error.to_string());
            }
        }
    }

    #[test]
    fn any_text_is_taken_or_refused_in_one_line(text in prop_oneof![4 => damaged(), 1 => "(?s).{0,60}"]) {
        if let Err(error) = read(&text) {
            prop_assert!(is_one_line(&error), "{:?}", error.to_string());
        }
    }

    #[test]
    fn names_of_brokers_and_properties_are_shown_as_they_may_be_written(
        broker in ".{0,6}",
        properties in prop::collection::btree_map("[a-z.\"\\\\ \u{7f}ü]{1,6}", ".{0,6}", 1..4),
    ) {
        let section = format!("broker.{}", quoted(&broker));
        let mut text = format!("[store]\nkind = 'sqlite'\npath = 'x'\n[{section}]\nkind = 'kafka'\n");
        text += &format!("[{section}.properties]\n");
        for (name, value) in &properties {
            text += &format!("{} = {}\n", quoted(name), quoted(value));
        }
        let settings = read(&text).unwrap();
        let again = read(&shown(&settings).join("\n")).unwrap();
        prop_assert_eq!(shown(&again), shown(&settings));
        prop_assert!(again.1.broker.contains_key(&broker));
    }
}
