//! Reads file, environment and flags, the later ones winning, and says in one line what is wrong.

use std::collections::HashMap;
use std::env;
use std::path::Path;

use config::builder::DefaultState;
use config::{
    Config, ConfigBuilder, ConfigError, Environment, File, FileFormat, Map, Source as _, Value,
};
use outbox_core::InvalidConfig;
use serde::de::DeserializeOwned;

use super::{Broker, Route, Settings, Store};
use crate::cli::Sources;

/// The file that is read where none is named.
const FILE: &str = "outbox.toml";
/// Two underscores, so that a variable that something else makes of the name `outbox`, such as
/// Kubernetes' `OUTBOX_PORT`, is no setting.
const PREFIX: &str = "OUTBOX__";
const SECTIONS: [&str; 6] = ["store", "broker", "route", "relay", "log", "http"];

/// What the sources say together, not yet checked.
pub(crate) type Loaded = Map<String, Value>;

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("configuration: {0}")]
pub(crate) struct InvalidSettings(String);

impl InvalidSettings {
    /// Says which setting it is, as in `relay.workers`, and what is wrong with it, without secrets.
    pub(crate) fn new(setting: impl AsRef<str>, reason: impl std::fmt::Display) -> Self {
        Self(format!("{}: {reason}", setting.as_ref()))
    }

    /// What a relay, its retry policy or a router refuses, under the name that it has here.
    pub(crate) fn of_core(error: &InvalidConfig) -> Self {
        let setting = match error.field() {
            "route" => "route",
            "broker" => "broker",
            "stop_grace" => "relay.shutdown_grace",
            "ExponentialBackoff::first" => "relay.retry_first",
            "ExponentialBackoff::longest" => "relay.retry_longest",
            field => {
                let name = field.rsplit("::").next().unwrap_or(field);
                return Self::new(format!("relay.{name}"), error);
            }
        };
        Self::new(setting, error)
    }
}

/// Reads all sources. Values are checked by [`Settings::of`].
pub(crate) fn load(sources: &Sources) -> Result<Loaded, InvalidSettings> {
    let mut builder = Config::builder();
    let file = match &sources.config {
        Some(file) => Some(file.as_path()),
        None => Some(Path::new(FILE)).filter(|file| file.exists()),
    };
    if let Some(file) = file {
        builder = builder.add_source(File::from(file).format(FileFormat::Toml));
    }
    let environment = Environment::with_prefix("OUTBOX")
        .prefix_separator("__")
        .separator("__")
        .source(Some(variables()?));
    builder = builder.add_source(environment);
    for flag in &sources.set {
        let Some((setting, value)) = flag.split_once('=') else {
            return Err(InvalidSettings::new(
                "--set",
                "it wants SETTING=VALUE, as in relay.workers=8",
            ));
        };
        builder = builder
            .set_override(setting, Value::new(Some(&"--set".to_owned()), value))
            .map_err(|_| InvalidSettings::new("--set", format!("{setting:?} is no setting")))?;
    }
    collect(builder)
}

/// What the sources say together, in sections that there are.
pub(super) fn collect(builder: ConfigBuilder<DefaultState>) -> Result<Loaded, InvalidSettings> {
    let loaded = builder.build().and_then(|config| config.collect());
    let loaded = loaded.map_err(|error| InvalidSettings(explain(&error)))?;
    match loaded.keys().find(|key| !SECTIONS.contains(&key.as_str())) {
        Some(unknown) => Err(InvalidSettings::new(
            unknown,
            format!("unknown field, expected one of {}", SECTIONS.join(", ")),
        )),
        None => Ok(loaded),
    }
}

/// The environment's settings. One that was meant for one and is written otherwise is refused, since it
/// would silently do nothing.
fn variables() -> Result<HashMap<String, String>, InvalidSettings> {
    let mut settings = HashMap::new();
    for (name, value) in env::vars_os() {
        let Ok(name) = name.into_string() else {
            continue;
        };
        if name.starts_with(PREFIX) {
            let value = value
                .into_string()
                .map_err(|_| InvalidSettings::new(&name, "the value is not UTF-8"))?;
            settings.insert(name, value);
        } else if let Some(rest) = name.strip_prefix("OUTBOX_") {
            let section = rest.split('_').next().unwrap_or_default().to_lowercase();
            if rest.contains('_') && SECTIONS.contains(&section.as_str()) {
                return Err(InvalidSettings::new(
                    &name,
                    "settings have two underscores between their parts, as in OUTBOX__RELAY__WORKERS",
                ));
            }
        }
    }
    Ok(settings)
}

impl Settings {
    /// Checks names and types of everything that was loaded.
    pub(crate) fn of(loaded: &Loaded) -> Result<Self, InvalidSettings> {
        let mut broker = std::collections::BTreeMap::new();
        for (name, value) in table(loaded, "broker")? {
            let section = format!("broker.{name}");
            broker.insert(name, Broker::of(&section, value)?);
        }
        let route: Vec<Route> = match loaded.get("route") {
            Some(routes) => typed("route", routes.clone())?,
            None => Vec::new(),
        };
        let Some(store) = loaded.get("store") else {
            return Err(InvalidSettings::new(
                "store",
                "missing: set `store.kind` to \"postgres\" or \"sqlite\"",
            ));
        };
        Ok(Self {
            store: Store::of(store.clone())?,
            broker,
            route,
            relay: section(loaded, "relay")?,
            log: section(loaded, "log")?,
            http: section(loaded, "http")?,
        })
    }
}

impl Store {
    fn of(value: Value) -> Result<Self, InvalidSettings> {
        let (kind, rest) = kind("store", value, "\"postgres\" or \"sqlite\"")?;
        match kind.as_str() {
            "postgres" => typed("store", rest).map(Self::Postgres),
            "sqlite" => typed("store", rest).map(Self::Sqlite),
            _ => Err(InvalidSettings::new(
                "store.kind",
                format!("{kind:?} is none, there is \"postgres\" and \"sqlite\""),
            )),
        }
    }
}

impl Broker {
    fn of(section: &str, value: Value) -> Result<Self, InvalidSettings> {
        const KINDS: &str = "\"amqp\", \"kafka\", \"nats\" or \"redis\"";
        let (kind, rest) = kind(section, value, KINDS)?;
        match kind.as_str() {
            "amqp" => typed(section, rest).map(Self::Amqp),
            "kafka" => typed(section, rest).map(Self::Kafka),
            "nats" => typed(section, rest).map(Self::Nats),
            "redis" => typed(section, rest).map(Self::Redis),
            _ => Err(InvalidSettings::new(
                format!("{section}.kind"),
                format!("{kind:?} is none, set it to {KINDS}"),
            )),
        }
    }
}

/// Takes the kind out of a section.
fn kind(section: &str, value: Value, kinds: &str) -> Result<(String, Value), InvalidSettings> {
    let mut table = value
        .into_table()
        .map_err(|_| InvalidSettings::new(section, "it is no table"))?;
    let Some(kind) = table.remove("kind") else {
        return Err(InvalidSettings::new(
            format!("{section}.kind"),
            format!("missing, set it to {kinds}"),
        ));
    };
    let kind = kind
        .into_string()
        .map_err(|_| InvalidSettings::new(format!("{section}.kind"), "it is no string"))?;
    Ok((kind, table.into()))
}

fn table(loaded: &Loaded, section: &str) -> Result<Map<String, Value>, InvalidSettings> {
    match loaded.get(section) {
        Some(value) => value
            .clone()
            .into_table()
            .map_err(|_| InvalidSettings::new(section, "it is no table")),
        None => Ok(Map::new()),
    }
}

fn section<T: DeserializeOwned>(loaded: &Loaded, section: &str) -> Result<T, InvalidSettings> {
    typed(section, table(loaded, section)?.into())
}

fn typed<T: DeserializeOwned>(section: &str, value: Value) -> Result<T, InvalidSettings> {
    value.try_deserialize().map_err(|error| {
        let explained = explain(&error);
        let (key, reason) = match &error {
            ConfigError::Type { key: Some(key), .. } | ConfigError::At { key: Some(key), .. } => {
                (format!("{section}.{key}"), explained)
            }
            ConfigError::NotFound(key) => (format!("{section}.{key}"), "missing".to_owned()),
            _ => (section.to_owned(), explained),
        };
        InvalidSettings::new(key, reason)
    })
}

/// The error in one line, without the lines of the file that TOML's errors quote: they may hold a secret.
fn explain(error: &ConfigError) -> String {
    match error {
        ConfigError::FileParse { uri, cause } => {
            let text = cause.to_string();
            let said: Vec<&str> = text.lines().filter(|line| !line.contains('|')).collect();
            let file = uri.as_deref().unwrap_or(FILE);
            format!("{file}: {}", said.join(": "))
        }
        ConfigError::At { error, origin, .. } => match origin {
            Some(origin) => format!("{} ({origin})", explain(error)),
            None => explain(error),
        },
        ConfigError::Type {
            origin, expected, ..
        } => match origin {
            // Not what was found there, which may be a secret in the wrong place.
            Some(origin) => format!("it must be {expected} ({origin})"),
            None => format!("it must be {expected}"),
        },
        error => error.to_string(),
    }
}
