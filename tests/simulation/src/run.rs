//! The course of one run: faults, then calm, then the check.

use std::sync::{Arc, Once};
use std::time::Duration;

use outbox_core::memory::{MemoryCounts, MemoryStore};
use outbox_core::{BrokerLimits, ExponentialBackoff, OnDead, OrderMode, Publisher, Relay, Router};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::broker::{SIMULATED_PANIC, SimPublisher};
use crate::check::{Violation, check};
use crate::person::{decide, discard_halting};
use crate::point::{Life, Script};
use crate::producer::produce;
use crate::store::SimStore;
use crate::world::{Mutant, Stats, World};

const PRODUCERS: u32 = 3;
const TRANSACTIONS: u32 = 12;
const RELAYS: u64 = 2;
const WORKERS: usize = 3;
/// A scripted run is so small that each of its points can be tried.
const SCRIPTED_PRODUCERS: u32 = 2;
const SCRIPTED_TRANSACTIONS: u32 = 2;
const PUBLISH_TIMEOUT: Duration = Duration::from_millis(400);
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
const BACKOFF_LONGEST: Duration = Duration::from_millis(300);
const STOP_GRACE: Duration = Duration::from_millis(200);
const SETTLE_TIMEOUT: Duration = Duration::from_millis(300);
/// In calm everything that is left is delivered within this time.
const CALM: Duration = Duration::from_secs(120);

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Where everything random comes from.
    pub seed: u64,
    /// The mode of the relays.
    pub order: OrderMode,
    /// Whether the publisher stops a key at a failure by itself, and so gets whole batches.
    pub chains: bool,
    /// The mode whose promise is checked.
    pub promise: OrderMode,
    /// What the relays do after a dead message; `None`: drawn from the seed.
    pub on_dead: Option<OnDead>,
    /// A mistake to put into the world.
    pub mutant: Option<Mutant>,
    /// All that goes wrong, in a small world; `None`: what goes wrong is drawn from the seed.
    pub script: Option<Script>,
    /// Whether to keep a trace.
    pub trace: bool,
}

impl Setup {
    /// Relays in a mode, held to its promise.
    pub fn new(seed: u64, order: OrderMode) -> Self {
        Self {
            seed,
            order,
            chains: false,
            promise: order,
            on_dead: None,
            mutant: None,
            script: None,
            trace: false,
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Report {
    /// The promises that were broken.
    pub violations: Vec<Violation>,
    /// What happened, in numbers.
    pub stats: Stats,
    /// How many points its calls reached.
    pub points: u64,
    /// What happened, line by line, if that was asked for.
    pub trace: Vec<String>,
}

/// Runs one seed. Takes no longer than the processor needs: time is simulated.
pub fn run(setup: Setup) -> Report {
    silence_simulated_panics();
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O can be built");
    runtime.block_on(simulate(setup))
}

async fn simulate(setup: Setup) -> Report {
    let world = World::new(&setup);
    let store = MemoryStore::new();
    let (producers, transactions) = match setup.script {
        Some(_) => (SCRIPTED_PRODUCERS, SCRIPTED_TRANSACTIONS),
        None => (PRODUCERS, TRANSACTIONS),
    };
    let producers: Vec<JoinHandle<()>> = (0..producers)
        .map(|number| {
            let produce = produce(Arc::clone(&world), store.clone(), number, transactions);
            tokio::spawn(produce)
        })
        .collect();
    let person = tokio::spawn(decide(Arc::clone(&world), store.clone()));
    let operators: Vec<JoinHandle<()>> = (0..RELAYS)
        .map(|number| {
            let operator = Operator {
                world: Arc::clone(&world),
                store: store.clone(),
                order: setup.order,
                number,
            };
            tokio::spawn(operator.run())
        })
        .collect();
    for producer in producers {
        producer.await.expect("a producer does not fail");
    }
    sleep(world.moment(3000)).await;
    world.lock().calm = true;
    world.trace(|| "calm".to_owned());
    person.await.expect("a person does not fail");
    if timeout(CALM, empty(&world, &store)).await.is_err() {
        world.violation(Violation::Stuck);
    }
    world.end();
    for operator in operators {
        operator.await.expect("an operator does not fail");
    }
    check(&world, setup.promise);
    let mut state = world.lock();
    Report {
        violations: std::mem::take(&mut state.violations),
        stats: std::mem::take(&mut state.stats),
        points: state.points,
        trace: std::mem::take(&mut state.trace),
    }
}

/// Waits until nothing is left but the dead, and decides about those that halt their key.
async fn empty(world: &World, store: &MemoryStore) {
    loop {
        let MemoryCounts {
            waiting,
            parked,
            delayed,
            ..
        } = store.counts();
        if waiting == 0 && parked == 0 && delayed == 0 {
            return;
        }
        discard_halting(world, store);
        sleep(Duration::from_millis(50)).await;
    }
}

/// How a life of a relay ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Kill,
    Stop,
}

/// Keeps one relay running, and kills or stops it now and then.
struct Operator {
    world: Arc<World>,
    store: MemoryStore,
    order: OrderMode,
    number: u64,
}

impl Operator {
    async fn run(self) {
        while !self.world.has_ended() {
            let life = Arc::new(Life::default());
            let (stop, stopped) = oneshot::channel::<()>();
            let mut running = tokio::spawn(self.relay(&life).run_until(async {
                let _ = stopped.await;
            }));
            self.note("starts");
            let end = self.end_of(&life).await;
            if end == End::Stop {
                let start = Instant::now();
                drop(stop);
                let bound = STOP_GRACE + SETTLE_TIMEOUT + Duration::from_millis(10);
                let stopped = tokio::select! {
                    biased;
                    _ = &mut running => true,
                    () = life.killed() => true,
                    () = sleep(2 * bound) => false,
                };
                if !stopped || start.elapsed() > bound {
                    let millis = start.elapsed().as_millis();
                    self.world.violation(Violation::SlowStop { millis });
                }
            }
            if !running.is_finished() {
                running.abort();
                // It was aborted, which is an error to whoever waits for it.
                let _ = running.await;
            }
            self.note(match end {
                End::Kill => "was killed",
                End::Stop => "has stopped",
            });
            sleep(self.world.moment(200)).await;
        }
    }

    /// Waits until this life of the relay is to end, and says how.
    async fn end_of(&self, life: &Life) -> End {
        let world = &self.world;
        let killed = async {
            life.killed().await;
            End::Kill
        };
        let ended = async {
            world.ended().await;
            End::Stop
        };
        let drawn = async {
            loop {
                sleep(world.moment(3000)).await;
                if world.goes_wrong("relay killed", world.rates.kill) {
                    return End::Kill;
                }
                if world.goes_wrong("relay stopped", world.rates.stop) {
                    return End::Stop;
                }
            }
        };
        tokio::select! {
            biased;
            end = killed => end,
            end = ended => end,
            end = drawn => end,
        }
    }

    fn note(&self, what: &str) {
        self.world
            .trace(|| format!("relay {}   {what}", self.number));
    }

    fn relay(&self, life: &Arc<Life>) -> Relay {
        let (batch, seed) = {
            let mut state = self.world.lock();
            (state.rng.usize(1..=20), state.rng.u64(..))
        };
        let store = SimStore {
            world: Arc::clone(&self.world),
            inner: self.store.clone(),
            life: Arc::clone(life),
        };
        Relay::builder(store, self.publisher(seed, life))
            .workers(WORKERS)
            .batch_messages(batch)
            .order(self.order)
            .on_dead(self.world.on_dead)
            .retry(
                ExponentialBackoff::new(
                    Duration::from_millis(20),
                    Duration::from_millis(500),
                    self.world.max_failures,
                )
                .expect("the policy is within its limits"),
            )
            .claim_wait(Duration::from_millis(500))
            .publish_timeout(PUBLISH_TIMEOUT)
            .settle_timeout(SETTLE_TIMEOUT)
            .store_timeout(Duration::from_millis(300))
            .stop_grace(STOP_GRACE)
            .backoff_first(BACKOFF_FIRST)
            .backoff_longest(BACKOFF_LONGEST)
            .seed(seed)
            .build()
            .expect("the settings are within their limits")
    }

    /// The one broker, or all of them behind a router.
    fn publisher(&self, seed: u64, life: &Arc<Life>) -> Box<dyn Publisher> {
        let of = |broker| SimPublisher {
            world: Arc::clone(&self.world),
            broker,
            life: Arc::clone(life),
        };
        let brokers = self.world.brokers;
        if brokers == 1 {
            return Box::new(of(0));
        }
        let limits = BrokerLimits::new()
            .call_timeout(PUBLISH_TIMEOUT / 2 - Duration::from_millis(20))
            .backoff_first(BACKOFF_FIRST)
            .backoff_longest(BACKOFF_LONGEST);
        let last = brokers - 1;
        let mut router = Router::builder();
        for broker in 0..brokers {
            router = router.broker_with(format!("broker{broker}"), of(broker), limits.clone());
        }
        for topic in 0..last {
            router = router.route(format!("topic{topic}"), format!("broker{topic}"));
        }
        let router = router
            .route("topic*", format!("broker{last}"))
            .seed(seed)
            .build();
        Box::new(router.expect("the router is within its limits"))
    }
}

/// The panics of a run are part of it, and a thousand runs have many.
fn silence_simulated_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let simulated = info
                .payload()
                .downcast_ref::<String>()
                .is_some_and(|text| text == SIMULATED_PANIC)
                || info.payload().downcast_ref::<&str>() == Some(&SIMULATED_PANIC);
            if !simulated {
                hook(info);
            }
        }));
    });
}
