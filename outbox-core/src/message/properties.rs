//! What holds of any message that somebody tries to make: it has what it was given, or the field that breaks its
//! limit is named.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::*;

/// What somebody gives to a builder.
#[derive(Clone, Debug)]
struct Given {
    id: Uuid,
    topic: String,
    key: Option<String>,
    headers: Vec<(String, String)>,
    payload: Option<Vec<u8>>,
}

/// Text of any script, at times with a NUL in it, and at times as long as the limit, or one byte longer.
fn text(limit: usize) -> impl Strategy<Value = String> {
    let long = (limit - 1..=limit + 1).prop_map(|bytes| "x".repeat(bytes));
    prop_oneof![8 => ".{0,20}", 8 => "[a-z.]{1,12}", 1 => "[a-z]?\0.{0,3}", 1 => long, 1 => Just(String::new())]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![12 => "[a-z]{1,4}", 6 => text(MAX_HEADER_NAME_BYTES), 1 => "(?i)outbox-?[a-z]{0,3}"]
}

fn headers() -> impl Strategy<Value = Vec<(String, String)>> {
    let many = (MAX_HEADERS - 1..=MAX_HEADERS + 1).prop_map(|count| {
        let headers = (0..count).map(|number| (number.to_string(), "v".to_owned()));
        headers.collect()
    });
    prop_oneof![16 => vec((name(), text(MAX_HEADERS_BYTES - 4)), 0..5), 1 => many]
}

fn given() -> impl Strategy<Value = Given> {
    let topic = text(MAX_TOPIC_BYTES);
    let key = option::of(text(MAX_KEY_BYTES));
    let payload = option::of(vec(any::<u8>(), 0..40));
    (any::<u128>(), topic, key, headers(), payload).prop_map(
        |(id, topic, key, headers, payload)| Given {
            id: Uuid::from_u128(id),
            topic,
            key,
            headers,
            payload,
        },
    )
}

impl Given {
    fn build(&self) -> Result<Message, InvalidMessage> {
        let mut message = Message::to(&self.topic).id(self.id);
        if let Some(key) = &self.key {
            message = message.key(key);
        }
        for (name, value) in &self.headers {
            message = message.header(name, value);
        }
        match &self.payload {
            Some(payload) => message.bytes(payload.clone()),
            None => message.tombstone(),
        }
    }

    /// The fields that break a limit, by the words of the documentation.
    fn wrong(&self) -> Vec<&'static str> {
        let is_wrong = |text: &str, limit| text.len() > limit || text.contains('\0');
        let mut wrong = Vec::new();
        if self.topic.is_empty() || is_wrong(&self.topic, MAX_TOPIC_BYTES) {
            wrong.push("topic");
        }
        if self
            .key
            .as_ref()
            .is_some_and(|key| is_wrong(key, MAX_KEY_BYTES))
        {
            wrong.push("key");
        }
        let mut names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        let twice = names.windows(2).any(|pair| pair[0] == pair[1]);
        let bytes: usize = self
            .headers
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        let one_is_wrong = self.headers.iter().any(|(name, value)| {
            name.is_empty()
                || is_wrong(name, MAX_HEADER_NAME_BYTES)
                || name.to_lowercase().starts_with(RESERVED_HEADER_PREFIX)
                || value.contains('\0')
        });
        if twice || one_is_wrong || bytes > MAX_HEADERS_BYTES || names.len() > MAX_HEADERS {
            wrong.push("header");
        }
        wrong
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_message_has_what_it_was_given_or_the_field_is_named(given in given()) {
        let wrong = given.wrong();
        match given.build() {
            Ok(message) => {
                prop_assert!(wrong.is_empty(), "{:?} was taken", wrong);
                prop_assert_eq!(message.id(), given.id);
                prop_assert_eq!(message.topic(), &given.topic);
                prop_assert_eq!(message.key(), given.key.as_deref());
                prop_assert_eq!(message.payload().map(|it| it.to_vec()), given.payload);
                let mut headers = given.headers;
                headers.sort();
                let found: Vec<(&str, &str)> = message.headers().iter().collect();
                let headers: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
                prop_assert_eq!(found, headers);
            }
            Err(error) => {
                let said = error.to_string();
                prop_assert!(wrong.iter().any(|field| said.starts_with(field)), "{} of {:?}", said, wrong);
            }
        }
    }

    #[test]
    fn a_message_is_the_same_through_its_builder_its_parts_and_its_headers_in_json(given in given()) {
        let Ok(message) = given.build() else { return Ok(()) };
        let again = match message.payload() {
            Some(payload) => message.to_builder().bytes(payload.clone()),
            None => message.to_builder().tombstone(),
        };
        prop_assert_eq!(again.as_ref(), Ok(&message));
        let headers = match message.headers().to_json() {
            Some(json) => Headers::from_json(&json).unwrap(),
            None => Headers::default(),
        };
        let (topic, key) = (message.topic().to_owned(), message.key().map(str::to_owned));
        let parts = Message::from_parts(message.id(), topic, key, message.payload().cloned(), headers);
        prop_assert_eq!(parts.as_ref(), Ok(&message));
        let payload = given.payload.map_or(0, |payload| payload.len());
        let key = given.key.map_or(0, |key| key.len());
        prop_assert_eq!(message.size(), given.topic.len() + key + payload + message.headers().size());
    }

    #[test]
    fn any_text_is_headers_in_json_or_is_refused(
        text in prop_oneof![".{0,40}", r#"[\[\]{}":,a\\u0 -]{0,30}"#],
        object in btree_map(".{0,6}", prop_oneof![8 => ".{0,6}".prop_map(serde_json::Value::from), 1 => any::<i32>().prop_map(serde_json::Value::from)], 0..4),
    ) {
        let object = serde_json::to_string(&object).unwrap();
        for json in [text, object] {
            if let Ok(headers) = Headers::from_json(&json) {
                let again = headers.to_json().map_or(Ok(Headers::default()), |json| Headers::from_json(&json));
                prop_assert_eq!(again, Ok(headers));
            }
        }
    }
}
