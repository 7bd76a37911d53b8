//! The settings, with their defaults and limits.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use hyper::Uri;

const REQUESTS: RangeInclusive<usize> = 1..=1024;
const SEND_WITHIN: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3600);

/// Where the receiver is, and how much is asked of it.
///
/// `Debug` shows of the URL only where the receiver is: path and query of such URLs are often secret.
#[derive(Clone)]
pub struct WebhookConfig {
    url: String,
    requests: usize,
    send_within: Duration,
}

impl WebhookConfig {
    /// For the receiver at an `http` URL without credentials.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            requests: 64,
            send_within: Duration::from_secs(5),
        }
    }

    /// The most requests of one call that are open at a time, and so connections. Default 64, 1 to 1024.
    pub fn requests(mut self, requests: usize) -> Self {
        self.requests = requests;
        self
    }

    /// How long one call goes on sending. What was not sent by then is reported as an outage, so that a
    /// slow receiver gets smaller batches, and no message is blamed for it. Default 5 s, 1 ms to 1 h;
    /// together with the time that an answer takes it must stay below half of the relay's publish
    /// timeout (30 s unless configured), since a wave may begin that late.
    pub fn send_within(mut self, time: Duration) -> Self {
        self.send_within = time;
        self
    }

    pub(crate) fn check(self) -> Result<Config, InvalidConfig> {
        let refused = |reason: &str| InvalidConfig {
            field: "url",
            reason: reason.to_owned(),
        };
        // The parser's words say nothing of the URL itself.
        let url: Uri = self
            .url
            .parse()
            .map_err(|error| refused(&format!("is no URL: {error}")))?;
        if url.scheme_str() != Some("http") {
            return Err(refused("does not begin with `http://`"));
        }
        if url.authority().is_some_and(|it| it.as_str().contains('@')) {
            return Err(refused("has credentials, which would be sent to nobody"));
        }
        check("requests", self.requests, REQUESTS)?;
        check("send_within", self.send_within, SEND_WITHIN)?;
        Ok(Config {
            url,
            requests: self.requests,
            send_within: self.send_within,
        })
    }
}

impl fmt::Debug for WebhookConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookConfig")
            .field("requests", &self.requests)
            .field("send_within", &self.send_within)
            .finish_non_exhaustive()
    }
}

/// Settings within their limits.
pub(crate) struct Config {
    pub(crate) url: Uri,
    pub(crate) requests: usize,
    pub(crate) send_within: Duration,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("receiver", &self.url.authority().map(|it| it.as_str()))
            .field("requests", &self.requests)
            .field("send_within", &self.send_within)
            .finish_non_exhaustive()
    }
}

fn check<T: PartialOrd + fmt::Debug>(
    field: &'static str,
    value: T,
    limits: RangeInclusive<T>,
) -> Result<(), InvalidConfig> {
    if limits.contains(&value) {
        return Ok(());
    }
    Err(InvalidConfig {
        field,
        reason: format!(
            "is {value:?}, allowed is {:?} to {:?}",
            limits.start(),
            limits.end()
        ),
    })
}

/// Why a configuration is refused. It names the field, and shows nothing of the URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {reason}")]
pub struct InvalidConfig {
    field: &'static str,
    reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(config: WebhookConfig) -> String {
        config.check().expect_err("it must be refused").to_string()
    }

    #[test]
    fn the_defaults_are_valid() {
        let config = WebhookConfig::new("http://127.0.0.1/events?token=hunter2");
        config.check().unwrap();
    }

    #[test]
    fn what_is_refused_is_named() {
        let good = || WebhookConfig::new("http://127.0.0.1/events");
        for (config, message) in [
            (
                WebhookConfig::new("https://127.0.0.1/events"),
                "url does not begin with `http://`",
            ),
            (
                WebhookConfig::new("/events"),
                "url does not begin with `http://`",
            ),
            (
                WebhookConfig::new("http://user:hunter2@127.0.0.1/"),
                "url has credentials, which would be sent to nobody",
            ),
            (good().requests(0), "requests is 0, allowed is 1 to 1024"),
            (
                good().requests(1025),
                "requests is 1025, allowed is 1 to 1024",
            ),
            (
                good().send_within(Duration::ZERO),
                "send_within is 0ns, allowed is 1ms to 3600s",
            ),
        ] {
            assert_eq!(refused(config), message);
        }
        assert!(refused(WebhookConfig::new("")).starts_with("url is no URL"));
    }

    #[test]
    fn no_part_of_the_url_that_may_be_secret_is_shown() {
        let config = WebhookConfig::new("http://127.0.0.1:1/hunter1?token=hunter2");
        let shown = format!("{config:?} {:?}", config.clone().check());
        assert!(!shown.contains("hunter"), "{shown}");
        assert!(shown.contains("127.0.0.1:1"), "{shown}");
        let error = refused(WebhookConfig::new("http://127.0.0.1/hunter2 ?"));
        assert!(!error.contains("hunter"), "{error}");
    }
}
