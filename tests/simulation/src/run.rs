//! The course of one run: faults, then calm, then the check.

use std::sync::{Arc, Once};
use std::time::Duration;

use outbox_core::memory::{MemoryCounts, MemoryStore};
use outbox_core::{
    BrokerLimits, ExponentialBackoff, OnDead, OrderMode, Publisher, Relay, Router, Uuid,
};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::broker::{SIMULATED_PANIC, SimPublisher};
use crate::check::{Violation, check};
use crate::producer::produce;
use crate::store::SimStore;
use crate::world::{Mutant, Stats, World};

const PRODUCERS: u32 = 3;
const RELAYS: u64 = 2;
const WORKERS: usize = 3;
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
    let world = World::new(
        setup.seed,
        setup.chains,
        setup.on_dead,
        setup.mutant,
        setup.trace,
    );
    let store = MemoryStore::new();
    let producers: Vec<JoinHandle<()>> = (0..PRODUCERS)
        .map(|number| tokio::spawn(produce(Arc::clone(&world), store.clone(), number)))
        .collect();
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
        trace: std::mem::take(&mut state.trace),
    }
}

/// Waits until nothing is left but the dead, and decides about those that halt their key.
async fn empty(world: &World, store: &MemoryStore) {
    loop {
        let MemoryCounts {
            waiting, parked, ..
        } = store.counts();
        if waiting == 0 && parked == 0 {
            return;
        }
        let halting: Vec<Uuid> = store
            .dead()
            .iter()
            .filter(|dead| dead.halted)
            .map(|dead| dead.message.id())
            .collect();
        if !halting.is_empty() {
            let mut state = world.lock();
            let step = state.step();
            for id in &halting {
                state.fates.get_mut(id).expect("it was enqueued").decided = Some(step);
            }
            drop(state);
            store.discard(&halting);
        }
        sleep(Duration::from_millis(50)).await;
    }
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
            let (stop, stopped) = oneshot::channel::<()>();
            let mut running = tokio::spawn(self.relay().run_until(async {
                let _ = stopped.await;
            }));
            self.note("starts");
            let life = self.world.moment(3000);
            let over = timeout(life, self.world.ended()).await.is_ok();
            if !over && self.world.goes_wrong("relay killed", self.world.rates.kill) {
                running.abort();
                // It was aborted, which is an error to whoever waits for it.
                let _ = running.await;
                self.note("was killed");
            } else if over
                || self
                    .world
                    .goes_wrong("relay stopped", self.world.rates.stop)
            {
                let start = Instant::now();
                drop(stop);
                let bound = STOP_GRACE + SETTLE_TIMEOUT + Duration::from_millis(10);
                if timeout(2 * bound, &mut running).await.is_err() || start.elapsed() > bound {
                    let millis = start.elapsed().as_millis();
                    self.world.violation(Violation::SlowStop { millis });
                    running.abort();
                }
                self.note("has stopped");
            } else {
                running.abort();
                let _ = running.await;
            }
            sleep(self.world.moment(200)).await;
        }
    }

    fn note(&self, what: &str) {
        self.world
            .trace(|| format!("relay {}   {what}", self.number));
    }

    fn relay(&self) -> Relay {
        let (batch, seed) = {
            let mut state = self.world.lock();
            (state.rng.usize(1..=20), state.rng.u64(..))
        };
        let store = SimStore {
            world: Arc::clone(&self.world),
            inner: self.store.clone(),
        };
        Relay::builder(store, self.publisher(seed))
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

    /// The one broker, or both of them behind a router.
    fn publisher(&self, seed: u64) -> Box<dyn Publisher> {
        let of = |broker| SimPublisher {
            world: Arc::clone(&self.world),
            broker,
        };
        if self.world.brokers == 1 {
            return Box::new(of(0));
        }
        let limits = BrokerLimits::new()
            .call_timeout(PUBLISH_TIMEOUT / 2 - Duration::from_millis(20))
            .backoff_first(BACKOFF_FIRST)
            .backoff_longest(BACKOFF_LONGEST);
        let router = Router::builder()
            .broker_with("first", of(0), limits.clone())
            .broker_with("others", of(1), limits)
            .route("topic0", "first")
            .route("topic*", "others")
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
