//! What a status, or none, means: a pure mapping.

use std::error::Error as _;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{HeaderMap, RETRY_AFTER};
use hyper_util::client::legacy::Error;
use outbox_core::{PublishError, PublishErrorKind};

/// The longest time that a receiver is left alone because it asked for it.
pub(crate) const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// What an answer means for what happens next; `None`: the receiver has taken the message.
///
/// A status that is in no table is `Retryable`: it is counted, so it cannot go round for ever.
pub(crate) fn classify(status: StatusCode) -> Option<PublishErrorKind> {
    use PublishErrorKind::*;
    Some(match status.as_u16() {
        200..=299 => return None,
        // Nobody is there behind the proxy, or nobody who has time.
        429 | 502 | 503 | 504 => BrokerUnavailable,
        // The receiver for this topic is missing, has moved or does not know us: the operator's to
        // mend, and no message's fault.
        300..=399 | 401 | 403 | 404 | 405 | 407 | 410 | 421 => TopicUnavailable,
        // The message, for good.
        400 | 413 | 414 | 415 | 422 | 431 => Rejected,
        // The receiver failed at it, or the status is not known here.
        _ => Retryable,
    })
}

/// How long the receiver asks to be left alone, where it gives a number of seconds.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse();
    Some(Duration::from_secs(seconds.ok()?).min(LONGEST_RETRY_AFTER))
}

/// What it means that a request ended without a status.
///
/// A connection that could not be made is the receiver's absence. One that broke under a request may
/// be that request's doing, so it counts: one message at which a receiver crashes would otherwise be an
/// outage for ever.
pub(crate) fn unanswered(error: &Error) -> PublishError {
    let kind = match error.is_connect() {
        true => PublishErrorKind::BrokerUnavailable,
        false => PublishErrorKind::Retryable,
    };
    let mut reason = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        reason.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    PublishError::new(kind, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_means_what_the_table_says() {
        use PublishErrorKind::*;
        for (statuses, kind) in [
            (&[200, 201, 202, 204, 299][..], None),
            (&[429, 502, 503, 504], Some(BrokerUnavailable)),
            (
                &[301, 302, 307, 308, 401, 403, 404, 405, 407, 410, 421],
                Some(TopicUnavailable),
            ),
            (&[400, 413, 414, 415, 422, 431], Some(Rejected)),
            (
                &[100, 402, 408, 409, 418, 425, 500, 501, 505, 599, 999],
                Some(Retryable),
            ),
        ] {
            for status in statuses {
                let status = StatusCode::from_u16(*status).unwrap();
                assert_eq!(classify(status), kind, "{status}");
            }
        }
    }

    #[test]
    fn only_seconds_are_understood_and_not_too_many() {
        for (value, expected) in [
            ("3", Some(Duration::from_secs(3))),
            (" 0 ", Some(Duration::ZERO)),
            ("86400", Some(LONGEST_RETRY_AFTER)),
            ("99999999999999999999999", None),
            ("-1", None),
            ("Fri, 27 Nov 2026 00:00:00 GMT", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, value.parse().unwrap());
            assert_eq!(retry_after(&headers), expected, "{value:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
