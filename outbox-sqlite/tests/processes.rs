//! One relay process for one outbox, and what is left when it is killed. The other process is this
//! test program, started again.

#![allow(clippy::unwrap_used)]

mod support;

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use outbox_core::{Outcome, PublishError, Store as _};
use outbox_sqlite::{OpenError, Outbox, SqliteStore};
use support::{Fixture, Folder, deliver, limits, message, options, pool, texts, until};

/// Names the database for the process that a test has started.
const CHILD: &str = "OUTBOX_SQLITE_TEST_CHILD";

/// This test again, in a process of its own, which takes the other branch.
struct Process {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn start(test: &str, database: &Path) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(CHILD, database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// The next line that the process has for us.
    fn says(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.said.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "the process ended");
            if let Some((_, said)) = line.trim_end().split_once("says: ") {
                return said.to_owned();
            }
        }
    }

    /// Kills it as a crash would, without a chance to clean up.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The database that this process was started for, if it was.
fn started_for() -> Option<PathBuf> {
    env::var_os(CHILD).map(PathBuf::from)
}

fn say(what: &str) {
    println!("says: {what}");
    std::io::stdout().flush().unwrap();
}

async fn open(database: &Path) -> Result<SqliteStore, OpenError> {
    Outbox::new().store(&pool(options(database)).await).await
}

/// Until the process that started this one kills it.
fn hold_for_ever() -> ! {
    loop {
        std::thread::park();
    }
}

#[tokio::test]
async fn a_second_process_is_refused_until_the_first_dies() {
    if let Some(database) = started_for() {
        let _store = open(&database).await.unwrap();
        say("I have it");
        hold_for_ever();
    }
    let fixture = Fixture::new().await;
    let database = fixture.folder.database();
    let mut process = Process::start(
        "a_second_process_is_refused_until_the_first_dies",
        &database,
    );
    assert_eq!(process.says(), "I have it");
    let link = fixture.folder.path().join("link.db");
    std::os::unix::fs::symlink(&database, &link).unwrap();
    let through = fixture.folder.path().join("../").join(
        [
            fixture.folder.path().file_name().unwrap(),
            OsStr::new("app.db"),
        ]
        .iter()
        .collect::<PathBuf>(),
    );
    for path in [&database, &link, &through] {
        let Err(error) = open(path).await else {
            panic!("{} was opened a second time", path.display());
        };
        let text = error.to_string();
        assert!(text.contains("has a relay already, in process "), "{text}");
        assert!(text.contains(&process.child.id().to_string()), "{text}");
        assert!(text.contains("app.db"), "{text}");
    }
    // The application in this process goes on meanwhile.
    fixture.enqueue(&[message("k", "0")]).await;
    process.kill();
    let store = open(&link).await.unwrap();
    assert_eq!(deliver(&store, 1).await, ["0"]);
}

#[tokio::test]
async fn one_process_cannot_open_it_twice_either() {
    let fixture = Fixture::new().await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    let refused = fixture.outbox.store(&fixture.pool).await;
    let own = std::process::id();
    assert!(
        matches!(refused, Err(OpenError::Locked { process: Some(id), .. }) if id == own),
        "opened twice"
    );
    // A claim works on it as much as its store.
    fixture.enqueue(&[message("k", "0")]).await;
    let claim = store.claim(&limits(1)).await.unwrap().unwrap();
    drop(store);
    assert!(fixture.outbox.store(&fixture.pool).await.is_err());
    drop(claim);
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    assert_eq!(deliver(&store, 1).await, ["0"]);
}

/// Killed with claims in hand, among them one of a parked key, and in the middle of what follows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_process_had_in_hand_comes_again() {
    if let Some(database) = started_for() {
        let store = open(&database).await.unwrap();
        let first = store.claim(&limits(2)).await.unwrap().unwrap();
        let second = store.claim(&limits(1)).await.unwrap();
        say(&texts(&*first).join(" "));
        let delivered = vec![Outcome::Delivered; first.messages().len()];
        first.settle(delivered).await.unwrap();
        let _third = store.claim(&limits(100)).await.unwrap();
        say("settled");
        let _second = second;
        hold_for_ever();
    }
    let fixture = Fixture::new().await;
    let all: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    {
        let store = fixture.outbox.store(&fixture.pool).await.unwrap();
        fixture.enqueue(&[message("parked", "parked")]).await;
        let claim = store.claim(&limits(1)).await.unwrap().unwrap();
        let park = Outcome::Park {
            after: std::time::Duration::ZERO,
            counted: true,
            error: PublishError::retryable("not now"),
        };
        claim.settle(vec![park]).await.unwrap();
    }
    let messages: Vec<_> = all.iter().map(|text| message("k", text)).collect();
    fixture.enqueue(&messages).await;
    let mut process = Process::start(
        "what_a_killed_process_had_in_hand_comes_again",
        &fixture.folder.database(),
    );
    let first = process.says();
    assert_eq!(process.says(), "settled");
    process.kill();

    let mut expected = all.clone();
    expected.push("parked".to_owned());
    expected.retain(|text| !first.split(' ').any(|settled| settled == text));
    let store = open(&fixture.folder.database()).await.unwrap();
    let mut delivered = deliver(&store, expected.len()).await;
    let of_key: Vec<&String> = delivered.iter().filter(|text| *text != "parked").collect();
    assert!(
        of_key.is_sorted_by_key(|text| text.parse::<u32>().unwrap()),
        "{of_key:?}"
    );
    delivered.sort();
    expected.sort();
    assert_eq!(delivered, expected);
    assert_eq!(fixture.places().await, [0, 0, 0, 0]);
}

/// What another process commits is found by polling.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_may_enqueue() {
    if let Some(database) = started_for() {
        let pool = pool(options(&database)).await;
        let mut conn = pool.acquire().await.unwrap();
        let outbox = Outbox::new();
        outbox
            .enqueue(&mut conn, &message("k", "from afar"))
            .await
            .unwrap();
        drop(conn);
        pool.close().await;
        return;
    }
    let fixture = Fixture::new().await;
    let store = fixture.outbox.store(&fixture.pool).await.unwrap();
    let waits = outbox_core::ClaimLimits {
        wait: support::DEADLINE,
        ..limits(1)
    };
    let call = tokio::spawn(async move {
        let claim = store.claim(&waits).await.unwrap().unwrap();
        texts(&*claim)
    });
    let mut process = Process::start("another_process_may_enqueue", &fixture.folder.database());
    assert!(process.child.wait().unwrap().success());
    assert_eq!(call.await.unwrap(), ["from afar"]);
}

#[tokio::test]
async fn the_lock_leaves_one_small_file() {
    let folder = Folder::new();
    let pool = pool(options(&folder.database())).await;
    let outbox = Outbox::new();
    outbox.migrate(&pool).await.unwrap();
    drop(outbox.store(&pool).await.unwrap());
    pool.close().await;
    until("SQLite has removed its own files", async || {
        folder.files().len() <= 2
    })
    .await;
    assert_eq!(folder.files(), ["app.db", "app.db-outbox_relay.lock"]);
}
