//! A person who decides about dead messages, and cancels delayed ones, while the relays run.

use std::sync::Arc;

use outbox_core::memory::{MemoryDead, MemoryStore};
use outbox_core::{Message, Uuid};
use tokio::time::sleep;

use crate::world::{Mutant, World};

/// Looks at the dead now and then until it is calm, and replays some, discards others and leaves the rest; and
/// cancels a delayed message at times.
pub(crate) async fn decide(world: Arc<World>, store: MemoryStore) {
    let eager = world.lock().rng.u8(0..4);
    loop {
        sleep(world.moment(1500)).await;
        if world.lock().calm {
            return;
        }
        let (mut again, mut away) = (Vec::new(), Vec::new());
        for dead in store.dead() {
            match world.lock().rng.u8(0..10) {
                0..3 if eager > 0 => again.push(dead.message),
                3 if eager > 1 => away.push(dead.message.id()),
                _ => {}
            }
        }
        replay(&world, &store, &again);
        discard(&world, &store, &away);
        cancel(&world, &store);
    }
}

/// Puts dead messages back.
fn replay(world: &World, store: &MemoryStore, messages: &[Message]) {
    if messages.is_empty() {
        return;
    }
    world.trace(|| format!("replay    {}", world.names(messages.iter())));
    let ids: Vec<Uuid> = messages.iter().map(Message::id).collect();
    {
        let mut state = world.lock();
        for message in messages {
            let fate = state.fate(message);
            fate.forgiven = fate.failed;
            fate.dead = None;
            fate.replayed = true;
        }
    }
    if world.is(Mutant::ReplaysBehind) {
        store.discard(&ids);
        store.enqueue(messages);
    } else {
        store.replay(&ids);
    }
}

/// Drops dead messages for good.
fn discard(world: &World, store: &MemoryStore, ids: &[Uuid]) {
    if ids.is_empty() {
        return;
    }
    let mut state = world.lock();
    let step = state.step();
    for id in ids {
        state.fates.get_mut(id).expect("it was enqueued").discarded = Some(step);
    }
    drop(state);
    store.discard(ids);
}

/// Cancels one of the delayed messages, perhaps when it is due already.
fn cancel(world: &World, store: &MemoryStore) {
    let id = {
        let mut state = world.lock();
        let delayed = state.fates.iter().filter(|(_, fate)| {
            fate.due.is_some() && fate.committed.is_some() && fate.claimed.is_none()
        });
        let delayed: Vec<Uuid> = delayed.map(|(id, _)| *id).collect();
        match delayed.len() {
            0 => return,
            count => delayed[state.rng.usize(0..count)],
        }
    };
    let is_cancelled = match world.is(Mutant::CancelsInVain) {
        true => true,
        false => store.cancel(&[id]) == 1,
    };
    if is_cancelled {
        let mut state = world.lock();
        let fate = state.fates.get_mut(&id).expect("it was enqueued");
        fate.cancelled = true;
        let name = fate.name.clone();
        state.stats.cancelled += 1;
        drop(state);
        world.trace(|| format!("cancel    {name}"));
    }
}

/// Discards those that halt their key, so that it goes on.
pub(crate) fn discard_halting(world: &World, store: &MemoryStore) {
    let halting: Vec<Uuid> = store
        .dead()
        .iter()
        .filter(|dead: &&MemoryDead| dead.halted)
        .map(|dead| dead.message.id())
        .collect();
    discard(world, store, &halting);
}
