//! The settings in effect as text: valid TOML, one setting a line, each with where it comes from.

use std::collections::BTreeMap;

use config::{Value, ValueKind};
use serde_json::Value as Json;

use super::{Loaded, Settings};

/// One line for each setting. Secrets are hidden by the types that hold them.
pub(crate) fn lines(
    loaded: &Loaded,
    settings: &Settings,
) -> Result<Vec<String>, serde_json::Error> {
    let mut origins = BTreeMap::new();
    for (name, value) in loaded {
        collect_origins(name.clone(), value, &mut origins);
    }
    let mut lines = Vec::new();
    collect_lines(
        String::new(),
        &serde_json::to_value(settings)?,
        &origins,
        &mut lines,
    );
    Ok(lines)
}

fn collect_origins(name: String, value: &Value, origins: &mut BTreeMap<String, String>) {
    match &value.kind {
        ValueKind::Table(table) => {
            for (key, value) in table {
                collect_origins(format!("{name}.{key}"), value, origins);
            }
        }
        ValueKind::Array(values) if value.origin().is_none() => {
            if let Some(origin) = values.first().and_then(Value::origin) {
                origins.insert(name, origin.to_owned());
            }
        }
        _ => {
            let origin = value.origin().unwrap_or("--set");
            origins.insert(name, origin.to_owned());
        }
    }
}

fn collect_lines(
    name: String,
    value: &Json,
    origins: &BTreeMap<String, String>,
    lines: &mut Vec<String>,
) {
    match value {
        Json::Object(table) => {
            for (key, value) in table {
                let below = match (name.is_empty(), name.ends_with(".properties")) {
                    (true, _) => key.clone(),
                    // A name with dots of its own.
                    (_, true) => format!("{name}.\"{key}\""),
                    (_, false) => format!("{name}.{key}"),
                };
                collect_lines(below, value, origins, lines);
            }
        }
        // Not set, and without a default.
        Json::Null => {}
        Json::Array(values) if values.is_empty() => {}
        value => {
            let origin = origins.get(&name.replace('"', ""));
            let origin = origin.map_or("default", String::as_str);
            lines.push(format!("{name} = {}  # {origin}", toml(value)));
        }
    }
}

/// JSON's scalars are TOML's too; only tables within lists differ.
fn toml(value: &Json) -> String {
    match value {
        Json::Array(values) => {
            let values: Vec<String> = values.iter().map(toml).collect();
            format!("[{}]", values.join(", "))
        }
        Json::Object(table) => {
            let entries: Vec<String> = table
                .iter()
                .map(|(key, value)| format!("{key} = {}", toml(value)))
                .collect();
            format!("{{ {} }}", entries.join(", "))
        }
        value => value.to_string(),
    }
}
