//! Durations, sizes, and values that hold secrets: how they are written, and how they are shown.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Stands for what is not shown.
const HIDDEN: &str = "***";

/// A duration, written as in `30s`, `250ms` or `1h 30m`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl Span {
    pub(crate) const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_duration(&text).map(Self).map_err(|error| {
            D::Error::custom(format!(
                "{text:?} is no duration such as `30s` or `250ms`: {error}"
            ))
        })
    }
}

/// A number of bytes, written as in `16MiB`, `1MB` or `1000`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(usize, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        // Exact, so that what is shown may be written.
        match UNITS
            .iter()
            .find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit))
        {
            Some((unit, name)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Debug for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes: Result<bytesize::ByteSize, _> = text.parse();
        bytes
            .ok()
            .and_then(|bytes| usize::try_from(bytes.as_u64()).ok())
            .map(Self)
            .ok_or_else(|| D::Error::custom(format!("{text:?} is no size such as `16MiB`")))
    }
}

/// A password or a token: never shown.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(String);

impl Secret {
    /// The secret itself, for the client that needs it.
    #[cfg_attr(not(feature = "nats"), expect(dead_code))]
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}

/// A URL, or several with commas between them; what in it may be secret is not shown.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub(crate) struct Address(String);

impl Address {
    /// The whole of it, for the client that connects.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, url) in self.0.split(',').enumerate() {
            if nth > 0 {
                f.write_str(",")?;
            }
            f.write_str(&without_secrets(url))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Scheme, user, host and path stay. A user without a password may be a token, and a parameter may be a
/// password, so their values go.
fn without_secrets(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        // Whatever it is, it is no URL, and may be a password in the wrong place.
        return HIDDEN.to_owned();
    };
    // The last @ counts: a password may hold one that should have been encoded, and / and ? as well.
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) => (Some(user), rest),
        None => (None, rest),
    };
    let user = match user.map(|user| user.split_once(':')) {
        Some(Some((name, _))) => format!("{name}:{HIDDEN}@"),
        Some(None) => format!("{HIDDEN}@"),
        None => String::new(),
    };
    let (place, query) = match rest.split_once('?') {
        Some((place, _)) => (place, format!("?{HIDDEN}")),
        None => (rest, String::new()),
    };
    format!("{scheme}://{user}{place}{query}")
}

/// The properties of a client, by its own names. Nested tables are names with dots, so that
/// `sasl.password` can be written with and without quotes, and set by the environment.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Properties(BTreeMap<String, String>);

impl Properties {
    /// All of them with their values, for the client.
    #[cfg_attr(not(feature = "kafka"), expect(dead_code))]
    pub(crate) fn expose(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    fn shown(&self) -> impl Iterator<Item = (&str, &str)> {
        const SECRET: [&str; 8] = [
            "password",
            "secret",
            "token",
            "pem",
            "key",
            "jaas",
            "oauthbearer",
            "config",
        ];
        self.0.iter().map(|(name, value)| {
            let secret = SECRET.iter().any(|word| name.contains(word));
            (name.as_str(), if secret { HIDDEN } else { value.as_str() })
        })
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.shown()).finish()
    }
}

impl Serialize for Properties {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.shown())
    }
}

impl<'de> Deserialize<'de> for Properties {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut flat = BTreeMap::new();
        let table = BTreeMap::<String, Property>::deserialize(deserializer)?;
        flatten(String::new(), table, &mut flat).map_err(D::Error::custom)?;
        Ok(Self(flat))
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Property {
    Table(BTreeMap<String, Property>),
    Text(String),
    Boolean(bool),
    Whole(i64),
    Number(f64),
}

fn flatten(
    above: String,
    table: BTreeMap<String, Property>,
    flat: &mut BTreeMap<String, String>,
) -> Result<(), String> {
    for (name, property) in table {
        let name = if above.is_empty() {
            name
        } else {
            format!("{above}.{name}")
        };
        let value = match property {
            Property::Table(table) => {
                flatten(name, table, flat)?;
                continue;
            }
            Property::Text(text) => text,
            Property::Boolean(value) => value.to_string(),
            Property::Whole(value) => value.to_string(),
            Property::Number(value) => value.to_string(),
        };
        if flat.insert(name.clone(), value).is_some() {
            return Err(format!(
                "`{name}` is given twice, with and without quotes: write it in one way"
            ));
        }
    }
    Ok(())
}
