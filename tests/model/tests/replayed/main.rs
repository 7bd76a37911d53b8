//! Courses of events of the model, replayed by the real store on a real server.
//!
//! Each step of the model is one statement on a connection of its own, held at a gate until its turn (see
//! `gate.rs`). What the model says that a claim publishes, the store's claim has to hold.
//!
//! Two kinds of courses: those that break a promise under one of the model's mistakes, which are the sharpest
//! traps there are for the real store; and walks through the model that prefer steps which none has taken.

#![allow(clippy::unwrap_used)]

mod gate;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_conformance::address;
use outbox_core::{Claim, ClaimLimits, Message, Outcome, Store, StoreError};
use outbox_model::{Mutation, Op, Setup, State, Step, explore};
use outbox_postgres::{Outbox, PostgresStore};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, PgPool};
use tokio::runtime::Builder;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

use Op::{Abort, Commit, Enqueue, RolledBack, Write};
use gate::{Gate, Statement};

/// Nothing here takes longer, but on a machine that is overloaded.
const DEADLINE: Duration = Duration::from_secs(30);

/// No setup has more.
const PRODUCERS: usize = 3;

/// How many walks one setup gets.
const WALKS: usize = 60;

/// So many steps of a walk are drawn; then the producers come to their end and the workers go on until
/// everything is delivered.
const WALK_STEPS: usize = 40;

/// One worker, and a producer that may commit late.
fn one_worker() -> Setup {
    Setup {
        producers: vec![
            vec![Enqueue, Commit],
            vec![Enqueue, Commit, Enqueue, Commit],
        ],
        workers: vec![0],
        limit: 2,
        losses: 0,
        releases: 0,
        crashes: 0,
        statements: true,
        mutation: None,
    }
}

/// The shortest courses that break a promise under mistakes.
fn traps() -> Vec<(Setup, Vec<Step>)> {
    let one = one_worker();
    let cut = Setup {
        producers: vec![vec![Enqueue, Commit]; 3],
        limit: 1,
        ..one.clone()
    };
    let two = Setup {
        workers: vec![0, 0],
        ..one.clone()
    };
    let lost = Setup {
        producers: vec![vec![Enqueue, Commit]; 2],
        losses: 1,
        ..two.clone()
    };
    let traps = [
        (Mutation::NoBound, &one),
        (Mutation::ForgetsAboveXmax, &one),
        (Mutation::MarkOfALaterSequence, &one),
        (Mutation::ForgetsTheLimit, &cut),
        (Mutation::SettlesForTheLatestLook, &two),
        (Mutation::AbortedSettleClears, &lost),
    ];
    traps
        .into_iter()
        .map(|(mutation, setup)| {
            let mutated = Setup {
                mutation: Some(mutation),
                ..setup.clone()
            };
            let (way, _) = explore(&mutated).counterexample.expect("it breaks one");
            (setup.clone(), way)
        })
        .collect()
}

#[test]
fn the_store_on_postgres_15_does_what_the_model_says() {
    replay_all("OUTBOX_TEST_POSTGRES_URL");
}

#[test]
fn the_store_on_postgres_18_does_what_the_model_says() {
    replay_all("OUTBOX_TEST_POSTGRES_18_URL");
}

/// Plays the traps, and walks, by the workers of one store and by those of two.
fn replay_all(variable: &str) {
    let url = address(variable);
    let one = one_worker();
    let mut courses = Vec::new();
    for (setup, way) in traps() {
        let mut course = Course::new(&setup);
        for step in way {
            course.take(&setup, step);
        }
        course.finish(&setup);
        courses.push((setup, course));
    }
    let shared = Setup {
        workers: vec![0, 0],
        losses: 2,
        ..one.clone()
    };
    let rolled_back = Setup {
        producers: vec![
            vec![Write, RolledBack, Enqueue, Enqueue, Commit],
            vec![Enqueue, Abort, Enqueue, Commit],
        ],
        limit: 1,
        releases: 1,
        ..one.clone()
    };
    courses.extend(walks(&shared));
    courses.extend(walks(&rolled_back));
    let stores = Setup {
        workers: vec![0, 1],
        releases: 1,
        ..one
    };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let together = replay(&url, &shared.workers, courses);
        let apart = replay(&url, &stores.workers, walks(&stores));
        tokio::join!(together, apart)
    });
}

/// Replays courses, one after the other, with the same stores.
async fn replay(url: &str, workers: &[usize], courses: Vec<(Setup, Course)>) {
    let mut stage = Stage::new(url, workers).await;
    for (setup, course) in &courses {
        stage.play(setup, course).await;
    }
    let steps: usize = courses.iter().map(|(_, course)| course.steps.len()).sum();
    println!(
        "workers of the stores {workers:?}: {} courses of {steps} steps",
        courses.len()
    );
    stage.close().await;
}

/// A course of events, and where it leads.
struct Course {
    state: State,
    steps: Vec<Step>,
}

impl Course {
    fn new(setup: &Setup) -> Self {
        Self {
            state: State::new(setup),
            steps: Vec::new(),
        }
    }

    /// Takes the step if it can be taken.
    fn take(&mut self, setup: &Setup, step: Step) -> bool {
        let can = self.state.steps(setup).contains(&step);
        if can {
            self.state.take(setup, step).unwrap();
            self.steps.push(step);
        }
        can
    }

    /// The producers come to their end, and the workers go on until everything is delivered.
    fn finish(&mut self, setup: &Setup) {
        while !(self.state.is_quiet(setup) && self.state.is_empty()) {
            let steps = self.state.steps(setup);
            let open = |step: &&Step| step.worker().is_some_and(|it| !self.state.is_idle(it));
            let next = steps
                .iter()
                .find(|step| step.is_a_producers())
                .or_else(|| steps.iter().find(open))
                .or_else(|| steps.iter().find(|step| step.worker().is_some()));
            let step = *next.expect("something can always go on");
            self.take(setup, step);
        }
    }
}

/// Courses drawn at random that prefer steps, from one state to another, which none has taken.
fn walks(setup: &Setup) -> Vec<(Setup, Course)> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut taken = HashSet::new();
    let walks = (0..WALKS).map(|_| (setup.clone(), walk(setup, &mut rng, &mut taken)));
    walks.collect()
}

fn walk(setup: &Setup, rng: &mut fastrand::Rng, taken: &mut HashSet<u64>) -> Course {
    let mut course = Course::new(setup);
    for _ in 0..WALK_STEPS {
        let steps = course.state.steps(setup);
        let name = |step: &Step| {
            let mut hasher = DefaultHasher::new();
            (&course.state, step).hash(&mut hasher);
            hasher.finish()
        };
        let fresh: Vec<Step> = steps
            .iter()
            .filter(|step| !taken.contains(&name(step)))
            .copied()
            .collect();
        let choice = if fresh.is_empty() { &steps } else { &fresh };
        let Some(&step) = rng.choice(choice) else {
            break;
        };
        taken.insert(name(&step));
        course.take(setup, step);
    }
    course.finish(setup);
    course
}

/// What a call into the store gave.
enum Answer {
    Claim(Result<Option<Box<dyn Claim>>, StoreError>),
    Settle(Result<(), StoreError>),
}

/// What a worker waits for.
enum Waits {
    /// A statement is held at its connection.
    Held(Statement),
    Claimed(Option<Box<dyn Claim>>),
    Settled,
    Failed,
}

/// A worker of the real store.
#[derive(Default)]
struct Hand {
    /// A call into the store that has not returned.
    call: Option<JoinHandle<Answer>>,
    link: Option<usize>,
    claim: Option<Box<dyn Claim>>,
}

/// A producer, and what it writes.
struct Writer {
    connection: PgConnection,
    at: usize,
    in_transaction: bool,
}

/// A schema of its own, with the stores of the setup behind a gate.
struct Stage {
    outbox: Outbox,
    pool: PgPool,
    gate: Gate,
    stores: Vec<Arc<PostgresStore>>,
    hands: Vec<Hand>,
    writers: Vec<Writer>,
}

impl Stage {
    async fn new(url: &str, workers: &[usize]) -> Self {
        let options: PgConnectOptions = url.parse().unwrap();
        let options = options.ssl_mode(PgSslMode::Disable);
        let pool = PgPoolOptions::new()
            .max_connections(4)
            .connect_with(options.clone())
            .await
            .unwrap();
        let outbox = Outbox::in_schema(format!("test_{}", Uuid::now_v7().simple())).unwrap();
        outbox.migrate(&pool).await.unwrap();
        let gate = Gate::to(format!("{}:{}", options.get_host(), options.get_port())).await;
        let through = options.clone().host("127.0.0.1").port(gate.port);
        let through = PgPoolOptions::new().connect_lazy_with(through);
        let many = workers.iter().max().unwrap() + 1;
        let stores: Vec<_> = (0..many)
            .map(|_| Arc::new(outbox.store(&through)))
            .collect();
        let mut writers = Vec::new();
        for _ in 0..PRODUCERS {
            writers.push(Writer {
                connection: options.connect().await.unwrap(),
                at: 0,
                in_transaction: false,
            });
        }
        let mut stage = Self {
            outbox,
            pool,
            gate,
            stores,
            hands: workers.iter().map(|_| Hand::default()).collect(),
            writers,
        };
        stage.sweep().await;
        stage
    }

    /// Has each store get over what it does once after its start: a look into each lane from zero.
    async fn sweep(&mut self) {
        self.gate.open(true);
        for store in &self.stores {
            let before = self.gate.reads();
            let start = Instant::now();
            while self.gate.reads() < before + 64 {
                let claim = store.claim(&limits(1)).await.unwrap();
                assert!(claim.is_none());
                assert!(start.elapsed() < DEADLINE, "the lanes were not swept");
                tokio::time::sleep(Duration::from_millis(2)).await; // wait: the next lane's turn
            }
        }
        self.gate.open(false);
    }

    async fn close(self) {
        let Self {
            outbox,
            pool,
            stores,
            hands,
            ..
        } = self;
        drop((hands, stores));
        let drop = format!("DROP SCHEMA {} CASCADE", outbox.schema());
        let quietly = format!("SET client_min_messages = warning; {drop}");
        sqlx::raw_sql(AssertSqlSafe(quietly))
            .execute(&pool)
            .await
            .unwrap();
    }

    /// Plays a course from its start to its end.
    async fn play(&mut self, setup: &Setup, course: &Course) {
        for writer in &mut self.writers {
            writer.at = 0;
        }
        let mut state = State::new(setup);
        for (number, &step) in course.steps.iter().enumerate() {
            let mut after = state.clone();
            after.take(setup, step).unwrap();
            let played = self.step(setup, step, &state, &after);
            let said = match timeout(DEADLINE, played).await {
                Ok(Ok(())) => None,
                Ok(Err(wrong)) => Some(wrong),
                Err(_) => Some("nothing happens".to_owned()),
            };
            if let Some(wrong) = said {
                panic!("{wrong}, at {step:?}, step {number} of {:?}", course.steps);
            }
            state = after;
        }
        let left: i64 = sqlx::query_scalar(AssertSqlSafe(format!(
            "SELECT count(*) FROM {}.message",
            self.outbox.schema()
        )))
        .fetch_one(&self.pool)
        .await
        .unwrap();
        assert_eq!(left, 0, "messages are left after {:?}", course.steps);
    }

    /// Plays one step.
    async fn step(
        &mut self,
        setup: &Setup,
        step: Step,
        before: &State,
        after: &State,
    ) -> Result<(), String> {
        match step {
            Step::Write(producer)
            | Step::Enqueue(producer)
            | Step::RollBack(producer)
            | Step::Commit(producer)
            | Step::Abort(producer) => {
                self.write(setup, producer, before).await;
                Ok(())
            }
            // With nothing to go by, the model's worker closes its session, and the store's goes on to
            // open another one in the same call.
            Step::Begin(worker) if after.is_idle(worker) => Ok(()),
            Step::Begin(worker) => {
                if self.hands[worker].call.is_none() {
                    self.claim(setup, worker);
                    self.expect_held(worker).await?;
                }
                if self.holds(worker) == Some(Statement::Sequence) {
                    self.onward(worker).await;
                }
                Ok(())
            }
            Step::TakeXid(worker) | Step::TakeBase(worker) => {
                // The store may have had a session where the model has none.
                if self.holds(worker) != Some(Statement::Poll) {
                    self.onward(worker).await;
                }
                Ok(())
            }
            Step::Poll(worker) | Step::Lock(worker) => self.poll(worker, after).await,
            Step::Read(worker) => self.read(worker, after).await,
            Step::Delete(worker) => {
                self.settle(worker, Outcome::Delivered);
                self.must_hold(worker, Statement::Delete).await?;
                self.pass(worker);
                self.must_hold(worker, Statement::Commit).await
            }
            Step::Settle(worker) => self.commit(worker).await,
            Step::Release(worker) => {
                self.settle(worker, Outcome::Released);
                self.must_hold(worker, Statement::Commit).await?;
                self.commit(worker).await
            }
            Step::Drop(worker) => {
                let link = self.hands[worker].link.take().unwrap();
                self.hands[worker].claim = None;
                self.gone(link).await;
                Ok(())
            }
            Step::Lose(worker) => {
                let link = self.hands[worker].link.take().unwrap();
                self.gate.cut(link);
                self.gone(link).await;
                self.fail(worker).await
            }
            Step::LoseAnswer(worker) => {
                let link = self.hands[worker].link.take().unwrap();
                self.gate.pass_and_cut(link);
                self.gone(link).await;
                self.fail(worker).await
            }
            Step::Crash => unreachable!("no setup has crashes"),
        }
    }

    async fn write(&mut self, setup: &Setup, producer: usize, before: &State) {
        let writer = &mut self.writers[producer];
        let op = setup.producers[producer][writer.at];
        writer.at += 1;
        let connection = &mut writer.connection;
        if !writer.in_transaction {
            sql(connection, "BEGIN").await;
            writer.in_transaction = true;
        }
        match op {
            Write => sql(connection, "SELECT pg_current_xact_id()").await,
            Enqueue => {
                let message = message(before.written().to_string());
                self.outbox.enqueue(connection, &message).await.unwrap();
            }
            RolledBack => {
                sql(connection, "SAVEPOINT inner_one").await;
                let message = message("rolled back".to_owned());
                self.outbox.enqueue(connection, &message).await.unwrap();
                sql(connection, "ROLLBACK TO inner_one").await;
            }
            Commit | Abort => {
                let end = if op == Commit { "COMMIT" } else { "ROLLBACK" };
                sql(connection, end).await;
                writer.in_transaction = false;
            }
        }
    }

    /// The poll, and what the store does before it comes back with nothing.
    async fn poll(&mut self, worker: usize, after: &State) -> Result<(), String> {
        loop {
            match self.onward(worker).await {
                Waits::Held(Statement::Read) if !after.is_idle(worker) => return Ok(()),
                Waits::Claimed(None) if after.is_idle(worker) => return Ok(()),
                // It looks at more lanes, or ends the poll that locked nothing.
                Waits::Held(
                    Statement::Commit
                    | Statement::Poll
                    | Statement::Sequence
                    | Statement::Xid
                    | Statement::Base,
                ) => {}
                other => return Err(format!("after the poll the store {}", other.say())),
            }
        }
    }

    async fn read(&mut self, worker: usize, after: &State) -> Result<(), String> {
        let found = self.onward(worker).await;
        match (after.published_by(worker), found) {
            (Some(expected), Waits::Claimed(Some(claim))) => {
                let expected: Vec<String> = expected.iter().map(usize::to_string).collect();
                let messages = claim.messages().iter();
                let held: Vec<String> = messages
                    .map(|claimed| {
                        let payload = claimed.message.payload().unwrap().to_vec();
                        String::from_utf8(payload).unwrap()
                    })
                    .collect();
                self.hands[worker].claim = Some(claim);
                match held == expected {
                    true => Ok(()),
                    false => Err(format!("the claim holds {held:?}, not {expected:?}")),
                }
            }
            (None, Waits::Held(Statement::Commit)) => Ok(()),
            (expected, found) => Err(format!("not {expected:?}: the store {}", found.say())),
        }
    }

    /// The commit of a settle, or of a claim that read nothing and then looks again.
    async fn commit(&mut self, worker: usize) -> Result<(), String> {
        match self.onward(worker).await {
            Waits::Settled | Waits::Held(Statement::Poll | Statement::Sequence) => Ok(()),
            other => Err(format!("after the commit the store {}", other.say())),
        }
    }

    /// A call, or the next one, has failed.
    async fn fail(&mut self, worker: usize) -> Result<(), String> {
        if self.hands[worker].claim.is_some() {
            self.settle(worker, Outcome::Delivered);
        }
        match self.returned(worker).await {
            Waits::Failed => Ok(()),
            other => Err(format!("without its connection the store {}", other.say())),
        }
    }

    fn claim(&mut self, setup: &Setup, worker: usize) {
        let store = Arc::clone(&self.stores[setup.workers[worker]]);
        let limits = limits(setup.limit);
        self.hands[worker].link = None;
        self.hands[worker].call = Some(tokio::spawn(async move {
            Answer::Claim(store.claim(&limits).await)
        }));
    }

    fn settle(&mut self, worker: usize, outcome: Outcome) {
        let claim = self.hands[worker].claim.take().unwrap();
        let outcomes = vec![outcome; claim.messages().len()];
        self.hands[worker].call = Some(tokio::spawn(async move {
            Answer::Settle(claim.settle(outcomes).await)
        }));
    }

    /// The statement of the worker that is held.
    fn holds(&self, worker: usize) -> Option<Statement> {
        let link = self.hands[worker].link?;
        let held = self.gate.held();
        held.iter()
            .find(|(number, _)| *number == link)
            .map(|(_, statement)| *statement)
    }

    fn pass(&self, worker: usize) {
        self.gate.pass(self.hands[worker].link.unwrap());
    }

    /// Lets the worker's statement pass, and waits for what comes of it.
    async fn onward(&mut self, worker: usize) -> Waits {
        self.pass(worker);
        self.waits(worker).await
    }

    /// Waits for a worker's first statement, which tells its connection.
    async fn expect_held(&mut self, worker: usize) -> Result<(), String> {
        match self.waits(worker).await {
            Waits::Held(_) => Ok(()),
            other => Err(format!("the claim {}", other.say())),
        }
    }

    async fn must_hold(&mut self, worker: usize, statement: Statement) -> Result<(), String> {
        match self.waits(worker).await {
            Waits::Held(held) if held == statement => Ok(()),
            other => Err(format!(
                "instead of {statement:?} the store {}",
                other.say()
            )),
        }
    }

    async fn waits(&mut self, worker: usize) -> Waits {
        let others: Vec<usize> = self.hands.iter().filter_map(|hand| hand.link).collect();
        let (link, gate) = (self.hands[worker].link, &self.gate);
        let held = async {
            match link {
                Some(link) => (link, gate.at(link).await),
                None => gate.other_than(&others).await,
            }
        };
        let call = self.hands[worker].call.as_mut().unwrap();
        tokio::select! {
            biased;
            answer = call => {
                self.hands[worker].call = None;
                self.take(worker, answer.unwrap())
            }
            (link, statement) = held => {
                self.hands[worker].link = Some(link);
                Waits::Held(statement)
            }
        }
    }

    /// Waits for the end of a worker's call.
    async fn returned(&mut self, worker: usize) -> Waits {
        let answer = self.hands[worker].call.take().unwrap().await.unwrap();
        self.take(worker, answer)
    }

    fn take(&mut self, worker: usize, answer: Answer) -> Waits {
        match answer {
            Answer::Claim(Ok(claim)) => {
                if claim.is_none() {
                    self.hands[worker].link = None;
                }
                Waits::Claimed(claim)
            }
            Answer::Settle(Ok(())) => {
                self.hands[worker].link = None;
                Waits::Settled
            }
            Answer::Claim(Err(_)) | Answer::Settle(Err(_)) => Waits::Failed,
        }
    }

    /// Waits until the server has ended what it did for a connection.
    async fn gone(&mut self, link: usize) {
        let pid = self.gate.pid(link);
        let query = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1";
        loop {
            let there: i64 = sqlx::query_scalar(query)
                .bind(pid)
                .fetch_one(&self.pool)
                .await
                .unwrap();
            if there == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await; // wait: the poll
        }
    }
}

impl Waits {
    fn say(&self) -> String {
        match self {
            Self::Held(statement) => format!("goes on to {statement:?}"),
            Self::Claimed(None) => "finds nothing".to_owned(),
            Self::Claimed(Some(claim)) => format!("holds {} messages", claim.messages().len()),
            Self::Settled => "has settled".to_owned(),
            Self::Failed => "has failed".to_owned(),
        }
    }
}

fn limits(messages: usize) -> ClaimLimits {
    ClaimLimits {
        messages,
        bytes: 1_000_000,
        wait: Duration::ZERO,
        hold: Duration::from_secs(60),
    }
}

fn message(payload: String) -> Message {
    Message::to("model").key("key").bytes(payload).unwrap()
}

async fn sql(connection: &mut PgConnection, statement: &'static str) {
    sqlx::raw_sql(statement).execute(connection).await.unwrap();
}
