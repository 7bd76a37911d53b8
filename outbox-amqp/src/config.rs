//! The settings: where the broker is, how a topic is routed, and how long anything may take.
//!
//! What the promise rests on is no setting: confirms, persistent messages and the mandatory flag are
//! always on, and the client's own reconnecting is always off, since with it confirms can hang after
//! the server is gone.

use std::fmt;
use std::time::Duration;

use lapin::ConnectionProperties;
use lapin::auth::AuthProvider;
use lapin::tcp::OwnedTLSConfig;
use lapin::uri::{AMQPScheme, AMQPUri};

use crate::encode::{MAX_NAME_BYTES, has_line_break};

/// How long the broker has to connect, authenticate and open a channel, unless configured.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

/// How long a call waits for the next answer about any of its messages, unless configured.
///
/// Together with the connect timeout it must stay at least 2 s below half of the relay's publish
/// timeout (30 s unless configured): a wave may begin that late, and an outage that is not explained
/// in time passes for a failure of the messages in it.
pub const CONFIRM_TIMEOUT: Duration = Duration::from_secs(8);

/// The longest of either timeout.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(300);

/// Where a message of a topic goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// To the queue of the topic's name, through the default exchange. Needs no bindings.
    #[default]
    Queue,
    /// To one exchange for all topics; the topic is the routing key. A topic exchange lets consumers
    /// bind `orders.*`.
    Exchange(String),
    /// To the exchange of the topic's name; the message's key is the routing key, empty where there
    /// is none. A consistent-hash exchange then spreads keys over queues and keeps each key in one.
    ExchangePerTopic,
}

impl Routing {
    /// Whether a topic is the name of a queue or an exchange.
    pub(crate) fn topic_is_a_name(&self) -> bool {
        !matches!(self, Self::Exchange(_))
    }
}

/// The settings of an [`AmqpPublisher`](crate::AmqpPublisher). Checked when one is made of them.
#[derive(Clone)]
#[must_use = "settings do nothing until a publisher is made of them"]
pub struct AmqpConfig {
    uri: String,
    routing: Routing,
    properties: ConnectionProperties,
    tls: OwnedTLSConfig,
    connect_timeout: Duration,
    confirm_timeout: Duration,
}

impl AmqpConfig {
    /// A broker by its URI, as RabbitMQ defines them: `amqp://user:password@host:port/vhost`, or
    /// `amqps://` for TLS (feature `tls`). The vhost `/` is written `%2f`. The query parameters
    /// `heartbeat`, `frame_max`, `channel_max` and `auth_mechanism` are heeded.
    pub fn new(uri: impl Into<String>) -> Self {
        Self {
            uri: uri.into(),
            routing: Routing::default(),
            properties: ConnectionProperties::default().with_connection_name("outbox".into()),
            tls: OwnedTLSConfig::default(),
            connect_timeout: CONNECT_TIMEOUT,
            confirm_timeout: CONFIRM_TIMEOUT,
        }
    }

    /// Where a topic's messages go. [`Routing::Queue`] unless it is set.
    pub fn routing(mut self, routing: Routing) -> Self {
        self.routing = routing;
        self
    }

    /// The connection's name in RabbitMQ's own tools. `outbox` unless it is set.
    pub fn connection_name(mut self, name: impl Into<String>) -> Self {
        self.properties = self.properties.with_connection_name(name.into().into());
        self
    }

    /// Authenticates by `provider` instead of the user and password of the URI.
    pub fn auth_provider(mut self, provider: impl AuthProvider) -> Self {
        self.properties = self.properties.with_auth_provider(provider);
        self
    }

    /// Certificates to trust beside the system's, and a client certificate.
    pub fn tls(mut self, tls: OwnedTLSConfig) -> Self {
        self.tls = tls;
        self
    }

    /// How long the broker has to connect, authenticate and open a channel; 1 ms to
    /// [`MAX_TIMEOUT`]. [`CONNECT_TIMEOUT`] unless it is set.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long a call waits for the next answer about any of its messages; 1 ms to
    /// [`MAX_TIMEOUT`]. [`CONFIRM_TIMEOUT`] unless it is set.
    pub fn confirm_timeout(mut self, timeout: Duration) -> Self {
        self.confirm_timeout = timeout;
        self
    }
}

impl fmt::Debug for AmqpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("AmqpConfig");
        // A URI that cannot be taken apart may be all secret.
        match self.uri.parse::<AMQPUri>() {
            Ok(uri) => fields.field("broker", &broker(&uri)),
            Err(_) => fields.field("broker", &format_args!("…")),
        };
        fields
            .field("routing", &self.routing)
            .field("connect_timeout", &self.connect_timeout)
            .field("confirm_timeout", &self.confirm_timeout)
            .finish_non_exhaustive()
    }
}

/// Why a configuration is refused. It names the setting, and never shows a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidConfig {
    /// The URI cannot be used. It is not shown, since it may hold a password.
    #[error("`uri` cannot be used: {reason}")]
    Uri {
        /// Why not.
        reason: String,
    },
    /// A setting has a value that it may not have.
    #[error("`{setting}` is {given}, allowed: {allowed}")]
    NotAllowed {
        /// The setting.
        setting: &'static str,
        /// Its value.
        given: String,
        /// What it may be.
        allowed: String,
    },
}

/// A configuration that was checked.
pub(crate) struct Config {
    pub(crate) uri: AMQPUri,
    pub(crate) routing: Routing,
    pub(crate) properties: ConnectionProperties,
    pub(crate) tls: OwnedTLSConfig,
    pub(crate) connect_timeout: Duration,
    pub(crate) confirm_timeout: Duration,
}

impl Config {
    pub(crate) fn new(config: AmqpConfig) -> Result<Self, InvalidConfig> {
        check_timeout("connect_timeout", config.connect_timeout)?;
        check_timeout("confirm_timeout", config.confirm_timeout)?;
        if let Routing::Exchange(name) = &config.routing
            && (name.is_empty() || name.len() > MAX_NAME_BYTES || has_line_break(name))
        {
            return Err(InvalidConfig::NotAllowed {
                setting: "routing",
                given: format!("the exchange {name:?}"),
                allowed: format!("a name of 1 to {MAX_NAME_BYTES} bytes without a line break"),
            });
        }
        Ok(Self {
            uri: parse(&config.uri, cfg!(feature = "tls"))?,
            routing: config.routing,
            properties: config.properties,
            tls: config.tls,
            connect_timeout: config.connect_timeout,
            confirm_timeout: config.confirm_timeout,
        })
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("broker", &broker(&self.uri))
            .field("routing", &self.routing)
            .field("connect_timeout", &self.connect_timeout)
            .field("confirm_timeout", &self.confirm_timeout)
            .finish_non_exhaustive()
    }
}

/// The parts of a URI that are no secret.
fn broker(uri: &AMQPUri) -> String {
    format!(
        "{}://{}:{}/{}",
        uri.scheme, uri.authority.host, uri.authority.port, uri.vhost
    )
}

fn parse(text: &str, can_tls: bool) -> Result<AMQPUri, InvalidConfig> {
    let refuse = |reason: &str| {
        Err(InvalidConfig::Uri {
            reason: reason.to_owned(),
        })
    };
    let Some((scheme, rest)) = text.split_once("://") else {
        return refuse("it does not begin with amqp:// or amqps://");
    };
    if !["amqp", "amqps"].contains(&scheme) {
        return refuse("it does not begin with amqp:// or amqps://");
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    // The client would connect to localhost instead.
    if host.starts_with('[') {
        return refuse("the client takes no IPv6 address, only a name that resolves to one");
    }
    let uri: AMQPUri = match text.parse() {
        Ok(uri) => uri,
        // Its words may hold the whole URI.
        Err(_) => {
            return refuse("user, password, host, port, vhost or query parameter is malformed");
        }
    };
    if uri.scheme == AMQPScheme::AMQPS && !can_tls {
        return refuse("amqps needs the feature `tls`");
    }
    // The server would close the connection at the first protocol error, without saying why.
    if uri.vhost.len() > MAX_NAME_BYTES {
        return refuse("the vhost has more than 255 bytes");
    }
    Ok(uri)
}

fn check_timeout(setting: &'static str, given: Duration) -> Result<(), InvalidConfig> {
    if (Duration::from_millis(1)..=MAX_TIMEOUT).contains(&given) {
        return Ok(());
    }
    Err(InvalidConfig::NotAllowed {
        setting,
        given: format!("{given:?}"),
        allowed: format!("1ms to {MAX_TIMEOUT:?}"),
    })
}

#[cfg(test)]
mod tests {
    use lapin::tcp::OwnedIdentity;

    use super::*;

    const URI: &str = "amqp://shop:hunter2@broker.example:5673/orders";

    fn refused(config: AmqpConfig) -> String {
        Config::new(config)
            .expect_err("it must be refused")
            .to_string()
    }

    #[test]
    fn a_uri_is_enough() {
        let config = Config::new(AmqpConfig::new(URI)).unwrap();
        assert_eq!(config.uri.authority.host, "broker.example");
        assert_eq!(config.uri.authority.port, 5673);
        assert_eq!(config.uri.vhost, "orders");
        assert_eq!(config.routing, Routing::Queue);
        assert_eq!(config.connect_timeout, CONNECT_TIMEOUT);
        assert_eq!(config.confirm_timeout, CONFIRM_TIMEOUT);
    }

    #[test]
    fn what_is_set_stays() {
        let config = Config::new(
            AmqpConfig::new(URI)
                .routing(Routing::Exchange("shop".to_owned()))
                .connect_timeout(MAX_TIMEOUT)
                .confirm_timeout(Duration::from_millis(1)),
        )
        .unwrap();
        assert_eq!(config.routing, Routing::Exchange("shop".to_owned()));
        assert_eq!(config.connect_timeout, MAX_TIMEOUT);
        assert_eq!(config.confirm_timeout, Duration::from_millis(1));
    }

    #[test]
    fn a_uri_that_cannot_be_used_is_refused_without_showing_it() {
        for uri in [
            "",
            "hunter2",
            "127.0.0.1:5672",
            "http://guest:hunter2@127.0.0.1/",
            "shop:hunter2@127.0.0.1",
            "amqp:shop:hunter2@127.0.0.1",
            "amqp://shop:hunter2@127.0.0.1:port/",
            "amqp://shop:hunter2@127.0.0.1/%2f?heartbeat=hunter2",
            "amqp://shop:hunter2@[::1]:5672/%2f",
            &format!("amqp://shop:hunter2@127.0.0.1/{}", "v".repeat(256)),
        ] {
            let reason = refused(AmqpConfig::new(uri));
            assert!(reason.starts_with("`uri` cannot be used: "), "{reason}");
            assert!(!reason.contains("hunter2"), "{reason}");
        }
    }

    #[test]
    fn tls_needs_its_feature() {
        let uri = "amqps://broker.example";
        assert_eq!(
            parse(uri, false).unwrap_err().to_string(),
            "`uri` cannot be used: amqps needs the feature `tls`"
        );
        assert_eq!(parse(uri, true).unwrap().scheme, AMQPScheme::AMQPS);
    }

    #[test]
    fn a_setting_out_of_its_limits_is_refused_by_name() {
        let config = || AmqpConfig::new(URI);
        for (config, message) in [
            (
                config().connect_timeout(Duration::ZERO),
                "`connect_timeout` is 0ns, allowed: 1ms to 300s",
            ),
            (
                config().confirm_timeout(MAX_TIMEOUT + Duration::from_secs(1)),
                "`confirm_timeout` is 301s, allowed: 1ms to 300s",
            ),
            (
                config().routing(Routing::Exchange(String::new())),
                "`routing` is the exchange \"\", allowed: a name of 1 to 255 bytes without a line \
                 break",
            ),
            (
                config().routing(Routing::Exchange("a\nb".to_owned())),
                "`routing` is the exchange \"a\\nb\", allowed: a name of 1 to 255 bytes without a \
                 line break",
            ),
        ] {
            assert_eq!(refused(config), message);
        }
        let long = config().routing(Routing::Exchange("x".repeat(256)));
        assert!(refused(long).contains("a name of 1 to 255 bytes"));
    }

    #[test]
    fn debug_shows_no_secret() {
        let config = AmqpConfig::new(URI).tls(OwnedTLSConfig {
            identity: Some(OwnedIdentity::PKCS12 {
                der: Vec::new(),
                password: "hunter2".to_owned(),
            }),
            cert_chain: None,
        });
        for shown in [
            format!("{config:?}"),
            format!("{:?}", Config::new(config.clone()).unwrap()),
        ] {
            assert!(!shown.contains("hunter2"), "{shown}");
            assert!(shown.contains("broker.example:5673/orders"), "{shown}");
        }
        let shown = format!("{:?}", AmqpConfig::new("shop:hunter2@127.0.0.1"));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
