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
    let settings = serde_json::to_value(settings)?;
    collect_lines(Name::default(), &settings, &origins, &mut lines);
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

/// The name of a setting.
#[derive(Default)]
struct Name {
    /// Its parts with dots between them.
    plain: String,
    /// The same as TOML.
    toml: String,
}

impl Name {
    fn below(&self, part: &str) -> Self {
        // The names of a client's properties have dots of their own.
        let is_bare = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
        let bare = !part.is_empty() && part.chars().all(is_bare);
        let quoted = match bare && !self.plain.ends_with(".properties") {
            true => part.to_owned(),
            false => text(part),
        };
        match self.plain.is_empty() {
            true => Self {
                plain: part.to_owned(),
                toml: quoted,
            },
            false => Self {
                plain: format!("{}.{part}", self.plain),
                toml: format!("{}.{quoted}", self.toml),
            },
        }
    }
}

fn collect_lines(
    name: Name,
    value: &Json,
    origins: &BTreeMap<String, String>,
    lines: &mut Vec<String>,
) {
    match value {
        Json::Object(table) => {
            for (key, value) in table {
                collect_lines(name.below(key), value, origins, lines);
            }
        }
        // Not set, and without a default.
        Json::Null => {}
        Json::Array(values) if values.is_empty() => {}
        value => {
            let origin = origins.get(&name.plain);
            let origin = origin.map_or("default", String::as_str);
            lines.push(format!("{} = {}  # {origin}", name.toml, toml(value)));
        }
    }
}

/// JSON's scalars are TOML's too, but for a few.
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
        Json::String(value) => text(value),
        // TOML's whole numbers end earlier; as text it is taken too.
        Json::Number(number) if number.as_i64().is_none() => text(&number.to_string()),
        value => value.to_string(),
    }
}

/// A string. JSON leaves one control character as it is that TOML does not allow.
fn text(value: &str) -> String {
    Json::from(value).to_string().replace('\u{7f}', "\\u007f")
}
