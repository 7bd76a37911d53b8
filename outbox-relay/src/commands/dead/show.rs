//! One dead message whole: every field, and the payload in a form that can be read.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, stdout};
use std::time::SystemTime;

use clap::Args;
use outbox_core::admin::{DeadContent, DeadFilter, DeadMessage};
use outbox_core::{Headers, Uuid};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::document;
use crate::failure::Failure;
use crate::json;
use crate::store::Store;
use crate::terminal;
use crate::text::{counted, cut, escaped, escaped_lines, since, size};

/// So much of a payload is shown; `--payload` gives all of it.
const SHOWN_BYTES: usize = 16 * 1024;

/// And so many characters of a line of it.
const SHOWN_LINE: usize = 200;

#[derive(Args)]
pub(crate) struct Show {
    /// The message id
    id: Uuid,
    /// Print JSON, with the whole payload as text, or in hexadecimal digits where it is no UTF-8
    #[arg(long)]
    json: bool,
    /// Print the payload alone, byte for byte, into a file or a program
    #[arg(long, conflicts_with = "json")]
    payload: bool,
}

pub(super) async fn run(arguments: Show, store: &Store) -> Result<(), Failure> {
    let Some(content) = store.dead_content(arguments.id).await? else {
        return Err(Failure::new(format!(
            "no dead message has the id {}",
            arguments.id
        )));
    };
    if arguments.payload {
        return raw(&content);
    }
    terminal::print(&if arguments.json {
        json::document(&whole_document(&content))
    } else {
        let listed = store
            .dead(&DeadFilter::ids([arguments.id]), None, 1)
            .await?;
        text(&content, listed.now)
    })
}

/// The bytes may do anything to a terminal, so they do not go to one.
fn raw(content: &DeadContent) -> Result<(), Failure> {
    let Some(payload) = &content.payload else {
        return Err(Failure::new(
            "the message has no payload, which is not the same as an empty one",
        ));
    };
    if stdout().is_terminal() {
        return Err(Failure::new(
            "standard output is a terminal, and the payload may disturb it: use > FILE",
        ));
    }
    terminal::print_bytes(payload)
}

fn whole_document(content: &DeadContent) -> Value {
    let mut document = document(&content.message);
    // What is kept may be the reason why the message is dead, so it is shown as it is.
    document["headers"] = content.headers.as_deref().map_or(Value::Null, |text| {
        serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
    });
    match content.payload.as_deref().map(std::str::from_utf8) {
        None => document["payload"] = Value::Null,
        Some(Ok(text)) => document["payload"] = Value::from(text),
        Some(Err(_)) => document["payload_hex"] = json!(content.payload.as_deref().map(digits)),
    }
    document
}

fn text(content: &DeadContent, now: SystemTime) -> String {
    let DeadMessage { id, topic, key, .. } = &content.message;
    let message = &content.message;
    let ago = |time: SystemTime| {
        let age = since(now, time);
        format!("{}, {age} ago", humantime::format_rfc3339_millis(time))
    };
    let mut text = String::new();
    let mut field = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<13}{value}");
    };
    field("id", &id.to_string());
    field("topic", &escaped(topic));
    field(
        "key",
        &key.as_deref().map_or("(none)".into(), |key| match key {
            "" => "(empty)".into(),
            key => escaped(key),
        }),
    );
    field("position", &message.position.to_string());
    field("enqueued", &ago(message.enqueued_at));
    field("died", &ago(message.died_at));
    field(
        "tries",
        &format!(
            "{} counted, parked {} before",
            counted(message.failures.into(), "failure", "failures"),
            counted(message.parked.into(), "time", "times"),
        ),
    );
    field("error", &escaped(&message.error_kind));
    field("", &escaped(&message.error));
    field(
        "key goes on",
        match message.halted {
            true => "no: its later messages wait for a decision about this one",
            false => "yes",
        },
    );
    headers(&mut field, content.headers.as_deref());
    payload(&mut text, content.payload.as_deref());
    let _ = write!(
        text,
        "\nnext: outbox dead replay {id}\n  or: outbox dead discard {id}\n"
    );
    text
}

fn headers(field: &mut impl FnMut(&str, &str), headers: Option<&str>) {
    let Some(headers) = headers else {
        return field("headers", "(none)");
    };
    match Headers::from_json(headers) {
        Ok(headers) if headers.is_empty() => field("headers", "(none)"),
        Ok(headers) => {
            for (nth, (name, value)) in headers.iter().enumerate() {
                let name_of_field = if nth == 0 { "headers" } else { "" };
                field(
                    name_of_field,
                    &format!("{}: {}", escaped(name), escaped(value)),
                );
            }
        }
        // Which may be why it is dead.
        Err(error) => {
            let reason = error.to_string();
            field(
                "headers",
                &format!("{} ({})", escaped(headers), escaped(&reason)),
            );
        }
    }
}

fn payload(text: &mut String, payload: Option<&[u8]>) {
    let Some(payload) = payload else {
        text.push_str("payload      (none: a tombstone)\n");
        return;
    };
    let (form, body) = readable(payload);
    let _ = writeln!(text, "payload      {}{form}", size(payload.len() as u64));
    if !body.is_empty() {
        text.push('\n');
    }
    let mut is_whole = payload.len() <= SHOWN_BYTES;
    for line in body.lines() {
        let (shown, rest) = cut(line, SHOWN_LINE);
        is_whole &= rest.is_empty();
        let ellipsis = if rest.is_empty() { "" } else { "…" };
        let _ = writeln!(text, "    {shown}{ellipsis}");
    }
    if !is_whole {
        text.push_str("\n(--payload > FILE gives all of it)\n");
    }
}

/// What the payload is, and its beginning as text that cannot disturb a terminal.
fn readable(payload: &[u8]) -> (&'static str, String) {
    if payload.is_empty() {
        return (", empty", String::new());
    }
    let Ok(whole) = std::str::from_utf8(payload) else {
        return (
            ", not UTF-8",
            dump(&payload[..payload.len().min(SHOWN_BYTES)]),
        );
    };
    let mut end = whole.len().min(SHOWN_BYTES);
    while !whole.is_char_boundary(end) {
        end -= 1;
    }
    let shown = &whole[..end];
    if serde_json::from_str::<IgnoredAny>(whole).is_ok() {
        return (", JSON", escaped_lines(&indented(shown)));
    }
    (", text", escaped_lines(shown))
}

/// JSON with a line for each member. Its tokens stay as they are, so that what is shown is what was
/// written: numbers of any length, names that come twice, and their order.
fn indented(json: &str) -> String {
    let mut text = String::with_capacity(json.len() * 2);
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut is_escaped = false;
    let mut characters = json.chars().peekable();
    let new_line = |text: &mut String, depth: usize| {
        text.push('\n');
        text.extend(std::iter::repeat_n("  ", depth));
    };
    while let Some(c) = characters.next() {
        if in_string {
            text.push(c);
            in_string = is_escaped || c != '"';
            is_escaped = !is_escaped && c == '\\';
            continue;
        }
        match c {
            ' ' | '\n' | '\r' | '\t' => {}
            '{' | '[' => {
                text.push(c);
                while characters.next_if(|c| c.is_ascii_whitespace()).is_some() {}
                if let Some(end) = characters.next_if(|&c| c == '}' || c == ']') {
                    text.push(end);
                } else {
                    depth += 1;
                    new_line(&mut text, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut text, depth);
                text.push(c);
            }
            ',' => {
                text.push(c);
                new_line(&mut text, depth);
            }
            ':' => text.push_str(": "),
            c => {
                in_string = c == '"';
                text.push(c);
            }
        }
    }
    text
}

/// Sixteen bytes a line: where, in digits, and as characters where they are some.
fn dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (nth, line) in bytes.chunks(16).enumerate() {
        let _ = write!(text, "{:06x}  ", nth * 16);
        for at in 0..16 {
            match line.get(at) {
                Some(byte) => _ = write!(text, "{byte:02x} "),
                None => text.push_str("   "),
            }
        }
        text.push(' ');
        text.extend(line.iter().map(|&byte| match byte {
            b' '..=b'~' => char::from(byte),
            _ => '.',
        }));
        text.push('\n');
    }
    text
}

fn digits(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_indented_and_its_tokens_are_kept() {
        let json = r#"{"a" :[1.50, 12345678901234567890123 ],"a": {}, "b":"x\",{\"\\","c":[ ]}"#;
        let shown = indented(json);
        assert_eq!(
            shown,
            r#"{
  "a": [
    1.50,
    12345678901234567890123
  ],
  "a": {},
  "b": "x\",{\"\\",
  "c": []
}"#
        );
        assert_eq!(indented(r#" "a b" "#), r#""a b""#);
    }

    #[test]
    fn a_payload_is_shown_by_what_it_is() {
        assert_eq!(readable(b"").0, ", empty");
        assert_eq!(
            readable(b"{\"a\":1}"),
            (", JSON", "{\n  \"a\": 1\n}".to_owned())
        );
        assert_eq!(
            readable(b"a\x1b[2Jb"),
            (", text", "a\\u{1b}[2Jb".to_owned())
        );
        let (form, dump) = readable(b"\xff\x00ab\x1b");
        assert_eq!(form, ", not UTF-8");
        assert_eq!(
            dump.trim_end(),
            format!("000000  ff 00 61 62 1b {}..ab.", "   ".repeat(11) + " ")
        );
    }

    #[test]
    fn a_large_payload_is_cut_between_characters() {
        let (_, shown) = readable("é".repeat(SHOWN_BYTES).as_bytes());
        assert_eq!(shown.len(), SHOWN_BYTES);
        let (_, shown) = readable(format!("x{}", "é".repeat(SHOWN_BYTES)).as_bytes());
        assert_eq!(shown.len(), SHOWN_BYTES - 1);
    }
}
