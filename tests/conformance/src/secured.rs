//! What the tests of secured connections share: the certificates of `scripts/services`, and a secret that
//! nobody may tell. For an adapter's own tests; the suites do not need it.

use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use outbox_core::{Message, PublishErrorKind, Publisher, PublisherExt as _, Uuid};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::address;
use crate::publisher::refusal;

/// How long a publisher has for a few messages.
const WITHIN: Duration = Duration::from_secs(30);

/// The path of a certificate or of its key. `ca.pem` has signed `server.pem` and `client.pem`, which the
/// servers trust; `other-ca.pem` has signed `other-server.pem`. Keys end in `.key`.
///
/// # Panics
///
/// When nothing says where they are.
pub fn certificate(name: &str) -> PathBuf {
    PathBuf::from(address("OUTBOX_TEST_CERTIFICATES")).join(name)
}

/// A few messages of one key to a topic.
///
/// # Panics
///
/// When the topic is too long.
pub fn batch(topic: &str) -> Vec<Message> {
    (0..3)
        .map(|n| Message::to(topic).key("k").bytes(n.to_string()))
        .collect::<Result<_, _>>()
        .expect("a topic that is not too long")
}

/// The [`batch`] is delivered.
///
/// # Panics
///
/// When it is not.
pub async fn delivers(publisher: &impl Publisher, topic: &str) {
    for answer in publisher.publish_all(&batch(topic), WITHIN).await {
        assert_eq!(answer, Some(Ok(())));
    }
}

/// Every message of the [`batch`] is an outage, which says this. Returns all that was answered.
///
/// # Panics
///
/// When it is otherwise.
pub async fn is_an_outage(publisher: &impl Publisher, topic: &str, said: &str) -> String {
    let mut answered = String::new();
    for answer in publisher.publish_all(&batch(topic), WITHIN).await {
        let (kind, reason) = refusal(&answer);
        assert_eq!(kind, PublishErrorKind::BrokerUnavailable, "{reason}");
        assert!(reason.contains(said), "{reason}");
        // Writing to text cannot fail.
        let _ = writeln!(answered, "{answer:?} {reason}");
    }
    answered
}

/// It [`is_an_outage`]; neither what was answered nor the publisher tells the secret.
///
/// # Panics
///
/// When it is otherwise.
pub async fn is_refused(
    publisher: &(impl Publisher + fmt::Debug),
    topic: &str,
    said: &str,
    secret: &Secret,
) {
    secret.is_not_in(&is_an_outage(publisher, topic, said).await);
    secret.is_not_in(&format!("{publisher:?}"));
}

/// A password that is in nothing else, and everything that this process logs from when it was made.
pub struct Secret(String);

impl Secret {
    /// A new one. From now on everything is recorded that is logged, at every level, through `tracing` and
    /// through `log`.
    pub fn new() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            tracing::subscriber::set_global_default(Recorder).expect("no other subscriber");
            log::set_logger(&Recorder).expect("no other logger");
            log::set_max_level(log::LevelFilter::Trace);
        });
        Self(Uuid::now_v7().simple().to_string())
    }

    /// The password, of letters and digits.
    pub fn password(&self) -> &str {
        &self.0
    }

    /// The secret is not in what was shown.
    ///
    /// # Panics
    ///
    /// When it is.
    #[track_caller]
    pub fn is_not_in(&self, shown: &str) {
        assert!(!self.is_told(shown), "it tells the secret: {shown}");
    }

    /// The secret was not logged, at any level.
    ///
    /// # Panics
    ///
    /// When it was.
    #[track_caller]
    pub fn was_not_logged(&self) {
        self.was_not_logged_at(Level::TRACE);
    }

    /// The secret was not logged at this level or a more important one.
    ///
    /// # Panics
    ///
    /// When it was.
    #[track_caller]
    pub fn was_not_logged_at(&self, level: Level) {
        let log = recorded();
        let told: Vec<&str> = log
            .iter()
            .filter(|(its, line)| *its <= level && self.is_told(line))
            .map(|(_, line)| line.as_str())
            .collect();
        assert!(told.is_empty(), "it was logged: {told:#?}");
    }

    /// As text, or byte by byte as `Debug` shows it.
    fn is_told(&self, shown: &str) -> bool {
        let bytes = format!("{:?}", self.0.as_bytes());
        shown.contains(&self.0) || shown.contains(bytes.trim_matches(['[', ']']))
    }
}

impl Default for Secret {
    fn default() -> Self {
        Self::new()
    }
}

static RECORDED: Mutex<Vec<(Level, String)>> = Mutex::new(Vec::new());

fn recorded() -> MutexGuard<'static, Vec<(Level, String)>> {
    RECORDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Appends what it is told to [`RECORDED`].
struct Recorder;

impl Recorder {
    fn fields(&self, level: Level, record: impl FnOnce(&mut Line)) {
        let mut line = Line(String::new());
        record(&mut line);
        recorded().push((level, line.0));
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to text cannot fail.
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.fields(*span.metadata().level(), |line| span.record(line));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        // Whatever the level of the span is.
        self.fields(Level::ERROR, |line| values.record(line));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.fields(*event.metadata().level(), |line| event.record(line));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl log::Log for Recorder {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let level = match record.level() {
            log::Level::Error => Level::ERROR,
            log::Level::Warn => Level::WARN,
            log::Level::Info => Level::INFO,
            log::Level::Debug => Level::DEBUG,
            log::Level::Trace => Level::TRACE,
        };
        recorded().push((level, record.args().to_string()));
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use std::panic::{UnwindSafe, catch_unwind};

    use super::*;

    fn fails(check: impl FnOnce() + UnwindSafe) -> bool {
        catch_unwind(check).is_err()
    }

    #[test]
    fn a_secret_that_is_shown_is_found() {
        let secret = Secret::new();
        let text = secret.password().to_owned();
        secret.is_not_in("something else");
        for shown in [
            format!("user:{text}@host"),
            format!("{:?}", format!("\0user\0{text}").as_bytes()),
        ] {
            assert!(fails(|| secret.is_not_in(&shown)), "{shown}");
        }
    }

    #[test]
    fn a_secret_that_is_logged_is_found() {
        type Tell = fn(&str);
        let told: [Tell; 5] = [
            |it| tracing::trace!("the password is {it}"),
            |it| tracing::error!(password = it, "refused"),
            |it| drop(tracing::info_span!("connect", password = it).entered()),
            |it| {
                _ = tracing::info_span!("connect", password = tracing::field::Empty)
                    .record("password", it)
            },
            |it| log::trace!("several lines\nthe password is {it}"),
        ];
        for tell in told {
            let secret = Secret::new();
            secret.was_not_logged();
            tell(secret.password());
            assert!(fails(|| secret.was_not_logged()));
        }
    }

    #[test]
    fn what_is_more_important_than_the_level_is_looked_at() {
        let secret = Secret::new();
        tracing::debug!("the password is {}", secret.password());
        secret.was_not_logged_at(Level::INFO);
        assert!(fails(|| secret.was_not_logged_at(Level::DEBUG)));
        log::warn!("the password is {}", secret.password());
        assert!(fails(|| secret.was_not_logged_at(Level::INFO)));
        secret.was_not_logged_at(Level::ERROR);
    }
}
