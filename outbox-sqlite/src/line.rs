//! Lines and lanes: which messages keep their order, and which are held together.
//!
//! Messages of one key are a *line*, and a message without a key is a line of its own. A line is written
//! as a number of 64 bits, because a key may have 64 KiB. Two keys that hash to the same number would keep
//! their order together, and lose nothing. The low six bits of a line are its *lane*, which the tables
//! compute by themselves.

use outbox_core::Message;

/// How many lanes there are. The tables know it too: it cannot be changed without a migration.
pub(crate) const LANES: u32 = 64;

/// The line of a message. It is written into the database, so it must stay as it is.
pub(crate) fn of(message: &Message) -> i64 {
    match message.key() {
        Some(key) => of_key(key),
        None => fold(fnv_1a(message.id().as_bytes())),
    }
}

/// The line of all messages of a key.
pub(crate) fn of_key(key: &str) -> i64 {
    fold(fnv_1a(key.as_bytes()))
}

/// The high half mixes better than the low bits, which make the lane.
fn fold(hash: u64) -> i64 {
    (hash ^ (hash >> 32)).cast_signed()
}

fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use outbox_core::Uuid;

    use super::*;

    fn keyed(key: &str) -> Message {
        Message::to("t").key(key).tombstone().unwrap()
    }

    fn lane(message: &Message) -> i64 {
        of(message) & i64::from(LANES - 1)
    }

    #[test]
    fn a_line_never_changes() {
        assert_eq!(of(&keyed("")), -3750763035240644671);
        assert_eq!(of(&keyed("customer-7")), 7350728551186167130);
        let id = Uuid::from_u128(7);
        let keyless = Message::to("t").id(id).tombstone().unwrap();
        assert_eq!(of(&keyless), -8637876898541649863);
    }

    #[test]
    fn keys_and_keyless_messages_spread_over_the_lanes() {
        let keys: HashSet<i64> = (0..500)
            .map(|n| lane(&keyed(&format!("key-{n}"))))
            .collect();
        assert_eq!(keys.len(), LANES as usize);
        let keyless: HashSet<i64> = (0..1_000)
            .map(|_| lane(&Message::to("t").tombstone().unwrap()))
            .collect();
        assert_eq!(keyless.len(), LANES as usize);
    }
}
