//! Messages as CloudEvents 1.0, for consumers that expect them.
//!
//! An encoding like any other: a [`CloudEvent`] ends a [`MessageBuilder`]. In *structured* mode the event is
//! the payload, as JSON, and any broker carries it. In *binary* mode the data is the payload and each attribute
//! a header, whose name depends on the broker ([`Binding`]).
//!
//! By the specification's versions 1.0.2: core, JSON format, and the bindings of Kafka, AMQP and HTTP; the
//! binary mode of NATS by its binding 1.0.3-wip, since 1.0.2 has none. It writes events and reads none.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Serialize;
use uuid::Uuid;

use crate::{InvalidMessage, Message, MessageBuilder};

/// The content type of an event in structured mode.
pub const STRUCTURED_CONTENT_TYPE: &str = "application/cloudevents+json; charset=UTF-8";

const CONTENT_TYPE: &str = "content-type";

/// What no extension can be called: the attributes of the specification, and the member `data` of its JSON.
const RESERVED: [&str; 9] = [
    "data",
    "datacontenttype",
    "dataschema",
    "id",
    "source",
    "specversion",
    "subject",
    "time",
    "type",
];

/// An event in the making.
///
/// ```
/// use outbox_core::Message;
/// use outbox_core::cloudevents::{Binding, CloudEvent};
///
/// # #[derive(serde::Serialize)] struct Order { id: u64 }
/// # let order = Order { id: 7 };
/// let event = CloudEvent::new("/shop/orders", "com.example.order.placed").subject("7").json(&order);
/// let message = event.clone().structured(Message::to("orders.placed").key(7))?;
/// assert_eq!(
///     message.headers().get("content-type"),
///     Some("application/cloudevents+json; charset=UTF-8")
/// );
/// let message = event.binary(Binding::Kafka, Message::to("orders.placed").key(7))?;
/// assert_eq!(message.headers().get("ce_id"), Some(message.id().to_string().as_str()));
/// # Ok::<(), outbox_core::InvalidMessage>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "an event is a message only when `structured` or `binary` ends it"]
pub struct CloudEvent {
    id: Option<String>,
    /// Of the specification, without `id`, `specversion`, `time` and `datacontenttype`.
    attributes: Vec<(String, Attribute)>,
    extensions: Vec<(String, Attribute)>,
    content_type: Option<String>,
    data: Result<Option<Data>, InvalidMessage>,
    time: Option<SystemTime>,
}

/// The value of an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// Text.
    Text(String),
    /// A number.
    Integer(i32),
    /// True or false.
    Boolean(bool),
}

/// Where the attributes of an event in binary mode are, which depends on the broker. Redis Streams have no
/// binding: use the structured mode there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Headers `ce_…` and `content-type` (Kafka protocol binding 1.0.2, section 3.2).
    Kafka,
    /// Headers `cloudEvents:…` and `content-type`, of which `outbox-amqp` makes the property of that name too
    /// (AMQP protocol binding 1.0.2, section 3.1).
    Amqp,
    /// Headers `ce-…`, the content type among them (NATS protocol binding 1.0.3-wip, section 3.1).
    Nats,
    /// Headers `ce-…` and `content-type` (HTTP protocol binding 1.0.2, section 3.1).
    Http,
}

#[derive(Clone, Debug)]
enum Data {
    Json(Vec<u8>),
    Text(String),
    Bytes(Bytes),
}

impl CloudEvent {
    /// An event of a type, in words of its producer such as `com.example.order.placed`, from a source, which
    /// is a reference to where it happened, such as `/shop/orders`.
    pub fn new(source: impl Into<String>, event_type: impl Into<String>) -> Self {
        Self {
            id: None,
            attributes: vec![
                ("type".to_owned(), Attribute::Text(event_type.into())),
                ("source".to_owned(), Attribute::Text(source.into())),
            ],
            extensions: Vec::new(),
            content_type: None,
            data: Ok(None),
            time: None,
        }
    }

    /// Gives the event an id of its own. Without it that is the message id, which the inbox goes by.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// What the event is about, within its source.
    pub fn subject(self, subject: impl Into<String>) -> Self {
        self.with("subject", Attribute::Text(subject.into()))
    }

    /// When it happened.
    pub fn time(mut self, time: SystemTime) -> Self {
        self.time = Some(time);
        self
    }

    /// The address of the schema that the data follows.
    pub fn data_schema(self, uri: impl Into<String>) -> Self {
        self.with("dataschema", Attribute::Text(uri.into()))
    }

    /// Adds an extension, whose name is of lower-case letters and digits and none of the specification's own.
    pub fn extension(mut self, name: impl Into<String>, value: impl Into<Attribute>) -> Self {
        self.extensions.push((name.into(), value.into()));
        self
    }

    /// The data, as JSON.
    pub fn json<T: Serialize + ?Sized>(self, data: &T) -> Self {
        let written = serde_json::to_vec(data).map_err(|error| InvalidMessage::Json {
            reason: error.to_string(),
        });
        self.data("application/json".to_owned(), written.map(Data::Json))
    }

    /// The data, a text of some content type that is not JSON: a structured event holds it as a string, which
    /// for a JSON content type would be other data than the text.
    pub fn text(self, content_type: impl Into<String>, data: impl Into<String>) -> Self {
        self.data(content_type.into(), Ok(Data::Text(data.into())))
    }

    /// The data, bytes of some content type.
    pub fn bytes(self, content_type: impl Into<String>, data: impl Into<Bytes>) -> Self {
        self.data(content_type.into(), Ok(Data::Bytes(data.into())))
    }

    /// Ends a message with the event as its payload, in JSON, and its content type as a header.
    ///
    /// # Errors
    ///
    /// [`InvalidMessage`]: an attribute that an event cannot have, or a limit of messages that is broken.
    pub fn structured(self, mut message: MessageBuilder) -> Result<Message, InvalidMessage> {
        let attributes = self.checked(&mut message)?;
        let mut json = Vec::from(*b"{");
        let mut member = |name: &str, value: &[u8]| {
            if json.len() > 1 {
                json.push(b',');
            }
            json.extend_from_slice(quoted(name).as_bytes());
            json.push(b':');
            json.extend_from_slice(value);
        };
        for (name, value) in &attributes {
            member(name, value.as_json().as_bytes());
        }
        match self.data? {
            None => {}
            // As it was written: a number or a text of the data is not touched.
            Some(Data::Json(data)) => member("data", &data),
            Some(Data::Text(data)) => member("data", quoted(&data).as_bytes()),
            Some(Data::Bytes(data)) => member("data_base64", quoted(&base64(&data)).as_bytes()),
        }
        json.push(b'}');
        message
            .header(CONTENT_TYPE, STRUCTURED_CONTENT_TYPE)
            .bytes(json)
    }

    /// Ends a message with the data as its payload, absent where there is none, and the attributes as headers.
    ///
    /// # Errors
    ///
    /// [`InvalidMessage`]: an attribute that an event cannot have, or a limit of messages that is broken.
    pub fn binary(
        self,
        binding: Binding,
        mut message: MessageBuilder,
    ) -> Result<Message, InvalidMessage> {
        for (name, value) in self.checked(&mut message)? {
            let header = binding.header(&name);
            // HTTP's own header is the attribute as it is; `ce-` begins those that the binding made.
            let value = match header == CONTENT_TYPE {
                true => value.into_text(),
                false => binding.value(value.into_text()),
            };
            message = message.header(header, value);
        }
        match self.data? {
            None => message.tombstone(),
            Some(Data::Json(data)) => message.bytes(data),
            Some(Data::Text(data)) => message.bytes(data),
            Some(Data::Bytes(data)) => message.bytes(data),
        }
    }

    fn with(mut self, name: impl Into<String>, value: Attribute) -> Self {
        self.attributes.push((name.into(), value));
        self
    }

    fn data(mut self, content_type: String, data: Result<Data, InvalidMessage>) -> Self {
        self.content_type = Some(content_type);
        self.data = data.map(Some);
        self
    }

    /// All attributes, which an event may have.
    fn checked(
        &self,
        message: &mut MessageBuilder,
    ) -> Result<Vec<(String, Attribute)>, InvalidMessage> {
        let message_id = message.id_or_new();
        let id = self.id.clone().unwrap_or_else(|| message_id.to_string());
        let mut all = vec![
            ("specversion".to_owned(), Attribute::Text("1.0".to_owned())),
            ("id".to_owned(), Attribute::Text(id)),
        ];
        all.extend(self.attributes.iter().cloned());
        if let Some(time) = self.time {
            let time =
                rfc3339(time).ok_or_else(|| refused("time", "is not of a year of four digits"))?;
            all.push(("time".to_owned(), Attribute::Text(time)));
        }
        if let Some(content_type) = &self.content_type {
            let content_type = Attribute::Text(content_type.clone());
            all.push(("datacontenttype".to_owned(), content_type));
        }
        let own = all.len();
        all.extend(self.extensions.iter().cloned());
        for (nth, (name, value)) in all.iter().enumerate() {
            if name.is_empty()
                || !name
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
            {
                return Err(refused(name, "is not of lower-case letters and digits"));
            }
            if nth >= own && RESERVED.contains(&name.as_str()) {
                return Err(refused(name, "is the specification's own"));
            }
            if all[..nth].iter().any(|(other, _)| other == name) {
                return Err(refused(name, "is given twice"));
            }
            if let Attribute::Text(text) = value {
                if text.is_empty() {
                    return Err(refused(name, "is empty"));
                }
                if text.contains(char::is_control) {
                    return Err(refused(name, "holds a control character"));
                }
            }
        }
        if let (Ok(Some(Data::Text(_))), Some(content_type)) = (&self.data, &self.content_type)
            && is_json(content_type)
        {
            return Err(refused("datacontenttype", "is JSON, and the data a text"));
        }
        Ok(all)
    }
}

impl Binding {
    fn header(self, attribute: &str) -> String {
        match self {
            Self::Kafka | Self::Amqp | Self::Http if attribute == "datacontenttype" => {
                CONTENT_TYPE.to_owned()
            }
            Self::Kafka => format!("ce_{attribute}"),
            Self::Amqp => format!("cloudEvents:{attribute}"),
            Self::Nats | Self::Http => format!("ce-{attribute}"),
        }
    }

    fn value(self, text: String) -> String {
        match self {
            Self::Kafka | Self::Amqp => text,
            Self::Nats | Self::Http => percent_encoded(&text),
        }
    }
}

impl Attribute {
    fn as_json(&self) -> String {
        match self {
            Self::Text(text) => quoted(text),
            Self::Integer(number) => number.to_string(),
            Self::Boolean(value) => value.to_string(),
        }
    }

    fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Integer(number) => number.to_string(),
            Self::Boolean(value) => value.to_string(),
        }
    }
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Attribute {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i32> for Attribute {
    fn from(number: i32) -> Self {
        Self::Integer(number)
    }
}

impl From<bool> for Attribute {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}

fn refused(attribute: &str, reason: &'static str) -> InvalidMessage {
    InvalidMessage::CloudEvent {
        attribute: attribute.to_owned(),
        reason,
    }
}

/// By the JSON format 1.0.2, section 3.1: the subtype is `json` or ends in `+json`.
fn is_json(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default();
    let subtype = media_type.trim().rsplit('/').next().unwrap_or_default();
    let subtype = subtype.to_ascii_lowercase();
    subtype == "json" || subtype.ends_with("+json")
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// What HTTP cannot have in a header, and the percent sign itself (HTTP protocol binding 1.0.2, 3.1.3.2).
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'"' | b'%' => encoded.push_str(&format!("%{byte:02X}")),
            b'!'..=b'~' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut three = [0; 3];
        three[..chunk.len()].copy_from_slice(chunk);
        let number = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for digit in 0..4 {
            let at = (number >> (18 - 6 * digit)) & 63;
            text.push(if digit <= chunk.len() {
                char::from(DIGITS[at as usize])
            } else {
                '='
            });
        }
    }
    text
}

/// In UTC, with as many digits of a second as it has; `None` before the year 0 and after 9999.
fn rfc3339(time: SystemTime) -> Option<String> {
    const DAY: i64 = 86_400;
    let (seconds, nanos) = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => (i64::try_from(since.as_secs()).ok()?, since.subsec_nanos()),
        Err(before) => {
            let before: Duration = before.duration();
            let whole = i64::try_from(before.as_secs()).ok()?.checked_neg()?;
            match before.subsec_nanos() {
                0 => (whole, 0),
                nanos => (whole - 1, 1_000_000_000 - nanos),
            }
        }
    };
    let (days, second) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    // Days since the first of March of the year 0, in eras of 400 years, each of 146,097 days; so a leap day
    // is the last of its year.
    let days = days.checked_add(719_468)?;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + i64::from(month <= 2);
    if !(0..=9_999).contains(&year) {
        return None;
    }
    let fraction = match nanos {
        0 => String::new(),
        nanos => format!(".{nanos:09}").trim_end_matches('0').to_owned(),
    };
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    Some(format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z"
    ))
}

// The id of an event that has none of its own is that of its message.
impl MessageBuilder {
    fn id_or_new(&mut self) -> Uuid {
        *self.id.get_or_insert_with(Uuid::now_v7)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// 2018-04-05T17:31:00Z, the time in the examples of the JSON format.
    fn time() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_522_949_460)
    }

    /// The attributes that the examples of JSON format 1.0.2, section 3.2, have in common.
    fn example(id: &str) -> CloudEvent {
        CloudEvent::new("/mycontext", "com.example.someevent")
            .id(id)
            .time(time())
            .extension("comexampleextension1", "value")
            .extension("comexampleothervalue", 5)
    }

    fn structured(event: CloudEvent) -> Value {
        let message = event.structured(Message::to("t")).unwrap();
        let content_type = message.headers().get("content-type");
        assert_eq!(
            content_type,
            Some("application/cloudevents+json; charset=UTF-8")
        );
        serde_json::from_slice(message.payload().unwrap()).unwrap()
    }

    fn binary(binding: Binding, event: CloudEvent) -> (Vec<(String, String)>, Option<Bytes>) {
        let message = event.binary(binding, Message::to("t")).unwrap();
        let headers = message.headers().iter();
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
        (headers.collect(), message.payload().cloned())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut pairs: Vec<_> = pairs
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        pairs.sort();
        pairs
    }

    /// JSON format 1.0.2, section 3.2, first example, and the same in HTTP's binary mode.
    #[test]
    fn bytes_as_in_the_json_format() {
        let event = example("A234-1234-1234")
            .bytes("application/vnd.apache.thrift.binary", &b"\x80\x01\x00"[..]);
        assert_eq!(
            structured(event.clone()),
            json!({
                "specversion": "1.0",
                "type": "com.example.someevent",
                "source": "/mycontext",
                "id": "A234-1234-1234",
                "time": "2018-04-05T17:31:00Z",
                "comexampleextension1": "value",
                "comexampleothervalue": 5,
                "datacontenttype": "application/vnd.apache.thrift.binary",
                "data_base64": "gAEA",
            })
        );
        let expected = pairs(&[
            ("ce-specversion", "1.0"),
            ("ce-type", "com.example.someevent"),
            ("ce-source", "/mycontext"),
            ("ce-id", "A234-1234-1234"),
            ("ce-time", "2018-04-05T17:31:00Z"),
            ("ce-comexampleextension1", "value"),
            ("ce-comexampleothervalue", "5"),
            ("content-type", "application/vnd.apache.thrift.binary"),
        ]);
        let body = Bytes::from_static(b"\x80\x01\x00");
        assert_eq!(binary(Binding::Http, event), (expected, Some(body)));
    }

    /// The second example of that section: a text that is not JSON.
    #[test]
    fn a_text_as_in_the_json_format() {
        let event = example("B234-1234-1234").text("application/xml", "<much wow=\"xml\"/>");
        let written = structured(event.clone());
        assert_eq!(written["datacontenttype"], "application/xml");
        assert_eq!(written["data"], "<much wow=\"xml\"/>");
        let (headers, body) = binary(Binding::Http, event);
        assert!(headers.contains(&("content-type".to_owned(), "application/xml".to_owned())));
        assert_eq!(body.unwrap(), "<much wow=\"xml\"/>");
    }

    /// The third and the fourth example of that section: JSON, an object and a literal string.
    #[test]
    fn json_as_in_the_json_format() {
        let data = json!({"appinfoA": "abc", "appinfoB": 123, "appinfoC": true});
        let event = example("C234-1234-1234").json(&data);
        let written = structured(event.clone());
        assert_eq!(written["datacontenttype"], "application/json");
        assert_eq!(written["data"], data);
        let (_, body) = binary(Binding::Http, event);
        assert_eq!(
            serde_json::from_slice::<Value>(&body.unwrap()).unwrap(),
            data
        );

        let event = example("D234-1234-1234").json("I'm just a string");
        assert_eq!(structured(event.clone())["data"], "I'm just a string");
        let (headers, body) = binary(Binding::Http, event);
        assert!(headers.contains(&("content-type".to_owned(), "application/json".to_owned())));
        assert_eq!(body.unwrap(), "\"I'm just a string\"");
    }

    /// The event in the examples of all bindings, with each one's content type.
    fn someevent(content_type: &str) -> CloudEvent {
        CloudEvent::new("/mycontext/subcontext", "com.example.someevent")
            .id("1234-1234-1234")
            .time(SystemTime::UNIX_EPOCH + Duration::from_secs(1_522_900_584))
            .bytes(content_type, "…")
    }

    /// Kafka 1.0.2, 3.2.5; AMQP 1.0.2, 3.1.4; NATS 1.0.3-wip, 3.1.4; HTTP 1.0.2, 3.1.4.
    #[test]
    fn headers_as_in_the_example_of_each_binding() {
        let json = "application/json; charset=utf-8";
        for (binding, prefix, content_type, in_header) in [
            (Binding::Kafka, "ce_", "application/avro", "content-type"),
            (Binding::Amqp, "cloudEvents:", json, "content-type"),
            (Binding::Http, "ce-", json, "content-type"),
            (
                Binding::Nats,
                "ce-",
                "application/json",
                "ce-datacontenttype",
            ),
        ] {
            let name = |attribute: &str| format!("{prefix}{attribute}");
            let expected = pairs(&[
                (&name("specversion"), "1.0"),
                (&name("type"), "com.example.someevent"),
                (&name("source"), "/mycontext/subcontext"),
                (&name("id"), "1234-1234-1234"),
                (&name("time"), "2018-04-05T03:56:24Z"),
                (in_header, content_type),
            ]);
            let (headers, body) = binary(binding, someevent(content_type));
            assert_eq!(headers, expected);
            assert_eq!(body.unwrap(), "…");
        }
    }

    /// Kafka 1.0.2, 3.2.2: without data the record has no value; 3.3.2: in structured mode it has.
    #[test]
    fn an_event_without_data_is_a_tombstone_in_binary_mode_only() {
        let event = CloudEvent::new("/s", "t");
        assert_eq!(binary(Binding::Kafka, event.clone()).1, None);
        let written = structured(event);
        assert!(written.get("data").is_none() && written.get("datacontenttype").is_none());
    }

    /// HTTP 1.0.2, 3.1.3.2, its example, and NATS 1.0.3-wip, which has the same; Kafka and AMQP have text.
    #[test]
    fn what_a_header_cannot_have_is_percent_encoded() {
        let event = CloudEvent::new("/s", "t")
            .subject("Euro € 😀")
            .extension("e", "100%\"");
        for (binding, subject, e) in [
            (
                Binding::Http,
                "Euro%20%E2%82%AC%20%F0%9F%98%80",
                "100%25%22",
            ),
            (
                Binding::Nats,
                "Euro%20%E2%82%AC%20%F0%9F%98%80",
                "100%25%22",
            ),
            (Binding::Kafka, "Euro € 😀", "100%\""),
            (Binding::Amqp, "Euro € 😀", "100%\""),
        ] {
            let (headers, _) = binary(binding, event.clone());
            for (attribute, value) in [("subject", subject), ("e", e)] {
                assert!(headers.contains(&(binding.header(attribute), value.to_owned())));
            }
        }
    }

    #[test]
    fn the_id_is_the_messages_unless_the_event_has_one() {
        let id = Uuid::from_u128(7);
        let event = CloudEvent::new("/s", "t");
        let message = event.clone().structured(Message::to("t").id(id)).unwrap();
        let written: Value = serde_json::from_slice(message.payload().unwrap()).unwrap();
        assert_eq!((message.id(), &written["id"]), (id, &json!(id.to_string())));
        let message = event.binary(Binding::Nats, Message::to("t")).unwrap();
        assert_eq!(
            message.headers().get("ce-id"),
            Some(message.id().to_string().as_str())
        );
    }

    #[test]
    fn what_an_event_cannot_have_is_refused_by_name() {
        const OWN: &str = "is the specification's own";
        let refused = |event: CloudEvent| {
            let structured = event.clone().structured(Message::to("t")).unwrap_err();
            let binary = event.binary(Binding::Kafka, Message::to("t")).unwrap_err();
            assert_eq!(structured, binary);
            structured.to_string()
        };
        let event = || CloudEvent::new("/s", "t");
        for (event, attribute, reason) in [
            (CloudEvent::new("", "t"), "source", "is empty"),
            (CloudEvent::new("/s", ""), "type", "is empty"),
            (event().id(""), "id", "is empty"),
            (event().extension("Name", 1), "Name", "is not of lower-case"),
            (event().extension("", 1), "", "is not of lower-case"),
            (event().extension("data", 1), "data", OWN),
            (event().extension("id", 1), "id", OWN),
            (event().extension("time", 1), "time", OWN),
            (event().extension("subject", "7"), "subject", OWN),
            (event().extension("dataschema", "s"), "dataschema", OWN),
            (
                event().extension("datacontenttype", "text/xml"),
                "datacontenttype",
                OWN,
            ),
            (event().extension("specversion", "2"), "specversion", OWN),
            (
                event().text("Application/JSON; charset=utf-8", "{}"),
                "datacontenttype",
                "is JSON",
            ),
            (
                event().text("application/problem+json", "{}"),
                "datacontenttype",
                "is JSON",
            ),
            (
                event().subject("7").subject("8"),
                "subject",
                "is given twice",
            ),
            (
                event().extension("a", 1).extension("a", 2),
                "a",
                "is given twice",
            ),
            (
                event().subject("a\nb"),
                "subject",
                "holds a control character",
            ),
            (
                event().time(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40)),
                "time",
                "year",
            ),
        ] {
            let error = refused(event);
            assert!(error.contains(&format!("{attribute:?} ")), "{error}");
            assert!(error.contains(reason), "{error}");
        }
        // JSON has no keys but text.
        let pairs = std::collections::BTreeMap::from([((1, 2), 3)]);
        assert!(refused(event().json(&pairs)).contains("payload is not JSON"));
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds: i64, nanos: u32| {
            let epoch = SystemTime::UNIX_EPOCH;
            let whole = Duration::from_secs(seconds.unsigned_abs());
            let time = if seconds < 0 {
                epoch - whole
            } else {
                epoch + whole
            };
            rfc3339(time + Duration::from_nanos(nanos.into())).unwrap()
        };
        assert_eq!(at(0, 0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400, 0), "2000-02-29T00:00:00Z");
        assert_eq!(at(4_107_542_399, 0), "2100-02-28T23:59:59Z");
        assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00Z");
        assert_eq!(at(253_402_300_799, 0), "9999-12-31T23:59:59Z");
        assert_eq!(at(1, 120_000_000), "1970-01-01T00:00:01.12Z");
        assert_eq!(at(-1, 1), "1969-12-31T23:59:59.000000001Z");
        assert_eq!(at(-62_167_219_200, 0), "0000-01-01T00:00:00Z");
    }

    #[test]
    fn base64_as_in_rfc_4648() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff]), "+/8=");
    }
}
