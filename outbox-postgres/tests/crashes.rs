//! A message that ends the process each time is found and given up, and no other is blamed.
//!
//! A process ends here as the server sees it: its connections are cut, and nothing of it says another
//! word. `relay_crashes.rs` of the integration tests has real ones.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use outbox_core::{Claim, Outcome, PublishError, Store};
use outbox_postgres::PostgresStore;
use sqlx::PgPool;
use support::store::{
    Db, contents, deliver, deliver_some, limits, message, of_key, on_both_servers,
};
use support::until;
use uuid::Uuid;

/// What a relay is told unless it is told otherwise.
const LIMIT: u32 = 3;
/// With batches of a thousand: one unclean end that nobody expects, and one that finds the message among
/// at most 32.
const FINDING: usize = 2;
/// Many processes start and end; a test that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(90);

/// A relay whose process can end.
struct Process<'a> {
    db: &'a Db,
    name: String,
    store: PostgresStore,
}

impl<'a> Process<'a> {
    async fn start(db: &'a Db) -> Self {
        // Short, since it comes last in the name of its sessions, which is cut off at 63 bytes.
        let name = format!("p{}", &Uuid::now_v7().simple().to_string()[24..]);
        let options = (*db.pool.connect_options()).clone();
        let pool = PgPool::connect_lazy_with(options.application_name(&name));
        let store = db.outbox.store(&pool);
        Self { db, name, store }
    }

    /// Cuts its connections.
    async fn cut(&self) {
        let sessions = format!(
            "FROM pg_stat_activity WHERE application_name LIKE '%{}'",
            self.name
        );
        self.db
            .sql(&format!("SELECT pg_terminate_backend(pid) {sessions}"))
            .await;
        until("its sessions have ended", async || {
            self.db.number(&format!("SELECT count(*) {sessions}")).await == 0
        })
        .await;
    }

    /// Ends it while it has these claims in hand.
    async fn die(self, claims: Vec<Box<dyn Claim>>) {
        claims.into_iter().for_each(std::mem::forget);
        self.cut().await;
        std::mem::forget(self.store);
    }
}

/// How many messages are tried alone, or have deaths against them.
async fn accused(db: &Db) -> i64 {
    let statement = "SELECT count(*) FROM {schema}.lane \
                      WHERE alone IS NOT NULL OR cardinality(deaths) > 0";
    db.number(statement).await
}

/// The next claim, of which there must be one.
async fn claim(store: &PostgresStore) -> Box<dyn Claim> {
    let mut next = None;
    until("there is something to claim", async || {
        next = store.claim(&limits(10)).await.unwrap();
        next.is_some()
    })
    .await;
    next.unwrap()
}

/// Keeps processes running with so many workers, each of which dies as soon as one of its claims holds the
/// poison, until it is given up. What was delivered, and how many died.
async fn deliver_around(db: &Db, workers: usize, poison: &str) -> (Vec<(String, String)>, usize) {
    let (mut delivered, mut deaths) = (Vec::new(), 0);
    let mut process = Process::start(db).await;
    let start = Instant::now();
    loop {
        assert!(
            start.elapsed() < PATIENCE,
            "{deaths} processes ended, and it is not over"
        );
        let mut claims = Vec::new();
        for _ in 0..workers {
            claims.extend(process.store.claim(&limits(1000)).await.unwrap());
        }
        if claims.is_empty() {
            let [waiting, parked, ..] = db.places().await;
            if waiting + parked == 0 {
                return (delivered, deaths);
            }
            continue;
        }
        let poisoned = claims
            .iter()
            .position(|claim| contents(&**claim).iter().any(|(_, text)| text == poison));
        match poisoned {
            Some(index) if claims[index].messages()[0].crashes < LIMIT => {
                process.die(claims).await;
                process = Process::start(db).await;
                deaths += 1;
                assert!(deaths < 20, "it is not found");
                continue;
            }
            Some(_) => {
                assert_eq!((claims.len(), claims[0].messages().len()), (1, 1));
                let error = PublishError::rejected("it ends the process");
                let dead = Outcome::Dead { error, halt: false };
                claims.remove(0).settle(vec![dead]).await.unwrap();
            }
            None => {
                for claim in claims {
                    let crashes = claim.messages().iter().map(|claimed| claimed.crashes);
                    assert_eq!(crashes.sum::<u32>(), 0, "an innocent message is blamed");
                    let contents = contents(&*claim);
                    claim
                        .settle(vec![Outcome::Delivered; contents.len()])
                        .await
                        .unwrap();
                    delivered.extend(contents);
                }
            }
        }
    }
}

/// Messages 0 to `each` of so many keys; of the seventh key, the poison stands in the middle.
async fn fill_around(db: &Db, keys: usize, each: usize, poison: &str) {
    let mut messages = Vec::new();
    for number in 0..each {
        for key in 0..keys {
            if (key, number) == (7, each / 2) {
                messages.push(message("k7", poison));
            }
            messages.push(message(&format!("k{key}"), &number.to_string()));
        }
    }
    let mut tx = db.pool.begin().await.unwrap();
    db.outbox.enqueue_all(&mut tx, &messages).await.unwrap();
    tx.commit().await.unwrap();
}

on_both_servers! {
    async fn the_message_that_ends_the_process_is_found_among_many_and_no_other_is_blamed(db: Db) {
        let (keys, each) = (100, 12);
        fill_around(&db, keys, each, "poison").await;
        let (delivered, deaths) = deliver_around(&db, 3, "poison").await;
        assert!(deaths <= FINDING + LIMIT as usize, "{deaths} processes ended");
        assert_eq!(delivered.len(), keys * each);
        let expected: Vec<String> = (0..each).map(|number| number.to_string()).collect();
        for key in 0..keys {
            assert_eq!(of_key(&delivered, &format!("k{key}")), expected);
        }
        assert_eq!(db.places().await, [0, 0, 1, 0]);
        assert_eq!(accused(&db).await, 0);
    }

    /// There is nothing to find: the message is alone from the first start on.
    async fn one_message_without_others_ends_no_more_processes_than_it_must(db: Db) {
        db.enqueue("key", "poison").await;
        let (delivered, deaths) = deliver_around(&db, 1, "poison").await;
        assert_eq!((delivered, deaths), (Vec::new(), 1 + LIMIT as usize));
        assert_eq!(db.places().await, [0, 0, 1, 0]);
        assert_eq!(accused(&db).await, 0);
    }

    /// One that was parked, and ends the process when it is tried again.
    async fn a_parked_message_that_ends_the_process_is_found_too(db: Db) {
        let store = db.outbox.store(&db.pool);
        let mut parked = 0;
        for key in 0..20 {
            let text = if key == 7 { "poison".to_owned() } else { key.to_string() };
            db.enqueue(&format!("k{key}"), &text).await;
            db.enqueue(&format!("k{key}"), "behind").await;
        }
        while let Some(claim) = store.claim(&limits(1000)).await.unwrap() {
            let texts = contents(&*claim);
            let outcomes = texts.iter().map(|(_, text)| match text.as_str() {
                "behind" => Outcome::Behind,
                _ => Outcome::Park {
                    after: Duration::from_secs(3600),
                    counted: true,
                    error: PublishError::retryable("no"),
                },
            });
            claim.settle(outcomes.collect()).await.unwrap();
            parked += texts.len();
        }
        assert_eq!(parked, 40);
        db.sql("UPDATE {schema}.blocked SET due_at = clock_timestamp()").await;
        let (delivered, deaths) = deliver_around(&db, 3, "poison").await;
        assert!(deaths <= FINDING + LIMIT as usize, "{deaths} processes ended");
        assert_eq!(delivered.len(), 39);
        assert_eq!(of_key(&delivered, "k7"), ["behind"]);
        assert_eq!(db.places().await, [0, 0, 1, 0]);
        assert_eq!(accused(&db).await, 0);
    }

    /// A message is blamed only for the deaths of processes that held nothing else, whenever they die.
    async fn nothing_is_blamed_for_deaths_in_which_it_was_not_alone(db: Db) {
        for key in 0..25 {
            for number in 0..6 {
                db.enqueue(&format!("k{key}"), &number.to_string()).await;
            }
        }
        let mut random = fastrand::Rng::with_seed(26);
        let start = Instant::now();
        let mut process = Process::start(&db).await;
        let mut alone: HashMap<(String, String), u32> = HashMap::new();
        let (mut delivered, mut deaths, mut blamed) = (0, 0, 0);
        while delivered < 150 {
            assert!(start.elapsed() < PATIENCE, "{delivered} delivered, {deaths} processes ended");
            let mut claims: Vec<Box<dyn Claim>> = Vec::new();
            for _ in 0..random.usize(1..=3) {
                claims.extend(process.store.claim(&limits(20)).await.unwrap());
            }
            let held: Vec<_> = claims.iter().map(|claim| contents(&**claim)).collect();
            for (claim, held) in claims.iter().zip(&held) {
                for (claimed, message) in claim.messages().iter().zip(held) {
                    let most = alone.get(message).copied().unwrap_or_default();
                    assert!(claimed.crashes <= most, "{message:?}: {} of {most}", claimed.crashes);
                    blamed = blamed.max(claimed.crashes);
                }
            }
            if deaths < 60 && random.bool() {
                if let [[message]] = &held.iter().map(Vec::as_slice).collect::<Vec<_>>()[..] {
                    *alone.entry(message.clone()).or_default() += 1;
                }
                process.die(claims).await;
                process = Process::start(&db).await;
                deaths += 1;
                continue;
            }
            for (claim, held) in claims.into_iter().zip(held) {
                for message in &held {
                    alone.remove(message);
                }
                claim.settle(vec![Outcome::Delivered; held.len()]).await.unwrap();
                delivered += held.len();
            }
        }
        assert!(blamed > 0, "no message was ever alone when a process died");
        assert_eq!(db.places().await, [0; 4]);
    }

    /// Whatever takes its claims from a process that is alive, it says so before anybody is blamed.
    async fn a_process_that_loses_its_claims_and_lives_blames_nobody(db: Db) {
        let process = Process::start(&db).await;
        db.enqueue("key", "first").await;
        db.enqueue("key", "second").await;
        for round in 0..10 {
            let claim = claim(&process.store).await;
            assert_eq!(claim.messages().len(), 2, "round {round}");
            assert_eq!(claim.messages()[0].crashes, 0);
            match round % 2 {
                0 => drop(claim),
                _ => {
                    process.cut().await;
                    claim.settle(vec![Outcome::Delivered; 2]).await.unwrap_err();
                }
            }
            // By whoever looks first.
            until("the lane is free", async || {
                // Not by locking it, which would hide how the last claim ended.
                db.number(
                    "SELECT count(*) FROM pg_locks \
                      WHERE relation = '{schema}.lane'::regclass AND mode = 'RowShareLock'",
                )
                .await
                    == 0
            })
            .await;
        }
        assert_eq!(of_key(&deliver(&process.store, 2).await, "key"), ["first", "second"]);
        assert_eq!(accused(&db).await, 0);
    }

    /// Nor does it before it has noticed, when the claim is still in its hands.
    async fn a_process_that_finds_its_own_lane_free_blames_nobody(db: Db) {
        let process = Process::start(&db).await;
        db.enqueue("key", "first").await;
        db.enqueue("key", "second").await;
        let ended = claim(&process.store).await;
        process.cut().await;
        let next = claim(&process.store).await;
        assert_eq!(contents(&*next).len(), 2, "they are suspects");
        ended.settle(vec![Outcome::Delivered; 2]).await.unwrap_err();
        next.settle(vec![Outcome::Delivered; 2]).await.unwrap();
        assert_eq!(accused(&db).await, 0);
        assert_eq!(db.places().await, [0; 4]);
    }

    /// Another relay may see it before that, and then looks more closely for a moment: but a message gets
    /// no nearer to being given up, however often it happens.
    async fn two_processes_that_lose_their_claims_in_turn_blame_nobody_for_long(db: Db) {
        let processes = [Process::start(&db).await, Process::start(&db).await];
        db.enqueue("key", "x").await;
        let mut most = 0;
        for round in 0..12 {
            let process = &processes[round % 2];
            let claim = claim(&process.store).await;
            most = most.max(claim.messages()[0].crashes);
            process.cut().await;
            claim.settle(vec![Outcome::Delivered]).await.unwrap_err();
        }
        assert!(most <= 1, "blamed {most} times in a row");
        // Each says of its last claim that it lives; after that the lane is as any other.
        for process in &processes {
            drop(process.store.claim(&limits(10)).await.unwrap());
        }
        until("it is delivered", async || {
            !deliver_some(&processes[0].store, &limits(10)).await.is_empty()
        })
        .await;
        assert_eq!(accused(&db).await, 0);
    }

    /// It costs the healthy path nothing that lasts: no row is written for it.
    async fn nothing_is_written_while_nothing_goes_wrong(db: Db) {
        let written = "SELECT count(DISTINCT xmin::text) FROM {schema}.lane";
        assert_eq!(db.number(written).await, 1);
        let stores = [db.outbox.store(&db.pool), db.outbox.store(&db.pool)];
        for number in 0..30 {
            db.enqueue(&format!("k{number}"), "x").await;
            let store = &stores[number % 2];
            if number % 3 == 0 {
                // Claimed and not published, as in an outage.
                let claim = claim(store).await;
                claim.settle(vec![Outcome::Released]).await.unwrap();
            }
            deliver(store, 1).await;
        }
        assert_eq!(db.number(written).await, 1);
    }

    /// A row that several have locked names no transaction but the group of them.
    async fn a_lane_that_others_have_shared_is_claimed_like_any_other(db: Db) {
        let store = db.outbox.store(&db.pool);
        let mut sharers = [db.connection().await, db.connection().await];
        for connection in &mut sharers {
            db.sql_on(connection, "BEGIN; SELECT FROM {schema}.lane FOR SHARE").await;
        }
        for connection in &mut sharers {
            db.sql_on(connection, "ROLLBACK").await;
        }
        let mut delivered = BTreeMap::new();
        for number in 0..20 {
            db.enqueue(&format!("k{number}"), "x").await;
        }
        delivered.extend(deliver(&store, 20).await);
        assert_eq!(delivered.len(), 20);
        assert_eq!(db.places().await, [0; 4]);
    }
}
