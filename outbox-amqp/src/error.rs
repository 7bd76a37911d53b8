//! What the server's answers and the client's errors mean: a pure mapping.
//!
//! A server answers in four ways. It confirms a message or refuses it (nack); it returns one that no
//! queue wants; it closes the channel over one message (a *channel exception*), and then says nothing
//! about the others that are on the channel; or it closes the connection. What is here says which of
//! them an error is, which messages its words name, and what kind of failure it is for those.

use lapin::protocol::AMQPErrorKind;
use lapin::{Error, ErrorKind};
use outbox_core::{PublishError, PublishErrorKind};

/// The name by which the server speaks of the default exchange.
const DEFAULT_EXCHANGE: &str = "amq.default";

/// What an error of a channel says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A channel exception. The connection and its other channels live.
    Exception(Exception),
    /// The channel was closed before; why, its other messages know, if there are any.
    Closed(String),
    /// The connection is gone.
    Lost(String),
}

/// Why the server has closed a channel, in its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exception {
    pub(crate) code: u16,
    pub(crate) text: String,
}

impl Fault {
    pub(crate) fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::ProtocolError(error) if matches!(error.kind(), AMQPErrorKind::Soft(_)) => {
                Self::Exception(Exception {
                    code: error.get_id(),
                    text: error.get_message().to_string(),
                })
            }
            ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidChannel(_) => {
                Self::Closed(describe(error))
            }
            _ => Self::Lost(describe(error)),
        }
    }

    /// Whether `other` says less of the same channel's end.
    pub(crate) fn explains(&self, other: &Self) -> bool {
        let says = |fault: &Self| match fault {
            Self::Exception(_) => 2,
            Self::Lost(_) => 1,
            Self::Closed(_) => 0,
        };
        says(self) > says(other)
    }
}

impl Exception {
    /// What it means for a message that it is about.
    pub(crate) fn error(&self) -> PublishError {
        PublishError::new(classify(self.code), format!("{} {}", self.code, self.text))
    }

    /// Whether it is about every message of this exchange, or of this exchange and routing key.
    pub(crate) fn names(&self, exchange: &str, routing_key: &str) -> bool {
        let exchange = match exchange {
            "" => DEFAULT_EXCHANGE,
            exchange => exchange,
        };
        let is_of_exchange = self
            .text
            .contains(&format!("exchange '{exchange}' in vhost"));
        let is_of_topic = self.text.contains("access to topic '");
        is_of_exchange
            && (!is_of_topic
                || self
                    .text
                    .contains(&format!("topic '{routing_key}' in exchange")))
    }

    /// The size of a message that was too large and the server's limit, in bytes of payload.
    pub(crate) fn too_large(&self) -> Option<(usize, usize)> {
        let text = self.text.split_once("message size ")?.1;
        let size = text.split(' ').next()?.parse().ok()?;
        let limit = text.split_once("max size ")?.1;
        let limit = limit.split(|c: char| !c.is_ascii_digit()).next()?;
        Some((size, limit.parse().ok()?))
    }
}

/// What a code of a channel exception or of a returned message means for the message that it is about.
///
/// A code that is not listed is `Retryable`: it is counted, so it cannot go round for ever.
pub(crate) fn classify(code: u16) -> PublishErrorKind {
    use PublishErrorKind::*;
    match code {
        // No route, no consumers; no right, no exchange, locked. The operator's to mend.
        312 | 313 | 403 | 404 | 405 => TopicUnavailable,
        // Content too large; a precondition that the message does not meet.
        311 | 406 => Rejected,
        _ => Retryable,
    }
}

/// What became of a message that came back.
pub(crate) fn returned(code: u16, text: &str, exchange: &str, routing_key: &str) -> PublishError {
    let nobody = match exchange {
        "" => format!("no queue is named {routing_key:?}"),
        exchange => {
            format!("no queue is bound to exchange {exchange:?} for routing key {routing_key:?}")
        }
    };
    PublishError::new(classify(code), format!("{code} {text}: {nobody}"))
}

/// What became of a message that the server has refused with a nack.
pub(crate) fn nacked() -> PublishError {
    PublishError::retryable(
        "refused with a nack: a queue is full and rejects, or had an error of its own",
    )
}

/// What happened, for people.
pub(crate) fn describe(error: &Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => format!("{} {}", error.get_id(), error.get_message()),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use lapin::protocol::{AMQPError, AMQPHardError, AMQPSoftError};
    use lapin::{ChannelState, ConnectionState};

    use super::*;

    fn exception(code: u16, text: &str) -> Exception {
        Exception {
            code,
            text: text.to_owned(),
        }
    }

    fn protocol(kind: impl Into<AMQPErrorKind>, text: &str) -> Error {
        ErrorKind::ProtocolError(AMQPError::new(kind.into(), text.into())).into()
    }

    #[test]
    fn each_code_means_what_the_table_says() {
        use PublishErrorKind::*;
        for (code, kind) in [
            (311, Rejected),
            (312, TopicUnavailable),
            (313, TopicUnavailable),
            (403, TopicUnavailable),
            (404, TopicUnavailable),
            (405, TopicUnavailable),
            (406, Rejected),
            (0, Retryable),
            (200, Retryable),
            (599, Retryable),
        ] {
            assert_eq!(classify(code), kind, "{code}");
        }
    }

    #[test]
    fn an_operators_mistake_kills_no_message() {
        for code in [312, 403, 404] {
            assert_eq!(classify(code), PublishErrorKind::TopicUnavailable, "{code}");
        }
    }

    #[test]
    fn only_soft_errors_are_of_a_channel_alone() {
        for soft in [
            AMQPSoftError::CONTENTTOOLARGE,
            AMQPSoftError::ACCESSREFUSED,
            AMQPSoftError::NOTFOUND,
            AMQPSoftError::RESOURCELOCKED,
            AMQPSoftError::PRECONDITIONFAILED,
        ] {
            let code = soft.get_id();
            let expected = Fault::Exception(exception(code, "why"));
            assert_eq!(Fault::of(&protocol(soft, "why")), expected);
        }
        for (error, reason) in [
            (
                protocol(AMQPHardError::CONNECTIONFORCED, "CONNECTION_FORCED - bye"),
                "320 CONNECTION_FORCED - bye",
            ),
            (
                protocol(AMQPHardError::CHANNELERROR, "CHANNEL_ERROR - open?"),
                "504 CHANNEL_ERROR - open?",
            ),
            (
                protocol(AMQPHardError::NOTALLOWED, "NOT_ALLOWED - vhost gone"),
                "530 NOT_ALLOWED - vhost gone",
            ),
            (
                io::Error::from(io::ErrorKind::ConnectionReset).into(),
                "IO error: connection reset",
            ),
            (
                ErrorKind::MissingHeartbeatError.into(),
                "no heartbeat received from server for too long",
            ),
            (
                ErrorKind::InvalidConnectionState(ConnectionState::Closed).into(),
                "invalid connection state: Closed",
            ),
        ] {
            assert_eq!(Fault::of(&error), Fault::Lost(reason.to_owned()));
        }
        for kind in [
            ErrorKind::InvalidChannelState(ChannelState::Closed, "basic.publish"),
            ErrorKind::InvalidChannel(3),
        ] {
            assert!(matches!(Fault::of(&kind.into()), Fault::Closed(_)));
        }
    }

    #[test]
    fn the_reason_that_says_most_is_kept() {
        let exception = Fault::Exception(exception(404, "NOT_FOUND"));
        let lost = Fault::Lost("reset".to_owned());
        let closed = Fault::Closed("closed".to_owned());
        assert!(exception.explains(&lost) && exception.explains(&closed));
        assert!(lost.explains(&closed));
        assert!(!closed.explains(&lost) && !lost.explains(&exception));
        assert!(!exception.explains(&exception));
    }

    #[test]
    fn what_came_back_says_what_is_missing() {
        let error = returned(312, "NO_ROUTE", "", "orders");
        assert_eq!(error.kind(), PublishErrorKind::TopicUnavailable);
        assert_eq!(error.reason(), "312 NO_ROUTE: no queue is named \"orders\"");
        let error = returned(312, "NO_ROUTE", "shop", "orders");
        assert_eq!(
            error.reason(),
            "312 NO_ROUTE: no queue is bound to exchange \"shop\" for routing key \"orders\""
        );
        assert_eq!(nacked().kind(), PublishErrorKind::Retryable);
    }

    #[test]
    fn an_exception_names_the_messages_of_its_exchange() {
        let missing = exception(404, "NOT_FOUND - no exchange 'shop' in vhost '/'");
        assert!(missing.names("shop", "a"));
        assert!(!missing.names("sho", "a"));
        assert!(!missing.names("", "shop"));

        let refused = exception(
            403,
            "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'u'",
        );
        assert!(refused.names("", "a"));
        assert!(!refused.names("shop", "a"));

        let topic = exception(
            403,
            "ACCESS_REFUSED - access to topic 'a.b' in exchange 'shop' in vhost '/' refused for \
             user 'u'",
        );
        assert!(topic.names("shop", "a.b"));
        assert!(!topic.names("shop", "a"));
        assert!(!topic.names("other", "a.b"));

        let other = exception(406, "PRECONDITION_FAILED - something else");
        assert!(!other.names("shop", "a"));
    }

    #[test]
    fn the_sizes_of_a_too_large_message_are_read() {
        for (text, sizes) in [
            (
                "PRECONDITION_FAILED - message size 2001 is larger than configured max size 2000",
                Some((2001, 2000)),
            ),
            (
                "PRECONDITION_FAILED - message size 9 is larger than max size 7.",
                Some((9, 7)),
            ),
            ("PRECONDITION_FAILED - message size", None),
            ("message size x is larger than max size 7", None),
            ("message size 9 is larger than max size ", None),
            ("NOT_FOUND - no exchange 'shop' in vhost '/'", None),
        ] {
            assert_eq!(exception(406, text).too_large(), sizes, "{text}");
        }
    }

    #[test]
    fn an_exception_becomes_an_error_with_its_code_and_words() {
        let error = exception(404, "NOT_FOUND - no exchange").error();
        assert_eq!(error.kind(), PublishErrorKind::TopicUnavailable);
        assert_eq!(error.reason(), "404 NOT_FOUND - no exchange");
    }
}
