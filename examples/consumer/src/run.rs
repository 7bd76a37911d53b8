//! The loop: take a batch, process each message in a transaction of its own, acknowledge the batch.

use std::env;
use std::time::Duration;

use outbox::{Uuid, async_trait};
use sqlx::PgPool;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{interval, sleep};

use crate::Error;
use crate::billing::{INBOX, prepare, process};

/// So many messages are acknowledged together. When the program dies, so many come again at most.
pub const BATCH: usize = 10;

/// Longer than any message can take to come again: see `docs/consumers.md`.
const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 3_600);

const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A message as it came from the broker.
pub struct Received {
    /// The message id, the same in every copy; or why it has none, as where somebody else than the outbox has
    /// written it.
    pub id: Result<Uuid, Error>,
    /// The payload; empty where there is none.
    pub payload: Vec<u8>,
}

/// Messages from a broker, which sends again what was not acknowledged.
#[async_trait]
pub trait Source: Send {
    /// The next messages in their order, up to [`BATCH`]; none where none came for a while. Cancel safe: what
    /// a dropped call has taken comes again, or with the next call.
    async fn next(&mut self) -> Result<Vec<Received>, Error>;

    /// Acknowledges what the last [`next`](Self::next) gave. Called when all of it is committed.
    async fn acknowledge(&mut self) -> Result<(), Error>;
}

/// Bills what comes, until SIGTERM, which ends it after the batch in hand; or without acknowledging it, when a
/// message fails.
///
/// # Errors
///
/// What the broker or, at the start, the database answered. Whoever runs the program starts it again.
pub async fn run(source: &mut impl Source) -> Result<(), Error> {
    let pool = PgPool::connect(&setting("DATABASE_URL")?).await?;
    prepare(&pool).await?;
    tokio::spawn(forget(pool.clone())); // until the program ends
    let mut stop = signal(SignalKind::terminate())?;
    loop {
        let batch = tokio::select! {
            batch = source.next() => batch?,
            _ = stop.recv() => break,
        };
        for message in &batch {
            if !process_at_last(&pool, message, &mut stop).await {
                return Ok(()); // the batch comes again
            }
        }
        // Here, and not before: what is acknowledged does not come again.
        if !batch.is_empty() {
            source.acknowledge().await?;
        }
    }
    Ok(())
}

/// The database may be away for a while, or refuse to serialize. The message stays unacknowledged
/// meanwhile, and the broker may give it to another instance. `false`: it was told to stop before it got it done.
async fn process_at_last(pool: &PgPool, message: &Received, stop: &mut Signal) -> bool {
    let name = match &message.id {
        Ok(id) => id.to_string(),
        Err(why) => why.to_string(),
    };
    let mut pause = Duration::from_millis(50);
    loop {
        match process(pool, message).await {
            Ok(true) => println!("{name}: done"),
            Ok(false) => println!("{name}: again"),
            Err(error) => {
                eprintln!("{name}: {error}");
                let paused = sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0));
                pause = (pause * 2).min(LONGEST_PAUSE);
                tokio::select! {
                    () = paused => continue,
                    _ = stop.recv() => return false,
                }
            }
        }
        return true;
    }
}

async fn forget(pool: PgPool) {
    let mut hourly = interval(Duration::from_secs(3_600));
    loop {
        hourly.tick().await;
        if let Err(error) = INBOX.forget(&pool, REMEMBERED).await {
            eprintln!("the inbox is not cleaned up: {error}"); // the next hour tries again
        }
    }
}

/// A setting, which is a variable of the environment.
///
/// # Errors
///
/// Names the one that is missing.
pub fn setting(name: &str) -> Result<String, Error> {
    env::var(name).map_err(|_| format!("{name} is not set").into())
}
