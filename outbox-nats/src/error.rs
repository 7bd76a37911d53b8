//! What the server's answers mean: a pure mapping.
//!
//! JetStream answers a publish with an acknowledgement or with an error that has a code. The server
//! itself says when nobody listens to a subject, and so no stream. Everything else is silence, and what
//! that means `publisher.rs` finds out: a connection that is lost, a right that is missing, a stream that
//! does not acknowledge.

use std::borrow::Cow;

use async_nats::StatusCode;
use async_nats::jetstream::{self, ErrorCode};
use outbox_core::{PublishError, PublishErrorKind};
use serde::Deserialize;

/// JetStream's own answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The stream has the message; `duplicate`: it had it before, and dropped this copy.
    Stored { duplicate: bool },
    /// It has it not.
    Failed(PublishError),
    /// Somebody else has answered: a subscriber that replies to what it receives.
    Foreign,
}

#[derive(Deserialize)]
struct Reply<'a> {
    #[serde(borrow, default)]
    stream: Cow<'a, str>,
    /// Zero for a repeat of what a stream without interest did not keep.
    #[serde(rename = "seq")]
    sequence: Option<u64>,
    #[serde(default)]
    duplicate: bool,
    error: Option<jetstream::Error>,
    /// The id of the atomic batch that is stored, and how many messages it has.
    batch: Option<String>,
    count: Option<u64>,
}

/// Reads what came to the reply subject of a publish.
pub(crate) fn read(
    status: Option<StatusCode>,
    payload: &[u8],
    expected_stream: Option<&str>,
) -> Answer {
    if status == Some(StatusCode::NO_RESPONDERS) {
        return Answer::Failed(PublishError::topic_unavailable(
            "no stream takes the subject, or JetStream is not there",
        ));
    }
    let Ok(reply) = serde_json::from_slice::<Reply<'_>>(payload) else {
        return Answer::Foreign;
    };
    if let Some(error) = reply.error {
        let kind = classify(error.code(), error.error_code());
        return Answer::Failed(PublishError::new(kind, error.to_string()));
    }
    read_acknowledgement(&reply, expected_stream)
}

/// Reads what is no error.
fn read_acknowledgement(reply: &Reply<'_>, expected_stream: Option<&str>) -> Answer {
    if reply.stream.is_empty() || reply.sequence.is_none() {
        return Answer::Foreign;
    }
    match expected_stream {
        Some(expected) if expected != reply.stream => {
            Answer::Failed(PublishError::topic_unavailable(format!(
                "stream {:?} has taken the message, expected was {expected:?}",
                reply.stream
            )))
        }
        _ => Answer::Stored {
            duplicate: reply.duplicate,
        },
    }
}

/// What the stream says of an atomic batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BatchAnswer {
    /// It has taken the first message, and awaits the others. Anybody may say so: it is empty.
    Begun,
    /// It has all messages of a batch.
    Stored { batch: String, count: u64 },
    /// What is said of a message that came in no batch. Who says so knows of none.
    Plain(Answer),
    /// It has nothing of the batch, and may take part of it.
    Refused,
    /// It has nothing of the batch, and takes none with these messages.
    Never,
    /// Somebody else has answered.
    Foreign,
}

/// Reads what came to the reply subject of the first message of an atomic batch, or of the last.
pub(crate) fn read_of_batch(
    status: Option<StatusCode>,
    payload: &[u8],
    expected_stream: Option<&str>,
) -> BatchAnswer {
    if status.is_none() && payload.is_empty() {
        return BatchAnswer::Begun;
    }
    if status == Some(StatusCode::NO_RESPONDERS) {
        return BatchAnswer::Never; // the messages are told one by one
    }
    let Ok(reply) = serde_json::from_slice::<Reply<'_>>(payload) else {
        return BatchAnswer::Foreign;
    };
    match reply.error.as_ref().map(jetstream::Error::error_code) {
        Some(
            ErrorCode::ATOMIC_PUBLISH_DISABLED
            // No smaller batch would have a better one.
            | ErrorCode::ATOMIC_PUBLISH_INVALID_BATCH_ID
            // NATS 2.12.0 does not take message ids in it.
            | ErrorCode::ATOMIC_PUBLISH_UNSUPPORTED_HEADER
            // Repeats: the stream has some of them.
            | ErrorCode::ATOMIC_PUBLISH_CONTAINS_DUPLICATE_MESSAGE,
        ) => BatchAnswer::Never,
        Some(_) => BatchAnswer::Refused,
        None => match (read_acknowledgement(&reply, expected_stream), reply.batch, reply.count) {
            (Answer::Foreign, ..) => BatchAnswer::Foreign,
            (Answer::Stored { .. }, Some(batch), Some(count)) => BatchAnswer::Stored { batch, count },
            (answer, ..) => BatchAnswer::Plain(answer),
        },
    }
}

/// What an error means for what happens next.
///
/// One that is in no table is `Retryable`: it is counted, so it cannot go round for ever.
fn classify(status: usize, code: ErrorCode) -> PublishErrorKind {
    use ErrorCode as Code;
    use PublishErrorKind::*;
    match code {
        // The stream, for now: it is full, cannot be written, is another one, or has no leader.
        Code::STREAM_STORE_FAILED
        | Code::STREAM_SEALED
        | Code::STREAM_NOT_MATCH
        | Code::STREAM_NOT_FOUND
        | Code::STREAM_OFFLINE
        | Code::STREAM_OFFLINE_REASON
        | Code::STREAM_TOO_MANY_REQUESTS
        // Limits of the server or the account, which are the operator's to raise.
        | Code::INSUFFICIENT_RESOURCES
        | Code::ACCOUNT_RESOURCES_EXCEEDED
        | Code::MEMORY_RESOURCES_EXCEEDED
        | Code::STORAGE_RESOURCES_EXCEEDED
        | Code::NO_LIMITS
        | Code::JETSTREAM_NOT_ENABLED
        | Code::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
        | Code::CLUSTER_NOT_AVAILABLE
        | Code::CLUSTER_NOT_LEADER
        // A stream of counters takes nothing else: it would refuse every message.
        | Code::MESSAGE_INCR_MISSING => TopicUnavailable,

        // The message, for good.
        Code::STREAM_MESSAGE_EXCEEDS_MAXIMUM | Code::STREAM_HEADER_EXCEEDS_MAXIMUM => Rejected,

        // The leader could not pass the message on to its followers; that error has no code of its own.
        ErrorCode(0) if status == 503 => TopicUnavailable,

        // An earlier copy is on its way into the stream, or not known here.
        _ => Retryable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_of_a_batch() {
        let read = |payload: &str| read_of_batch(None, payload.as_bytes(), Some("S"));
        let refused = |code: u64| {
            read(&format!(
                r#"{{"error":{{"code":400,"err_code":{code},"description":"no"}},"stream":"S","seq":0}}"#
            ))
        };
        assert_eq!(read(""), BatchAnswer::Begun);
        assert_eq!(
            read(r#"{"stream":"S","seq":3,"batch":"b","count":3}"#),
            BatchAnswer::Stored {
                batch: "b".to_owned(),
                count: 3
            }
        );
        for alone in [
            r#"{"stream":"S","seq":3}"#,
            r#"{"stream":"S","seq":3,"batch":"b"}"#,
            r#"{"stream":"S","seq":3,"count":3}"#,
        ] {
            let stored = Answer::Stored { duplicate: false };
            assert_eq!(read(alone), BatchAnswer::Plain(stored), "{alone}");
        }
        assert!(matches!(
            read(r#"{"stream":"T","seq":3,"batch":"b","count":3}"#),
            BatchAnswer::Plain(Answer::Failed(_))
        ));
        assert_eq!(refused(10174), BatchAnswer::Never); // disabled
        assert_eq!(refused(10177), BatchAnswer::Never); // unsupported header
        assert_eq!(refused(10179), BatchAnswer::Never); // invalid batch id
        assert_eq!(refused(10201), BatchAnswer::Never); // contains a duplicate
        assert_eq!(refused(10176), BatchAnswer::Refused); // incomplete
        assert_eq!(refused(10210), BatchAnswer::Refused); // too many in flight
        assert_eq!(read("pong"), BatchAnswer::Foreign);
        assert_eq!(read(r#"{"stream":"","seq":1}"#), BatchAnswer::Foreign);
        assert_eq!(
            read_of_batch(Some(StatusCode::NO_RESPONDERS), b"", None),
            BatchAnswer::Never
        );
    }

    /// The codes that a publish can meet, and what each must mean.
    const TABLE: &[(usize, u64, PublishErrorKind)] = {
        use PublishErrorKind::*;
        &[
            (503, 10077, TopicUnavailable), // the store failed: full, out of space
            (400, 10109, TopicUnavailable), // sealed
            (400, 10060, TopicUnavailable), // expected stream does not match
            (404, 10059, TopicUnavailable), // stream not found
            (500, 10118, TopicUnavailable), // stream is offline
            (500, 10194, TopicUnavailable), // stream is offline, with the reason
            (429, 10167, TopicUnavailable), // too many requests
            (503, 10023, TopicUnavailable), // insufficient resources
            (400, 10002, TopicUnavailable), // resource limits exceeded for account
            (500, 10028, TopicUnavailable), // insufficient memory
            (500, 10047, TopicUnavailable), // insufficient storage
            (400, 10120, TopicUnavailable), // no limits for the account's tier
            (503, 10076, TopicUnavailable), // JetStream not enabled
            (503, 10039, TopicUnavailable), // JetStream not enabled for account
            (503, 10008, TopicUnavailable), // system temporarily unavailable
            (500, 10009, TopicUnavailable), // cluster cannot handle request
            (400, 10169, TopicUnavailable), // counter increment is missing
            (503, 0, TopicUnavailable),     // a proposal that failed
            (400, 10054, Rejected),         // message size exceeds maximum
            (400, 10097, Rejected),         // header size exceeds maximum
            (409, 10158, Retryable),        // duplicate message id is in process
            (400, 10071, Retryable),        // wrong last sequence
            (500, 10051, Retryable),        // general stream failure
            (400, 0, Retryable),
            (500, 65_000, Retryable),
        ]
    };

    fn refusal(status: usize, code: u64) -> String {
        format!(
            r#"{{"error":{{"code":{status},"err_code":{code},"description":"why"}},"stream":"S","seq":0}}"#
        )
    }

    fn kind(answer: Answer) -> PublishErrorKind {
        match answer {
            Answer::Failed(error) => error.kind(),
            other => panic!("it should have failed: {other:?}"),
        }
    }

    #[test]
    fn each_code_means_what_the_table_says() {
        for (status, code, expected) in TABLE {
            let answer = read(None, refusal(*status, *code).as_bytes(), None);
            assert_eq!(kind(answer), *expected, "{status} {code}");
        }
    }

    #[test]
    fn a_failure_is_told_in_the_servers_words() {
        let answer = read(None, refusal(400, 10054).as_bytes(), None);
        assert_eq!(
            answer,
            Answer::Failed(PublishError::rejected("why (code 400, error code 10054)"))
        );
    }

    #[test]
    fn an_operators_mistake_kills_no_message() {
        for (status, code) in [(400, 10109), (400, 10060), (400, 10002), (503, 10076)] {
            let answer = read(None, refusal(status, code).as_bytes(), None);
            assert_eq!(kind(answer), PublishErrorKind::TopicUnavailable, "{code}");
        }
    }

    #[test]
    fn nobody_who_listens_is_no_stream() {
        let answer = read(Some(StatusCode::NO_RESPONDERS), b"", Some("S"));
        assert_eq!(kind(answer), PublishErrorKind::TopicUnavailable);
    }

    #[test]
    fn an_acknowledgement_is_one_of_the_expected_stream() {
        let stored = |payload: &str, stream| read(None, payload.as_bytes(), stream);
        let first = Answer::Stored { duplicate: false };
        assert_eq!(stored(r#"{"stream":"S","seq":1}"#, None), first);
        assert_eq!(stored(r#"{"stream":"S","seq":1}"#, Some("S")), first);
        assert_eq!(
            stored(r#"{"stream":"a\"b","domain":"hub","seq":9}"#, Some("a\"b")),
            first
        );
        for repeat in [
            r#"{"stream":"S","seq":1,"duplicate": true}"#,
            r#"{"stream":"S","seq":0,"duplicate": true}"#,
        ] {
            assert_eq!(
                stored(repeat, Some("S")),
                Answer::Stored { duplicate: true }
            );
        }
        assert_eq!(
            stored(r#"{"stream":"S","seq":1}"#, Some("T")),
            Answer::Failed(PublishError::topic_unavailable(
                "stream \"S\" has taken the message, expected was \"T\""
            ))
        );
    }

    #[test]
    fn what_is_no_acknowledgement_is_somebody_elses_answer() {
        for payload in [
            "",
            "pong",
            "[1]",
            "{}",
            r#"{"ok":true}"#,
            r#"{"seq":1}"#,
            r#"{"stream":"S"}"#,
            r#"{"stream":"","seq":1}"#,
            r#"{"error":"it went wrong"}"#,
        ] {
            assert_eq!(
                read(None, payload.as_bytes(), None),
                Answer::Foreign,
                "{payload}"
            );
        }
        assert_eq!(read(None, b"\xff\xfe", None), Answer::Foreign);
    }
}
