//! What a message becomes on the wire: a pure mapping.
//!
//! | message | entry |
//! | --- | --- |
//! | topic | stream key, behind the configured prefix |
//! | message id | field `id`, hyphenated lowercase hexadecimal text |
//! | key | field `key`; absent = no field, empty = empty |
//! | payload | field `payload`, byte for byte; absent = no field (a tombstone), empty = empty |
//! | headers | fields `header:<name>`, UTF-8 |
//!
//! Consumers in any language read this, so a change here is a change of the wire contract.

use outbox_core::{Message, PublishError};
use redis::{Cmd, RedisWrite};

use crate::config::RedisConfig;

/// The field that holds the message id.
pub const ID_FIELD: &str = "id";
/// The field that holds the key, if there is one.
pub const KEY_FIELD: &str = "key";
/// The field that holds the payload, if there is one.
pub const PAYLOAD_FIELD: &str = "payload";
/// What the fields of headers begin with; the header's name follows.
pub const HEADER_FIELD_PREFIX: &str = "header:";

/// The length of a message id as text.
const ID_BYTES: usize = 36;

/// What is removed from the stream while the entry is added, in the words of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Nothing.
    None,
    /// All but about so many entries.
    MaxLen(u64),
    /// About what is older than this time of the server, in milliseconds.
    MinId(u64),
}

/// How many slots a cluster has.
const SLOTS: u16 = 16_384;

/// The slot of a topic's stream in a cluster: of its hash tag, the first that is in braces and not empty,
/// where there is one.
pub(crate) fn slot(config: &RedisConfig, topic: &str) -> u16 {
    let stream: Vec<u8> = [config.stream_prefix.as_bytes(), topic.as_bytes()].concat();
    let open = stream.iter().position(|&byte| byte == b'{');
    let tag = open.and_then(|open| {
        let behind = &stream[open + 1..];
        let close = behind.iter().position(|&byte| byte == b'}')?;
        (close > 0).then(|| &behind[..close])
    });
    crc16(tag.unwrap_or(&stream)) % SLOTS
}

/// CRC-16/XMODEM, which the cluster's specification names.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => crc << 1 ^ 0x1021,
        })
    })
}

/// An entry of a stream, borrowed from the message.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    message: &'a Message,
    size: usize,
}

/// Maps a message, or rejects it when it is larger than configured.
pub(crate) fn encode<'a>(
    config: &RedisConfig,
    message: &'a Message,
) -> Result<Entry<'a>, PublishError> {
    let headers = message.headers();
    let size = ID_FIELD.len()
        + ID_BYTES
        + message.key().map_or(0, |key| KEY_FIELD.len() + key.len())
        + message
            .payload()
            .map_or(0, |payload| PAYLOAD_FIELD.len() + payload.len())
        + headers.len() * HEADER_FIELD_PREFIX.len()
        + headers.size();
    if size > config.max_message_bytes {
        return Err(PublishError::rejected(format!(
            "the entry has {size} bytes, the limit is {}",
            config.max_message_bytes
        )));
    }
    Ok(Entry { message, size })
}

impl Entry<'_> {
    /// The bytes of all fields and values.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The command that adds the entry.
    pub(crate) fn command(&self, config: &RedisConfig, limit: Limit) -> Cmd {
        let mut command =
            Cmd::with_capacity(2 + self.arguments(config, limit), 64 + self.room(config));
        command.write_arg(b"XADD");
        self.write_stream(&mut command, config);
        self.write(&mut command, config, limit);
        command
    }

    /// An estimate of the bytes that it takes.
    fn room(&self, config: &RedisConfig) -> usize {
        48 + config.stream_prefix.len() + self.message.topic().len() + self.size
    }

    fn write_stream(&self, command: &mut Cmd, config: &RedisConfig) {
        command.write_arg_fmt(format_args!(
            "{}{}",
            config.stream_prefix,
            self.message.topic()
        ));
    }

    /// How many arguments [`write`](Self::write) writes.
    fn arguments(&self, config: &RedisConfig, limit: Limit) -> usize {
        let message = self.message;
        let fields = 1
            + usize::from(message.key().is_some())
            + usize::from(message.payload().is_some())
            + message.headers().len();
        let limits = match limit {
            Limit::None => 0,
            Limit::MaxLen(_) | Limit::MinId(_) => 3,
        };
        usize::from(!config.create_streams) + limits + 1 + 2 * fields
    }

    /// The arguments of the command behind the stream.
    fn write(&self, command: &mut Cmd, config: &RedisConfig, limit: Limit) {
        let message = self.message;
        if !config.create_streams {
            command.write_arg(b"NOMKSTREAM");
        }
        match limit {
            Limit::None => {}
            Limit::MaxLen(entries) => {
                command.arg("MAXLEN").arg("~").arg(entries);
            }
            Limit::MinId(milliseconds) => {
                command.arg("MINID").arg("~").arg(milliseconds);
            }
        }
        // The server makes the entry's id, so that no clock but its own orders the stream.
        command.write_arg(b"*");
        let mut id = [0; ID_BYTES];
        message.id().hyphenated().encode_lower(&mut id);
        command.write_arg(ID_FIELD.as_bytes());
        command.write_arg(&id);
        if let Some(key) = message.key() {
            command.write_arg(KEY_FIELD.as_bytes());
            command.write_arg(key.as_bytes());
        }
        if let Some(payload) = message.payload() {
            command.write_arg(PAYLOAD_FIELD.as_bytes());
            command.write_arg(payload);
        }
        for (name, value) in message.headers() {
            command.write_arg_fmt(format_args!("{HEADER_FIELD_PREFIX}{name}"));
            command.write_arg(value.as_bytes());
        }
    }
}

/// Adds entries in their order and stops at the first that is not added.
///
/// Its keys are the streams, one for each entry. Its arguments are for each entry the number of those of
/// its `XADD` behind the stream, and then these. It gives back how many entries were added, and what the
/// server said of the next one, if it said anything: a stream that does not exist has no answer.
const CHAIN: &[u8] = b"\
local at = 1
for number, stream in ipairs(KEYS) do
  local last = at + tonumber(ARGV[at])
  local added = redis.pcall('XADD', stream, unpack(ARGV, at + 1, last))
  if not added then return {number - 1} end
  if type(added) == 'table' and added.err then return {number - 1, added.err} end
  at = last + 1
end
return {#KEYS}";

/// The command that adds entries as a chain: see [`CHAIN`]. Without any it shows whether scripts do.
///
/// The script travels with each command, which is cheaper than to know whether the server still has it.
pub(crate) fn chain(config: &RedisConfig, limit: Limit, entries: &[Entry<'_>]) -> Cmd {
    let arguments: usize = entries
        .iter()
        .map(|it| 2 + it.arguments(config, limit))
        .sum();
    let room: usize = entries.iter().map(|it| it.room(config)).sum();
    let mut command = Cmd::with_capacity(3 + arguments, CHAIN.len() + 16 + room);
    command.write_arg(b"EVAL");
    command.write_arg(CHAIN);
    command.arg(entries.len());
    for entry in entries {
        entry.write_stream(&mut command, config);
    }
    for entry in entries {
        command.arg(entry.arguments(config, limit));
        entry.write(&mut command, config, limit);
    }
    command
}

#[cfg(test)]
mod tests {
    use outbox_conformance::messages::any_message;
    use outbox_core::{PublishErrorKind, Uuid};
    use proptest::prelude::*;
    use redis::{Arg, Client};

    use super::*;

    fn config() -> RedisConfig {
        RedisConfig::new(Client::open("redis://127.0.0.1:1/").unwrap())
    }

    fn arguments(command: &Cmd) -> Vec<Vec<u8>> {
        command
            .args_iter()
            .map(|argument| match argument {
                Arg::Simple(bytes) => bytes.to_vec(),
                other => panic!("no such argument is written: {other:?}"),
            })
            .collect()
    }

    fn text(config: &RedisConfig, message: &Message, limit: Limit) -> Vec<String> {
        arguments(&encode(config, message).unwrap().command(config, limit))
            .into_iter()
            .map(|bytes| String::from_utf8(bytes).unwrap())
            .collect()
    }

    fn small() -> Message {
        Message::to("t").id(Uuid::nil()).tombstone().unwrap()
    }

    const NIL: &str = "00000000-0000-0000-0000-000000000000";

    #[test]
    fn every_part_has_its_place() {
        let id = Uuid::from_u128(0x0192_E4A0_0000_7000_8000_00AB_CDEF_0123);
        let message = Message::to("orders.placed")
            .id(id)
            .key("42")
            .header("trace", "abc")
            .bytes("hello")
            .unwrap();
        assert_eq!(
            text(&config(), &message, Limit::None),
            [
                "XADD",
                "orders.placed",
                "*",
                "id",
                "0192e4a0-0000-7000-8000-00abcdef0123",
                "key",
                "42",
                "payload",
                "hello",
                "header:trace",
                "abc",
            ]
        );
    }

    #[test]
    fn a_chain_has_the_streams_and_then_each_entry_behind_its_length() {
        let config = config().stream_prefix("shop:").create_streams(false);
        let full = Message::to("u").id(Uuid::nil()).key("k").header("h", "v");
        let full = full.bytes("p").unwrap();
        let small = small();
        let entries = [
            encode(&config, &small).unwrap(),
            encode(&config, &full).unwrap(),
        ];
        let sent = |limit| -> Vec<String> {
            let all = arguments(&chain(&config, limit, &entries)).into_iter();
            all.map(|bytes| String::from_utf8(bytes).unwrap()).collect()
        };
        let plain = sent(Limit::None);
        assert_eq!(plain[0], "EVAL");
        assert_eq!(plain[2..5], ["2", "shop:t", "shop:u"]);
        assert_eq!(plain[5..10], ["4", "NOMKSTREAM", "*", "id", NIL]);
        assert_eq!(plain[10..13], ["10", "NOMKSTREAM", "*"]);
        assert_eq!(plain.len(), 10 + 11);
        let limited = sent(Limit::MaxLen(9));
        assert_eq!(limited[5..10], ["7", "NOMKSTREAM", "MAXLEN", "~", "9"]);
        assert_eq!(limited.len(), plain.len() + 6);
        assert_eq!(arguments(&chain(&config, Limit::None, &[])).len(), 3);
    }

    #[test]
    fn empty_and_absent_are_kept_apart() {
        assert_eq!(
            text(&config(), &small(), Limit::None),
            ["XADD", "t", "*", "id", NIL]
        );
        let empty = Message::to("t").id(Uuid::nil()).key("").bytes("").unwrap();
        assert_eq!(
            text(&config(), &empty, Limit::None),
            ["XADD", "t", "*", "id", NIL, "key", "", "payload", ""]
        );
    }

    #[test]
    fn every_byte_passes() {
        let payload: Vec<u8> = (0..=255).collect();
        let message = Message::to("t").bytes(payload.clone()).unwrap();
        let config = config();
        let command = encode(&config, &message)
            .unwrap()
            .command(&config, Limit::None);
        assert_eq!(arguments(&command).last(), Some(&payload));
    }

    #[test]
    fn headers_of_any_text_pass_and_hide_no_field() {
        let message = Message::to("t")
            .id(Uuid::nil())
            .header("größe in m²", "\u{1F980}\r\n\t")
            .header("id", "")
            .tombstone()
            .unwrap();
        assert_eq!(
            text(&config(), &message, Limit::None)[3..],
            [
                "id",
                NIL,
                "header:größe in m²",
                "\u{1F980}\r\n\t",
                "header:id",
                "",
            ]
        );
    }

    #[test]
    fn settings_have_their_place_before_the_entry() {
        let config = config().stream_prefix("shop:").create_streams(false);
        for (limit, words) in [
            (Limit::None, vec!["XADD", "shop:t", "NOMKSTREAM", "*"]),
            (
                Limit::MaxLen(7),
                vec!["XADD", "shop:t", "NOMKSTREAM", "MAXLEN", "~", "7", "*"],
            ),
            (
                Limit::MinId(1_700_000_000_000),
                vec![
                    "XADD",
                    "shop:t",
                    "NOMKSTREAM",
                    "MINID",
                    "~",
                    "1700000000000",
                    "*",
                ],
            ),
        ] {
            assert_eq!(text(&config, &small(), limit)[..words.len()], words);
        }
    }

    /// The first is the check value of the algorithm, the others are what a server says.
    #[test]
    fn slots_are_those_of_the_server() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        for (prefix, topic, expected) in [
            ("", "orders", 105),
            ("", "b", 3_300),
            ("or", "ders", 105),
            ("", "{orders}.placed", 105),
            ("{orders}", "größe", 105),
            ("a{", "orders}b{c}", 105),
        ] {
            let config = config().stream_prefix(prefix);
            assert_eq!(slot(&config, topic), expected, "{prefix}{topic}");
        }
        // An empty tag is none.
        for topic in ["{}orders", "{orders", "orders}"] {
            assert_ne!(slot(&config(), topic), 105, "{topic}");
        }
    }

    #[test]
    fn the_size_is_that_of_all_fields_and_values() {
        let message = Message::to("t")
            .key("42")
            .header("trace", "abc")
            .bytes("hello")
            .unwrap();
        let config = config();
        let entry = encode(&config, &message).unwrap();
        let all = arguments(&entry.command(&config, Limit::None));
        let fields: usize = all[3..].iter().map(Vec::len).sum();
        assert_eq!(entry.size(), fields);
    }

    #[test]
    fn what_is_larger_than_configured_is_rejected_with_both_sizes() {
        let exact = config().max_message_bytes(2 + 36 + 7 + 10);
        let message = Message::to("t").bytes(vec![0; 10]).unwrap();
        assert_eq!(encode(&exact, &message).unwrap().size(), 55);
        let message = Message::to("t").bytes(vec![0; 11]).unwrap();
        let error = encode(&exact, &message).unwrap_err();
        assert_eq!(error.kind(), PublishErrorKind::Rejected);
        assert_eq!(error.reason(), "the entry has 56 bytes, the limit is 55");
    }

    /// The message of a command, as a consumer of its entry reads it.
    fn decoded(command: &Cmd) -> Message {
        let arguments = arguments(command);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        // The topic, which may be the same word, comes before it.
        let entry = 3 + arguments[2..].iter().position(|word| word == b"*").unwrap();
        let mut message = Message::to(text(&arguments[1]));
        let mut payload = None;
        for field in arguments[entry..].chunks_exact(2) {
            message = match text(&field[0]).as_str() {
                ID_FIELD => message.id(text(&field[1]).parse().unwrap()),
                KEY_FIELD => message.key(text(&field[1])),
                PAYLOAD_FIELD => {
                    payload = Some(field[1].clone());
                    message
                }
                name => {
                    let name = name.strip_prefix(HEADER_FIELD_PREFIX).unwrap();
                    message.header(name, text(&field[1]))
                }
            };
        }
        match payload {
            Some(payload) => message.bytes(payload).unwrap(),
            None => message.tombstone().unwrap(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_decoded_is_the_message_or_it_is_rejected_by_the_name_of_the_field(message in any_message()) {
            match encode(&config(), &message) {
                Ok(entry) => prop_assert_eq!(decoded(&entry.command(&config(), Limit::None)), message),
                Err(error) => {
                    prop_assert_eq!(error.kind(), PublishErrorKind::Rejected);
                    let named = ["topic", "key", "header", "payload"].iter().any(|field| error.reason().contains(field));
                    prop_assert!(named, "{}", error);
                }
            }
        }
    }
}
