//! Writes transactions of a few messages each, slowly enough that they overlap.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::memory::MemoryStore;
use outbox_core::{Message, Uuid};
use tokio::time::{Instant, sleep};

use crate::world::{Fate, Mutant, World};

const KEYS: u32 = 4;
/// The longest delay, in milliseconds; some transactions stay open for longer.
const LONGEST_DELAY: u64 = 3000;

/// Writes so many transactions.
pub(crate) async fn produce(
    world: Arc<World>,
    store: MemoryStore,
    producer: u32,
    transactions: u32,
) {
    for number in 0..transactions {
        sleep(world.moment(200)).await;
        transaction(&world, &store, producer * transactions + number).await;
    }
}

async fn transaction(world: &World, store: &MemoryStore, number: u32) {
    let mut transaction = store.begin();
    let (count, slow) = {
        let mut state = world.lock();
        let slow = if state.rng.u8(0..8) == 0 { 2000 } else { 30 };
        (state.rng.u32(1..=5), slow)
    };
    let mut messages = Vec::new();
    for _ in 0..count {
        sleep(world.moment(slow)).await;
        let message = delayed(world, draw(world, number));
        match world.is(Mutant::ReadsUncommitted) {
            true => store.enqueue(std::slice::from_ref(&message)),
            false => transaction.enqueue(&message),
        }
        messages.push(message);
    }
    sleep(world.moment(slow)).await;
    if world.lock().rng.u8(0..5) == 0 {
        transaction.rollback();
        world.lock().stats.rolled_back += u64::from(count);
        world.trace(|| format!("rollback  {}", world.names(messages.iter())));
        return;
    }
    let late = commit(world, &messages);
    world.trace(|| format!("commit    {}", world.names(messages.iter())));
    match late && world.is(Mutant::ForgetsLateCommits) {
        true => transaction.rollback(),
        false => transaction.commit(),
    }
    if world.is(Mutant::ForgetsDelayed) {
        store.cancel(&messages.iter().map(Message::id).collect::<Vec<_>>());
    }
}

fn draw(world: &World, transaction: u32) -> Message {
    let mut state = world.lock();
    let id = Uuid::from_u128(state.rng.u128(..));
    let key = (state.rng.u8(0..10) > 0).then(|| format!("k{}", state.rng.u32(0..KEYS)));
    let topic = state.rng.usize(0..3);
    let message = Message::to(format!("topic{topic}")).id(id);
    let message = match &key {
        Some(key) => message.key(key),
        None => message,
    };
    let poison = state.rng.u32(0..100) < world.rates.reject;
    let enqueued = state.step();
    let number = state.fates.len();
    state.fates.insert(
        id,
        Fate {
            name: format!("{}#{number}", key.as_deref().unwrap_or("-")),
            key,
            broker: topic.min(world.brokers - 1),
            transaction,
            enqueued,
            committed: None,
            committed_at: None,
            due: None,
            claimed: None,
            cancelled: false,
            poison,
            copies: Vec::new(),
            tries: 0,
            excused: 0,
            failed: 0,
            forgiven: 0,
            delivered: None,
            dead: None,
            replayed: false,
            discarded: None,
        },
    );
    drop(state);
    message
        .tombstone()
        .expect("the message is within its limits")
}

/// Of some messages, the same with a delay.
fn delayed(world: &World, message: Message) -> Message {
    let mut state = world.lock();
    if state.rng.u8(0..4) > 0 {
        return message;
    }
    let delay = Duration::from_millis(state.rng.u64(1..=LONGEST_DELAY));
    state.fate(&message).due = Some(Instant::now() + delay);
    drop(state);
    let delay = match world.mutant {
        Some(Mutant::DeliversEarly) => delay / 2,
        Some(Mutant::ReversesDelays) => Duration::from_millis(2 * LONGEST_DELAY) - delay,
        _ => delay,
    };
    message
        .with_deliver_after(delay)
        .expect("the delay is within its limits")
}

/// Marks the messages as committed; whether something behind one of them was already taken.
fn commit(world: &World, messages: &[Message]) -> bool {
    let mut state = world.lock();
    let step = state.step();
    let taken_up_to = state
        .fates
        .values()
        .filter(|fate| !fate.copies.is_empty())
        .map(|fate| fate.enqueued)
        .max();
    let (mut late, mut delayed) = (0, 0);
    for message in messages {
        let fate = state.fate(message);
        fate.committed = Some(step);
        fate.committed_at = Some(Instant::now());
        match fate.due {
            Some(_) => delayed += 1,
            None => late += u64::from(Some(fate.enqueued) < taken_up_to),
        }
    }
    state.stats.delayed += delayed;
    state.stats.committed += messages.len() as u64;
    state.stats.late += late;
    late > 0
}
