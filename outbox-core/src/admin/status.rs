//! How an outbox stands, at one moment.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use crate::admin::PausedTopic;

/// A number of rows, and how far it can be trusted: really counting a large table is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// So many.
    Exact(u64),
    /// So many, where counting stopped, or more.
    AtLeast(u64),
    /// About so many, as the server's statistics say.
    About(u64),
}

impl Count {
    /// The number alone.
    pub const fn number(self) -> u64 {
        match self {
            Self::Exact(number) | Self::AtLeast(number) | Self::About(number) => number,
        }
    }

    /// Of rows that were counted until there were more than `bound`.
    pub const fn up_to(bound: u64, counted: u64) -> Self {
        if counted > bound {
            Self::AtLeast(bound)
        } else {
            Self::Exact(counted)
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(number) => f.pad(&number.to_string()),
            Self::AtLeast(number) => f.pad(&format!("{number}+")),
            Self::About(number) => f.pad(&format!("~{number}")),
        }
    }
}

/// How an outbox stands. Everything in it was read in one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The database's clock.
    pub now: SystemTime,
    /// Messages that were never set aside.
    pub waiting: Count,
    /// Messages that were set aside, due or not.
    pub parked: Count,
    /// Messages that were given up.
    pub dead: Count,
    /// Messages that were enqueued with a delay, and did not become due yet.
    pub delayed: Count,
    /// Keys that are held up behind a message that was set aside. A message without a key is one.
    pub held_keys: Count,
    /// Those of them that wait for a decision about a dead message.
    pub halted_keys: Count,
    /// When the oldest of the waiting was enqueued; `None`: none waits, or it was not found within a
    /// second (then [`complete`](Self::complete) is `false`).
    pub oldest_waiting: Option<SystemTime>,
    /// Since when the key is held up that has been for the longest time; where `held_keys` is not exact,
    /// of some of them.
    pub oldest_held: Option<SystemTime>,
    /// When the next key is due; `None`: none will be, or it was not found within a second.
    pub next_due: Option<SystemTime>,
    /// When the next delayed message is due; `None`: none is delayed, or it was not found within a second.
    pub next_delayed: Option<SystemTime>,
    /// Whether everything was found in time.
    pub complete: bool,
    /// How the messages spread over topics, those with the most messages first. Of a place whose count
    /// is not exact, estimated from a sample.
    pub topics: Vec<TopicCounts>,
    /// Whether there are more topics, which are not in the list.
    pub more_topics: bool,
    /// The topics that a person has stopped.
    pub paused: Vec<PausedTopic>,
    /// What went in and out so far, where the store keeps count.
    pub traffic: Option<Traffic>,
    /// The lanes, where the store shows them.
    pub lanes: Vec<Lane>,
    /// The relays that are connected, where the store shows them; `Some` and empty: nothing will be
    /// delivered until one is started.
    pub relays: Option<Vec<RelaySeen>>,
}

/// The few numbers that a monitor watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauges {
    /// Messages that were never set aside.
    pub waiting: Count,
    /// Messages that were set aside, due or not.
    pub parked: Count,
    /// Messages that were given up.
    pub dead: Count,
    /// Messages that were enqueued with a delay, and did not become due yet.
    pub delayed: Count,
    /// Keys that are held up behind a message that was set aside. A message without a key is one.
    pub held_keys: Count,
    /// Those of them that wait for a decision about a dead message.
    pub halted_keys: Count,
    /// How long the oldest of the waiting messages has waited; `None`: none waits, or it was not found
    /// in time (then [`complete`](Self::complete) is `false`).
    pub oldest_waiting: Option<Duration>,
    /// How long the key is held up that has been for the longest time; where `held_keys` is not exact, of
    /// some of them.
    pub oldest_held: Option<Duration>,
    /// Lanes that a claim holds, where the store shows them.
    pub lanes_held: Option<u64>,
    /// Positions between the lowest floor and the newest message, where the store has floors.
    pub floor_lag: Option<u64>,
    /// Entries in the list of paused topics.
    pub paused_topics: u64,
    /// Whether everything was found in time.
    pub complete: bool,
}

/// How many messages of a topic are where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicCounts {
    /// The topic.
    pub topic: String,
    /// Messages that were never set aside.
    pub waiting: u64,
    /// Messages that were set aside.
    pub parked: u64,
    /// Messages that were given up.
    pub dead: u64,
}

impl TopicCounts {
    /// For stores: the [`topics`](Status::topics) of a status, of how many messages of each topic are waiting,
    /// parked and dead, where each of these was asked for at most `most` topics. The list has no more of
    /// them either; the second value is whether there are more.
    pub fn list(places: [Vec<(String, u64)>; 3], most: usize) -> (Vec<Self>, bool) {
        let mut by_topic: BTreeMap<String, [u64; 3]> = BTreeMap::new();
        let mut more = false;
        for (place, counts) in places.into_iter().enumerate() {
            more |= counts.len() >= most;
            for (topic, number) in counts {
                by_topic.entry(topic).or_default()[place] += number;
            }
        }
        more |= by_topic.len() > most;
        let counts = by_topic.into_iter();
        let mut topics: Vec<Self> = counts
            .map(|(topic, [waiting, parked, dead])| Self {
                topic,
                waiting,
                parked,
                dead,
            })
            .collect();
        // Those with as many stay in the order of their names.
        topics.sort_by_key(|counts| Reverse(counts.waiting + counts.parked + counts.dead));
        topics.truncate(most);
        (topics, more)
    }
}

/// What went in and out of the waiting messages since the server's statistics were last reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Messages that were enqueued, those of transactions among them that were rolled back.
    pub enqueued: u64,
    /// Messages that were delivered, set aside or given up.
    pub removed: u64,
}

/// One lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Its number.
    pub lane: u16,
    /// Nothing is left at or below this position, as it was last written down.
    pub floor: i64,
    /// How many positions were drawn since, in all lanes: what the first look after a start goes over.
    pub floor_lag: u64,
    /// Who holds it.
    pub held: Option<HeldLane>,
}

/// The claim that holds a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLane {
    /// The process of the server that serves it.
    pub pid: i32,
    /// The name that the client gave itself.
    pub application: String,
    /// The client's address, where the asking role may see it.
    pub address: Option<String>,
    /// Since when, where the asking role may see it.
    pub since: Option<SystemTime>,
}

/// What is seen of a relay: the connections of one name from one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelaySeen {
    /// The name that it gave itself.
    pub application: String,
    /// The database role that it uses.
    pub role: String,
    /// Its address, where the asking role may see it.
    pub address: Option<String>,
    /// How many connections it has.
    pub connections: u32,
    /// Since when the oldest of them is there, where the asking role may see it.
    pub since: Option<SystemTime>,
}

impl Status {
    /// How fast messages went in and out, in messages a second, since an `earlier` status. `None` where
    /// that is not known, or the statistics were reset meanwhile.
    pub fn rates_since(&self, earlier: &Self) -> Option<(f64, f64)> {
        let (new, old) = (self.traffic?, earlier.traffic?);
        let seconds = self.now.duration_since(earlier.now).ok()?.as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let rate = |new: u64, old: u64| Some(new.checked_sub(old)? as f64 / seconds);
        Some((
            rate(new.enqueued, old.enqueued)?,
            rate(new.removed, old.removed)?,
        ))
    }

    /// How long the oldest of the waiting messages has waited.
    pub fn oldest_waiting_age(&self) -> Option<Duration> {
        self.age(self.oldest_waiting?)
    }

    /// How long the key is held up that has been for the longest time.
    pub fn oldest_held_age(&self) -> Option<Duration> {
        self.age(self.oldest_held?)
    }

    /// Zero for what lies in the future: a transaction may end after this snapshot began.
    fn age(&self, since: SystemTime) -> Option<Duration> {
        Some(self.now.duration_since(since).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(seconds: u64, traffic: Option<Traffic>) -> Status {
        Status {
            now: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
            waiting: Count::Exact(0),
            parked: Count::Exact(0),
            dead: Count::Exact(0),
            delayed: Count::Exact(0),
            held_keys: Count::Exact(0),
            halted_keys: Count::Exact(0),
            oldest_waiting: None,
            oldest_held: None,
            next_due: None,
            next_delayed: None,
            topics: Vec::new(),
            complete: true,
            more_topics: false,
            paused: Vec::new(),
            traffic,
            lanes: Vec::new(),
            relays: None,
        }
    }

    #[test]
    fn rates_are_those_of_the_time_between() {
        let traffic = |enqueued, removed| Some(Traffic { enqueued, removed });
        let earlier = status(100, traffic(1_000, 500));
        let rates = |later: Status| later.rates_since(&earlier);
        assert_eq!(rates(status(110, traffic(1_100, 700))), Some((10.0, 20.0)));
        assert_eq!(rates(status(110, traffic(0, 0))), None, "reset");
        assert_eq!(rates(status(100, traffic(1_000, 500))), None, "no time");
        assert_eq!(rates(status(90, traffic(1_000, 500))), None, "back");
        assert_eq!(rates(status(110, None)), None);
    }

    #[test]
    fn topics_are_listed_by_their_messages() {
        let counts = |all: &[(&str, u64)]| -> Vec<(String, u64)> {
            all.iter()
                .map(|&(topic, n)| (topic.to_owned(), n))
                .collect()
        };
        let places = || {
            [
                counts(&[("b", 1), ("a", 1)]),
                counts(&[("c", 2)]),
                counts(&[("a", 4), ("d", 1)]),
            ]
        };
        let (topics, more) = TopicCounts::list(places(), 5);
        let names: Vec<&str> = topics.iter().map(|it| it.topic.as_str()).collect();
        assert_eq!((names.as_slice(), more), (&["a", "c", "b", "d"][..], false));
        let first = &topics[0];
        assert_eq!((first.waiting, first.parked, first.dead), (1, 0, 4));
        // Three of four; and as many as could be asked for, behind which there may be another.
        assert!(TopicCounts::list(places(), 3).1);
        assert_eq!(TopicCounts::list(places(), 3).0, topics[..3]);
        let full = [counts(&[("a", 1), ("b", 1)]), vec![], vec![]];
        assert!(TopicCounts::list(full, 2).1);
    }

    #[test]
    fn counts_say_what_they_are() {
        let shown = |count: Count| count.to_string();
        assert_eq!(shown(Count::up_to(10, 10)), "10");
        assert_eq!(shown(Count::up_to(10, 11)), "10+");
        assert_eq!(shown(Count::About(7)), "~7");
        assert_eq!(format!("{:>5}", Count::Exact(7)), "    7");
    }
}
