//! What a publisher that chains remembers during one call: the keys that have come to a stop, or what is left
//! of each.
//!
//! Not here: the promise itself, which is at [`Publisher::chains_keys`](crate::Publisher::chains_keys), and
//! what the relay makes of it, which is in `order.rs`.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::Delivery;

/// The keys of one call of a publisher of which nothing more may be written.
///
/// ```
/// use outbox_core::{Answer, Delivery, Message, PublishError, StoppedKeys};
///
/// # fn main() -> Result<(), outbox_core::InvalidMessage> {
/// let answers = [Answer::new(), Answer::new()];
/// let messages = [Message::to("t").key(7).json(&1)?, Message::to("t").key(7).json(&2)?];
/// let first = Delivery::new(&messages[0], &answers[0]).chained();
/// let second = Delivery::new(&messages[1], &answers[1]).chained();
///
/// let mut stopped = StoppedKeys::new();
/// assert!(!stopped.has(&first));
/// first.report(Err(PublishError::retryable("not now")));
/// stopped.stop(&first);
/// assert!(stopped.has(&second));
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
pub struct StoppedKeys<'a>(HashSet<&'a str>);

impl<'a> StoppedKeys<'a> {
    /// None so far.
    pub fn new() -> Self {
        Self::default()
    }

    /// This delivery is not written, or it is not known whether it is: nothing behind it in its chain may
    /// be. One that is in no chain stops nothing.
    pub fn stop(&mut self, delivery: &Delivery<'a>) {
        if delivery.is_chained() {
            self.0.extend(delivery.message().key());
        }
    }

    /// Whether this delivery is behind one that has stopped its key. It is then neither sent nor
    /// answered.
    pub fn has(&self, delivery: &Delivery<'_>) -> bool {
        !self.0.is_empty()
            && delivery.is_chained()
            && delivery
                .message()
                .key()
                .is_some_and(|key| self.0.contains(key))
    }
}

/// What is left of the chains of one call, for a publisher that learns of some messages before it sends the next.
///
/// ```
/// use outbox_core::{Answer, Chains, Delivery, Message};
///
/// # fn main() -> Result<(), outbox_core::InvalidMessage> {
/// let answers = [Answer::new(), Answer::new()];
/// let messages = [Message::to("t").key(7).json(&1)?, Message::to("t").key(7).json(&2)?];
/// let deliveries: Vec<Delivery> = messages
///     .iter()
///     .zip(&answers)
///     .map(|(message, answer)| Delivery::new(message, answer).chained())
///     .collect();
///
/// let (mut chains, unchained) = Chains::part(&deliveries);
/// assert!(unchained.is_empty());
/// chains.first_of_each()[0].report(Ok(()));
/// chains.advance();
/// assert_eq!(chains.first_of_each()[0].message().id(), messages[1].id());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Chains<'a>(Vec<VecDeque<Delivery<'a>>>);

impl<'a> Chains<'a> {
    /// Parts a batch into its chains and what is in none.
    pub fn part(batch: &[Delivery<'a>]) -> (Self, Vec<Delivery<'a>>) {
        let mut places = HashMap::new();
        let mut chains: Vec<VecDeque<Delivery<'a>>> = Vec::new();
        let mut unchained = Vec::new();
        for delivery in batch {
            if !delivery.is_chained() {
                unchained.push(*delivery);
                continue;
            }
            let place = *places.entry(delivery.message().key()).or_insert_with(|| {
                chains.push(VecDeque::new());
                chains.len() - 1
            });
            chains[place].push_back(*delivery);
        }
        (Self(chains), unchained)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each chain that is left, in its order.
    pub fn iter(&self) -> impl Iterator<Item = impl Iterator<Item = Delivery<'a>>> {
        self.0.iter().map(|chain| chain.iter().copied())
    }

    /// The first message of each chain that is left. Published together, without any other, they cannot pass
    /// anything of their keys.
    pub fn first_of_each(&self) -> Vec<Delivery<'a>> {
        self.0.iter().filter_map(VecDeque::front).copied().collect()
    }

    /// Takes in what was reported: what is confirmed is no longer there, and a chain ends at an error. What is
    /// behind that gets no answer.
    pub fn advance(&mut self) {
        self.0.retain_mut(|chain| {
            while let Some(answer) = chain.front().and_then(Delivery::answer) {
                match answer {
                    Ok(()) => drop(chain.pop_front()),
                    Err(_) => chain.clear(),
                }
            }
            !chain.is_empty()
        });
    }

    /// [`advance`](Self::advance) after the first message of each chain was to be answered: a chain of which it was not
    /// ends too.
    pub fn advance_or_end(&mut self) {
        self.0
            .retain(|chain| chain.front().and_then(Delivery::answer).is_some());
        self.advance();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Message, PublishError};

    fn ids(chains: &Chains<'_>) -> Vec<Vec<String>> {
        let payload = |it: Delivery<'_>| {
            let payload = it.message().payload().cloned().unwrap_or_default();
            String::from_utf8_lossy(&payload).into_owned()
        };
        chains.iter().map(|it| it.map(payload).collect()).collect()
    }

    #[test]
    fn a_chain_goes_on_behind_what_is_confirmed_and_ends_at_an_error_or_at_silence() {
        let messages = ["a1", "b1", "a2", "c1", "b2", "a3", "c2", "d1"].map(|text| {
            let key = text.split_at(1).0;
            Message::to("t").key(key).bytes(text).expect("valid")
        });
        let answers: [Answer; 8] = std::array::from_fn(|_| Answer::new());
        let deliveries: Vec<Delivery<'_>> = messages
            .iter()
            .zip(&answers)
            .enumerate()
            .map(|(number, (message, answer))| {
                let delivery = Delivery::new(message, answer);
                match number {
                    7 => delivery,
                    _ => delivery.chained(),
                }
            })
            .collect();
        let (mut chains, unchained) = Chains::part(&deliveries);
        assert_eq!(unchained.len(), 1);
        assert_eq!(unchained[0].message().id(), messages[7].id());
        assert_eq!(
            ids(&chains),
            [vec!["a1", "a2", "a3"], vec!["b1", "b2"], vec!["c1", "c2"]]
        );
        // Behind a message without an answer, one that has one changes nothing.
        for confirmed in [0, 5, 6] {
            deliveries[confirmed].report(Ok(()));
        }
        deliveries[1].report(Err(PublishError::rejected("no")));
        chains.advance();
        assert_eq!(ids(&chains), [vec!["a2", "a3"], vec!["c1", "c2"]]);
        let first: Vec<_> = chains.first_of_each();
        assert_eq!(first.len(), 2);
        first[0].report(Ok(()));
        chains.advance_or_end();
        assert!(chains.is_empty());
        assert!(answers[4].get().is_none());
    }
}
