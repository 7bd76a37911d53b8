//! What failed, and what that means for the order of a key: all of it, and pure.
//!
//! A [`Plan`] is made for the messages of one claim. It says which of them may travel together
//! ([`next_wave`](Plan::next_wave)), takes the answers of each wave ([`absorb`](Plan::absorb)) and in
//! the end gives one outcome for each message ([`conclude`](Plan::conclude)). It knows no clock, no
//! task and no store; the relay asks it and does what it says.
//!
//! | answer | outcome |
//! | --- | --- |
//! | confirmed | delivered |
//! | [`BrokerUnavailable`](PublishErrorKind::BrokerUnavailable), from any message | an outage: settled what is confirmed or dead, the rest released, nothing counted |
//! | [`TopicUnavailable`](PublishErrorKind::TopicUnavailable) | parked, not counted |
//! | [`Retryable`](PublishErrorKind::Retryable) | parked, counted; dead when the retry policy gives it up |
//! | [`Rejected`](PublishErrorKind::Rejected) | dead |
//! | none in time, and nothing of the claim confirmed | an outage |
//! | none in time, and something of the claim confirmed | as `Retryable` |
//! | none, the publisher returned or panicked | as `Retryable` |
//! | none, the relay stops | released |
//! | none, or any that came behind what was not confirmed, in a chain | as never sent |
//! | never sent | released, or behind an earlier message of its key that was parked or that halts it |
//! | never sent, since it has ended too many processes | dead |
//!
//! A dead message stays dead in an outage: it was refused before the outage or for good.
//!
//! A chain is what a batch has of one key where the publisher itself stops a key at a failure
//! ([`chains_keys`](crate::Publisher::chains_keys)). In [`OrderMode::PerKey`] the whole batch is then one wave. Behind a
//! message that is not confirmed nothing was written, or else the promise was broken; sent again are both.
//!
//! In [`OrderMode::PerKey`] a key goes on after a dead message with the next claim, not with the next
//! wave. Until the store has recorded that it is dead, it is not: if the settle is lost it is sent
//! again, may then be confirmed, and would come after messages that were enqueued after it.

use std::collections::HashMap;
use std::time::Duration;

use crate::{Claimed, Outcome, PublishError, PublishErrorKind, RetryPolicy};

/// What order the messages of one key keep, and what it costs.
///
/// Say that messages 1, 2 and 3 of a key are claimed together and that 1 fails once. Then the broker has
///
/// | mode | copies |
/// | --- | --- |
/// | [`PerKey`](Self::PerKey) | 1, 2, 3 |
/// | [`PerKeyPipelined`](Self::PerKeyPipelined) | 2, 3, 1, 2, 3 |
/// | [`Unordered`](Self::Unordered) | 2, 3, 1 |
///
/// Lost answers and crashes add repeats in every mode, and a relay that goes on publishing after its claim
/// was taken from it, because it was frozen or cut off, adds them out of place: nothing can fence a broker.
/// Messages without a key have no order in any mode.
///
/// A key has its order in each topic, as far as the broker keeps the order of what it is sent: see the
/// adapter's README. [`PerKey`](Self::PerKey) keeps it across topics too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrderMode {
    /// A message is not written before the earlier ones of its key are, or are recorded as dead: the
    /// n-th message of each key travels in the n-th wave, when those before it are confirmed. A publisher that
    /// [stops a key at a failure](crate::Publisher::chains_keys) gets the whole batch at once.
    ///
    /// Promised: the first copies of a key's messages are in the order of their enqueueing, whatever
    /// fails, so a consumer that drops repeats by id sees that order. Not promised: the place of a repeat.
    #[default]
    PerKey,
    /// The whole batch travels at once; after a failure every later message of the key is sent again
    /// after it.
    ///
    /// Promised: the last copies of a key's messages are in order once nothing fails any more, so a
    /// consumer that processes every copy ends in order, unless a claim was taken as said above. Not
    /// promised: the order of first copies. A consumer that drops repeats by id, and a broker that does
    /// (JetStream, within its duplicate window), keep the early copies of what was sent behind a failure,
    /// and need [`PerKey`](Self::PerKey).
    PerKeyPipelined,
    /// The whole batch travels at once, and each message stands for itself: none waits for another, and
    /// none is sent again because another failed. No order is promised.
    Unordered,
}

/// Whether a key goes on after one of its messages is dead.
///
/// Without meaning for a message that has no key, and in [`OrderMode::Unordered`], where no message waits
/// for another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDead {
    /// The later messages of the key go on, without the dead one. When that is replayed it arrives after
    /// those that went on meanwhile.
    #[default]
    Continue,
    /// The later messages of the key wait, those that are enqueued meanwhile too, until a person replays
    /// the dead one, which is then sent before them, or discards it.
    ///
    /// In [`OrderMode::PerKey`] none of them is sent before that. In [`OrderMode::PerKeyPipelined`] those
    /// that were in one batch with the dead one have been sent with it, and all of them are sent after the
    /// decision.
    HaltKey,
}

/// How long a message is parked when the retry policy gives it up for a failure that does not count.
/// It is not the message's fault, so it is never given up for it.
const PARK_WHEN_GIVEN_UP_UNCOUNTED: Duration = Duration::from_secs(60);

/// The rules that hold for every claim of a relay.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) order: OrderMode,
    pub(crate) on_dead: OnDead,
    /// Whether the publisher stops a key at a failure by itself.
    pub(crate) chains: bool,
    /// A message that has ended so many processes is given up and not sent.
    pub(crate) crash_limit: u32,
    pub(crate) retry: &'a dyn RetryPolicy,
}

/// How the publishing of one wave ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaveEnd {
    /// The publisher returned.
    Returned,
    /// The publisher panicked.
    Panicked,
    /// The time for the claim ran out.
    TimedOut,
    /// The relay stops.
    Stopped,
}

/// Why the broker counts as away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outage {
    pub(crate) error: PublishError,
    /// The broker said nothing at all, which one message may have caused; otherwise it or its client
    /// said that it is away.
    pub(crate) silence: bool,
}

/// What became of a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Conclusion {
    /// One for each message, in their order.
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) outage: Option<Outage>,
}

/// The course of one claim: which messages travel when, and what became of them.
pub(crate) struct Plan<'a> {
    rules: Rules<'a>,
    claimed: &'a [Claimed],
    /// For each message, the one before it in its key.
    previous: Vec<Option<usize>>,
    /// For each message, whether it is the last of its key; empty where nothing is chained.
    last: Vec<bool>,
    /// What is to be sent, wave by wave, the next one last.
    waves: Vec<Vec<usize>>,
    /// For each message, what became of it by itself; `None`: not sent.
    own: Vec<Option<Outcome>>,
    confirmed: bool,
    outage: Option<Outage>,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(rules: Rules<'a>, claimed: &'a [Claimed]) -> Self {
        let previous = match rules.order {
            OrderMode::PerKey | OrderMode::PerKeyPipelined => previous_of_key(claimed),
            OrderMode::Unordered => vec![None; claimed.len()],
        };
        let chains = rules.chains && rules.order == OrderMode::PerKey;
        let mut waves = match rules.order {
            OrderMode::PerKey if !chains => waves(&previous),
            OrderMode::PerKey | OrderMode::PerKeyPipelined | OrderMode::Unordered => {
                vec![(0..claimed.len()).collect()]
            }
        };
        let mut last = vec![true; if chains { claimed.len() } else { 0 }];
        if chains {
            for previous in previous.iter().flatten() {
                last[*previous] = false;
            }
        }
        waves.reverse();
        let mut plan = Self {
            rules,
            claimed,
            previous,
            last,
            waves,
            own: vec![None; claimed.len()],
            confirmed: false,
            outage: None,
        };
        for (index, claimed) in claimed.iter().enumerate() {
            if claimed.crashes >= rules.crash_limit {
                let reason = format!(
                    "the relay's process ended {} times in a row while it delivered this message alone",
                    claimed.crashes
                );
                plan.own[index] = Some(plan.dead(PublishError::rejected(reason)));
            }
        }
        plan
    }

    /// The messages, by their place in the claim and in ascending order, that are sent next; `None`:
    /// there are no more. The answers to one wave are absorbed before the next one is asked for.
    pub(crate) fn next_wave(&mut self) -> Option<Vec<usize>> {
        let mut wave = self.waves.pop()?;
        wave.retain(|&index| self.own[index].is_none());
        if self.chains() {
            let mut travels = vec![false; self.claimed.len()];
            wave.retain(|&index| {
                travels[index] = self.previous[index].is_none_or(|previous| travels[previous]);
                travels[index]
            });
        } else if self.rules.order == OrderMode::PerKey {
            wave.retain(|&index| self.is_reached(index));
        }
        // In a wave after one that nothing may travel in there is nothing either.
        (!wave.is_empty()).then_some(wave)
    }

    fn chains(&self) -> bool {
        !self.last.is_empty()
    }

    /// Whether a message travels together with others of its key.
    pub(crate) fn is_chained(&self, index: usize) -> bool {
        self.chains() && !(self.previous[index].is_none() && self.last[index])
    }

    /// Whether a message travels together with one before it in its key: then it may be that it was not
    /// sent, and to have no answer means nothing.
    pub(crate) fn is_behind(&self, index: usize) -> bool {
        self.chains() && self.previous[index].is_some()
    }

    /// Takes the answers to `wave`, one for each of its messages and `None` where there was none,
    /// and how its publishing ended.
    pub(crate) fn absorb(
        &mut self,
        wave: &[usize],
        answers: impl IntoIterator<Item = Option<Result<(), PublishError>>>,
        end: WaveEnd,
    ) {
        let answers: Vec<_> = answers.into_iter().collect();
        debug_assert_eq!(wave.len(), answers.len());
        self.confirmed |= answers.iter().any(|answer| matches!(answer, Some(Ok(()))));
        self.outage = self.outage_in(wave, &answers, end);
        if self.outage.is_some() || matches!(end, WaveEnd::TimedOut | WaveEnd::Stopped) {
            self.waves.clear();
        }
        for (&index, answer) in wave.iter().zip(answers) {
            if self.is_behind(index) && (answer.is_none() || !self.is_reached(index)) {
                continue;
            }
            self.own[index] = Some(match (answer, end) {
                (Some(Ok(())), _) => Outcome::Delivered,
                (Some(Err(error)), _) => self.failed(index, error),
                (None, WaveEnd::Stopped) => Outcome::Released,
                (None, WaveEnd::TimedOut) => self.failed(
                    index,
                    PublishError::retryable("the broker did not answer within the publish timeout"),
                ),
                (None, WaveEnd::Returned) => self.failed(
                    index,
                    PublishError::retryable("the publisher returned without an answer"),
                ),
                (None, WaveEnd::Panicked) => {
                    self.failed(index, PublishError::retryable("the publisher panicked"))
                }
            });
        }
    }

    /// One outcome for each message, and whether the broker is away.
    pub(crate) fn conclude(self) -> Conclusion {
        let outage = self.outage.is_some();
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(self.own.len());
        for (own, previous) in self.own.into_iter().zip(self.previous) {
            let outcome = match previous.map(|previous| &outcomes[previous]) {
                Some(Outcome::Park { .. } | Outcome::Behind | Outcome::Dead { halt: true, .. }) => {
                    Outcome::Behind
                }
                Some(Outcome::Released) => Outcome::Released,
                Some(Outcome::Delivered | Outcome::Dead { halt: false, .. }) | None => match own {
                    Some(Outcome::Park { .. }) if outage => Outcome::Released,
                    Some(own) => own,
                    None => Outcome::Released,
                },
            };
            outcomes.push(outcome);
        }
        Conclusion {
            outcomes,
            outage: self.outage,
        }
    }

    /// Whether the one before it in its key is confirmed.
    fn is_reached(&self, index: usize) -> bool {
        self.previous[index].is_none_or(|previous| self.own[previous] == Some(Outcome::Delivered))
    }

    fn outage_in(
        &self,
        wave: &[usize],
        answers: &[Option<Result<(), PublishError>>],
        end: WaveEnd,
    ) -> Option<Outage> {
        let said = answers.iter().find_map(|answer| match answer {
            Some(Err(error)) if error.kind() == PublishErrorKind::BrokerUnavailable => Some(error),
            _ => None,
        });
        if let Some(error) = said {
            return Some(Outage {
                error: error.clone(),
                silence: false,
            });
        }
        let mut answers = wave.iter().zip(answers);
        let silent = end == WaveEnd::TimedOut
            && answers.any(|(&index, answer)| answer.is_none() && !self.is_behind(index));
        (silent && !self.confirmed).then(|| Outage {
            error: PublishError::broker_unavailable(
                "the broker answered nothing within the publish timeout",
            ),
            silence: true,
        })
    }

    /// What a failure means for the message itself.
    fn failed(&self, index: usize, error: PublishError) -> Outcome {
        let counted = match error.kind() {
            PublishErrorKind::Rejected => return self.dead(error),
            _ if self.outage.is_some() => return Outcome::Released,
            PublishErrorKind::Retryable => true,
            PublishErrorKind::TopicUnavailable | PublishErrorKind::BrokerUnavailable => false,
        };
        match self.rules.retry.retry_after(&self.claimed[index], &error) {
            None if counted => self.dead(error),
            after => Outcome::Park {
                after: after.unwrap_or(PARK_WHEN_GIVEN_UP_UNCOUNTED),
                counted,
                error,
            },
        }
    }

    fn dead(&self, error: PublishError) -> Outcome {
        Outcome::Dead {
            error,
            halt: self.rules.on_dead == OnDead::HaltKey && self.rules.order != OrderMode::Unordered,
        }
    }
}

/// For each message, the one before it in its key. A message without a key follows none.
fn previous_of_key(claimed: &[Claimed]) -> Vec<Option<usize>> {
    let mut last = HashMap::with_capacity(claimed.len());
    claimed
        .iter()
        .enumerate()
        .map(|(index, claimed)| last.insert(claimed.message.key()?, index))
        .collect()
}

/// The n-th message of each key in the n-th wave.
fn waves(previous: &[Option<usize>]) -> Vec<Vec<usize>> {
    let mut waves: Vec<Vec<usize>> = Vec::new();
    let mut number_of: Vec<usize> = Vec::with_capacity(previous.len());
    for (index, previous) in previous.iter().enumerate() {
        let number = previous.map_or(0, |previous| number_of[previous] + 1);
        number_of.push(number);
        if number == waves.len() {
            waves.push(Vec::new());
        }
        waves[number].push(index);
    }
    waves
}

#[cfg(test)]
mod tests;
