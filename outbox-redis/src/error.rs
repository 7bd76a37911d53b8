//! What the client's and the server's errors mean: a pure mapping.
//!
//! An error of the server answers one command; every other error leaves open what became of the
//! commands that were sent. Nearly everything that a server refuses it refuses to every message, for
//! its own reasons: that is an outage, and no message's fault.

use outbox_core::{PublishError, PublishErrorKind};
use redis::RedisError;

/// What an error means for what happens next, and what happened.
pub(crate) fn explain(error: &RedisError) -> PublishError {
    let kind = match is_answer(error) {
        true => classify(
            error.code().unwrap_or_default(),
            error.detail().unwrap_or_default(),
        ),
        false => PublishErrorKind::BrokerUnavailable,
    };
    PublishError::new(kind, reason(error))
}

/// The same for the answer to one command of a script, which is text there. Servers before 7 leave in it
/// what it has on the wire.
pub(crate) fn explain_in_script(answer: &str) -> PublishError {
    let answer = answer
        .strip_prefix('-')
        .unwrap_or(answer)
        .trim_end_matches(['\r', '\n']);
    let (code, detail) = answer.split_once(' ').unwrap_or((answer, ""));
    PublishError::new(classify(code, detail), answer)
}

/// Whether scripts will never do here: the user may not run them, the server has none, or this one needs
/// streams of several slots.
pub(crate) fn refuses_scripts(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    match error.code() {
        Some("NOPERM") => detail.contains("command"),
        Some("CROSSSLOT") => true,
        Some("ERR") => detail.contains("unknown command"),
        _ => false,
    }
}

/// Whether the error is the server's answer to one command. With any other it is open whether the
/// command was executed.
pub(crate) fn is_answer(error: &RedisError) -> bool {
    error.code().is_some()
}

/// What an error means for what happens next.
///
/// An answer that is in no table is `Retryable`: it is counted, so it cannot go round for ever.
fn classify(code: &str, detail: &str) -> PublishErrorKind {
    use PublishErrorKind::*;
    match code {
        // The server cannot write, or not for us; another one may have taken its place.
        "READONLY" | "MASTERDOWN" | "LOADING" | "OOM" | "MISCONF" | "NOREPLICAS" | "BUSY"
        | "NOAUTH" | "WRONGPASS" | "NOPROTO" | "DENIED" | "EXECABORT" | "UNBLOCKED" => {
            BrokerUnavailable
        }
        // The command, or one stream of those that the user may not touch.
        "NOPERM" if detail.contains("command") => BrokerUnavailable,
        "NOPERM" => TopicUnavailable,
        // The key is no stream, or lives on another server of a cluster.
        "WRONGTYPE" | "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT" => TopicUnavailable,
        "CLUSTERDOWN" if detail.contains("slot") => TopicUnavailable,
        "CLUSTERDOWN" => BrokerUnavailable,
        "ERR" => classify_general(detail),
        _ => Retryable,
    }
}

/// An answer with the code that says nothing, by its words.
fn classify_general(detail: &str) -> PublishErrorKind {
    use PublishErrorKind::*;
    let says = |words: &str| detail.contains(words);
    // Larger than the server's `proto-max-bulk-len`, or than any entry can be.
    if says("invalid bulk length") || says("too large") || says("exceeds maximum allowed size") {
        Rejected
    // A stream whose last entry has the highest id that there is takes no more.
    // Or of a user who may not touch it, as servers before 7.2 say it in a script.
    } else if says("exhausted the last possible ID")
        || says("equal or smaller than")
        || says("can't access at least one of the keys")
    {
        TopicUnavailable
    // A server too old for what is configured, full of clients, or out of sorts with its replicas:
    // every message would get the same answer.
    } else if says("unknown command")
        || says("syntax error")
        || says("wrong number of arguments")
        || says("max number of clients")
        || says("operation not permitted")
        || says("can't run this command")
        || says("WAIT cannot be used with replica")
    {
        BrokerUnavailable
    } else {
        Retryable
    }
}

/// What happened, for people: a server's answer in its own words.
fn reason(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        (None, _) if error.is_timeout() => "no answer in time".to_owned(),
        (None, _) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use redis::{ErrorKind, Value, parse_redis_value};

    use super::*;

    fn answer(line: &str) -> RedisError {
        match parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap() {
            Value::ServerError(error) => error.into(),
            other => panic!("{line} is read as {other:?}"),
        }
    }

    /// The answers that a producer can meet, in the servers' own words, and what each must mean.
    const TABLE: &[(&str, PublishErrorKind)] = {
        use PublishErrorKind::*;
        &[
            (
                "READONLY You can't write against a read only replica.",
                BrokerUnavailable,
            ),
            (
                "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
                BrokerUnavailable,
            ),
            (
                "LOADING Redis is loading the dataset in memory",
                BrokerUnavailable,
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                BrokerUnavailable,
            ),
            (
                "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to \
                 persist to disk.",
                BrokerUnavailable,
            ),
            (
                "NOREPLICAS Not enough good replicas to write.",
                BrokerUnavailable,
            ),
            (
                "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN \
                 NOSAVE.",
                BrokerUnavailable,
            ),
            ("NOAUTH Authentication required.", BrokerUnavailable),
            (
                "WRONGPASS invalid username-password pair or user is disabled.",
                BrokerUnavailable,
            ),
            (
                "DENIED Redis is running in protected mode",
                BrokerUnavailable,
            ),
            (
                "NOPERM User app has no permissions to run the 'xadd' command",
                BrokerUnavailable,
            ),
            (
                "NOPERM this user has no permissions to run the 'xadd' command",
                BrokerUnavailable,
            ),
            ("NOPERM No permissions to access a key", TopicUnavailable),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                TopicUnavailable,
            ),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                TopicUnavailable,
            ),
            ("MOVED 3999 127.0.0.1:6381", TopicUnavailable),
            ("ASK 3999 127.0.0.1:6381", TopicUnavailable),
            (
                "TRYAGAIN Multiple keys request during rehashing of slot",
                TopicUnavailable,
            ),
            (
                "CROSSSLOT Keys in request don't hash to the same slot",
                TopicUnavailable,
            ),
            ("CLUSTERDOWN Hash slot not served", TopicUnavailable),
            ("CLUSTERDOWN The cluster is down", BrokerUnavailable),
            (
                "CLUSTERDOWN The cluster is down and only accepts read commands",
                BrokerUnavailable,
            ),
            (
                "ERR The stream has exhausted the last possible ID, unable to add more items",
                TopicUnavailable,
            ),
            (
                "ERR The ID specified in XADD is equal or smaller than the target stream top item",
                TopicUnavailable,
            ),
            (
                "ERR The user executing the script can't access at least one of the keys mentioned \
                 in the command arguments",
                TopicUnavailable,
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                BrokerUnavailable,
            ),
            ("ERR Protocol error: invalid bulk length", Rejected),
            ("ERR Elements are too large to be stored", Rejected),
            (
                "ERR string exceeds maximum allowed size (proto-max-bulk-len)",
                Rejected,
            ),
            (
                "ERR unknown command 'XADD', with args beginning with: ",
                BrokerUnavailable,
            ),
            ("ERR syntax error", BrokerUnavailable),
            (
                "ERR wrong number of arguments for 'xadd' command",
                BrokerUnavailable,
            ),
            ("ERR max number of clients reached", BrokerUnavailable),
            (
                "ERR WAIT cannot be used with replica instances. Please also note that if a \
                 replica is configured to be writable",
                BrokerUnavailable,
            ),
            ("ERR something that nobody has seen", Retryable),
            ("NEWCODE of a newer server", Retryable),
        ]
    };

    #[test]
    fn each_answer_means_what_the_table_says() {
        for (line, kind) in TABLE {
            let error = answer(line);
            assert!(is_answer(&error), "{line}");
            let explained = explain(&error);
            assert_eq!(explained.kind(), *kind, "{line}");
            assert_eq!(explained.reason(), *line);
            for inside in [(*line).to_owned(), format!("-{line}\r\n")] {
                assert_eq!(explain_in_script(&inside), explained, "in a script: {line}");
            }
        }
    }

    #[test]
    fn scripts_are_given_up_where_they_can_never_do() {
        let never = [
            "NOPERM this user has no permissions to run the 'eval' command",
            "ERR unknown command `EVAL`, with args beginning with: ",
            "CROSSSLOT Keys in request don't hash to the same slot",
        ];
        for (line, _) in TABLE {
            let expected = line.contains("the 'xadd' command")
                || line.contains("unknown command")
                || line.starts_with("CROSSSLOT");
            assert_eq!(refuses_scripts(&answer(line)), expected, "{line}");
        }
        for line in never {
            assert!(refuses_scripts(&answer(line)), "{line}");
        }
    }

    #[test]
    fn an_operators_mistake_kills_no_message() {
        for (line, kind) in TABLE {
            if line.starts_with("NO") || line.starts_with("WRONG") || line.starts_with("MISCONF") {
                let counts = matches!(
                    kind,
                    PublishErrorKind::Retryable | PublishErrorKind::Rejected
                );
                assert!(!counts, "{line} becomes {kind}");
            }
        }
    }

    #[test]
    fn without_an_answer_the_server_is_away_and_the_outcome_unknown() {
        for error in [
            RedisError::from(io::Error::from(io::ErrorKind::ConnectionRefused)),
            RedisError::from(io::Error::from(io::ErrorKind::BrokenPipe)),
            RedisError::from(io::Error::from(io::ErrorKind::UnexpectedEof)),
            RedisError::from(io::Error::from(io::ErrorKind::TimedOut)),
            RedisError::from((ErrorKind::AuthenticationFailed, "refused")),
            RedisError::from((ErrorKind::Parse, "garbage")),
            RedisError::from((ErrorKind::Client, "TLS")),
        ] {
            assert!(!is_answer(&error), "{error}");
            assert_eq!(
                explain(&error).kind(),
                PublishErrorKind::BrokerUnavailable,
                "{error}"
            );
        }
        let silence = RedisError::from(io::Error::from(io::ErrorKind::TimedOut));
        assert_eq!(explain(&silence).reason(), "no answer in time");
    }
}
