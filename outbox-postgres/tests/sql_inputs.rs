//! The SQL function takes what a message of the Rust functions can be, and unchanged, and refuses the rest by
//! the name of the field: random inputs, for each of which the two have to agree.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashMap;
use std::time::Duration;

use outbox_core::{Headers, Message, Store};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Map, Value};
use sqlx::Row;
use support::store::limits;
use support::{Fixture, on_each_server};
use uuid::Uuid;

const CASES: usize = 300;

on_each_server!(with_outbox: what_the_sql_function_takes_is_what_rust_takes);

/// What a client gives to `enqueue`.
#[derive(Clone, Debug)]
struct Input {
    topic: Option<String>,
    payload: Option<Vec<u8>>,
    key: Option<String>,
    /// JSON, as it is written.
    headers: Option<String>,
    id: Option<Uuid>,
    /// Microseconds, of either sign.
    deliver_after: Option<i64>,
}

const DAY: i64 = 24 * 60 * 60 * 1_000_000;

/// Text in any script, without the NUL that no client can send, at times as long as a limit or longer.
fn text(limit: usize) -> impl Strategy<Value = String> {
    let odd = "[^\0]{0,40}";
    let plain = "[a-z.]{1,30}";
    let long = (prop_oneof![Just('a'), Just('ü'), Just('🦀')], -1..=1isize).prop_map(
        move |(letter, over)| {
            let letters = (limit as isize / letter.len_utf8() as isize + over).max(0);
            String::from(letter).repeat(letters as usize)
        },
    );
    prop_oneof![4 => plain, 4 => odd, 1 => long, 1 => Just(String::new())]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => text(255),
        1 => "(?i)outbox-[a-z]{0,4}",
        1 => "[a-z]{1,3}\": \"[a-z]{1,3}",
        1 => Just("a\0b".to_owned()),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        12 => text(300).prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
        1 => Just(serde_json::json!({"nested": ["x"]})),
        1 => Just(Value::from("nul \0 in it")),
    ]
}

fn headers() -> impl Strategy<Value = String> {
    let object = |entries: Vec<(String, Value)>| Value::Object(entries.into_iter().collect());
    let few =
        prop::collection::vec((name(), text(300).prop_map(Value::from)), 0..4).prop_map(object);
    let odd = prop::collection::vec((name(), value()), 0..4).prop_map(object);
    let many = (126..131usize).prop_map(|count| {
        let entries = (0..count).map(|number| (format!("n{number}"), Value::from("v")));
        Value::Object(entries.collect::<Map<_, _>>())
    });
    // Names of one byte, so that the sum of all is as large as the limit, or larger by one.
    let large = (65_534..65_538usize).prop_map(
        |bytes| serde_json::json!({"a": "x".repeat(30_000), "b": "y".repeat(bytes - 30_002)}),
    );
    let other = prop_oneof![
        Just(Value::Null),
        Just(serde_json::json!([])),
        Just(Value::from("text")),
        Just(Value::from(7)),
    ];
    let written = prop_oneof![8 => few, 6 => odd, 1 => many, 1 => large, 1 => other]
        .prop_map(|value| value.to_string());
    prop_oneof![12 => written, 1 => "[ -~]{0,12}"]
}

/// Often at one of the limits, which are nothing and 366 days.
fn deliver_after() -> impl Strategy<Value = i64> {
    prop_oneof![
        1 => -1..=1i64,
        1 => 366 * DAY - 1..=366 * DAY + 1,
        2 => 0..366 * DAY,
        1 => -366 * DAY..800 * DAY,
    ]
}

fn inputs() -> impl Strategy<Value = Input> {
    let payload = prop::option::weighted(0.8, prop::collection::vec(any::<u8>(), 0..300));
    let id = prop::option::of(any::<u128>().prop_map(Uuid::from_u128));
    (
        prop::option::weighted(0.97, text(255)),
        payload,
        prop::option::weighted(0.7, text(65_536)),
        prop::option::weighted(0.7, headers()),
        id,
        prop::option::weighted(0.4, deliver_after()),
    )
        .prop_map(|(topic, payload, key, headers, id, deliver_after)| Input {
            topic,
            payload,
            key,
            headers,
            id,
            deliver_after,
        })
}

/// What Rust makes of it: the message, or why there is none.
fn in_rust(input: &Input, id: Uuid) -> Result<Message, String> {
    let delay = u64::try_from(input.deliver_after.unwrap_or_default())
        .map_err(|_| "a Duration is not negative".to_owned())?;
    let headers = match &input.headers {
        Some(headers) => Headers::from_json(headers).map_err(|error| error.to_string())?,
        None => Headers::default(),
    };
    let topic = input.topic.clone().unwrap_or_default();
    let payload = input.payload.clone().map(Into::into);
    Message::from_parts(id, topic, input.key.clone(), payload, headers)
        .and_then(|message| message.with_deliver_after(Duration::from_micros(delay)))
        .map_err(|error| error.to_string())
}

async fn what_the_sql_function_takes_is_what_rust_takes(fixture: Fixture) {
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let strategy = inputs();
    let mut taken = Vec::new();
    let mut refused = 0;
    for _ in 0..CASES {
        let input = strategy.new_tree(&mut runner).unwrap().current();
        let answer = sqlx::query(fixture.sql(
            "SELECT {schema}.enqueue($1, $2, $3, $4::text::jsonb, $5,
                $6::bigint * interval '1 microsecond')",
        ))
        .bind(&input.topic)
        .bind(&input.payload)
        .bind(&input.key)
        .bind(&input.headers)
        .bind(input.id)
        .bind(input.deliver_after)
        .fetch_one(&fixture.pool)
        .await;
        let id = answer.as_ref().ok().map(|row| row.get::<Uuid, _>(0));
        match (answer, in_rust(&input, id.or(input.id).unwrap_or_default())) {
            (Ok(_), Ok(message)) => {
                assert!(input.id.is_none_or(|id| id == message.id()), "{input:?}");
                taken.push(message);
            }
            (Err(sqlx::Error::Database(error)), Err(reason)) => {
                refused += 1;
                // Ours, or that of the type `jsonb` for what is no JSON, or has a NUL.
                let code = error.code().unwrap_or_default().into_owned();
                let names_its_field = ["topic", "key", "header", "deliver_after"]
                    .iter()
                    .any(|field| error.message().starts_with(field));
                let is_no_json = input.headers.is_some() && ["22P02", "22P05"].contains(&&*code);
                assert!(
                    code == "23514" && names_its_field || is_no_json,
                    "{code} {}, in Rust {reason}: {input:?}",
                    error.message()
                );
            }
            (answer, in_rust) => panic!(
                "SQL: {:?}, Rust: {in_rust:?}, for {input:?}",
                answer.map(|_| "taken")
            ),
        }
    }
    assert!(
        refused > CASES / 20 && taken.len() > CASES / 4,
        "{refused} refused"
    );
    read_back(&fixture, taken).await;
}

/// Those with a delay are due after it, and a relay gets each of them, unchanged.
async fn read_back(fixture: &Fixture, taken: Vec<Message>) {
    let delayed = "SELECT id, (extract(epoch FROM deliver_at - enqueued_at) * 1000000)::bigint FROM {schema}.delayed";
    let delayed: HashMap<Uuid, i64> = sqlx::query_as(fixture.sql(delayed))
        .fetch_all(&fixture.pool)
        .await
        .unwrap()
        .into_iter()
        .collect();
    let mut expected_delayed = 0;
    for message in taken
        .iter()
        .filter(|taken| !taken.deliver_after().is_zero())
    {
        expected_delayed += 1;
        let due = Duration::from_micros(delayed[&message.id()].unsigned_abs());
        let off = due.abs_diff(message.deliver_after());
        assert!(
            off < Duration::from_secs(1),
            "{message:?} is due after {due:?}"
        );
    }
    assert_eq!(delayed.len(), expected_delayed);
    assert!(
        expected_delayed > CASES / 20,
        "{expected_delayed} are delayed"
    );
    let now = "UPDATE {schema}.delayed SET deliver_at = now()";
    sqlx::query(fixture.sql(now))
        .execute(&fixture.pool)
        .await
        .unwrap();
    let store = fixture.outbox.store(&fixture.pool);
    let mut found = Vec::new();
    while found.len() < taken.len() {
        let mut limits = limits(1000);
        limits.wait = Duration::from_secs(5);
        let claim = store.claim(&limits).await.unwrap().expect("more is there");
        let messages: Vec<Message> = claim
            .messages()
            .iter()
            .map(|claimed| claimed.message.clone())
            .collect();
        let outcomes = vec![outbox_core::Outcome::Delivered; messages.len()];
        claim.settle(outcomes).await.unwrap();
        found.extend(messages);
    }
    let at_once = |message: Message| message.with_deliver_after(Duration::ZERO).unwrap();
    let mut expected: Vec<Message> = taken.into_iter().map(at_once).collect();
    expected.sort_by_key(Message::id);
    found.sort_by_key(Message::id);
    assert_eq!(found, expected);
    assert_eq!(fixture.waiting().await, 0);
}
